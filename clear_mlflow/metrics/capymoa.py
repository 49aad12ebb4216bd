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
    CHANGE,
    LEVEL,
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


# Those of another family that are named here are the same quantity in `OCLMetrics`.
METRICS = (
    Metric(name="capymoa/accuracy_all_avg", function=accuracy_all_avg, takes=LEVEL),
    Metric(
        name="capymoa/accuracy_seen_avg", function=icarl.average_incremental_accuracy, takes=LEVEL
    ),
    Metric(name="capymoa/accuracy_final", function=accuracy_final, takes=LEVEL),
    Metric(name="capymoa/forward_transfer", function=clear.forward_transfer, takes=LEVEL),
    Metric(name="capymoa/backward_transfer", function=backward_transfer, takes=CHANGE),
)
