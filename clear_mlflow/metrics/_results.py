"""A run's metrics as everybody gets them: Python, the terminal, the description, the page, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import ArrayLike

from clear_mlflow.core.matrix import AccuracyMatrix, drawn, row_positions
from clear_mlflow.core.score import ACCURACY, Score, number_of
from clear_mlflow.core.text import NOT_MEASURED, one_line, printable
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

    def __str__(self) -> str:
        better = "higher" if self.higher_is_better else "lower"
        ends = map(number_of(self.name, self.score), self.interval or ())
        interval = f" [{', '.join(ends)}]" if self.interval else ""
        told = self.reason or f"{better} is better"
        return printable(f"{self.name} {self.text}{interval} ({told})")

    def __repr__(self) -> str:
        return f"MetricResult({self})"

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


class MetricResults(dict[str, MetricResult]):
    """Metrics by name: a table where they are printed, or shown in a notebook."""

    def __repr__(self) -> str:
        table = drawn("terminal_tables", "metrics_table")(self.values())
        text: str = drawn("terminal_tables", "as_text")(table)
        return text

    def _repr_html_(self) -> str:
        found: str = drawn("page.fragment", "run_html")("", None, self.values())
        return found


def scores(
    matrix: AccuracyMatrix | ArrayLike,
    protocol: str = "iid",
    metrics: str | Sequence[str | Metric] = DEFAULT_FAMILIES,
) -> MetricResults:
    """Every chosen metric of a matrix: its value, its course, or why it has none.

    Args:
        matrix: (k, T); row = trained through, column = tested on. Lists, an array, or a frame as
            of ``AccuracyMatrix.to_frame(wide=True)``, whose index orders the rows, are made one.
        protocol: ``iid``, or ``streaming``, whose cells with j <= i are no evidence.
        metrics: families by name, as ``["clear", "gem"]``, and metrics themselves.

    Returns:
        Metric name to its result. Of another score than accuracy, names and values are those of
        :meth:`Metric.of`.

    Raises:
        ConfigError: there is no such protocol, or no such family.
        RecordError: what arrived is no matrix.

    >>> found = scores([[0.9, 0.6]])
    >>> found["clear/next_domain_accuracy"]
    MetricResult(clear/next_domain_accuracy 0.6000 (higher is better))
    >>> found["clear/backward_transfer"].reason
    'needs a past bucket: k >= 2 (trained on 1)'
    """
    matrix = _matrix_of(matrix)
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
        lower_is_better={name for name, m in chosen.items() if m.higher_is_better is False},
        series=found.series,
    )
    return MetricResults((result.name, result) for result in listed)


def _matrix_of(given: Any) -> AccuracyMatrix:
    if isinstance(given, AccuracyMatrix):
        return given
    if not hasattr(given, "iterrows"):
        return AccuracyMatrix(given)
    # A frame of pandas, which need not be there.
    initial = given.loc["initial"] if "initial" in given.index else None
    rows = given.drop(index="initial", errors="ignore")
    keys = [str(key) for key in given.columns]
    rows = rows.set_axis(row_positions([str(label) for label in rows.index], keys))
    return AccuracyMatrix(rows.reindex(range(max(rows.index, default=-1) + 1)), initial, None, keys)


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
            higher_is_better=known[name].higher_is_better is not False
            if name in known
            else name not in lower_is_better,
            formula=known[name].formula if name in known else "",
            meaning=one_line(known[name].meaning, 200) if name in known else "",
            score=score,
        )
        for name in dict.fromkeys([*known, *summary, *reasons])
        if name in summary or name in reasons
    ]
