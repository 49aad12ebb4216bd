"""The bucket that a model knows least: what a mean over buckets hides.

Source: the worst-group accuracy of Sagawa et al., Distributionally Robust Neural Networks for Group
Shifts, ICLR 2020, arXiv:1911.08731, with buckets as the groups, at the end and over the run.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._base import LEVEL, Metric, cells_where, measured, need_trained


def final_accuracy(matrix: AccuracyMatrix) -> float:
    """The lowest accuracy, at the end, on a bucket trained on.

    Formula: min of R[last, j] over j <= last. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        Sagawa et al. 2020, worst-group accuracy, of buckets.

    >>> final_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.5
    """
    need_trained(matrix, 1, "a trained bucket")
    last = matrix.num_rows - 1
    return float(measured(matrix.values[last, : last + 1], lambda j: f"R[{last}, {j}]").min())


def lowest_accuracy(matrix: AccuracyMatrix) -> float:
    """The lowest accuracy that the run ever had on a bucket trained on by then.

    Formula: min of R[i, j] over j <= i < k. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        Sagawa et al. 2020, worst-group accuracy, of cells.

    >>> lowest_accuracy(AccuracyMatrix([[0.4, 0.1], [0.5, 0.9]]))
    0.4
    """
    need_trained(matrix, 1, "a trained bucket")
    return float(cells_where(matrix, np.tri(*matrix.values.shape, dtype=np.bool_)).min())


METRICS = (
    Metric(name="worst_bucket/final_accuracy", function=final_accuracy, takes=LEVEL),
    Metric(name="worst_bucket/lowest_accuracy", function=lowest_accuracy, takes=LEVEL),
)
