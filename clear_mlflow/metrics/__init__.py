"""Every number that is computed from an accuracy matrix; one module per family of definitions.

The same word means different things in different papers, so the family is part of each name. A new
metric is a function and a line in its family's ``METRICS``; a new family is a new module here.
"""

from __future__ import annotations

import importlib
import pkgutil
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from clear_mlflow.core.errors import FailedMetricError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics._base import Metric

__all__ = ["METRICS", "Metric", "explain", "gather", "series", "summarize", "undefined"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_AnyMetric = TypeVar("_AnyMetric", bound=_Named)


def gather(metrics: Iterable[_AnyMetric]) -> tuple[_AnyMetric, ...]:
    """All metrics, once it is sure that MLflow can hold them side by side.

    Raises:
        ValueError: a name stands twice, or is one that MLflow refuses.
    """
    found: dict[str, _AnyMetric] = {}
    for metric in metrics:
        name = metric.name
        # MLflow takes a name as a path too: no "a//b", "./a" or "../a".
        if (
            not re.fullmatch(r"[A-Za-z0-9_\-./ ]{1,250}", name)
            or posixpath.normpath(name) != name
            or name.startswith((".", "/"))
        ):
            raise ValueError(
                f"metric name {name!r} is one that MLflow refuses; use family/metric_name"
            )
        if name in found:
            raise ValueError(f"two metrics are named {name!r}; give each its own name")
        found[name] = metric
    return tuple(found.values())


METRICS: tuple[Metric, ...] = gather(
    metric
    for module in pkgutil.iter_modules(__path__)
    if not (module.ispkg or module.name.startswith("_"))
    for metric in importlib.import_module(f"{__name__}.{module.name}").METRICS
)


def summarize(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, float]:
    """Every metric that is defined on a matrix.

    Args:
        matrix: (k, T); row = trained through, column = tested on.
        protocol: ``iid``, or ``streaming``, whose cells with j <= i are no evidence.
        metrics: to compute; all built-in ones when not given.

    Returns:
        Metric name to value. A metric that is not defined is not there; :func:`explain` says why.

    Raises:
        ConfigError: the protocol is unknown.

    >>> summarize(AccuracyMatrix([[0.9, 0.6]]))["clear/next_domain_accuracy"]
    0.6
    """
    return _defined(matrix.masked(protocol), metrics)


def explain(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, str]:
    """Why each metric that :func:`summarize` leaves out has no value on this matrix.

    Cells are named as in the formulas: R[i, j] is bucket j after bucket i, counted from 0.

    Args:
        matrix: (k, T); row = trained through, column = tested on.
        protocol: ``iid``, or ``streaming``, whose cells with j <= i are no evidence.
        metrics: to compute; all built-in ones when not given.

    Returns:
        Metric name to reason.

    Raises:
        ConfigError: the protocol is unknown.

    >>> explain(AccuracyMatrix([[0.9, 0.6]]))["clear/backward_transfer"]
    'needs a past bucket: k >= 2 (trained on 1)'
    """
    return {name: str(error) for name, error in undefined(matrix, protocol, metrics).items()}


def undefined(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, UndefinedMetricError]:
    """As :func:`explain`, as errors: a FailedMetricError is a mistake of the metric itself."""
    evidence = matrix.masked(protocol)
    # Had everything been measured, would the protocol still leave this metric out? Then it does
    # not help a user to hear which cell is missing.
    ideal = AccuracyMatrix(
        np.ones(matrix.values.shape), matrix.initial, matrix.num_instances, matrix.buckets
    )
    ruled_out = (
        _defined(ideal, metrics).keys() - _defined(ideal.masked(protocol), metrics).keys()
        if protocol != "iid"
        else set()
    )
    errors: dict[str, UndefinedMetricError] = {}
    for metric in metrics:
        try:
            metric.function(evidence)
        except FailedMetricError as error:
            errors[metric.name] = error
        except UndefinedMetricError as error:
            errors[metric.name] = error
            if metric.name in ruled_out:
                errors[metric.name] = UndefinedMetricError(
                    f"under the {protocol} protocol cells with j <= i score training images"
                )
    return errors


def series(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, dict[int, float]]:
    """Every metric over the course of a run.

    Args:
        matrix: (k, T); row = trained through, column = tested on.
        protocol: ``iid``, or ``streaming``, whose cells with j <= i are no evidence.
        metrics: to compute; all built-in ones when not given.

    Returns:
        Metric name to {buckets trained: value of the run cut off there}, only where defined. The
        value at the last step is that of :func:`summarize`.

    Raises:
        ConfigError: the protocol is unknown.
    """
    evidence = matrix.masked(protocol)
    found: dict[str, dict[int, float]] = {}
    for k in range(1, evidence.num_rows + 1):
        for name, value in _defined(evidence.after(k), metrics).items():
            found.setdefault(name, {})[k] = value
    return found


def _defined(evidence: AccuracyMatrix, metrics: Sequence[Metric]) -> dict[str, float]:
    found = {}
    for metric in metrics:
        try:
            found[metric.name] = metric.function(evidence)
        except UndefinedMetricError:
            continue
    return found
