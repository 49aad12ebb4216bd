"""Compare groups of runs: a frame of runs, one of groups, and one of tested pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any, NamedTuple

from pandas import DataFrame, Index, MultiIndex, Series

from clear_mlflow.comparison.groups import COST, Group
from clear_mlflow.comparison.pairs import PAIR_COLUMNS, compare_pairs
from clear_mlflow.comparison.ranking import RankedGroups
from clear_mlflow.comparison.wording import (
    DIFFERENT,
    format_seeds,
    list_test_intervals,
    write_exploratory,
    write_warnings,
)
from clear_mlflow.metrics import WITHIN_BUCKET_METRICS, Metric, Predictions
from clear_mlflow.statistics import ImageBootstrap, Interval


class GroupColumn(NamedTuple):
    """A column of the leaderboard next to the metrics."""

    name: str
    compute: Callable[[Group], Any]  # value for files and data frames
    format: Callable[[Group], str]  # text for tables


# All outputs have these columns: terminal, page, Markdown, LaTeX, CSV, JSON and data frames.
GROUP_COLUMNS = (GroupColumn("seeds", lambda group: len(group.counted), format_seeds),)


def build_frame(rows: Sequence[Mapping[Any, Any]]) -> DataFrame:
    """Return a data frame of rows. Strings, and integers next to None, stay Python objects."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for index, name in enumerate(names):
        values = [row.get(name) for row in rows]
        types = {type(value) for value in values}
        is_number = types in ({int}, {bool}) or types <= {float, type(None)}
        columns[index] = Series(values, dtype=None if is_number else object)
    # As objects, because the type for strings raises an error for some untrusted names.
    return DataFrame(columns).set_axis(Index(names, dtype=object), axis="columns")


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(RankedGroups):
    """Ranked groups with tests, as frames that all outputs read."""

    pairs: DataFrame  # PAIR_COLUMNS of each pair, on the metric of the ranking
    # The same for differences in other headline metrics, if the ranking shows none for the pair.
    exploratory: DataFrame
    # Intervals of single results over test images: index of the group to metric to interval.
    image_intervals: Mapping[int, Mapping[str, Interval]]
    warnings: tuple[str, ...]

    @cached_property
    def groups_frame(self) -> DataFrame:
        """One row per group, best first, with two levels of columns.

        ``("group", "name")``, ``("label", NAME)``, the value and text of each of GROUP_COLUMNS,
        and of each metric mean, std, low, high, n, partial (such as "1 of 3"), and best.
        """
        best = self._find_best_means()
        rows = []
        for group in self.groups:
            row: dict[tuple[str, str], Any] = {("group", "name"): group.name}
            row |= {("label", name): label for name, label in group.labels.items()}
            for column in GROUP_COLUMNS:
                row[column.name, "value"] = column.compute(group)
                row[column.name, "text"] = column.format(group)
            for metric in self.metrics:
                summary = group.metrics.get(metric)
                mean, std, ends, n = nan, nan, (nan, nan), 0
                if summary is not None:
                    mean, n = summary.mean, summary.n
                    std = nan if summary.std is None else summary.std
                    ends = summary.interval or ends
                row[metric, "mean"], row[metric, "std"], row[metric, "n"] = mean, std, n
                row[metric, "low"], row[metric, "high"] = ends
                row[metric, "partial"] = group.format_partial_seeds(metric)
                row[metric, "best"] = n > 0 and mean == best.get((group.conditions, metric))
            rows.append(row)
        return build_frame(rows).set_axis(MultiIndex.from_tuples(rows[0]), axis="columns")

    @cached_property
    def runs_frame(self) -> DataFrame:
        """One row per run: id, name, group, seed, rows, parameters, tags and metrics."""
        return build_frame(
            [
                {
                    "run_id": run.run_id,
                    "name": run.name,
                    "group": group.name,
                    "seed": run.seed,
                    "rows": sum(map(bool, run.record.rows)),
                    "buckets": run.record.matrix.num_buckets,
                    "diverged": run.diverged,
                    **{f"params.{name}": value for name, value in run.params.items()},
                    **{
                        f"tags.{name}": value
                        for name, value in run.labels.items()
                        if name not in run.params
                    },
                    **{f"metrics.{name}": value for name, value in run.summary.items()},
                }
                for group in self.groups
                for run in group.members
            ]
        )

    def list_pairs(self) -> list[dict[str, Any]]:
        """Return each tested pair as a dict with PAIR_COLUMNS."""
        rows: list[dict[str, Any]] = self.pairs.to_dict("records")
        return rows

    @property
    def exploratory_text(self) -> str:
        """One line on the clearest exploratory difference, or an empty string."""
        return write_exploratory(self.exploratory.to_dict("records"), self.ranked_by)

    def get_interval(self, index: int, metric: str) -> tuple[Interval | None, bool]:
        """Return the interval of a group over seeds, or else over test images and True."""
        over_seeds = self.groups[index].metrics[metric].interval
        if over_seeds is not None:
            return over_seeds, False
        over_images = self.image_intervals.get(index, {}).get(metric)
        return over_images, over_images is not None

    def _find_best_means(self) -> dict[tuple[int, str], float]:
        """Return the best mean by test conditions and metric, if several groups define it."""
        best = {}
        for metric in self.metrics:
            higher = self.is_higher_better(metric)
            for condition in range(len(self.conditions)):
                means = [
                    group.metrics[metric].mean
                    for group in self.groups
                    if group.conditions == condition and metric in group.metrics
                ]
                if len(means) > 1 and higher is not None:
                    best[condition, metric] = (max if higher else min)(means)
        return best


def compare_groups(
    ranked: RankedGroups, predictions: Mapping[str, Predictions] | None = None
) -> Comparison:
    """Test groups against each other over seeds, and single runs over test images.

    predictions: predictions of single runs by run id.
    """
    by_group = {
        index: predictions[group.counted[0].run_id]
        for index, group in enumerate(ranked.groups)
        if predictions and group.is_single_result and group.counted[0].run_id in predictions
    }
    by_pair = {
        (a, b): (by_group[a], by_group[b])
        for a, b in ranked.plan.pairs
        if a in by_group and b in by_group
    }
    unequal_images = frozenset(
        pair for pair, (a, b) in by_pair.items() if a.images.digest != b.images.digest
    )
    by_pair = {pair: sides for pair, sides in by_pair.items() if pair not in unequal_images}
    bootstrap = ImageBootstrap(metrics=ranked.definitions, level=ranked.level)
    metrics: list[Metric] = [*ranked.definitions]
    if len(list_test_intervals(ranked)) < 2:  # minima over different intervals are not comparable
        metrics += WITHIN_BUCKET_METRICS

    def test(metrics: Sequence[Metric], **options: Any) -> Iterator[dict[str, Any]]:
        for metric in metrics:
            yield from compare_pairs(
                ranked, metric, bootstrap=bootstrap, predictions=by_pair, **options
            )

    ranking_metric = [metric for metric in metrics if metric.name == ranked.ranked_by]
    pairs = [*test(ranking_metric, margin=ranked.margin)]
    names = {*ranked.headline_metrics} - {ranked.ranked_by, COST}
    others = [m for m in metrics if m.name in names and m.higher_is_better is not None]
    undecided = {(p["a_index"], p["b_index"]) for p in pairs if p["outcome"] != DIFFERENT}
    num_comparisons = len(others) * (len(ranked.plan.pairs) + ranked.plan.num_untested)
    exploratory = [
        pair
        for pair in test(others if undecided else (), margin=None, num_comparisons=num_comparisons)
        if pair["outcome"] == DIFFERENT and (pair["a_index"], pair["b_index"]) in undecided
    ]
    return Comparison(
        **vars(ranked),
        # Objects keep integers, and None for what is not defined.
        pairs=DataFrame(pairs, columns=PAIR_COLUMNS, dtype=object),
        exploratory=DataFrame(exploratory, columns=PAIR_COLUMNS, dtype=object),
        image_intervals={i: bootstrap.intervals(run) for i, run in by_group.items()},
        warnings=tuple(write_warnings(ranked, pairs, unequal_images)),
    )
