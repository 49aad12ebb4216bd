"""What metrics have in common, whatever they are numbers of: a declaration, and its evaluation."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

from clear_mlflow.core.errors import UndefinedMetricError

Measured = TypeVar("Measured")


@dataclass(frozen=True, kw_only=True)
class MetricOf(Generic[Measured]):
    """One number of what was measured in a run, under the name that it is logged as."""

    name: str  # family and metric, as clear/in_domain_accuracy
    function: Callable[[Measured], float]  # raises UndefinedMetricError where it has no value
    higher_is_better: bool | None = True  # None if not declared
    version: int = 1  # raised when the definition changes, so that stored values are known as old

    @property
    def meaning(self) -> str:
        """What it says, in one line: the first of its function's documentation."""
        return self.documentation.partition("\n")[0]

    @property
    def formula(self) -> str:
        """What its function says after "Formula:"; empty where that names none."""
        found = re.search(r"Formula: (.+?)\. Defined when ", " ".join(self.documentation.split()))
        return found[1] if found else ""

    @property
    def documentation(self) -> str:
        """What its function says of itself, whatever is wrapped around that."""
        function: Any = self.function
        while (inner := getattr(function, "func", getattr(function, "function", None))) is not None:
            function = inner
        return inspect.getdoc(function) or ""


AnyMetric = TypeVar("AnyMetric", bound=MetricOf[Any])


def modules_of(package: ModuleType) -> dict[str, ModuleType]:
    """Every module of a package that holds a family of metrics, by its name."""
    return {
        found.name: importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
        if not (found.ispkg or found.name.startswith("_"))
    }


def gather(metrics: Iterable[AnyMetric]) -> tuple[AnyMetric, ...]:
    """All metrics; ValueError where MLflow cannot hold them side by side."""
    found: dict[str, AnyMetric] = {}
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


def evaluated(
    measured: Measured, metrics: Sequence[MetricOf[Measured]]
) -> tuple[dict[str, float], dict[str, UndefinedMetricError]]:
    """Values by name, and of the other metrics why they have none."""
    values: dict[str, float] = {}
    errors: dict[str, UndefinedMetricError] = {}
    for metric in metrics:
        try:
            values[metric.name] = metric.function(measured)
        except UndefinedMetricError as error:
            errors[metric.name] = error
    return values, errors


@dataclass(frozen=True, eq=False)
class Course:
    """What a run defines at every step."""

    series: dict[str, dict[int, float]]  # metric name to {buckets trained: value}, where defined
    summary: dict[str, float]  # metric name to its value at the last step, where defined
    undefined: dict[str, UndefinedMetricError]  # metric name to why it has none there


def over_course(measured: Any, k: int, metrics: Sequence[MetricOf[Any]]) -> Course:
    """Every metric of what k buckets gave, and of ``measured.after(step)`` for each step before."""
    found: dict[str, dict[int, float]] = {}
    for step in range(1, k):
        for name, value in evaluated(measured.after(step), metrics)[0].items():
            found.setdefault(name, {})[step] = value
    summary, errors = evaluated(measured, metrics)
    for name, value in summary.items() if k else ():
        found.setdefault(name, {})[k] = value
    return Course(found, summary, errors)
