"""Numbers that are computed from a run's stored predictions; one module per family.

As :mod:`clear_mlflow.metrics`, one level finer: a new metric is a function and a line in its
family's ``METRICS``; a new family is a new module here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._common import evaluated, gather, modules_of, over_course
from clear_mlflow.metrics.from_predictions._base import PredictionMetric, Predictions
from clear_mlflow.metrics.from_predictions._classes import class_accuracies, confusion, macro_matrix
from clear_mlflow.metrics.from_predictions.macro_accuracy import METRICS as _MACRO_METRICS
from clear_mlflow.metrics.from_predictions.macro_accuracy import repeats_accuracy

__all__ = [
    "METRICS",
    "PredictionMetric",
    "Predictions",
    "class_accuracies",
    "confusion",
    "explain",
    "macro_matrix",
    "repeated",
    "series",
    "summarize",
    "undefined",
]

METRICS: tuple[PredictionMetric, ...] = gather(
    metric for module in modules_of(sys.modules[__name__]).values() for metric in module.METRICS
)


def repeated(predictions: Predictions) -> frozenset[str]:
    """Names of metrics that say again what the accuracy matrix says, for these test images.

    Those of the macro accuracy matrix are, where every class has as many test images.
    """
    is_repeated = repeats_accuracy(predictions)
    return frozenset(metric.name for metric in _MACRO_METRICS) if is_repeated else frozenset()


def summarize(
    predictions: Predictions, metrics: Sequence[PredictionMetric] = METRICS
) -> dict[str, float]:
    """Every metric that is defined on a run's predictions: name to value."""
    return evaluated(predictions, metrics)[0]


def explain(
    predictions: Predictions, metrics: Sequence[PredictionMetric] = METRICS
) -> dict[str, str]:
    """Why each metric that :func:`summarize` leaves out has no value: name to reason."""
    return {name: str(error) for name, error in undefined(predictions, metrics).items()}


def undefined(
    predictions: Predictions, metrics: Sequence[PredictionMetric] = METRICS
) -> dict[str, UndefinedMetricError]:
    """As :func:`explain`, as errors: a FailedMetricError is a mistake of the metric itself."""
    return evaluated(predictions, metrics)[1]


def series(
    predictions: Predictions, metrics: Sequence[PredictionMetric] = METRICS
) -> dict[str, dict[int, float]]:
    """Every metric over the course of a run: name to {buckets trained: value}, where defined."""
    return over_course(predictions, metrics)
