"""The bucket with the lowest accuracy, which a mean over buckets hides.

Source: the worst-group accuracy of Sagawa et al., Distributionally Robust Neural Networks for Group
Shifts, ICLR 2020, arXiv:1911.08731, with buckets as the groups, at the end and over the run.
"""

from __future__ import annotations

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import level, select_last_row, select_trained_values


def final_accuracy(matrix: AccuracyMatrix) -> float:
    """The worst accuracy, at the end, on a bucket trained on.

    Formula: min of R[last, j] over j <= last. Defined when k >= 1.

    >>> final_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.5
    """
    return float(select_last_row(matrix).min())


def lowest_accuracy(matrix: AccuracyMatrix) -> float:
    """The worst accuracy that the run ever had on a bucket trained on by then.

    Formula: min of R[i, j] over j <= i < k. Defined when k >= 1.

    >>> lowest_accuracy(AccuracyMatrix([[0.4, 0.1], [0.5, 0.9]]))
    0.4
    """
    return float(select_trained_values(matrix).min())


METRICS = (
    level(final_accuracy, "final_{score}"),
    level(lowest_accuracy, "{lowest}_{score}"),
)
