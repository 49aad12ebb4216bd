"""A run's metrics as everybody gets them: Python, the terminal, the description, the page, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import ACCURACY, Score, number_of
from clear_mlflow.core.text import NOT_MEASURED, one_line
from clear_mlflow.metrics import (
    ALL_METRICS,
    DEFAULT_FAMILIES,
    Metric,
    anytime,
    course,
    family_names,
    of_families,
    of_score,
    with_costs,
)
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.metrics._common import MetricOf


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """One metric of one run, with what is needed to read it.

    Attributes:
        name: family and metric, as ``clear/in_domain_accuracy``.
        value: after the last row; an accuracy is a fraction. None where it is not defined.
        reason: why it has no value; empty where it has one.
        series: buckets trained to the value of the run cut off there, where defined.
        interval: low and high end, 95 %, over the test images of this trained model; None without
            stored predictions.
        higher_is_better: which of two values a researcher wants.
        formula: with R[i, j] for bucket j after bucket i, from 0; empty for a metric of your own.
        meaning: one line; empty for a metric of your own.
        score: what the matrix holds.
    """

    name: str
    value: float | None
    reason: str = ""
    series: Mapping[int, float] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    higher_is_better: bool = True
    formula: str = ""
    meaning: str = ""
    score: Score = ACCURACY

    @property
    def is_known(self) -> bool:
        """Whether it comes with this package."""
        return bool(self.meaning)

    @property
    def text(self) -> str:
        """The value, rounded to be read, or a dash."""
        if self.value is None:
            return NOT_MEASURED
        return number_of(self.name, self.score)(self.value)

    @property
    def about(self) -> str:
        """What is behind the value: which is better where it is not the higher, or why none."""
        return self.reason or ("" if self.higher_is_better else "lower is better")

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it: undefined is None, with its reason."""
        return {
            "value": self.value,
            "reason": self.reason or None,
            "interval": None if self.interval is None else list(self.interval),
            "higher_is_better": self.higher_is_better,
            "formula": self.formula or None,
            "series": {str(step): value for step, value in self.series.items()},
        }


def scores(
    matrix: AccuracyMatrix,
    protocol: str = "iid",
    metrics: str | Sequence[str | Metric] = DEFAULT_FAMILIES,
) -> dict[str, MetricResult]:
    """Every chosen metric of a matrix: its value, its course, or why it has none.

    Args:
        matrix: (k, T); row = trained through, column = tested on.
        protocol: ``iid``, or ``streaming``, whose cells with j <= i are no evidence.
        metrics: families by name, as ``["clear", "gem"]``, and metrics themselves.

    Returns:
        Metric name to its result. Of another score than accuracy, names and values are those of
        :meth:`Metric.of`.

    Raises:
        ConfigError: there is no such protocol, or no such family.

    >>> found = scores(AccuracyMatrix([[0.9, 0.6]]))
    >>> found["clear/next_domain_accuracy"].value
    0.6
    >>> found["clear/backward_transfer"].reason
    'needs a past bucket: k >= 2 (trained on 1)'
    """
    asked = metrics.split(",") if isinstance(metrics, str) else metrics
    chosen: dict[str, Metric] = {}
    for one in asked:
        of_one = (one,) if isinstance(one, Metric) else of_families(family_names(one))
        chosen |= {metric.name: metric for metric in of_score(of_one, matrix.score)}
    computed = with_costs(chosen.values(), matrix)
    found = course(matrix.masked(protocol), protocol, computed)
    listed = results(
        found.summary,
        {name: str(error) for name, error in found.undefined.items()},
        score=matrix.score,
        lower_is_better={name for name, m in chosen.items() if not m.higher_is_better},
        series=found.series,
    )
    return {result.name: result for result in listed}


def results(
    summary: Mapping[str, float],
    reasons: Mapping[str, str],
    *,
    score: Score,
    lower_is_better: Set[str] = frozenset(),
    series: Mapping[str, Mapping[int, float]] | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> list[MetricResult]:
    """Every metric with a value or a reason, a user's own last, *lower_is_better* of theirs."""
    built_in: Iterable[MetricOf[Any]]
    built_in = (*of_score(ALL_METRICS, score), *predicted.METRICS, *anytime.METRICS)
    known = {metric.name: metric for metric in built_in}
    return [
        MetricResult(
            name=name,
            value=summary.get(name),
            reason="" if name in summary else one_line(reasons[name], 200),
            series=(series or {}).get(name, {}),
            interval=(intervals or {}).get(name),
            higher_is_better=known[name].higher_is_better
            if name in known
            else name not in lower_is_better,
            formula=known[name].formula if name in known else "",
            meaning=one_line(known[name].meaning, 200) if name in known else "",
            score=score,
        )
        for name in dict.fromkeys([*known, *summary, *reasons])
        if name in summary or name in reasons
    ]
