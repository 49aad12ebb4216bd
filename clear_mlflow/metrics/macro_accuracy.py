"""Summaries of the macro accuracy matrix, in which every class counts alike in every cell.

They differ from those of the accuracy matrix if a bucket has more test images of one class than of
another. Each is defined if the predictions of all cells that the metric of the matrix needs were
stored. Fractions in [0, 1], higher is better.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.metrics import clear, renate
from clear_mlflow.metrics._metric import PREDICTIONS, Metric
from clear_mlflow.metrics._predictions import Predictions, macro_matrix


def in_domain(predictions: Predictions) -> float:
    """Mean macro accuracy on the bucket just trained: the diagonal of the macro matrix."""
    return clear.in_domain_accuracy(macro_matrix(predictions))


def next_domain(predictions: Predictions) -> float:
    """Mean macro accuracy on the bucket that comes next: the superdiagonal of the macro matrix."""
    return clear.next_domain_accuracy(macro_matrix(predictions))


def average(predictions: Predictions) -> float:
    """Mean macro accuracy, at the end, on all buckets trained on: the macro matrix's last row."""
    return renate.average_accuracy(macro_matrix(predictions))


def average_over_rows(predictions: Predictions) -> float:
    """Average the classes' accuracies over the test images of all buckets, then average the rows.

    Avalanche's AMCA (``avalanche/evaluation/metrics/amca.py`` of ContinualAI/avalanche, eb075be),
    without the row of the untrained model. Unlike `icarl/average_incremental_accuracy`, it weights
    every class equally, and future buckets count.
    """
    predictions.trained_images()  # raises if no bucket was trained, and under streaming
    labels, means = predictions.images.label, []
    totals = np.bincount(labels)
    for row in range(1, predictions.k + 1):
        correct = predictions.get_row(row).hits(predictions.images)
        by_class = np.bincount(labels[correct], minlength=len(totals))[totals > 0]
        means.append((by_class / totals[totals > 0]).mean())
    return float(np.mean(means))


def _repeats_accuracy(predictions: Predictions) -> bool:
    """Whether the macro accuracy matrix is the accuracy matrix, whatever is answered.

    It is where each bucket has as many test images of one class as of any other that it has.
    """
    counts = predictions.images.class_counts
    most = counts.max(axis=1, keepdims=True)
    return bool(((counts == 0) | (counts == most)).all())


METRICS = tuple(
    Metric(
        name=f"macro_accuracy/{function.__name__}",
        function=function,
        needs=PREDICTIONS,
        skip_if=_repeats_accuracy,
    )
    for function in (in_domain, next_domain, average, average_over_rows)
)
