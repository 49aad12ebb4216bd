"""Every number that is computed from an accuracy matrix; one module per family of definitions.

The same word means different things in different papers, so the family is part of each name. A new
metric is a function and a line in its family's ``METRICS``; a new family is a new module here. Of
all families, those that are chosen are computed: by default CLEAR's and Renate's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from clear_mlflow.core.errors import ConfigError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics._base import ACCURACY_ALONE, ANY, CHANGE, LEVEL, Metric
from clear_mlflow.metrics._common import Course, evaluated, gather, modules_of, over_course

__all__ = [
    "ACCURACY_ALONE",
    "ALL_METRICS",
    "ANY",
    "CHANGE",
    "DEFAULT_FAMILIES",
    "FAMILIES",
    "LEVEL",
    "METRICS",
    "Course",
    "Metric",
    "course",
    "family_names",
    "gather",
    "name_of",
    "of_families",
    "of_score",
    "summarize",
    "undefined",
    "with_costs",
]


DEFAULT_FAMILIES = ("clear", "renate")


_FOUND = modules_of(sys.modules[__name__])
# Every family that there is, those that are computed by default first.
FAMILIES: Mapping[str, tuple[Metric, ...]] = MappingProxyType(
    {
        name: _FOUND[name].METRICS
        for name in sorted(_FOUND, key=lambda n: (n not in DEFAULT_FAMILIES, n))
    }
)
ALL_METRICS: tuple[Metric, ...] = gather(m for family in FAMILIES.values() for m in family)


def of_families(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of some families."""
    return tuple(metric for name in names for metric in FAMILIES[name])


def with_costs(metrics: Iterable[Metric], matrix: AccuracyMatrix) -> tuple[Metric, ...]:
    """The metrics, and those of cost where a row of the matrix says what it cost."""
    costs = FAMILIES["cost"] if any(cost is not None for cost in matrix.costs) else ()
    return tuple({metric.name: metric for metric in (*metrics, *costs)}.values())


def of_score(metrics: Iterable[Metric], score: Score) -> tuple[Metric, ...]:
    """The same metrics of matrices of some score; where that is accuracy, they stay as they are.

    >>> [m.name for m in of_score(FAMILIES["gem"], Score("rmse", higher_is_better=False))]
    ['gem/average_rmse', 'gem/backward_transfer', 'gem/forward_transfer']
    """
    found: dict[str, Metric] = {}
    for metric in (metric.of(score) for metric in metrics):
        if metric.name in found and not score.is_accuracy:
            raise ConfigError(
                f"score is {safe_repr(score.name)}, which would make two metrics {metric.name!r}; "
                "give the score another name"
            )
        found[metric.name] = metric
    return tuple(found.values())


_BY_NAME = {metric.name: metric for metric in ALL_METRICS}


def name_of(name: str, score: Score) -> str:
    """The name that a metric of accuracies has where it is of another score.

    >>> name_of("clear/in_domain_accuracy", Score("rmse", higher_is_better=False))
    'clear/in_domain_rmse'
    """
    return _BY_NAME[name].of(score).name


# What is computed where no family is chosen.
METRICS: tuple[Metric, ...] = of_families(DEFAULT_FAMILIES)


def family_names(text: str) -> tuple[str, ...]:
    """The families that a text names, each once, separated by commas.

    Raises:
        ConfigError: it names none, or one that there is not.

    >>> family_names("clear, gem,clear")
    ('clear', 'gem')
    """
    named = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in named if name not in FAMILIES]:
        raise ConfigError(
            f"metrics is {safe_repr(text)}, but {safe_repr(unknown[0])} is no family of metrics; "
            f"expected some of {', '.join(FAMILIES)}, separated by commas"
        )
    return named


def summarize(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, float]:
    """Name to value of every chosen metric that a matrix defines, as :meth:`Metric.of` has it."""
    return evaluated(matrix.masked(protocol), of_score(metrics, matrix.score))[0]


def undefined(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, UndefinedMetricError]:
    """Why each metric that :func:`summarize` leaves out has no value, by its name."""
    evidence, metrics = matrix.masked(protocol), of_score(metrics, matrix.score)
    return _by_protocol(evaluated(evidence, metrics)[1], protocol)


def course(evidence: AccuracyMatrix, protocol: str, metrics: Sequence[Metric] = METRICS) -> Course:
    """Both, and every metric over the course of a run, of a matrix that ``masked`` gave."""
    metrics = of_score(metrics, evidence.score)
    found = over_course(evidence, evidence.num_rows, metrics)
    return replace(found, undefined=_by_protocol(found.undefined, protocol))


def _by_protocol(
    errors: dict[str, UndefinedMetricError], protocol: str
) -> dict[str, UndefinedMetricError]:
    """The same errors, those of a cell that the protocol makes no evidence as such."""
    told = UndefinedMetricError(
        f"under the {protocol} protocol cells with j <= i score training images"
    )
    places = {name: re.match("row ([0-9]+), column ([0-9]+)", str(e)) for name, e in errors.items()}
    ruled_out = [n for n, at in places.items() if at is not None and int(at[2]) <= int(at[1])]
    return errors if protocol == "iid" else errors | dict.fromkeys(ruled_out, told)
