"""Metrics of Renate: accuracy in the last row, and the changes that led to it.

Only the buckets that the run has trained on count. b[j] is the accuracy of the untrained model on
bucket j.

Source: ``renate.evaluation.metrics.classification``, functions of the same names; BWT and FWT of
Lopez-Paz & Ranzato 2017 (GEM), equations 3 and 4.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import (
    Value,
    change,
    compute_mean,
    declare,
    get_test_counts,
    level,
    require_trained,
    select_columns,
    select_last_row,
    select_past_diagonal,
    select_row,
    select_values,
)


def average_accuracy(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy, at the end, on all buckets trained on.

    Formula: mean of R[last, j] over j <= last. Defined when k >= 1.

    >>> round(average_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.7
    """
    return compute_mean(select_last_row(matrix))


def micro_average_accuracy(matrix: AccuracyMatrix) -> Value:
    """Accuracy, at the end, on the pooled test images of all buckets trained on.

    Formula: sum of n[j] R[last, j] / sum of n[j], over j <= last. Defined when k >= 1 and the
    number of test images per bucket is known.

    >>> rows = [[0.8, 0.1], [0.5, 0.9]]
    >>> round(micro_average_accuracy(AccuracyMatrix(rows, num_instances=[300, 100])), 6)
    0.6
    """
    require_trained(matrix, 1, "a trained bucket")
    weights = get_test_counts(matrix, matrix.num_rows)
    return compute_mean(select_last_row(matrix), weights)


def forgetting(matrix: AccuracyMatrix) -> Value:
    """Mean drop, at the end, from the best accuracy that each earlier bucket ever had.

    Formula: mean over j < last of (max over i < last of R[i, j]) - R[last, j]. Defined when k >= 2.
    Lower is better. Negative if the end is better than ever before.

    Renate's documentation starts the maximum at row j. Its code, which published numbers come
    from, takes every row before the last, as this function does.
    `chaudhry/forgetting_since_trained` starts at row j.

    >>> round(forgetting(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.3
    """
    require_trained(matrix, 2, "a past bucket")
    try:
        past = select_columns(matrix, matrix.num_rows - 1)
    except UndefinedMetricError as error:
        select_values(matrix, np.tri(matrix.num_rows, matrix.num_rows - 1, dtype=np.bool_))
        raise UndefinedMetricError(
            f"{error}; chaudhry/forgetting_since_trained does not need it"
        ) from error
    return compute_mean(past[..., :-1, :].max(axis=-2) - past[..., -1, :])


def backward_transfer(matrix: AccuracyMatrix) -> Value:
    """Mean change on each earlier bucket since it was trained on.

    Formula: mean over j < last of R[last, j] - R[j, j]. Defined when k >= 2. Negative if
    the model has forgotten.

    >>> round(backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    -0.3
    """
    require_trained(matrix, 2, "a past bucket")
    end = select_row(matrix, -1, slice(matrix.num_rows - 1))
    return compute_mean(end - select_past_diagonal(matrix))


def forward_transfer(matrix: AccuracyMatrix) -> Value:
    """Mean gain over the untrained model on each bucket, just before it is trained on.

    Formula: mean over j = 1 .. last of R[j - 1, j] - b[j]. Defined when k >= 2 and the
    initialisation row is known.

    >>> rows = [[0.8, 0.5], [0.5, 0.9]]
    >>> round(forward_transfer(AccuracyMatrix(rows, initial=[0.1, 0.2])), 6)
    0.3
    """
    require_trained(matrix, 2, "a second trained bucket")
    if matrix.initial is None:
        raise UndefinedMetricError("needs the initialisation row")
    before = select_values(matrix, np.eye(matrix.num_rows, k=1, dtype=np.bool_))
    untrained = matrix.initial[..., 1 : matrix.num_rows]
    if np.isnan(untrained).any():
        column = 2 + int(np.argwhere(np.isnan(untrained))[:, -1].min())
        raise UndefinedMetricError(f"row 0, column {column} was not measured")
    return compute_mean(before - untrained)


TITLE = "Renate"
METRICS = (
    level(average_accuracy, "average_{score}", headline="average at the end", rank_priority=3),
    declare(micro_average_accuracy, sensitivity=1.0),
    change(forgetting, higher_is_better=False, headline="forgetting"),
    change(backward_transfer),
    change(forward_transfer),
)
