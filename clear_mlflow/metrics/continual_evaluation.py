"""What a model is worth at any moment of its training, not only at the ends of buckets.

A test is one of the model on the test sets of all buckets: inside a bucket, or at its end, which is
the bucket's row. Tests are counted over the whole run, and a[t, j] is the accuracy on bucket j at
test t. Those of bucket j begin with the first test inside it; row 0 is none of them. All tests of
the k buckets have to be stored, those inside included: from rows alone none of these follows.

Each takes the tests of k buckets trained and gives a fraction in [0, 1]; higher is better, but of
windowed forgetting. Defined when k >= 1 and all tests inside the buckets are stored;
UndefinedMetricError, with the reason, otherwise.

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

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import WITHIN_BUCKET, Metric

WINDOWS = (10, 100)  # tests; the paper has both


def minimum_accuracy(matrix: AnytimeMatrix) -> float:
    """min-ACC: the lowest accuracy on each earlier bucket since it was learned, in the mean.

    Formula: mean over j < last of min over tests t after row j of a[t, j]. Defined when k >= 2.
    """
    trained, values = matrix.sequence()
    if matrix.k < 2:
        raise UndefinedMetricError(f"needs a past bucket: k >= 2 (trained on {matrix.k})")
    return float(_minima(trained, values, matrix.k).mean())


def worst_case_accuracy(matrix: AnytimeMatrix) -> float:
    """WC-ACC: accuracy on the last bucket, and the minima on all earlier ones, in the mean.

    Formula: R[last, last] / k + (1 - 1 / k) min-ACC.
    """
    trained, values = matrix.sequence()
    k = matrix.k
    return float((values[-1, k - 1] + _minima(trained, values, k).sum()) / k)


def average_anytime_accuracy(matrix: AnytimeMatrix) -> float:
    """AAA: mean over all tests of the mean accuracy on the buckets so far.

    Formula: mean over tests t of (mean of a[t, j] over j <= i), i being the bucket in training.
    """
    trained, values = matrix.sequence()
    seen = np.arange(values.shape[1]) <= trained[:, np.newaxis]
    return float(((values * seen).sum(axis=1) / (trained + 1)).mean())


def windowed_forgetting(matrix: AnytimeMatrix, window: int) -> float:
    """WF: the largest drop of accuracy on a bucket within a window of tests, in the mean.

    Formula: mean over j < k of max over tests s <= t of bucket j with t - s < W of
    a[s, j] - a[t, j].

    W is at least 2. An accuracy that never falls has a drop of 0, as in the authors' program,
    whose first window holds one test.
    """
    trained, values = matrix.sequence()
    drops = [_largest_drop(values[trained >= j, j], window) for j in range(matrix.k)]
    return float(np.mean(drops))


def windowed_plasticity(matrix: AnytimeMatrix, window: int) -> float:
    """WP: the largest rise of accuracy on a bucket within a window of tests, in the mean.

    Formula: mean over j < k of max over tests s <= t of bucket j with t - s < W of
    a[t, j] - a[s, j].
    """
    trained, values = matrix.sequence()
    rises = [_largest_drop(-values[trained >= j, j], window) for j in range(matrix.k)]
    return float(np.mean(rises))


def _minima(trained: NDArray[np.int64], values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(k - 1,): the lowest accuracy on each bucket but the last one, in tests after its row."""
    return np.array([values[trained > j, j].min() for j in range(k - 1)])


def _largest_drop(course: NDArray[np.float64], window: int) -> float:
    """Of one series, from any of its values to a later one of the same window; at least 0."""
    largest = 0.0
    for apart in range(1, min(window, len(course))):
        largest = max(largest, float((course[:-apart] - course[apart:]).max()))
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
