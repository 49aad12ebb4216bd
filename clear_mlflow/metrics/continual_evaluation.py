"""Accuracy at every moment of a training, instead of only at the ends of buckets.

A test is a test of the model on all buckets: within a bucket, or at its end, where it is the row of
the bucket. Tests are counted over the complete run, and a[t, j] is the accuracy on bucket j at test
t. The tests of bucket j begin with the first test within it; row 0 is not one of them. All tests of
the k buckets must be stored, including tests within buckets. Values are fractions in [0, 1].

Source: De Lange, Van de Ven and Tuytelaars, Continual Evaluation for Lifelong Learning: Identifying
the Stability Gap, ICLR 2023, arXiv:2205.13452, section 3; ``src/eval/continual_eval_metrics.py`` of
Mattdl/ContinualEvaluation, bae2a58. Average anytime accuracy: Caccia et al., New Insights on
Reducing Abrupt Representation Change in Online Continual Learning, ICLR 2022, arXiv:2104.05025.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import WITHIN_BUCKET, Metric

WINDOWS = (10, 100)  # number of tests; the paper has both


def minimum_accuracy(matrix: AnytimeMatrix) -> float:
    """min-ACC: mean over earlier buckets of the lowest accuracy since the bucket was trained.

    Formula: min-ACC: mean over j < last of (min of a[t, j] over tests t after row j). Defined when
    k >= 2.
    """
    trained, values = matrix.stack_accuracies()
    if matrix.k < 2:
        raise UndefinedMetricError(f"needs a past bucket: k >= 2 (trained on {matrix.k})")
    return float(_find_minima(trained, values, matrix.k).mean())


def worst_case_accuracy(matrix: AnytimeMatrix) -> float:
    """WC-ACC: mean of the accuracy on the last bucket and the minima on all earlier ones.

    Formula: WC-ACC: R[last, last] / k + (1 - 1 / k) min-ACC. Defined when k >= 1.
    """
    trained, values = matrix.stack_accuracies()
    k = matrix.k
    return float((values[-1, k - 1] + _find_minima(trained, values, k).sum()) / k)


def average_anytime_accuracy(matrix: AnytimeMatrix) -> float:
    """AAA: mean over all tests of the mean accuracy on the buckets so far.

    Formula: mean over tests t of (mean of a[t, j] over j <= i). Defined when k >= 1.
    """
    trained, values = matrix.stack_accuracies()
    is_trained = np.arange(values.shape[1]) <= trained[:, np.newaxis]
    return float(((values * is_trained).sum(axis=1) / (trained + 1)).mean())


def windowed_forgetting(matrix: AnytimeMatrix, window: int) -> float:
    """WF: mean over buckets of the largest drop of accuracy within a window of tests.

    Formula: WF: mean over j < k of (max of a[s, j] - a[t, j] over tests s <= t of bucket j less
    than the window apart). Defined when k >= 1.

    The window has at least 2 tests. An accuracy that never falls has a drop of 0, as in the
    authors' program, whose first window has one test.
    """
    trained, values = matrix.stack_accuracies()
    drops = [_find_largest_drop(values[trained >= j, j], window) for j in range(matrix.k)]
    return float(np.mean(drops))


def windowed_plasticity(matrix: AnytimeMatrix, window: int) -> float:
    """WP: mean over buckets of the largest rise of accuracy within a window of tests.

    Formula: WP: mean over j < k of (max of a[t, j] - a[s, j] over tests s <= t of bucket j less
    than the window apart). Defined when k >= 1.
    """
    trained, values = matrix.stack_accuracies()
    rises = [_find_largest_drop(-values[trained >= j, j], window) for j in range(matrix.k)]
    return float(np.mean(rises))


def _find_minima(
    trained: NDArray[np.int64], values: NDArray[np.float64], k: int
) -> NDArray[np.float64]:
    """Return the lowest accuracy of earlier buckets since their training.

    Its shape is (k - 1,).

    trained: (n,) index of the bucket in training at each of the n tests. values: (n, T) accuracies.
    """
    return np.array([values[trained > j, j].min() for j in range(k - 1)])


def _find_largest_drop(accuracies: NDArray[np.float64], window: int) -> float:
    """Return the largest drop within *window* tests, at least 0."""
    largest = 0.0
    for distance in range(1, min(window, len(accuracies))):
        drops = accuracies[:-distance] - accuracies[distance:]
        largest = max(largest, float(drops.max()))
    return largest


_FUNCTIONS: dict[str, Callable[[AnytimeMatrix], float]] = {
    "minimum_accuracy": minimum_accuracy,
    "worst_case_accuracy": worst_case_accuracy,
    "average_anytime_accuracy": average_anytime_accuracy,
    **{f"windowed_forgetting_{w}": partial(windowed_forgetting, window=w) for w in WINDOWS},
    **{f"windowed_plasticity_{w}": partial(windowed_plasticity, window=w) for w in WINDOWS},
}
METRICS = tuple(
    Metric(
        name=f"continual_evaluation/{name}",
        function=function,
        needs=WITHIN_BUCKET,
        higher_is_better="forgetting" not in name,
    )
    for name, function in _FUNCTIONS.items()
)
