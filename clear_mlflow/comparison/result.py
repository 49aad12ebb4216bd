"""The result of a comparison, as frames that all outputs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from statistics import fmean
from typing import Any

from pandas import DataFrame, Index, Series

from clear_mlflow.comparison.groups import COST, LEVEL, ComparedRun, Group, RunWithoutRows
from clear_mlflow.comparison.published_results import PublishedResult
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.matrix import VALIDATION
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import truncate_apart
from clear_mlflow.metrics import (
    COST_METRICS,
    DROP_PARTS,
    EXTRA_METRICS,
    METRICS,
    Metric,
    adapt_metrics,
    convert_to_days,
    find_horizons,
    format_median_horizon,
    get_headlines,
)
from clear_mlflow.statistics import Interval, TTest

DIFFERENT, EQUIVALENT, NOT_SHOWN, TOO_FEW = "different", "equivalent", "not shown", "too few"
BETTER, WORSE, UNDECIDED, UNTESTED = "better", "worse", "not decided", "not tested"
ALPHA = 1 - LEVEL + 1e-12  # largest significant p: exactly 0.05, despite rounding in 1 - 0.95
MAX_PREDICTIONS = 24  # single runs whose predictions are read, megabytes each


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Test of two groups on a metric. Its fields are columns.

    Numbers are None if the pair was not tested. The others are adjusted for several comparisons, if
    their names do not start with ``unadjusted``.
    """

    a: str  # names of the groups
    b: str
    metric: str
    higher_is_better: bool
    outcome: str = TOO_FEW  # DIFFERENT, EQUIVALENT, NOT_SHOWN or TOO_FEW
    difference: float | None = None  # a - b
    low: float | None = None
    high: float | None = None
    p: float | None = None
    test: str | None = None
    sentence: str = ""
    details: list[str] = field(default_factory=list)
    unit: str | None = None  # what was drawn again: seeds or images
    n_a: int | None = None
    n_b: int | None = None
    unadjusted_low: float | None = None
    unadjusted_high: float | None = None
    unadjusted_p: float | None = None
    margin: float | None = None
    equivalence_p: float | None = None
    equivalence_low: float | None = None
    equivalence_high: float | None = None
    hedges_g: float | None = None
    more_seeds: int | None = None  # new seeds of each method that a result would need
    # Fields from here on are not columns.
    groups: tuple[Group, Group] = field(repr=False)
    method: str = ""  # of the test, also if there are too few seeds for it
    size: str = ""  # such as "3 shared seeds"
    t_test: TTest | None = None  # unadjusted; None without variation
    mean_difference: float = 0.0  # a - b, also if there are too few seeds
    values: tuple[Sequence[float], Sequence[float]] | None = None  # of seeds; None for images
    seeds: tuple[Sequence[int | None], Sequence[int | None]] | None = None
    min_seeds: int = 0
    is_in_percent: bool = False
    num_comparisons: int = 1  # that p is adjusted for
    notes: tuple[str, ...] = ()  # cost of a better mean, outliers, and further remarks

    @property
    def is_a_better(self) -> bool:
        """True if the mean of A is better, significantly or not."""
        return (self.mean_difference > 0) == self.higher_is_better

    @property
    def is_within_margin(self) -> bool:
        """True if the difference is significantly smaller than the margin."""
        return self.equivalence_p is not None and self.equivalence_p <= ALPHA

    def to_dict(self) -> dict[str, Any]:
        """Return the columns of the pair."""
        return {name: getattr(self, name) for name in PAIR_COLUMNS}


_PAIR_FIELDS = [column.name for column in fields(Pair)]
PAIR_COLUMNS = tuple(_PAIR_FIELDS[: _PAIR_FIELDS.index("groups")])


@dataclass(frozen=True, kw_only=True)
class PairAcross:
    """Two methods, compared once for each value of a parameter.

    Attributes:
        a, b: names of the methods.
        outcomes: value of the parameter to BETTER or WORSE if a differs significantly from b, to
            UNDECIDED, or to UNTESTED.
        differences: value of the parameter to a - b in the metric of the ranking; None if not
            tested.
        share: part of the variance of a - b that is due to the parameter, from 0 to 1, estimated
            over shared seeds; None without two of them for all values, or if nothing varies.
        sentence: what follows.
    """

    a: str
    b: str
    outcomes: Mapping[str, str]
    differences: Mapping[str, float | None]
    share: float | None
    sentence: str

    @property
    def mean_difference(self) -> float | None:
        """Mean of a - b over the tested values, or None."""
        tested = [number for number in self.differences.values() if number is not None]
        return fmean(tested) if tested else None

    def count(self, outcome: str) -> int:
        """Return for how many values of the parameter this is the outcome."""
        return [*self.outcomes.values()].count(outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return the pair for JSON and data frames."""
        counts = {name.replace(" ", "_"): self.count(name) for name in (BETTER, UNDECIDED, WORSE)}
        return {
            "a": self.a,
            "b": self.b,
            **counts,
            "mean_difference": self.mean_difference,
            "share": self.share,
            "outcomes": dict(self.outcomes),
            "differences": dict(self.differences),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, kw_only=True)
class Across:
    """The verdicts of a comparison for each value of a parameter.

    Attributes:
        parameter: name of the parameter.
        values: its values, in the order of the leaderboard.
        pairs: pairs of methods that were tested for any value.
        agreement: Kendall's W of the rankings, from 0 to 1: all values rank the methods alike.
            None without two methods that have results for all values.
    """

    parameter: str
    values: tuple[str, ...]
    pairs: tuple[PairAcross, ...]
    agreement: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the verdicts for JSON."""
        return {
            "parameter": self.parameter,
            "values": list(self.values),
            "agreement": self.agreement,
            "pairs": [pair.to_dict() for pair in self.pairs],
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Groups of runs, best first, with the tests of pairs of groups.

    Before the tests, *pairs* and the fields after it are empty, and *warnings* are about the runs.
    """

    groups: tuple[Group, ...]
    group_by: tuple[str, ...]
    metrics: tuple[str, ...]  # names of metrics that at least one group defines
    definitions: tuple[Metric, ...]  # metrics of the matrix
    ranked_by: str | None  # metric of the ranking and the tests, or None if no group defines any
    planned_pairs: tuple[tuple[Group, Group], ...]  # groups to test against each other
    # Number of further pairs to adjust for, because the leader was chosen by its results.
    num_untested: int
    baselines: tuple[Group, ...]  # groups that the others are tested against
    leaders: tuple[Group, ...]  # leaders that all others are tested against
    ungrouped: tuple[RunWithoutRows, ...]  # runs without rows that belong to no group
    margin: float | None  # largest difference that does not matter
    tuned: frozenset[str]  # names in group_by of parameters that are chosen by their results
    warnings: tuple[str, ...]
    pairs: tuple[Pair, ...] = ()  # tested on the ranking metric
    # Names of groups that are significantly better than all others under the same conditions.
    best: frozenset[str] = frozenset()
    across: Across | None = None  # the verdicts for each value of a parameter, if requested
    published: tuple[PublishedResult, ...] = ()  # shown below the leaderboard, if requested
    # A line on the clearest difference in another headline metric, for pairs that do not differ in
    # the metric of the ranking; empty without any.
    exploratory: str = ""
    # Intervals of single results over test images: group to metric to interval.
    image_intervals: Mapping[Group, Mapping[str, Interval]] = field(default_factory=dict)

    @cached_property
    def conditions(self) -> list[DatasetDescription]:
        """The different test conditions, in the order of the groups."""
        return list(dict.fromkeys(group.conditions for group in self.groups))

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs with rows, group by group."""
        return tuple(run for group in self.groups for run in group.members)

    @property
    def test_intervals(self) -> list[str]:
        """The values of test_every of runs tested within buckets."""
        return sorted({run.test_every for run in self.runs if run.test_every})

    @property
    def is_validation(self) -> bool:
        """True if all runs were measured on validation images."""
        return all(conditions.split == VALIDATION for conditions in self.conditions)

    @property
    def score(self) -> Score:
        """The score in the matrices of all runs."""
        return self.conditions[0].score

    @cached_property
    def short_names(self) -> Mapping[Group, str]:
        """A unique name of about 20 characters for each group, for charts."""
        names = truncate_apart([group.name for group in self.groups], 20)
        return dict(zip(self.groups, names, strict=True))

    @property
    def headline_metrics(self) -> list[str]:
        """The ranking metric, the most important ones, and requested ones."""
        headlines = (metric.name for metric in get_headlines(self.score))
        default = {metric.name for metric in (*adapt_metrics(METRICS, self.score), *COST_METRICS)}
        requested = (metric.name for metric in self.definitions if metric.name not in default)
        names = dict.fromkeys([self.ranked_by, *headlines, *requested, *DROP_PARTS, COST])
        return [name for name in names if name in self.metrics]

    @property
    def table_metrics(self) -> list[str]:
        """The headline metrics of a table: with costs, without the second."""
        names = self.headline_metrics
        return names[:1] + names[2:] if COST in names[2:] else names

    @property
    def published_metrics(self) -> list[str]:
        """The metrics in published results, the one of the ranking first."""
        names = dict.fromkeys([self.ranked_by, *self.headline_metrics, *self.metrics])
        return [n for n in names if n and any(n in result.values for result in self.published)]

    def is_higher_better(self, metric: str | None) -> bool | None:
        """Return True if higher values are better, None if not declared.

        Returns True for None, and for a metric that the comparison lacks.
        """
        definitions = (*self.definitions, *EXTRA_METRICS)
        return next((m.higher_is_better for m in definitions if m.name == metric), True)

    def list_runs_to_bootstrap(self) -> list[ComparedRun]:
        """Return one run of each group with a single result.

        They are compared over test images. There are at most MAX_PREDICTIONS, and none if the score
        is not an accuracy.
        """
        if not self.score.is_accuracy:  # predictions are classes
            return []
        single = [group for group in self.groups if len(group.results) == 1]
        paired = [group for pair in self.planned_pairs if {*pair} <= {*single} for group in pair]
        groups = list(dict.fromkeys([*paired, *single]))[:MAX_PREDICTIONS]
        return [group.results[0] for group in groups]

    def format_horizon(self, group: Group) -> str:
        """Return how many buckets a group keeps up with training from scratch.

        Returns "" if that is not known. If the buckets have dates, adds days: ``2 (60 days)``.
        """
        if group.scratch is None:
            return ""
        horizons = find_horizons(group.scratch, self.margin or 0.0)
        text, dates = format_median_horizon(horizons), group.members[0].record.dataset.times
        days = format_median_horizon(convert_to_days(horizons, dates)) if dates else "none"
        return text if days == "none" else f"{text} ({days} days)"

    def list_methods(self) -> list[list[Group]]:
        """Return the groups by method, tuned parameters ignored, best first.

        Groups of a method differ in tuned parameters.
        """
        methods: dict[tuple[object, ...], list[Group]] = {}
        for group in self.groups:
            labels = tuple((n, label) for n, label in group.labels.items() if n not in self.tuned)
            # Runs that are not grouped have no labels that would show their method.
            methods.setdefault((group.conditions, labels or group.name), []).append(group)
        return list(methods.values())

    def get_interval(self, group: Group, metric: str) -> tuple[Interval | None, bool]:
        """Return a metric's interval, and whether it is over test images.

        The interval is None if there is neither one over seeds nor over test images.
        """
        over_seeds = group.metrics[metric].interval
        if over_seeds is not None:
            return over_seeds, False
        over_images = self.image_intervals.get(group, {}).get(metric)
        return over_images, over_images is not None

    @cached_property
    def columns(self) -> Mapping[str, Sequence[tuple[Any, str]]]:
        """Further columns of the leaderboard: each group's value and text."""
        # A column that is added here is in all outputs: as values in files, as texts elsewhere.
        columns: dict[str, list[tuple[Any, str]]] = {
            "seeds": [(len(group.counted), group.format_seeds()) for group in self.groups]
        }
        if any(group.scratch is not None for group in self.groups):
            horizons = map(self.format_horizon, self.groups)
            columns["horizon"] = [(horizon, horizon) for horizon in horizons]
        return columns

    def is_best(self, group: Group, metric: str) -> bool:
        """Return True if a group is significantly best in a metric."""
        return metric == self.ranked_by and group.name in self.best

    @property
    def pairs_frame(self) -> DataFrame:
        """One row per pair that was tested or lacks seeds."""
        return build_frame([pair.to_dict() for pair in self.pairs]).reindex(columns=PAIR_COLUMNS)

    @cached_property
    def runs_frame(self) -> DataFrame:
        """One row per run: names, group, seed, parameters, tags and metrics."""
        rows = []
        for group in self.groups:
            for run in group.members:
                tags = {n: label for n, label in run.labels.items() if n not in run.params}
                rows.append(
                    {
                        "run_id": run.run_id,
                        "name": run.name,
                        "group": group.name,
                        "seed": run.seed,
                        "rows": sum(map(bool, run.record.rows)),
                        "buckets": run.record.matrix.num_buckets,
                        "diverged": run.diverged,
                        **{f"params.{name}": value for name, value in run.params.items()},
                        **{f"tags.{name}": value for name, value in tags.items()},
                        **{f"metrics.{name}": value for name, value in run.summary.items()},
                    }
                )
        return build_frame(rows)


def build_frame(rows: Sequence[Mapping[Any, Any]]) -> DataFrame:
    """Return a data frame whose strings and integers stay Python objects.

    A value that a row lacks is None, or NaN in a column of floats.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for index, name in enumerate(names):
        values = [row.get(name) for row in rows]
        types = {type(value) for value in values}
        is_number = types in ({int}, {bool}) or types <= {float, type(None)}
        columns[index] = Series(values, dtype=None if is_number else object)
    # As objects, because the type for strings raises an error for some untrusted names.
    return DataFrame(columns).set_axis(Index(names, dtype=object), axis="columns")
