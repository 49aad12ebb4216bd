"""Metrics of the macro accuracy matrix M, in which all classes of a bucket have the same weight.

They are left out if each bucket has the same number of test images of each class, since M is then
the accuracy matrix. They are undefined if predictions of a row that is needed were not stored.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.metrics import clear, renate
from clear_mlflow.metrics._metric import PREDICTIONS, Value, declare
from clear_mlflow.metrics._predictions import Predictions, macro_matrix


def in_domain(predictions: Predictions) -> Value:
    """Mean macro accuracy on the bucket just trained: the diagonal of the macro matrix.

    Formula: mean of M[i, i]. Defined when k >= 1.
    """
    return clear.in_domain_accuracy(macro_matrix(predictions))


def next_domain(predictions: Predictions) -> Value:
    """Mean macro accuracy on the bucket that comes next: the superdiagonal of the macro matrix.

    Formula: mean of M[i, i + 1]. Defined when k >= 1 and T >= 2.
    """
    return clear.next_domain_accuracy(macro_matrix(predictions))


def average(predictions: Predictions) -> Value:
    """Mean macro accuracy, at the end, on all buckets trained on: the last row of the macro matrix.

    Formula: mean of M[last, j], j <= last. Defined when k >= 1.
    """
    return renate.average_accuracy(macro_matrix(predictions))


def average_over_rows(predictions: Predictions) -> float:
    """Mean over rows of the mean accuracy per class, on all buckets.

    Formula: Avalanche's AMCA: mean over i < k of (mean over classes of the accuracy in row i on the
    class's images of all buckets). Defined when k >= 1.

    ``avalanche/evaluation/metrics/amca.py`` of ContinualAI/avalanche, eb075be, without the row of
    the untrained model. Unlike `icarl/average_incremental_accuracy`, it weights every class
    equally and includes future buckets.
    """
    predictions.mask_trained_images()  # raises if no bucket was trained, and under streaming
    labels, means = predictions.images.label, []
    totals = np.bincount(labels)
    for row in range(1, predictions.k + 1):
        correct = predictions.get_row(row).find_hits(predictions.images)
        by_class = np.bincount(labels[correct], minlength=len(totals))[totals > 0]
        means.append((by_class / totals[totals > 0]).mean())
    return float(np.mean(means))


def _has_balanced_classes(predictions: Predictions) -> bool:
    counts = predictions.images.class_counts
    maximum = counts.max(axis=1, keepdims=True)
    return bool(((counts == 0) | (counts == maximum)).all())


METRICS = tuple(
    declare(function, needs=PREDICTIONS, skip_if=_has_balanced_classes)
    for function in (in_domain, next_domain, average, average_over_rows)
)
