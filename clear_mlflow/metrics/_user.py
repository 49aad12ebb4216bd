"""Load built-in families by name, and custom metrics by import path or as objects.

An error in a custom function is reported with its name; other metrics are still computed.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clear_mlflow.core.errors import ConfigError, FailedMetricError, UndefinedMetricError
from clear_mlflow.core.text import printable, safe_repr
from clear_mlflow.core.version import import_attribute
from clear_mlflow.metrics._metric import Metric
from clear_mlflow.metrics._registry import (
    BUILT_IN_FAMILIES,
    check_metric_names,
    get_family_metrics,
    split_families,
)

# Families that other programs, or later versions of this one, write.
_RESERVED_FAMILIES = {"accuracy", "test_accuracy", "train", "predictions", "system"}
_EXPECTED = (
    "expected a function of one argument, called matrix or predictions, or a Metric, or a sequence "
    "of metrics"
)


def load_metrics(metrics: str | Sequence[Any]) -> tuple[Metric, ...]:
    """Import custom metrics, and return them after built-in families' metrics.

    Args:
        metrics: items, or a string of items separated by commas. An item is the name of a family,
            an import path ``package.module:function``, a function, or a Metric.

    Raises:
        ConfigError: a family does not exist, or a custom metric cannot be imported, has a name that
            is taken, or is a function whose argument is not called matrix or predictions.
    """
    items = metrics.split(",") if isinstance(metrics, str) else metrics
    families = [item for item in items if isinstance(item, str) and ":" not in item]
    custom = load_custom_metrics([item for item in items if item not in families])
    return (*(get_family_metrics(split_families(families)) if families else ()), *custom)


def load_custom_metrics(references: Sequence[Any]) -> tuple[Metric, ...]:
    """Import custom metrics, each once, whose errors become FailedMetricError.

    An error in the user's function, or a result other than a finite number, becomes a
    FailedMetricError, which is an UndefinedMetricError.
    Raises ConfigError if a metric cannot be imported, or has an invalid or taken name or signature.

    references: import paths ``package.module:function``, functions or metrics.
    """
    loaded: list[Metric] = []
    for item in references:
        if isinstance(item, str):
            loaded += _guard_metrics(item, _import_metric(item))
        else:
            function = getattr(item, "function", item)
            module = getattr(function, "__module__", "own")
            loaded += _guard_metrics(f"{module}:{getattr(function, '__name__', 'metric')}", item)
    metrics = tuple(dict.fromkeys(loaded))
    check_metric_names(metrics)
    return metrics


def _guard_metrics(path: str, item: Any) -> list[Metric]:
    """Build metrics of user code, whose errors become FailedMetricError.

    path: import path of *item*: a function at ``lab.scores:gap`` becomes the metric ``lab/gap``.
    Its attribute ``lower_is_better`` may be True, False or None.
    """
    metrics: list[Any] = [*item] if isinstance(item, (tuple, list)) else [item]
    if not metrics or not all(isinstance(metric, Metric) for metric in metrics):
        names = path.replace(":", ".").split(".")
        needs = _find_input(path, item)
        lower = getattr(item, "lower_is_better", None)
        if lower not in (None, True, False):
            raise ConfigError(f"{path}.lower_is_better is {safe_repr(lower)}; set True or False")
        metrics = [
            Metric(
                name=f"{names[0]}/{names[-1]}",
                function=item,
                needs=needs,
                higher_is_better=None if lower is None else not lower,
            )
        ]
    for metric in metrics:
        if metric.family in BUILT_IN_FAMILIES | _RESERVED_FAMILIES:
            raise ConfigError(
                f"metric {path} is named {metric.name!r}, but the family {metric.family!r} is "
                "taken; choose another one: Metric(name='mylab/...', function=...)"
            )
    return [
        replace(metric, function=_GuardedFunction(path, metric.function), is_vectorized=False)
        for metric in metrics
    ]


def _import_metric(path: str) -> Any:
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
        raise ConfigError(
            f"metric {safe_repr(path)} is not a metric; expected package.module:function"
        )
    try:
        return import_attribute(path)
    # The import runs a user's code: any error becomes one line.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"metric {path} cannot be loaded: {_summarize_error(error)}; expected "
            "package.module:function, importable from here"
        ) from error


def _find_input(path: str, function: Any) -> str:
    """Return the required argument, ``matrix`` or ``predictions``, or raise ConfigError."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metric {path} is {safe_repr(function)}; {_EXPECTED}") from error
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required not in (["matrix"], ["predictions"]):
        raise ConfigError(
            f"metric {path} takes {', '.join(required) or 'no argument'}; {_EXPECTED}"
        )
    return required[0]


@dataclass(frozen=True)
class _GuardedFunction:
    """A custom metric whose errors become FailedMetricError. Can be pickled."""

    path: str
    function: Callable[[Any], Any]

    def __call__(self, measurements: Any) -> float:
        """Return the function's value as a finite float, or raise FailedMetricError."""
        try:
            value = self.function(measurements)
            number = float(value)
        except UndefinedMetricError:
            raise
        except (Exception, SystemExit) as error:
            raise FailedMetricError(f"{self.path} raised {_summarize_error(error)}") from error
        if not isinstance(value, numbers.Real) and getattr(value, "shape", None) != ():
            raise FailedMetricError(f"{self.path} returned {safe_repr(value)}; expected a number")
        if not math.isfinite(number):
            raise FailedMetricError(f"{self.path} returned {number}; expected a finite number")
        return number


def _summarize_error(error: BaseException) -> str:
    """Return ``TypeName: first line of the message``, printable, in 200 characters."""
    line = printable(str(error).partition("\n")[0][:200])
    return f"{type(error).__name__}: {line}".removesuffix(": ")
