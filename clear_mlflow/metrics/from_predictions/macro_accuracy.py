"""Summaries of the macro accuracy matrix, in which every class counts alike in every cell.

They differ from those of the accuracy matrix where a bucket has more test images of one class than
of another; see :func:`repeats_accuracy`. Defined where the predictions of all cells that the metric
of the matrix needs were stored; fractions in [0, 1], higher is better.
"""

from __future__ import annotations

from clear_mlflow.metrics import clear, renate
from clear_mlflow.metrics.from_predictions._base import PredictionMetric, Predictions
from clear_mlflow.metrics.from_predictions._classes import macro_matrix


def in_domain(predictions: Predictions) -> float:
    """Mean macro accuracy on the bucket just trained: the diagonal of the macro matrix."""
    return clear.in_domain_accuracy(macro_matrix(predictions))


def next_domain(predictions: Predictions) -> float:
    """Mean macro accuracy on the bucket that comes next: the superdiagonal of the macro matrix."""
    return clear.next_domain_accuracy(macro_matrix(predictions))


def average(predictions: Predictions) -> float:
    """Mean macro accuracy, at the end, on all buckets trained on: the macro matrix's last row."""
    return renate.average_accuracy(macro_matrix(predictions))


def repeats_accuracy(predictions: Predictions) -> bool:
    """Whether the macro accuracy matrix is the accuracy matrix, whatever is answered.

    It is where each bucket has as many test images of one class as of any other that it has.
    """
    counts = predictions.images.class_counts
    most = counts.max(axis=1, keepdims=True)
    return bool(((counts == 0) | (counts == most)).all())


METRICS = (
    PredictionMetric(name="macro_accuracy/in_domain", function=in_domain),
    PredictionMetric(name="macro_accuracy/next_domain", function=next_domain),
    PredictionMetric(name="macro_accuracy/average", function=average),
)
