"""Groups of runs tested against each other: all that a comparison shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clear_mlflow.comparison.arrangement import Arrangement
from clear_mlflow.comparison.caveats import intervals_of_tests, warnings_of
from clear_mlflow.comparison.verdicts import Verdict, judge_pairs
from clear_mlflow.metrics import Metric, anytime
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.metrics.from_predictions import Predictions
from clear_mlflow.statistics import ImageBootstrap, Interval


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Arrangement):
    """All that a comparison shows."""

    verdicts: tuple[Verdict, ...]  # on the metric that ranks, as the pairs of the plan
    # What a single run's test images show of its metrics; for groups that have only one result.
    image_intervals: Mapping[int, Mapping[str, Interval]]
    warnings: tuple[str, ...]

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
    verdicts: list[Verdict] = []
    tested: list[Metric | AnytimeMetric] = [*arrangement.definitions]
    if len(intervals_of_tests(arrangement)) < 2:  # else the minima are of each interval its own
        tested += anytime.METRICS
    for metric in (metric for metric in tested if metric.name == arrangement.ranked_by):
        verdicts = judge_pairs(
            groups,
            arrangement.plan,
            metric=metric,
            bootstrap=bootstrap,
            answered=answered,
            level=arrangement.level,
            margin=arrangement.margin,
            in_percent=arrangement.score.is_accuracy and not metric.name.startswith("cost/"),
        )
    return Comparison(
        **vars(arrangement),
        verdicts=tuple(verdicts),
        image_intervals={position: bootstrap.intervals(run) for position, run in known.items()},
        warnings=tuple(warnings_of(arrangement, verdicts, unlike)),
    )
