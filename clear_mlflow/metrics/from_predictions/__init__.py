"""Numbers that are computed from a run's stored predictions; one module per family.

As :mod:`clear_mlflow.metrics`, one level finer: a new metric is a function and a line in its
family's ``METRICS``; a new family is a new module here.
"""

from __future__ import annotations

import sys

from clear_mlflow.metrics._common import gather, modules_of
from clear_mlflow.metrics.from_predictions._base import PredictionMetric, Predictions
from clear_mlflow.metrics.from_predictions._classes import class_accuracies, confusion, macro_matrix

__all__ = [
    "METRICS",
    "PredictionMetric",
    "Predictions",
    "class_accuracies",
    "confusion",
    "macro_matrix",
]

METRICS: tuple[PredictionMetric, ...] = gather(
    metric for module in modules_of(sys.modules[__name__]).values() for metric in module.METRICS
)
