"""From runs to a comparison: which groups there are, who leads, and what of it is real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.across import AcrossDatasets, across_datasets
from clear_mlflow.comparison.curves import MOST_CURVES
from clear_mlflow.comparison.groups import Group, cut, group_runs, label_of
from clear_mlflow.comparison.subjects import RowlessRun, Setting, Subject
from clear_mlflow.comparison.verdicts import (
    ALL_PAIRS,
    MOST_READ,
    PairPlan,
    PairTest,
    Verdict,
    judge_pairs,
    plan_pairs,
)
from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import TEST, VALIDATION
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import METRICS, Metric, anytime, name_of, of_score
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.statistics import (
    CorrectMatrix,
    ImageBootstrap,
    Interval,
    KnownForms,
    holm,
    mcnemar_cells,
    metric_intervals,
)

LEVEL = 0.95

# Parameters of a training that are chosen by what they give. Others say what is compared (strategy,
# model), what it may cost (memory), or where it is computed.
TUNED = (
    "strategy_args",
    "augment",
    "epochs",
    "batch_size",
    "optimizer",
    "optimizer_state",
    "lr",
    "momentum",
    "weight_decay",
    "schedule",
    "lr_step",
    "lr_gamma",
    "warmup_epochs",
    "label_smoothing",
    "clip_norm",
)

# What a leaderboard is ranked by where nobody says: the first that most groups define.
_RANKED_BY = (
    "clear/challenge_score",
    "renate/average_accuracy",
    "clear/next_domain_accuracy",
    "clear/in_domain_accuracy",
)


# What a table of 80 columns has room for beside the metric that ranks.
_HEADLINE = (
    "clear/in_domain_accuracy",
    "clear/next_domain_accuracy",
    "renate/average_accuracy",
    "renate/forgetting",
)


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Runs in groups, best first; nothing is tested yet."""

    groups: tuple[Group, ...]
    settings: tuple[Setting, ...]
    group_by: tuple[str, ...]
    metrics: tuple[str, ...]  # that one group at least defines
    definitions: tuple[Metric, ...]  # of the metrics of matrices that are compared
    ranked_by: str | None  # that verdicts are on, too; None: no group defines any
    plan: PairPlan
    lost: tuple[RowlessRun, ...]  # runs that diverged before their first row, of no group
    notes: tuple[str, ...]  # sentences on how the groups came to be
    level: float
    margin: float | None  # the largest difference that does not matter

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """All runs that hold rows, group by group."""
        return tuple(member for group in self.groups for member in group.members)

    @property
    def is_validation(self) -> bool:
        """Whether all runs were measured on validation images."""
        return all(setting.split == VALIDATION for setting in self.settings)

    @property
    def score(self) -> Score:
        """What all runs were scored by."""
        return self.settings[0].score

    @property
    def headline_metrics(self) -> list[str]:
        """The metric that ranks, and those named most often: for tables of a few columns."""
        usual = (name_of(name, self.score) for name in _HEADLINE)
        names = dict.fromkeys([self.ranked_by, *usual])
        return [name for name in names if name in self.metrics]

    def is_higher_better(self, metric: str | None) -> bool:
        """Whether more of a metric is better."""
        return _is_higher_better((*self.definitions, *anytime.METRICS), metric)

    def wants_tests(self, most: int) -> list[Subject]:
        """Runs whose tests inside buckets are drawn: one of each group, then another of each."""
        seeds = [
            [m for m in group.members if m.test_every and m.record.protocol != "streaming"]
            for setting in range(len(self.settings))
            for group in [g for g in self.groups if g.setting == setting][:MOST_CURVES]
        ]
        return [m for turn in zip_longest(*seeds) for m in turn if m is not None][:most]

    def wants_predictions(self) -> list[Subject]:
        """Runs of pairs without several seeds: only their test images can show a difference."""
        if not self.score.is_accuracy:  # predictions are of classes
            return []
        alone = [
            position
            for pair in self.plan.pairs
            if all(self.groups[position].is_alone for position in pair)
            for position in pair
        ]
        return [self.groups[p].counted[0] for p in list(dict.fromkeys(alone))[:MOST_READ]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Arrangement):
    """All that a comparison shows."""

    verdicts: tuple[Verdict, ...]  # on the metric that ranks, as the pairs of the plan
    exploratory: tuple[PairTest, ...]  # of the other metrics, in their order
    across: AcrossDatasets | None  # None: one dataset, or no two methods on all of them
    cells: Mapping[tuple[int, int], NDArray[np.float64]]  # (T + 1, T) adjusted p of McNemar
    unlike: frozenset[tuple[int, int]]  # pairs whose predictions are of different images
    inside: Mapping[str, AnytimeMatrix]  # tests inside buckets that are drawn, by run id
    # What a single run's test images say of its metrics; for groups that have only one result.
    image_intervals: Mapping[int, Mapping[str, Interval]]
    warnings: tuple[str, ...]

    def interval_of(self, position: int, metric: str) -> tuple[Interval | None, bool]:
        """What to draw about a group's mean of a metric that it defines.

        Returns:
            The interval over seeds, else the one over the test images of its only run, else None;
            and whether it is over images.
        """
        over_seeds = self.groups[position].metrics[metric].interval
        if over_seeds is not None:
            return over_seeds, False
        over_images = self.image_intervals.get(position, {}).get(metric)
        return over_images, over_images is not None


def arrange(
    subjects: Sequence[Subject],
    by: Sequence[str],
    *,
    rank_by: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    rowless: Sequence[RowlessRun] = (),
    level: float = LEVEL,
    metrics: Sequence[Metric] = METRICS,
) -> Arrangement:
    """Group the runs, rank the groups, and say which of them are to be tested.

    Args:
        subjects: the runs.
        by: names of labels that runs of one group share; none: each run is a group.
        rank_by: the metric that ranks, and that verdicts are on; None: the first usual one that
            most groups define.
        baseline: name of a group, or one of its labels, that all others are tested against; None:
            the leader, or all pairs of a few groups.
        margin: the largest difference that does not matter, above 0, in the metric's unit; None:
            equivalence is not asked for.
        rowless: runs that diverged before their first row.
        level: of all intervals and findings.
        metrics: that the runs' summaries are of.

    Raises:
        ConfigError: there is no run, runs are of several scores, no run has a label or the metric,
            no group is the baseline, or the margin is not above 0.
    """
    if not subjects:
        raise ConfigError("no run with rows of an accuracy matrix arrived; nothing to compare")
    if margin is not None and not 0 < margin < np.inf:
        raise ConfigError(f"margin is {shown(margin)}; expected a number above 0")
    metrics = of_score(metrics, only_score(subjects))
    definitions: list[Metric | AnytimeMetric] = [*metrics, *anytime.METRICS]
    groups, settings, notes = group_runs(subjects, by, level, rowless)
    defined = {name for group in groups for name in group.metrics}
    compared = tuple(metric.name for metric in definitions if metric.name in defined)
    if rank_by is not None and rank_by not in defined:
        raise ConfigError(
            f"rank_by is {shown(rank_by)}, which no run defines; "
            f"there are {', '.join(compared) or 'none'}"
        )
    usual = [name_of(name, settings[0].score) for name in _RANKED_BY]
    ranked_by = rank_by or max(
        compared,
        key=lambda name: (
            sum(name in group.metrics for group in groups),
            -usual.index(name) if name in usual else -len(usual),
        ),
        default=None,
    )

    def rank(group: Group) -> tuple[int, bool, float]:
        found = group.metrics.get(ranked_by or "")
        sign = -1 if _is_higher_better(definitions, ranked_by) else 1
        return group.setting, found is None, sign * found.mean if found else 0.0

    ranked = tuple(sorted(groups, key=rank))
    known_runs = {run.run_id for group in groups for run in group.rowless}
    return Arrangement(
        groups=ranked,
        settings=tuple(settings),
        group_by=tuple(by),
        metrics=compared,
        definitions=tuple(metrics),
        ranked_by=ranked_by,
        plan=plan_pairs(ranked, settings, baseline),
        lost=tuple(run for run in rowless if run.run_id not in known_runs),
        notes=tuple(notes),
        level=level,
        margin=margin,
    )


def compare(
    arrangement: Arrangement,
    hits: Mapping[str, CorrectMatrix] | None = None,
    *,
    over_images: bool = True,
    inside: Mapping[str, AnytimeMatrix] | None = None,
) -> Comparison:
    """Test groups against each other, and say what may be said.

    Seeds are the unit where both sides have three or more. Two single runs are compared on their
    test images, where their stored predictions are known and of the same images.

    Args:
        arrangement: the groups.
        hits: run id to what its stored predictions got right.
        over_images: whether groups of one result get intervals over their test images, a tenth of
            a second each.
        inside: run id to its tests inside buckets, which are drawn.
    """
    hits = hits or {}
    groups, ranked = arrangement.groups, arrangement.ranked_by
    correct: dict[tuple[int, int], tuple[CorrectMatrix, CorrectMatrix]] = {}
    unlike = set()
    for a, b in arrangement.plan.pairs:
        one, other = (_only_correctness(groups[position], hits) for position in (a, b))
        if one is not None and other is not None:
            if one.evaluation_set == other.evaluation_set:
                correct[a, b] = one, other
            else:
                unlike.add((a, b))
    bootstraps = [
        ImageBootstrap(
            metrics=arrangement.definitions, protocol=setting.protocol, level=arrangement.level
        )
        for setting in arrangement.settings
    ]
    verdicts: list[Verdict] = []
    exploratory: list[PairTest] = []
    across = None
    compared = [m for m in _tested(arrangement) if m.name in arrangement.metrics]
    if ranked in [m.name for m in compared]:
        compared.sort(key=lambda metric: metric.name != ranked)
        verdicts, exploratory = judge_pairs(
            groups,
            arrangement.plan,
            metrics=compared,
            bootstraps=bootstraps,
            correct=correct,
            level=arrangement.level,
            margin=arrangement.margin,
            in_percent=arrangement.score.is_accuracy,
        )
        across = across_datasets(groups, arrangement.settings, compared[0], arrangement.level)
    return Comparison(
        **vars(arrangement),
        verdicts=tuple(verdicts),
        exploratory=tuple(exploratory),
        across=across,
        cells={pair: _cell_tests(groups[pair[0]], *sides) for pair, sides in correct.items()},
        unlike=frozenset(unlike),
        inside=inside or {},
        image_intervals=_image_intervals(arrangement, hits, bootstraps)
        if over_images and arrangement.score.is_accuracy
        else {},
        warnings=tuple(_warnings(arrangement, verdicts, unlike)),
    )


def only_score(subjects: Sequence[Subject]) -> Score:
    """What all runs were scored by.

    Raises:
        ConfigError: there is no run, or they were scored by several.
    """
    counts = Counter(subject.record.matrix.score for subject in subjects)
    if not counts:
        raise ConfigError("no run with rows of an accuracy matrix arrived; nothing to compare")
    if len(counts) > 1:
        told = ", ".join(
            f"{score.name} ({score.better} is better; {count} run{'' if count == 1 else 's'})"
            for score, count in counts.items()
        )
        raise ConfigError(f"runs of different scores arrived: {told}; compare those of one score")
    return next(iter(counts))


def _is_higher_better(definitions: Sequence[Metric | AnytimeMetric], name: str | None) -> bool:
    return all(metric.higher_is_better for metric in definitions if metric.name == name)


def _cell_tests(group: Group, a: CorrectMatrix, b: CorrectMatrix) -> NDArray[np.float64]:
    """(T + 1, T): p of each cell, adjusted for the cells of the table; NaN = not tested."""
    found = np.full(group.grid.shape, np.nan)
    p_values = mcnemar_cells(a, b).p_values
    found[: len(p_values)] = p_values
    found[np.isnan(group.grid)] = np.nan  # no evidence under the protocol
    tested = ~np.isnan(found)
    found[tested] = holm(found[tested].tolist())
    return found


def _only_correctness(group: Group, hits: Mapping[str, CorrectMatrix]) -> CorrectMatrix | None:
    return hits.get(group.counted[0].run_id) if group.is_alone else None


def _image_intervals(
    arrangement: Arrangement,
    hits: Mapping[str, CorrectMatrix],
    bootstraps: Sequence[ImageBootstrap],
) -> dict[int, Mapping[str, Interval]]:
    """Of groups with one result: its predictions say more than its counts do."""
    found: dict[int, Mapping[str, Interval]] = {}
    metrics = arrangement.definitions
    forms = [KnownForms(metrics, protocol=s.protocol) for s in arrangement.settings]
    for position, group in enumerate(arrangement.groups):
        if not group.is_alone:
            continue
        run = group.counted[0]
        if run.run_id in hits:
            found[position] = bootstraps[group.setting].intervals(hits[run.run_id])
        else:
            matrix = run.record.matrix
            found[position] = metric_intervals(
                matrix,
                metrics=metrics,
                protocol=run.record.protocol,
                level=arrangement.level,
                forms=forms[group.setting].of(matrix),
            )
    return found


def _warnings(
    arrangement: Arrangement, verdicts: Sequence[Verdict], unlike: set[tuple[int, int]]
) -> Iterator[str]:
    groups, settings = arrangement.groups, arrangement.settings
    if len(settings) > 1:
        what = ", ".join(dict.fromkeys(w for s in settings[1:] for w in settings[0].differences(s)))
        yield (
            f"Not all runs were tested in the same way; {len(settings)} ways differ in {what}. "
            "Groups of different ways are shown one below the other, and never tested against "
            "each other."
        )
    yield from arrangement.notes
    yield from _chosen_on(arrangement)
    yield from _tests_inside(arrangement)
    for group in groups:
        for run in group.members:
            stored, width = len([r for r in run.record.rows if r > 0]), len(run.grid[0])
            if run.diverged:
                yield (
                    f"{label_of(run)} diverged after {stored} of {width} rows: its cells and "
                    "curves are shown, it counts as a seed, and it has no value in any mean."
                )
            elif run not in group.counted:
                yield (
                    f"{label_of(run)} was trained on {run.record.matrix.num_rows} of {width} "
                    f"buckets, others on {group.length}: its cells and curves are shown, its "
                    "metrics are left out of means and tests."
                )
            elif run.is_partial:
                yield (
                    f"{label_of(run)} is partial: {stored} of {width} rows. A metric that they do "
                    "not define is left empty."
                )
        for lost in group.rowless:
            yield (
                f"{label_of(lost)} diverged before its first row: it counts as a seed, and it has "
                "no value in any mean."
            )
        if group.is_deterministic:
            yield (
                f"All {len(group.counted)} seeds of {cut(group.name)} gave the same matrix: "
                "nothing in its training depends on the seed, so there is no spread and no "
                "interval over seeds."
            )
        elif twins := _identical(group):
            yield (
                f"{label_of(twins[0])} and {label_of(twins[1])} gave the same matrix from "
                "different seeds: if one is a copy, the spread of the group is too small."
            )
    for lost in arrangement.lost:
        yield (
            f"{label_of(lost)} diverged before its first row, and no other run is of its group: "
            "there is nothing to show of it."
        )
    alone = [group for group in groups if len(group.counted) == 1]
    if alone:
        names = ", ".join(cut(group.name) for group in alone[:5]) + (", …" if alone[5:] else "")
        yield (
            f"{len(alone)} of {len(groups)} groups are one run each ({names}): they have no spread "
            "over seeds. What holds of one trained model need not hold of the method."
        )
    if unlike:
        a, b = min(unlike)
        yield (
            f"{cut(groups[a].name)} and {cut(groups[b].name)} answered different test images, "
            "though their dataset has the same digest: they are not tested against each other."
        )
    pairs = arrangement.plan.pairs
    untested = set(pairs) - {(verdict.a, verdict.b) for verdict in verdicts} - unlike
    if untested:
        yield (
            f"{len(untested)} of {len(pairs)} pairs could not be tested: that needs three seeds or "
            f"more on both sides, or stored predictions of one run on each, of {MOST_READ} runs at "
            "most."
        )
    for leader in arrangement.plan.leaders:
        yield (
            f"Of more than {ALL_PAIRS} groups each is tested against the leader, "
            f"{cut(groups[leader].name)}. It was found by looking, so p is adjusted for all pairs; "
            "a baseline named beforehand (--baseline) is adjusted for its own pairs alone."
        )
    if arrangement.plan.baselines:
        tested = {groups[position].setting for position in arrangement.plan.baselines}
        for without in sorted(set(range(len(settings))) - tested):
            yield (
                f"No group on {cut(settings[without].dataset)} is the baseline: nothing is tested "
                "there."
            )


def _tested(arrangement: Arrangement) -> tuple[Metric | AnytimeMetric, ...]:
    """The metrics that groups are tested on."""
    if len(_intervals(arrangement)) > 1:  # of tests inside buckets: the minima are of each its own
        return arrangement.definitions
    return (*arrangement.definitions, *anytime.METRICS)


def _intervals(arrangement: Arrangement) -> list[str]:
    """How often runs were tested inside their buckets; runs that were not are left out."""
    return sorted({run.test_every for run in arrangement.subjects if run.test_every})


def _tests_inside(arrangement: Arrangement) -> Iterator[str]:
    """What a reader has to know of the metrics of tests inside buckets."""
    intervals = _intervals(arrangement)
    runs = arrangement.subjects
    if without := sum(not run.test_every for run in runs) if intervals else 0:
        were, their = ("was", "its") if without == 1 else ("were", "their")
        yield (
            f"{without} of {len(runs)} runs {were} not tested inside {their} buckets (test_every): "
            f"{their} continual_evaluation metrics are not defined, and left empty."
        )
    if len(intervals) > 1:
        yield (
            f"Runs were tested inside their buckets at several intervals (test_every: "
            f"{', '.join(shown(text) for text in intervals[:5])}), on which minima and windows "
            "depend: their continual_evaluation metrics are shown, and not tested against each "
            "other."
        )


def _chosen_on(arrangement: Arrangement) -> Iterator[str]:
    """What a choice by this leaderboard is made on, where there is one to make."""
    if any(setting.split == VALIDATION for setting in arrangement.settings):
        what = "All runs" if arrangement.is_validation else "The groups called validation"
        yield (
            f"{what} were measured on validation images, a part of the training images that they "
            "were not trained on: numbers to choose by, not to report."
        )
    chosen = [
        method
        for method in methods(arrangement)
        if len(method) > 1 and arrangement.settings[method[0].setting].split == TEST
    ]
    if chosen:
        count = sum(map(len, chosen))
        varied = [
            name
            for name in arrangement.group_by
            if name in TUNED
            and any(len({group.labels[name] for group in method}) > 1 for method in chosen)
        ]
        yield (
            f"{count} groups differ in {', '.join(varied)} alone and were measured on test images: "
            "whoever picks the best of them has chosen on the test set, and its value is too high "
            "to report. Choose among runs with split=validation, then train what was chosen with "
            "split=auto (docs/sweeps.md)."
        )


def methods(arrangement: Arrangement) -> list[list[Group]]:
    """Groups of one setting that differ in nothing but what is tuned, in order of rank."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in arrangement.groups:
        labels = tuple((n, text) for n, text in group.labels.items() if n not in TUNED)
        # Runs for themselves have no labels: nobody said what they are candidates of.
        key = (group.setting, labels) if group.labels else (group.setting, group.name)
        found.setdefault(key, []).append(group)
    return list(found.values())


def _identical(group: Group) -> tuple[Subject, Subject] | None:
    """Two runs of a group with the same matrix."""
    seen: dict[bytes, Subject] = {}
    for member in group.counted:
        twin = seen.setdefault(member.grid.tobytes(), member)
        if twin is not member:
            return twin, member
    return None
