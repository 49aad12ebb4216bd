"""The points of all rows of a matrix, as a run's store has them."""

from courses import series

from clear_mlflow.scoring.run_log import build_row_points


def collect_points(masked_matrix):
    points = series(masked_matrix)
    for row in range(masked_matrix.num_rows + 1):
        for point in build_row_points(masked_matrix, row, {}, time=0):
            points.setdefault(point.key, {})[row] = point.value
    return points
