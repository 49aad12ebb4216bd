"""The registry of all built-in metrics: ``METRICS`` of the modules without a leading underscore."""

from __future__ import annotations

import importlib
import pkgutil
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import Score, format_significant
from clear_mlflow.core.text import safe_repr, suggest_nearest
from clear_mlflow.metrics._metric import (
    ACCURACY_ONLY,
    COSTS,
    MATRIX,
    PREDICTIONS,
    PREQUENTIAL,
    SCRATCH,
    WITHIN_BUCKET,
    Metric,
    adapt_metrics,
)


def check_metric_names(metrics: Iterable[Metric]) -> None:
    """Raise ConfigError if MLflow refuses a name, or two metrics share one."""
    names: set[str] = set()
    for name in (metric.name for metric in metrics):
        # MLflow also uses a name as a path: "a//b", "./a" and "../a" are refused.
        if (
            not re.fullmatch(r"[A-Za-z0-9_\-./ ]{1,250}", name)
            or posixpath.normpath(name) != name
            or name.startswith((".", "/"))
        ):
            raise ConfigError(f"MLflow refuses the metric name {name!r}; use family/metric_name")
        if name in names:
            raise ConfigError(f"two metrics are named {name!r}; choose different names")
        names.add(name)


_MODULES = {
    info.name: importlib.import_module(f"clear_mlflow.metrics.{info.name}")
    for info in pkgutil.iter_modules([str(Path(__file__).parent)])
    if not info.name.startswith("_")
}
# Titles of the families that are computed by default, and come first on the page of a run.
DEFAULT_TITLES: Mapping[str, str] = MappingProxyType(
    {name: module.TITLE for name, module in _MODULES.items() if hasattr(module, "TITLE")}
)
DEFAULT_FAMILIES = tuple(DEFAULT_TITLES)
_DECLARED = tuple(metric for module in _MODULES.values() for metric in module.METRICS)
check_metric_names(_DECLARED)
PREDICTION_METRICS = tuple(m for m in _DECLARED if m.needs == PREDICTIONS)
WITHIN_BUCKET_METRICS = tuple(m for m in _DECLARED if m.needs == WITHIN_BUCKET)
PREQUENTIAL_METRICS = tuple(m for m in _DECLARED if m.needs == PREQUENTIAL)
SCRATCH_METRICS = tuple(m for m in _DECLARED if m.needs == SCRATCH)
# Of other inputs than the matrix, which comparisons add to the requested metrics.
EXTRA_METRICS = (*WITHIN_BUCKET_METRICS, *PREQUENTIAL_METRICS, *SCRATCH_METRICS)
COST_METRICS = tuple(m for m in _DECLARED if m.needs == COSTS)
_CHOOSABLE = tuple(m for m in _DECLARED if m.needs in (MATRIX, COSTS))
# Families that a user can choose, the default ones first.
FAMILIES: Mapping[str, tuple[Metric, ...]] = MappingProxyType(
    {
        family: tuple(metric for metric in _CHOOSABLE if metric.family == family)
        for family in (*DEFAULT_FAMILIES, *sorted({metric.family for metric in _CHOOSABLE}))
    }
)
ALL_METRICS = tuple(metric for family in FAMILIES.values() for metric in family)
[FORGETTING_SINCE_TRAINED] = (m for m in ALL_METRICS if m.name.endswith("_since_trained"))
# Metrics that are computed if no family is chosen.
METRICS = tuple(metric for family in DEFAULT_FAMILIES for metric in FAMILIES[family])
# All built-in families, including families of predictions and of tests within buckets.
BUILT_IN_FAMILIES = frozenset(metric.family for metric in _DECLARED)


def get_family_metrics(families: Iterable[str]) -> tuple[Metric, ...]:
    """Return the metrics of families. Raises KeyError for an unknown name."""
    return tuple(metric for family in families for metric in FAMILIES[family])


def split_families(family_names: str | Sequence[str]) -> tuple[str, ...]:
    """Parse family names separated by commas, or raise ConfigError if unknown.

    Raises ConfigError if there is none.

    >>> split_families("clear, gem,clear"), split_families(["gem"])
    (('clear', 'gem'), ('gem',))
    """
    names = family_names.split(",") if isinstance(family_names, str) else family_names
    if not isinstance(names, Sequence) or not names or not all(isinstance(n, str) for n in names):
        raise ConfigError(
            f"metrics is {safe_repr(family_names)}; expected names of families, for example "
            '"clear,gem"; clear_mlflow.evaluate computes custom functions',
            parameter="metrics",
        )
    families = tuple(dict.fromkeys(name.strip() for name in names))
    if unknown := [name for name in families if name not in FAMILIES]:
        raise ConfigError(
            f"metrics is {safe_repr(family_names)}, but {_describe_unknown_family(unknown[0])}",
            parameter="metrics",
        )
    return families


def _describe_unknown_family(name: str) -> str:
    """Return what is wrong with the name of a family, and what to pass."""
    family = name.partition("/")[0]
    if family in BUILT_IN_FAMILIES and family not in FAMILIES:
        return (
            f"the metrics of {family} are computed for every run that has what they need; leave "
            f"{name} out"
        )
    families = [family] if family in FAMILIES else []
    families += [m.family for m in ALL_METRICS if m.name.partition("/")[2] == name]
    if families:
        return (
            f"{safe_repr(name)} is not a family; pass {' or '.join(dict.fromkeys(families))}, with "
            "all metrics of the family"
        )
    return (
        f"the family {safe_repr(name)} does not exist; {suggest_nearest(family, FAMILIES)}expected "
        f"some of {', '.join(FAMILIES)}, separated by commas"
    )


def add_matrix_metrics(metrics: Iterable[Metric], matrix: AccuracyMatrix) -> tuple[Metric, ...]:
    """Return *metrics*, with cost and forgetting metrics that suit the matrix.

    These are all cost metrics if a row has a cost, and ``chaudhry/forgetting_since_trained`` if
    ``renate/forgetting`` is one of *metrics* and lacks only tests of future buckets.
    """
    by_name = {metric.name: metric for metric in metrics}
    if any(cost is not None for cost in matrix.costs):
        by_name |= {metric.name: metric for metric in COST_METRICS}
    if "renate/forgetting" in by_name and lacks_future_tests(matrix):
        by_name.setdefault(FORGETTING_SINCE_TRAINED.name, FORGETTING_SINCE_TRAINED)
    return tuple(by_name.values())


def lacks_future_tests(matrix: AccuracyMatrix) -> bool:
    """Return True if only tests of future buckets are missing for ``renate/forgetting``."""
    is_missing = np.isnan(matrix.values[:, : max(matrix.num_rows - 1, 0)])
    return bool(np.triu(is_missing, 1).any() and not np.tril(is_missing).any())


@lru_cache(maxsize=8)
def get_built_in_metrics(score: Score) -> Mapping[str, Metric]:
    """Return all built-in metrics of a score by name."""
    metrics = (*adapt_metrics(ALL_METRICS, score), *PREDICTION_METRICS, *EXTRA_METRICS)
    return MappingProxyType({metric.name: metric for metric in metrics})


def get_headlines(score: Score) -> tuple[Metric, ...]:
    """Return the metrics with a headline, the most important ones."""
    return tuple(metric for metric in get_built_in_metrics(score).values() if metric.headline)


def get_first_ranking_metric(score: Score) -> Metric:
    """Return the built-in metric with the highest ``rank_priority``."""
    metrics = [metric for metric in ALL_METRICS if metric.rank_priority is not None]
    if not score.is_accuracy:
        metrics = [metric for metric in metrics if metric.score_role != ACCURACY_ONLY]
    return max(metrics, key=lambda metric: metric.rank_priority or 0).adapt(score)


def is_cost(name: str) -> bool:
    """Return True if *name* is a cost metric, such as ``cost/seconds``."""
    return any(metric.name == name for metric in COST_METRICS)


def format_value(name: str, value: float, score: Score) -> str:
    """Return a metric's value as text, rounded like *score*.

    A metric with its own unit, such as a cost, has four significant digits.

    >>> from clear_mlflow.core.score import ACCURACY
    >>> format_value("cost/images", 1234567, ACCURACY), format_value("gem/x", 0.5, ACCURACY)
    ('1.235e+06', '0.5000')
    """
    metric = get_built_in_metrics(score).get(name)
    return (
        score.format_metric(value)
        if metric is None or not metric.unit
        else format_significant(value, 4)
    )
