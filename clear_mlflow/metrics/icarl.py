"""Average incremental accuracy: what class-incremental papers since iCaRL report of a whole run.

Source: Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017,
arXiv:1611.07725.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._base import LEVEL, Metric, cells_where, need_trained


def average_incremental_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean over rows of the mean accuracy on the buckets trained on by then.

    Formula: mean over i < k of (mean of R[i, j] over j <= i). Defined when k >= 1.

    Every bucket counts alike. iCaRL's own accuracy is of all test images of the classes seen, taken
    together: the same where every bucket has as many. Some papers leave the first row out.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        Rebuffi et al. 2017, section 4, "average incremental accuracy".

    >>> round(average_incremental_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.75
    """
    need_trained(matrix, 1, "a trained bucket")
    seen = np.tri(*matrix.values.shape, dtype=np.bool_)
    # Cell by cell and not row by row: row i has i + 1 cells, each of weight 1 / (i + 1).
    weights = np.repeat(1 / np.arange(1, matrix.num_rows + 1), np.arange(1, matrix.num_rows + 1))
    return float((cells_where(matrix, seen) * weights).sum() / matrix.num_rows)


METRICS = (
    Metric(
        name="icarl/average_incremental_accuracy",
        function=average_incremental_accuracy,
        takes=LEVEL,
    ),
)
