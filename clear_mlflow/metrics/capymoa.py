"""The metrics of CapyMOA's online continual learning that are of the matrix, under its own names.

Its anytime accuracies need tests inside of a bucket, and its test-then-train accuracy the answers
given while training: neither is in this matrix.

Source: ``capymoa.ocl.evaluation.OCLMetrics``, and what fills it (``_evaluator.py``, ``_metrics.py``
of adaptive-machine-learning/CapyMOA, 095caba).
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import clear, icarl
from clear_mlflow.metrics._base import (
    Metric,
    cells_where,
    change_on_past,
    measured,
    need_trained,
)


def accuracy_all_avg(matrix: AccuracyMatrix) -> float:
    """Mean accuracy on all buckets, future ones included, over all rows.

    Formula: mean of R[i, j] over i < k and j < T. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        CapyMOA, ``OCLMetrics.accuracy_all_avg``.

    >>> round(accuracy_all_avg(AccuracyMatrix([[0.8, 0.1], [0.5, 0.8]])), 6)
    0.55
    """
    need_trained(matrix, 1, "a trained bucket")
    return float(cells_where(matrix, np.ones(matrix.values.shape, dtype=np.bool_)).mean())


def accuracy_seen_avg(matrix: AccuracyMatrix) -> float:
    """Mean over rows of the mean accuracy on the buckets seen by then.

    Formula: mean over i < k of (mean of R[i, j] over j <= i). Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        CapyMOA, ``OCLMetrics.accuracy_seen_avg``.

    >>> round(accuracy_seen_avg(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.75
    """
    return icarl.average_incremental_accuracy(matrix)


def accuracy_final(matrix: AccuracyMatrix) -> float:
    """Mean accuracy, at the end, on all buckets, those not trained on included.

    Formula: mean of R[last, j] over j < T. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        CapyMOA, ``OCLMetrics.accuracy_final``.

    >>> round(accuracy_final(AccuracyMatrix([[0.8, 0.1]])), 6)
    0.45
    """
    need_trained(matrix, 1, "a trained bucket")
    last = matrix.num_rows - 1
    return float(measured(matrix.values[last], lambda j: f"R[{last}, {j}]").mean())


def forward_transfer(matrix: AccuracyMatrix) -> float:
    """Mean accuracy on future buckets: the strict upper triangle. Nothing is subtracted.

    Formula: mean of R[i, j] over i < k and i < j < T. Defined when k >= 1 and T >= 2.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: there is no future bucket, or a cell was not measured.

    Source:
        CapyMOA, ``OCLMetrics.forward_transfer``.

    >>> forward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.1
    """
    return clear.forward_transfer(matrix)


def backward_transfer(matrix: AccuracyMatrix) -> float:
    """Mean change on past buckets since each was trained on, over all rows.

    Formula: mean of R[i, j] - R[j, j] over j < i < k. Defined when k >= 2.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A difference in [-1, 1]; higher is better. Negative: the model has forgotten.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.

    Source:
        CapyMOA, ``OCLMetrics.backward_transfer``.

    >>> round(backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    -0.3
    """
    return change_on_past(matrix)


METRICS = (
    Metric(name="capymoa/accuracy_all_avg", function=accuracy_all_avg),
    Metric(name="capymoa/accuracy_seen_avg", function=accuracy_seen_avg),
    Metric(name="capymoa/accuracy_final", function=accuracy_final),
    Metric(name="capymoa/forward_transfer", function=forward_transfer),
    Metric(name="capymoa/backward_transfer", function=backward_transfer),
)
