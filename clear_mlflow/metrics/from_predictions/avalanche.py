"""Avalanche's average mean class accuracy (AMCA).

It differs from `icarl/average_incremental_accuracy`: every class counts equally, not every bucket,
and every row is tested on all buckets, future ones included.

Source: ``AverageMeanClassAccuracy`` in ``avalanche/evaluation/metrics/amca.py`` of
ContinualAI/avalanche, eb075be.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.metrics.from_predictions._base import PredictionMetric, Predictions


def average_mean_class_accuracy(predictions: Predictions) -> float:
    """Average the classes' accuracies over the test images of all buckets, then average the rows.

    The row of the untrained model does not count. A class without test images is left out.
    """
    predictions.learned()  # raises if no bucket was trained, and under streaming
    images = predictions.images
    totals = np.bincount(images.label)
    means = []
    for row in range(1, predictions.k + 1):
        hits = predictions.of_row(row).hits(images)
        correct = np.bincount(images.label[hits], minlength=len(totals))
        means.append((correct[totals > 0] / totals[totals > 0]).mean())
    return float(np.mean(means))


METRICS = (
    PredictionMetric(
        name="avalanche/average_mean_class_accuracy", function=average_mean_class_accuracy
    ),
)
