"""Summaries of the macro accuracy matrix, in which every class counts alike in every cell.

They differ from those of the accuracy matrix where a bucket has more test images of one class than
of another; see :func:`repeats_accuracy`.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.metrics import clear, renate
from clear_mlflow.metrics.from_predictions._base import PredictionMetric, Predictions
from clear_mlflow.metrics.from_predictions._classes import macro_matrix


def in_domain(predictions: Predictions) -> float:
    """Mean macro accuracy on the bucket just trained: the diagonal of the macro matrix.

    Raises:
        UndefinedMetricError: no bucket was trained, or a cell's predictions were not stored.
    """
    return clear.in_domain_accuracy(macro_matrix(predictions))


def next_domain(predictions: Predictions) -> float:
    """Mean macro accuracy on the bucket that comes next: the superdiagonal of the macro matrix.

    Raises:
        UndefinedMetricError: there is no next bucket, or a cell's predictions were not stored.
    """
    return clear.next_domain_accuracy(macro_matrix(predictions))


def average(predictions: Predictions) -> float:
    """Mean macro accuracy, at the end, on all buckets trained on: the macro matrix's last row.

    Raises:
        UndefinedMetricError: no bucket was trained, or the last row's predictions were not stored.
    """
    return renate.average_accuracy(macro_matrix(predictions))


def repeats_accuracy(predictions: Predictions) -> bool:
    """Whether the macro accuracy matrix is the accuracy matrix, whatever is answered.

    It is where each bucket has as many test images of one class as of any other that it has.
    """
    images = predictions.images
    shape = len(images.buckets), len(images.class_names)
    counts = np.zeros(shape, dtype=np.int64)
    np.add.at(counts, (images.bucket, images.label), 1)
    most = counts.max(axis=1, keepdims=True)
    return bool(((counts == 0) | (counts == most)).all())


METRICS = (
    PredictionMetric(name="macro_accuracy/in_domain", function=in_domain),
    PredictionMetric(name="macro_accuracy/next_domain", function=next_domain),
    PredictionMetric(name="macro_accuracy/average", function=average),
)
