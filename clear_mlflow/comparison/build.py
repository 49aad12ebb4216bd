"""Groups of runs tested against each other: all that a comparison shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clear_mlflow.comparison.arrangement import Arrangement
from clear_mlflow.comparison.caveats import intervals_of_tests, warnings_of
from clear_mlflow.comparison.groups import COST
from clear_mlflow.comparison.sentences import DIFFERENT
from clear_mlflow.comparison.verdicts import Verdict, judge_pairs
from clear_mlflow.metrics import WITHIN_BUCKET_METRICS, Metric, Predictions, is_cost
from clear_mlflow.statistics import ImageBootstrap, Interval


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Arrangement):
    """All that a comparison shows."""

    verdicts: tuple[Verdict, ...]  # on the metric that ranks, as the pairs of the plan
    # Differences at other headline metrics, of pairs without one at the metric that ranks.
    exploratory: tuple[Verdict, ...]
    # What a single run's test images show of its metrics; for groups that have only one result.
    image_intervals: Mapping[int, Mapping[str, Interval]]
    warnings: tuple[str, ...]

    @property
    def exploratory_text(self) -> str:
        """One line on the clearest exploratory difference, or an empty text."""
        if not self.exploratory:
            return ""
        first, *others = sorted(self.exploratory, key=lambda v: v.test.adjusted if v.test else 1.0)
        metrics = ", ".join(dict.fromkeys(verdict.metric for verdict in others))
        return (
            f"Exploratory, where {self.ranked_by} shows no difference: {first.sentence}"
            + (f" {len(others)} more at {metrics}." if others else "")
            + " Confirm such a finding on new seeds before you report it."
        )

    def interval_of(self, position: int, metric: str) -> tuple[Interval | None, bool]:
        """The interval of a group's mean over seeds, else over images (True), else None."""
        over_seeds = self.groups[position].metrics[metric].interval
        if over_seeds is not None:
            return over_seeds, False
        over_images = self.image_intervals.get(position, {}).get(metric)
        return over_images, over_images is not None


def compare(
    arrangement: Arrangement, predictions: Mapping[str, Predictions] | None = None
) -> Comparison:
    """Test groups against each other: over seeds, single runs over images (answers by run id)."""
    groups = arrangement.groups
    known = {
        position: predictions[group.counted[0].run_id]
        for position, group in enumerate(groups)
        if predictions and group.is_alone and group.counted[0].run_id in predictions
    }
    both = {(a, b): (known[a], known[b]) for a, b in arrangement.plan.pairs if {a, b} <= {*known}}
    unlike = frozenset(p for p, (a, b) in both.items() if a.images.digest != b.images.digest)
    answered = {pair: sides for pair, sides in both.items() if pair not in unlike}
    bootstrap = ImageBootstrap(metrics=arrangement.definitions, level=arrangement.level)
    tested: list[Metric] = [*arrangement.definitions]
    if len(intervals_of_tests(arrangement)) < 2:  # else the minima are of each interval its own
        tested += WITHIN_BUCKET_METRICS

    def judge(
        metric: Metric, margin: float | None, comparisons: int | None = None
    ) -> list[Verdict]:
        return judge_pairs(
            groups,
            arrangement.plan,
            metric=metric,
            bootstrap=bootstrap,
            answered=answered,
            level=arrangement.level,
            margin=margin,
            in_percent=arrangement.score.is_accuracy and not is_cost(metric.name),
            comparisons=comparisons,
        )

    ranked = [metric for metric in tested if metric.name == arrangement.ranked_by]
    verdicts = [verdict for metric in ranked for verdict in judge(metric, arrangement.margin)]
    names = {*arrangement.headline_metrics} - {arrangement.ranked_by, COST}
    others = [m for m in tested if m.name in names and m.higher_is_better is not None]
    undecided = {(v.a, v.b) for v in verdicts if v.outcome != DIFFERENT}
    looked_at = len(others) * (len(arrangement.plan.pairs) + arrangement.plan.possible)
    exploratory = [
        verdict
        for metric in (others if undecided else ())
        for verdict in judge(metric, None, looked_at)
        if verdict.outcome == DIFFERENT and (verdict.a, verdict.b) in undecided
    ]
    return Comparison(
        **vars(arrangement),
        verdicts=tuple(verdicts),
        exploratory=tuple(exploratory),
        image_intervals={position: bootstrap.intervals(run) for position, run in known.items()},
        warnings=tuple(warnings_of(arrangement, verdicts, unlike)),
    )
