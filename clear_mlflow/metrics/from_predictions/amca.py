"""Avalanche's average mean class accuracy (AMCA).

Source: ``avalanche/evaluation/metrics/amca.py`` of ContinualAI/avalanche, eb075be.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow.metrics.from_predictions._base import PredictionMetric, Predictions


def average_mean_class_accuracy(predictions: Predictions) -> float:
    """Average the classes' accuracies over the test images of all buckets, then average the rows.

    Unlike `icarl/average_incremental_accuracy`, it weights every class equally, and future buckets
    count. The row of the untrained model and classes without test images are left out.
    """
    predictions.learned()  # raises if no bucket was trained, and under streaming
    images, means = predictions.images, []
    totals = np.bincount(images.label)
    for row in range(1, predictions.k + 1):
        hits = predictions.of_row(row).hits(images)
        correct = np.bincount(images.label[hits], minlength=len(totals))
        means.append((correct[totals > 0] / totals[totals > 0]).mean())
    return float(np.mean(means))


_NAME = "amca/average_mean_class_accuracy"
METRICS = (PredictionMetric(name=_NAME, function=average_mean_class_accuracy),)
