"""Metrics of the CLEAR benchmark: means over regions of the accuracy matrix.

Every value of the k rows counts, including buckets that the run never reached. Nothing is
subtracted: CLEAR's "transfer" is an accuracy, and cannot be compared with that in Renate or GEM.

Source: Lin et al., The CLEAR Benchmark, arXiv:2201.06289; Avalanche's ``CLEARMetric`` is equal.
"""

from __future__ import annotations

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import (
    Value,
    compute_mean,
    count_steps_ahead,
    declare,
    level,
    require_future,
    require_trained,
    select_trained_values,
    select_values,
)


def in_domain_accuracy(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on the bucket just trained: the diagonal.

    Formula: mean of R[i, i] over i < k. Defined when k >= 1.

    >>> round(in_domain_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.85
    """
    require_trained(matrix, 1, "a trained bucket")
    return compute_mean(select_values(matrix, count_steps_ahead(matrix) == 0))


def next_domain_accuracy(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on the bucket that comes next: the superdiagonal.

    Formula: mean of R[i, i + 1] over i < k with i + 1 < T. Defined when k >= 1 and T >= 2.

    >>> next_domain_accuracy(AccuracyMatrix([[0.8, 0.7, 0.6]]))
    0.7
    """
    require_future(matrix)
    return compute_mean(select_values(matrix, count_steps_ahead(matrix) == 1))


def backward_transfer(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on past buckets: the strict lower triangle. Nothing is subtracted.

    Formula: mean of R[i, j] over j < i < k. Defined when k >= 2.

    >>> backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.5
    """
    require_trained(matrix, 2, "a past bucket")
    return compute_mean(select_values(matrix, count_steps_ahead(matrix) < 0))


def forward_transfer(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on future buckets: the strict upper triangle. Nothing is subtracted.

    Formula: mean of R[i, j] over i < k and i < j < T. Defined when k >= 1 and T >= 2.

    >>> forward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]]))
    0.1
    """
    require_future(matrix)
    return compute_mean(select_values(matrix, count_steps_ahead(matrix) > 0))


def accuracy(matrix: AccuracyMatrix) -> Value:
    """Mean accuracy on all buckets seen so far: the lower triangle with its diagonal.

    Formula: mean of R[i, j] over j <= i < k. Defined when k >= 1.

    >>> round(accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.8]])), 6)
    0.7
    """
    return compute_mean(select_trained_values(matrix))


def challenge_score(matrix: AccuracyMatrix) -> Value:
    """Mean of in-domain, next-domain, backward and forward, with equal weights.

    Formula: mean of the first four metrics above. Defined when k >= 2 and T >= 2. Source: 1st CLEAR
    challenge, CVPR 2022.
    """
    parts = (in_domain_accuracy, next_domain_accuracy, backward_transfer, forward_transfer)
    return sum(part(matrix) for part in parts) / len(parts)


TITLE = "CLEAR"  # a family with a title is computed by default, and has a section on the page
METRICS = (
    level(in_domain_accuracy, "in_domain_{score}", headline="in-domain", rank_priority=1),
    level(next_domain_accuracy, "next_domain_{score}", headline="next-domain", rank_priority=2),
    # The name of an error must not contain "transfer", which readers take for a gain.
    level(backward_transfer, "backward_{score}"),
    level(forward_transfer, "forward_{score}"),
    level(accuracy, "{score}"),
    declare(challenge_score, rank_priority=4, ranks_new_classes=False, sensitivity=1.0),
)
