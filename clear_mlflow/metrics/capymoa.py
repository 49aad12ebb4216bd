"""Metrics of CapyMOA's online continual learning that can be computed from the matrix.

Its anytime accuracies need tests within a bucket, and its test-then-train accuracy predictions made
while training: the matrix contains neither. Other metrics of CapyMOA are in ``aliases.py``.

Source: ``capymoa.ocl.evaluation.OCLMetrics``, fields of the same names, and what fills it
(``_evaluator.py``, ``_metrics.py`` of adaptive-machine-learning/CapyMOA, 095caba).
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import (
    change,
    compute_change_on_past,
    level,
    require_trained,
    select_row,
    select_values,
)


def accuracy_all_avg(matrix: AccuracyMatrix) -> float:
    """Mean accuracy on all buckets, future ones included, over all rows.

    Formula: mean of R[i, j] over i < k and j < T. Defined when k >= 1.

    >>> round(accuracy_all_avg(AccuracyMatrix([[0.8, 0.1], [0.5, 0.8]])), 6)
    0.55
    """
    require_trained(matrix, 1, "a trained bucket")
    return float(select_values(matrix, np.ones(matrix.values.shape, dtype=np.bool_)).mean())


def accuracy_final(matrix: AccuracyMatrix) -> float:
    """Mean accuracy, at the end, on all buckets, including those not trained on.

    Formula: mean of R[last, j] over j < T. Defined when k >= 1.

    >>> round(accuracy_final(AccuracyMatrix([[0.8, 0.1]])), 6)
    0.45
    """
    return float(select_row(matrix, -1, slice(None)).mean())


def backward_transfer(matrix: AccuracyMatrix) -> float:
    """Mean change on past buckets since each was trained on, over all rows.

    Formula: mean of R[i, j] - R[j, j] over j < i < k. Defined when k >= 2. Negative
    if the model has forgotten.

    >>> round(backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    -0.3
    """
    return compute_change_on_past(matrix)


METRICS = (
    level(accuracy_all_avg, "{score}_all_avg"),
    level(accuracy_final, "{score}_final"),
    change(backward_transfer),
)
