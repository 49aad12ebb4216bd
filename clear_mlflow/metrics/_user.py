"""A user's own metrics: a function of the matrix or of the predictions, named on the command line.

``--metrics mypkg.module:function``. An error of such a function is reported with its name, and the
other metrics are still computed.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clear_mlflow.core.errors import ConfigError, FailedMetricError, UndefinedMetricError
from clear_mlflow.core.importing import imported
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import (
    ALL_METRICS,
    Metric,
    anytime,
    family_names,
    gather,
    of_families,
)
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.metrics.from_predictions import PredictionMetric

# Families that other programs or later versions of this one write.
_RESERVED = ("accuracy", "test_accuracy", "train", "predictions", "system")
_EXPECTED = (
    "expected a function of one argument, called matrix or predictions, or a Metric or "
    "PredictionMetric, or a sequence of these two"
)


@dataclass(frozen=True)
class UserMetrics:
    """What a user brought; it gives finite numbers and raises UndefinedMetricError alone."""

    matrix: tuple[Metric, ...] = ()
    predictions: tuple[PredictionMetric, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which they are logged."""
        return (*(m.name for m in self.matrix), *(m.name for m in self.predictions))


def asked_metrics(metrics: str | Sequence[Any]) -> UserMetrics:
    """The metrics of families by name, and a user's own, in one list or text."""
    listed = metrics.split(",") if isinstance(metrics, str) else metrics
    families = [name for name in listed if isinstance(name, str) and ":" not in name]
    own = load_own_metrics([one for one in listed if one not in families])
    built_in = of_families(family_names(",".join(families))) if families else ()
    return replace(own, matrix=(*built_in, *own.matrix))


def load_own_metrics(references: Sequence[Any]) -> UserMetrics:
    """The metrics that a user named as ``package.module:function``, or brought as they are."""
    found: dict[str, tuple[str, Metric | PredictionMetric]] = {}
    for one in references:
        reference, thing = (one, _imported(one)) if isinstance(one, str) else (_address(one), one)
        for metric in _as_metrics(reference, thing):
            if metric.name in found and found[metric.name][0] != reference:
                raise ConfigError(
                    f"metrics {found[metric.name][0]} and {reference} are both named "
                    f"{metric.name!r}; give one of them another name"
                )
            found[metric.name] = (reference, metric)
    own = [metric for _, metric in found.values()]
    return UserMetrics(
        matrix=tuple(metric for metric in own if isinstance(metric, Metric)),
        predictions=tuple(metric for metric in own if isinstance(metric, PredictionMetric)),
    )


def _address(thing: Any) -> str:
    """What a metric that nobody named is called: package.module:function."""
    function = getattr(thing, "function", thing)
    return f"{getattr(function, '__module__', 'own')}:{getattr(function, '__name__', 'metric')}"


def _as_metrics(reference: str, thing: Any) -> tuple[Metric | PredictionMetric, ...]:
    listed: list[Any] = [*thing] if isinstance(thing, (tuple, list)) else [thing]
    if not listed or not all(isinstance(x, (Metric, PredictionMetric)) for x in listed):
        package, _, function = reference.replace(":", ".").partition(".")
        name = f"{package}/{function.rpartition('.')[2]}"
        lower = getattr(thing, "lower_is_better", None)
        if lower not in (None, True, False):
            raise ConfigError(
                f"{reference}.lower_is_better is {safe_repr(lower)}; set True or False"
            )
        higher = None if lower is None else not lower
        listed = [_kind(reference, thing)(name=name, function=thing, higher_is_better=higher)]
    for metric in listed:
        _check_family(reference, metric.name)
    try:
        return gather(replace(m, function=_Guarded(reference, m.function)) for m in listed)
    except ValueError as error:
        raise ConfigError(f"metric {reference}: {error}") from error


def _imported(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not attribute or not all(part.isidentifier() for part in parts):
        raise ConfigError(
            f"metric {safe_repr(reference)} is none; expected package.module:function"
        )
    try:
        return imported(reference)
    # Importing runs a user's code: any error of it becomes one line.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"metric {reference} cannot be loaded: {_first_line(error)}; expected "
            "package.module:function, importable from here"
        ) from error


def _kind(source: str, thing: object) -> type[Metric] | type[PredictionMetric]:
    """Which metric a function is, by its one argument's name."""
    if not callable(thing) or isinstance(thing, type):
        raise ConfigError(f"metric {source} is {safe_repr(thing)}; {_EXPECTED}")
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metric {source} does not say what it takes; {_EXPECTED}") from error
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed == ["matrix"]:
        return Metric
    if needed == ["predictions"]:
        return PredictionMetric
    raise ConfigError(f"metric {source} takes {', '.join(needed) or 'nothing'}; {_EXPECTED}")


def _check_family(source: str, name: str) -> None:
    families = (ALL_METRICS, predicted.METRICS, anytime.METRICS)
    built_in = [metric.name for known in families for metric in known]
    family = name.split("/")[0]
    if family in {*_RESERVED, *(taken.split("/")[0] for taken in built_in)}:
        raise ConfigError(
            f"metric {source} is named {name!r}, but the family {family!r} is taken; give it "
            "another one: Metric(name='mylab/...', function=...)"
        )


@dataclass(frozen=True)
class _Guarded:
    """A user's function, made to keep what every metric promises; pickles where that one does."""

    source: str  # how the user named it
    function: Callable[[Any], Any]

    def __call__(self, argument: Any) -> float:
        try:
            found = self.function(argument)
            number = float(found)
        except UndefinedMetricError:
            raise
        except Exception as error:
            raise FailedMetricError(f"{self.source} raised {_first_line(error)}") from error
        if not isinstance(found, numbers.Real) and getattr(found, "shape", None) != ():
            raise FailedMetricError(f"{self.source} gave {safe_repr(found)}; expected a number")
        if not math.isfinite(number):
            raise FailedMetricError(f"{self.source} gave {number}; expected a finite number")
        return number


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    text = "".join(c if c.isprintable() else "?" for c in lines[0][:200]) if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
