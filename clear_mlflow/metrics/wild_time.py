"""Metrics of Wild-Time: Eval-Fix at one split of the stream, and Eval-Stream on the next buckets.

Wild-Time chooses two numbers for each dataset. Here Eval-Fix splits after half of the buckets
(their scripts: 4 of 7 on HuffPost, 4 of 8 on Drug-BA, 8 of 16 on FMoW, 10 of 16 on arXiv), and
Eval-Stream looks 3 buckets ahead (theirs: 3 on HuffPost and Drug-BA, 6 on FMoW, 10 on Yearbook). To
choose others, pass them to the function in a custom metric, for example
``partial(wild_time.stream_average, ahead=6)``.

``split`` is s, the index of the last bucket trained on, half of the stream if None. ``ahead`` is K,
at least 1.

Source: Yao et al., Wild-Time: A Benchmark of in-the-Wild Distribution Shift over Time, NeurIPS 2022
Datasets and Benchmarks, arXiv:2211.14238; ``evaluate_offline``, ``evaluate_online`` and ``save`` in
``methods/base_trainer.py`` of huaxiuyao/Wild-Time, 1875f1e.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._metric import (
    Value,
    compute_mean,
    count_steps_ahead,
    declare,
    get_test_counts,
    level,
    require_future,
    require_trained,
    select_row,
    select_values,
    to_value,
)

AHEAD = 3  # number of next buckets in Eval-Stream


def fix_id_accuracy(matrix: AccuracyMatrix, split: int | None = None) -> Value:
    """Eval-Fix, in distribution: accuracy on the pooled images up to the split.

    Formula: sum of n[j] R[s, j] / sum of n[j], over j <= s, with s = ceil(T / 2) - 1. Defined when
    k > s and the number of test images per bucket is known.

    The authors' continual learners (``train_online`` under ``offline``) stop one bucket earlier
    than their other models, so that their program prints row s - 1 for them; here all use row s.

    >>> rows = [[0.8, 0.1, 0.2], [0.5, 0.9, 0.3]]
    >>> round(fix_id_accuracy(AccuracyMatrix(rows, num_instances=[300, 100, 100])), 6)
    0.6
    """
    row = _get_split_row(matrix, split)
    weights = get_test_counts(matrix, row + 1)
    return compute_mean(select_row(matrix, row, slice(row + 1)), weights)


def fix_ood_average(matrix: AccuracyMatrix, split: int | None = None) -> Value:
    """Eval-Fix, out of distribution: mean accuracy on the buckets after the split.

    Formula: mean of R[s, j] over j > s, with s = ceil(T / 2) - 1. Defined when k > s and T >= 2.

    >>> round(fix_ood_average(AccuracyMatrix([[0.8, 0.1, 0.1], [0.5, 0.9, 0.6]])), 6)
    0.6
    """
    return compute_mean(_select_future_values(matrix, split))


def fix_ood_worst(matrix: AccuracyMatrix, split: int | None = None) -> Value:
    """Eval-Fix, out of distribution: the worst accuracy on a bucket after the split.

    Formula: min of R[s, j] over j > s, with s = ceil(T / 2) - 1. Defined when k > s and T >= 2.

    >>> fix_ood_worst(AccuracyMatrix([[0.8, 0.7, 0.6, 0.4], [0.8, 0.7, 0.6, 0.5]]))
    0.5
    """
    return to_value(_select_future_values(matrix, split).min(axis=-1))


def stream_average(matrix: AccuracyMatrix, ahead: int = AHEAD) -> Value:
    """Eval-Stream: mean over rows of the mean accuracy on the next K buckets.

    Formula: mean over i < k with i + K < T of (mean of R[i, j] over i < j <= i + K), with K = 3.
    Defined when k >= 1 and T > 3. "avg task accuracy" of their program.

    >>> round(stream_average(AccuracyMatrix([[0.8, 0.7, 0.5, 0.3]])), 6)
    0.5
    """
    return compute_mean(_select_next_values(matrix, ahead).mean(axis=-1))


def stream_worst(matrix: AccuracyMatrix, ahead: int = AHEAD) -> Value:
    """Eval-Stream: mean over rows of the worst accuracy on the next K buckets.

    Formula: mean over i < k with i + K < T of (min of R[i, j] over i < j <= i + K), with K = 3.
    Defined when k >= 1 and T > 3. "avg worst time accuracy" of their program.

    >>> stream_worst(AccuracyMatrix([[0.8, 0.7, 0.5, 0.3]]))
    0.3
    """
    return compute_mean(_select_next_values(matrix, ahead).min(axis=-1))


def _get_split_row(matrix: AccuracyMatrix, split: int | None) -> int:
    """Return the split, or the middle of the stream for None."""
    row = (matrix.num_buckets + 1) // 2 - 1 if split is None else split
    require_trained(matrix, row + 1, "the row of the split")
    return row


def _select_future_values(matrix: AccuracyMatrix, split: int | None) -> NDArray[np.float64]:
    """Return the accuracies of the split's row on later buckets."""
    row = _get_split_row(matrix, split)
    if row + 1 == matrix.num_buckets:
        raise UndefinedMetricError("needs a bucket after the split")
    return select_row(matrix, row, slice(row + 1, None))


def _select_next_values(matrix: AccuracyMatrix, ahead: int) -> NDArray[np.float64]:
    """Return (..., n, K) accuracies of rows on their next K buckets."""
    require_future(matrix)
    rows = min(matrix.num_rows, matrix.num_buckets - ahead)
    if rows < 1:
        raise UndefinedMetricError(
            f"needs {ahead} buckets ahead: T > {ahead} (T is {matrix.num_buckets})"
        )
    steps = count_steps_ahead(matrix)
    is_next = (steps > 0) & (steps <= ahead)
    is_next[rows:] = False
    values = select_values(matrix, is_next)
    return values.reshape(*values.shape[:-1], rows, ahead)


METRICS = (
    declare(fix_id_accuracy, version=2),  # version 1 was R[s, s]
    level(fix_ood_average, "fix_ood_average"),
    level(fix_ood_worst, "fix_ood_worst"),
    level(stream_average, "stream_average"),
    level(stream_worst, "stream_worst"),
)
