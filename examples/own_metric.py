"""A metric that did not exist when a run was trained: one function of the accuracy matrix.

Run it after a training, ``python examples/own_metric.py``, to see it on the runs that are stored;
``clear-mlflow evaluate NAME --metrics examples.own_metric:worst_learned``, from the
project's folder, logs it into them, with a value for every step.
"""

import numpy as np

import clear_mlflow
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
    for run in clear_mlflow.runs(filter="tags.`clear_mlflow.rows` = 'complete'"):
        print(f"{run.name:40} worst learned bucket {worst_learned(run.matrix):.3f}")


if __name__ == "__main__":
    main()
