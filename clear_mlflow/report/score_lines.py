"""A run's metrics as every form lists them: the terminal, the description, the page, a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial

from clear_mlflow.core.score import Score
from clear_mlflow.core.text import NOT_MEASURED, one_line
from clear_mlflow.metrics import ALL_METRICS, Metric, anytime, of_score
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.metrics.from_predictions import PredictionMetric


@dataclass(frozen=True)
class ScoreLine:
    """A metric with its value, or with the reason why it has none."""

    name: str  # of a user's own metric, any text
    value: str | None
    reason: str  # where there is no value
    meaning: str  # one line; empty for a user's own metric
    is_known: bool  # comes with this package
    higher_is_better: bool

    @property
    def text(self) -> str:
        """The value, or a dash."""
        return NOT_MEASURED if self.value is None else self.value

    @property
    def about(self) -> str:
        """What is behind the value: which is better where it is not the higher, or why none."""
        better = "" if self.higher_is_better else "lower is better"
        return self.reason if self.value is None else better


def score_lines(
    summary: Mapping[str, float],
    reasons: Mapping[str, str],
    *,
    lower_is_better: Set[str] = frozenset(),
    score: Score,
) -> list[ScoreLine]:
    """Every metric that has a value or a reason, in the order of the registry, a user's own last.

    *lower_is_better* are names of a user's own metrics of which less is better.
    """
    built_in: tuple[Metric | PredictionMetric | AnytimeMetric, ...]
    built_in = (*of_score(ALL_METRICS, score), *predicted.METRICS, *anytime.METRICS)
    known = {metric.name: metric for metric in built_in}
    lower = lower_is_better | {metric.name for metric in built_in if not metric.higher_is_better}
    return [
        ScoreLine(
            name=name,
            value=score.number(summary[name]) if name in summary else None,
            reason="" if name in summary else one_line(reasons[name], 200),
            meaning=_meaning(known[name]) if name in known else "",
            is_known=name in known,
            higher_is_better=name not in lower,
        )
        for name in dict.fromkeys([*known, *summary, *reasons])
        if name in summary or name in reasons
    ]


def _meaning(metric: Metric | PredictionMetric | AnytimeMetric) -> str:
    """The first line of what a metric's function says of itself."""
    if isinstance(metric, Metric):
        return one_line(metric.meaning, 200)
    function: Callable[..., float] = metric.function
    while isinstance(function, partial):
        function = function.func
    return one_line((function.__doc__ or "").strip().partition("\n")[0], 200)
