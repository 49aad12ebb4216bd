"""Scores whose meaning does not change with the borders of the buckets.

Each test image counts once, whatever the buckets are, while the mean over buckets weighs the images
of a short bucket more. With ``split=stream:SEED``, all divisions of a stream into buckets have the
same test images. When an image of bucket j arrives, the model in use is the one that was trained
through bucket j - 1. The third score of this kind is ``renate/micro_average_accuracy``. n[j] is the
number of test images of bucket j.

Source: arXiv:2604.21930 shows that borders change the other metrics; the definitions are ours.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import (
    Value,
    change,
    compute_mean,
    get_test_counts,
    level,
    require_future,
    require_trained,
    select_last_row,
    select_values,
)


def deployed_accuracy(matrix: AccuracyMatrix) -> Value:
    """Accuracy on all images that arrive, of the model in use at that time.

    Formula: sum of n[j] R[j - 1, j] / sum of n[j], over 0 < j <= k. Defined when k >= 1, T >= 2 and
    the number of test images per bucket is known. If k = T, the last term is j = k - 1.

    >>> rows = [[0.8, 0.1, 0.2], [0.5, 0.9, 0.6]]
    >>> round(deployed_accuracy(AccuracyMatrix(rows, num_instances=[300, 100, 300])), 6)
    0.475
    """
    require_future(matrix)
    k, num_buckets = matrix.num_rows, matrix.num_buckets
    arriving = np.eye(k, num_buckets, 1, dtype=np.bool_)
    weights = get_test_counts(matrix, num_buckets)[1 : k + 1]
    return compute_mean(select_values(matrix, arriving), weights)


def lost_accuracy(matrix: AccuracyMatrix) -> Value:
    """Accuracy on all images when their bucket was trained, minus accuracy at the end.

    Formula: sum of n[j] (R[j, j] - R[last, j]) / sum of n[j], over j <= last. Defined when k >= 1
    and the number of test images per bucket is known. Lower is better.

    >>> rows = [[0.8, 0.1], [0.5, 0.9]]
    >>> round(lost_accuracy(AccuracyMatrix(rows, num_instances=[300, 100])), 6)
    0.225
    """
    require_trained(matrix, 1, "a trained bucket")
    k = matrix.num_rows
    learned = select_values(matrix, np.eye(k, dtype=np.bool_))
    return compute_mean(learned - select_last_row(matrix), get_test_counts(matrix, k))


METRICS = (
    level(deployed_accuracy, "deployed_{score}"),
    change(lost_accuracy, higher_is_better=False),
)
