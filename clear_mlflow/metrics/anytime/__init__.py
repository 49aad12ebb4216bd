"""Numbers that are computed from tests inside the buckets; one module per family.

As :mod:`clear_mlflow.metrics`, of a finer course: a new metric is a function and a line in its
family's ``METRICS``; a new family is a new module here. None of them has a value where a run was
tested at the ends of its buckets alone.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics import gather
from clear_mlflow.metrics.anytime._base import AnytimeMetric

__all__ = ["METRICS", "AnytimeMatrix", "AnytimeMetric", "explain", "series", "summarize"]

METRICS: tuple[AnytimeMetric, ...] = gather(
    metric
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("_")
    for metric in importlib.import_module(f"{__name__}.{module.name}").METRICS
)


def summarize(
    matrix: AnytimeMatrix, metrics: Sequence[AnytimeMetric] = METRICS
) -> dict[str, float]:
    """Every metric that is defined on a run's tests: name to value."""
    return _evaluated(matrix, metrics)[0]


def explain(matrix: AnytimeMatrix, metrics: Sequence[AnytimeMetric] = METRICS) -> dict[str, str]:
    """Why each metric that :func:`summarize` leaves out has no value: name to reason."""
    return _evaluated(matrix, metrics)[1]


def series(
    matrix: AnytimeMatrix, metrics: Sequence[AnytimeMetric] = METRICS
) -> dict[str, dict[int, float]]:
    """Every metric over the course of a run: name to {buckets trained: value}, where defined."""
    found: dict[str, dict[int, float]] = {}
    for k in range(1, matrix.k + 1):
        for name, value in summarize(matrix.after(k), metrics).items():
            found.setdefault(name, {})[k] = value
    return found


def _evaluated(
    matrix: AnytimeMatrix, metrics: Sequence[AnytimeMetric]
) -> tuple[dict[str, float], dict[str, str]]:
    values: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for metric in metrics:
        try:
            values[metric.name] = metric.function(matrix)
        except UndefinedMetricError as error:
            reasons[metric.name] = str(error)
    return values, reasons
