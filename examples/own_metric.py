"""A metric that did not exist when a run was trained: one function of the accuracy matrix.

Run it after a training, ``python examples/own_metric.py``, to see it on the runs that are stored;
``clear-mlflow evaluate NAME --metrics examples.own_metric:worst_learned``, from the
project's folder, logs it into them, with a value for every step.
"""

import mlflow
import numpy as np

from clear_mlflow import AccuracyMatrix
from clear_mlflow.core.errors import UndefinedMetricError


def worst_learned(matrix: AccuracyMatrix) -> float:
    """The lowest accuracy that the run ever had on a bucket that it had trained on."""
    learned = matrix.values[np.tri(*matrix.values.shape, dtype=bool)]
    if learned.size == 0 or np.isnan(learned).any():
        raise UndefinedMetricError("needs all cells of the buckets trained on")
    return float(learned.min())


def main() -> None:
    """Print the metric of all complete runs."""
    from clear_mlflow.store.matrices import read_matrices

    client = mlflow.MlflowClient()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.`clear_mlflow.rows` = 'complete'")
    for stored in read_matrices(client, runs):
        if stored.record is None:
            print(f"{stored.run.info.run_name:40} {stored.problem}")
        else:
            value = worst_learned(stored.record.matrix)
            print(f"{stored.run.info.run_name:40} worst learned bucket {value:.3f}")


if __name__ == "__main__":
    main()
