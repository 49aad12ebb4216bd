"""The metrics of Renate, which are also GEM's: what the last row says, and how it came to be.

R is (k, T), 0-based, and "last" is row k - 1. Only rows and columns 0 to k - 1 count: the buckets
that the run has trained on. b is the initialisation row, of the untrained model.

Source: ``renate.evaluation.metrics.classification``; Lopez-Paz & Ranzato 2017 (GEM).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._base import CHANGE, LEVEL, Metric, cells_where, measured, need_trained


def average_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean accuracy, at the end, on all buckets trained on.

    Formula: mean of R[last, j] over j <= last. Defined when k >= 1.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell was not measured.

    Source:
        ``renate.evaluation.metrics.classification.average_accuracy``.

    >>> round(average_accuracy(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.7
    """
    need_trained(matrix, 1, "a trained bucket")
    return float(_last(matrix).mean())


def micro_average_accuracy(matrix: AccuracyMatrix) -> float:
    """Accuracy, at the end, over the test images of all buckets trained on, taken together.

    Formula: sum of n[j] R[last, j] / sum of n[j], over j <= last. Defined when k >= 1 and the
    number of test images per bucket is known.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A fraction in [0, 1]; higher is better.

    Raises:
        UndefinedMetricError: no bucket was trained, the counts are not known, or a cell was not
            measured.

    Source:
        ``renate.evaluation.metrics.classification.micro_average_accuracy``.

    >>> rows = [[0.8, 0.1], [0.5, 0.9]]
    >>> round(micro_average_accuracy(AccuracyMatrix(rows, num_instances=[300, 100])), 6)
    0.6
    """
    need_trained(matrix, 1, "a trained bucket")
    if matrix.num_instances is None:
        raise UndefinedMetricError("needs test counts per bucket")
    weights = matrix.num_instances[: matrix.num_rows].astype(np.float64)
    return float((weights * _last(matrix)).sum() / weights.sum())


def forgetting(matrix: AccuracyMatrix) -> float:
    """Mean drop, at the end, from the best accuracy that each earlier bucket ever had.

    Formula: mean over j < last of (max over i < last of R[i, j]) - R[last, j]. Defined when k >= 2.

    Renate's text lets the maximum run from row j on; its code takes every row before the last,
    those before bucket j was trained included. People's numbers came from the code: this is it.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A difference in [-1, 1]; lower is better. Negative: the end is better than ever before.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.

    Source:
        ``renate.evaluation.metrics.classification.forgetting``.

    >>> round(forgetting(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    0.3
    """
    past = _past(matrix)
    return float((past[:-1].max(axis=0) - past[-1]).mean())


def backward_transfer(matrix: AccuracyMatrix) -> float:
    """Mean change on each earlier bucket since it was trained on.

    Formula: mean over j < last of R[last, j] - R[j, j]. Defined when k >= 2.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A difference in [-1, 1]; higher is better. Negative: the model has forgotten.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.

    Source:
        ``renate.evaluation.metrics.classification.backward_transfer``; BWT of Lopez-Paz &
        Ranzato 2017, equation 3.

    >>> round(backward_transfer(AccuracyMatrix([[0.8, 0.1], [0.5, 0.9]])), 6)
    -0.3
    """
    need_trained(matrix, 2, "a past bucket")
    last = matrix.num_rows - 1
    end = measured(matrix.values[last, :last], lambda j: f"R[{last}, {j}]")
    return float((end - cells_where(matrix, np.eye(last + 1, last, dtype=np.bool_))).mean())


def forward_transfer(matrix: AccuracyMatrix) -> float:
    """Mean gain over the untrained model on each bucket, just before it is trained on.

    Formula: mean over j = 1 .. last of R[j - 1, j] - b[j]. Defined when k >= 2 and the
    initialisation row is known.

    Args:
        matrix: (k, T); row = trained through, column = tested on.

    Returns:
        A difference in [-1, 1]; higher is better.

    Raises:
        UndefinedMetricError: fewer than two buckets were trained, there is no initialisation row,
            or a cell was not measured.

    Source:
        ``renate.evaluation.metrics.classification.forward_transfer``; FWT of Lopez-Paz &
        Ranzato 2017, equation 4.

    >>> rows = [[0.8, 0.5], [0.5, 0.9]]
    >>> round(forward_transfer(AccuracyMatrix(rows, initial=[0.1, 0.2])), 6)
    0.3
    """
    need_trained(matrix, 2, "a second trained bucket")
    if matrix.initial is None:
        raise UndefinedMetricError("needs the initialisation row")
    before = cells_where(matrix, np.eye(matrix.num_rows, k=1, dtype=np.bool_))
    untrained = measured(matrix.initial[1 : matrix.num_rows], lambda j: f"b[{j + 1}]")
    return float((before - untrained).mean())


def _last(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """(k,): the last row, on the buckets trained on."""
    last = matrix.num_rows - 1
    return measured(matrix.values[last, : last + 1], lambda j: f"R[{last}, {j}]")


def _past(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """(k, k - 1): all rows, on the buckets before the last one trained on."""
    need_trained(matrix, 2, "a past bucket")
    everything = np.ones((matrix.num_rows, matrix.num_rows - 1), dtype=np.bool_)
    return cells_where(matrix, everything).reshape(everything.shape)


METRICS = (
    Metric(name="renate/average_accuracy", function=average_accuracy, takes=LEVEL),
    Metric(name="renate/micro_average_accuracy", function=micro_average_accuracy),
    Metric(name="renate/forgetting", function=forgetting, higher_is_better=False, takes=CHANGE),
    Metric(name="renate/backward_transfer", function=backward_transfer, takes=CHANGE),
    Metric(name="renate/forward_transfer", function=forward_transfer, takes=CHANGE),
)
