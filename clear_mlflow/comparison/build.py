"""From runs to a comparison: which groups there are, who leads, and what of it is real."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import Group, cut, group_runs, label_of
from clear_mlflow.comparison.subjects import Setting, Subject
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.statistics import (
    CorrectMatrix,
    Interval,
    bootstrap_intervals,
    holm,
    mcnemar_cells,
    metric_intervals,
    paired_bootstrap,
    paired_permutation,
    unpaired_permutation,
    verdict,
)

LEVEL = 0.95

# The leaders of each setting that are tested pair by pair: 15 pairs. More would be read by nobody,
# and each further pair makes every other one harder to show.
MOST_TESTED = 6
# What a leaderboard is ranked by where nobody says: the first that most groups define.
_RANKED_BY = (
    "clear/challenge_score",
    "renate/average_accuracy",
    "clear/next_domain_accuracy",
    "clear/in_domain_accuracy",
)


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """Two groups, one metric: the difference, and what may be said of it."""

    a: int  # position of the group
    b: int
    metric: str
    unit: str  # what was drawn: "seeds" or "images"
    difference: float  # a - b
    interval: Interval | None
    p_value: float
    adjusted: float  # by Holm, over the pairs tested on this metric
    outcome: str  # as of statistics.verdict: "different", "not shown" or "too few"
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Runs in groups, best first; nothing is tested yet."""

    groups: tuple[Group, ...]
    settings: tuple[Setting, ...]
    group_by: tuple[str, ...]
    metrics: tuple[str, ...]  # that one group at least defines
    definitions: tuple[Metric, ...]  # of the metrics that are compared
    ranked_by: str | None  # None: no group defines any
    notes: tuple[str, ...]  # sentences on how the groups came to be
    level: float

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """All runs, group by group."""
        return tuple(member for group in self.groups for member in group.members)

    def is_higher_better(self, metric: str) -> bool:
        """Whether more of a metric is better."""
        return _is_higher_better(self.definitions, metric)

    def tested_pairs(self) -> Iterator[tuple[int, int]]:
        """Positions of groups that are set against each other: leaders of one setting."""
        for positions in self._leaders():
            yield from combinations(positions, 2)

    def wants_predictions(self) -> list[Subject]:
        """Runs that stand alone in a pair: only their test images can tell anything."""
        alone = []
        for positions in self._leaders():
            single = [p for p in positions if len(self.groups[p].counted) == 1]
            if len(single) > 1:
                alone += [self.groups[p].counted[0] for p in single]
        return alone

    def _leaders(self) -> list[list[int]]:
        by_setting: dict[int, list[int]] = defaultdict(list)
        for position, group in enumerate(self.groups):
            if group.counted and len(by_setting[group.setting]) < MOST_TESTED:
                by_setting[group.setting].append(position)
        return list(by_setting.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Arrangement):
    """All that a comparison shows."""

    tests: tuple[PairTest, ...]  # the metric that ranks first, then the others in their order
    cells: Mapping[tuple[int, int], NDArray[np.float64]]  # (T + 1, T) adjusted p of McNemar
    unlike: frozenset[tuple[int, int]]  # pairs whose predictions are of different images
    # What a single run's test images say of its metrics; of groups without seeds to tell.
    image_intervals: Mapping[int, Mapping[str, Interval]]
    warnings: tuple[str, ...]


def arrange(
    subjects: Sequence[Subject],
    by: Sequence[str],
    *,
    rank_by: str | None = None,
    level: float = LEVEL,
    metrics: Sequence[Metric] = METRICS,
) -> Arrangement:
    """Group the runs and rank the groups.

    Args:
        subjects: the runs.
        by: names of labels that runs of one group share; none: each run stands alone.
        rank_by: the metric that ranks; None: the first usual one that most groups define.
        level: of all intervals and findings.
        metrics: that the runs' summaries are of.

    Raises:
        ConfigError: there is no run, or no run has a label or the metric.
    """
    if not subjects:
        raise ConfigError("no run with rows of an accuracy matrix arrived; nothing to compare")
    groups, settings, notes = group_runs(subjects, by, level)
    defined = {name for group in groups for name in group.metrics}
    compared = tuple(metric.name for metric in metrics if metric.name in defined)
    if rank_by is not None and rank_by not in defined:
        raise ConfigError(
            f"rank_by is {shown(rank_by)}, which no run defines; "
            f"there are {', '.join(compared) or 'none'}"
        )
    ranked_by = rank_by or max(
        compared,
        key=lambda name: (
            sum(name in group.metrics for group in groups),
            -_RANKED_BY.index(name) if name in _RANKED_BY else -len(_RANKED_BY),
        ),
        default=None,
    )

    def rank(group: Group) -> tuple[int, bool, float]:
        found = group.metrics.get(ranked_by or "")
        sign = -1 if _is_higher_better(metrics, ranked_by) else 1
        return group.setting, found is None, sign * found.mean if found else 0.0

    return Arrangement(
        groups=tuple(sorted(groups, key=rank)),
        settings=tuple(settings),
        group_by=tuple(by),
        metrics=compared,
        definitions=tuple(metrics),
        ranked_by=ranked_by,
        notes=tuple(notes),
        level=level,
    )


def compare(
    arrangement: Arrangement, hits: Mapping[str, CorrectMatrix] | None = None
) -> Comparison:
    """Test the leading groups against each other, and say what may be said.

    Seeds are the unit where both sides have two or more. Two single runs are compared on their test
    images, where their stored predictions are known and of the same images.

    Args:
        arrangement: the groups.
        hits: run id to what its stored predictions got right.
    """
    hits = hits or {}
    groups = arrangement.groups
    pairs = list(arrangement.tested_pairs())
    pooled: dict[tuple[int, int], dict[str, _Test]] = {pair: {} for pair in pairs}
    cells: dict[tuple[int, int], NDArray[np.float64]] = {}
    unlike = set()
    for a, b in pairs:
        sides = [_only_correctness(groups[position], hits) for position in (a, b)]
        if sides[0] is not None and sides[1] is not None:
            if sides[0].evaluation_set != sides[1].evaluation_set:
                unlike.add((a, b))
                continue
            protocol = arrangement.settings[groups[a].setting].protocol
            cells[a, b] = _cell_tests(groups[a], sides[0], sides[1])
            pooled[a, b].update(_by_images(arrangement, sides[0], sides[1], protocol))
        for metric in arrangement.metrics:
            if test := _by_seeds(groups[a], groups[b], metric, arrangement.level):
                pooled[a, b][metric] = test
    return Comparison(
        **vars(arrangement),
        tests=tuple(_judged(arrangement, pooled)),
        cells=cells,
        unlike=frozenset(unlike),
        image_intervals=_image_intervals(arrangement, hits),
        warnings=tuple(_warnings(arrangement, pairs, pooled, unlike)),
    )


def _is_higher_better(definitions: Sequence[Metric], name: str | None) -> bool:
    return all(metric.higher_is_better for metric in definitions if metric.name == name)


@dataclass(frozen=True)
class _Test:
    unit: str
    difference: float
    interval: Interval | None
    p_value: float
    smallest_p: float
    evidence: str


def _by_seeds(a: Group, b: Group, metric: str, level: float) -> _Test | None:
    """Paired where every seed of the smaller group is in the larger one, too."""
    of_a, of_b = a.values(metric), b.values(metric)
    if min(len(of_a), len(of_b)) < 2:
        return None
    seeds_a = {subject.record.seed: value for subject, value in of_a}
    seeds_b = {subject.record.seed: value for subject, value in of_b}
    whole = len(seeds_a) == len(of_a) and len(seeds_b) == len(of_b)
    common = sorted(seed for seed in seeds_a.keys() & seeds_b.keys() if seed is not None)
    if whole and len(common) == min(len(of_a), len(of_b)):
        test = paired_permutation(
            [seeds_a[seed] for seed in common], [seeds_b[seed] for seed in common], level=level
        )
        evidence = f"{len(common)} seeds, paired"
    else:
        test = unpaired_permutation(
            [value for _, value in of_a], [value for _, value in of_b], level=level
        )
        evidence = f"{len(of_a)} and {len(of_b)} runs, unpaired"
    return _Test("seeds", test.difference, test.interval, test.p_value, test.smallest_p, evidence)


def _by_images(
    arrangement: Arrangement, a: CorrectMatrix, b: CorrectMatrix, protocol: str
) -> dict[str, _Test]:
    if a.num_rows != b.num_rows:
        return {}
    tests = paired_bootstrap(
        a, b, metrics=arrangement.definitions, protocol=protocol, level=arrangement.level
    )
    return {
        name: _Test(
            "images",
            test.difference,
            test.interval,
            test.p_value,
            test.smallest_p,
            f"over {test.n:,} test images of one training each, which says nothing about other "
            "seeds",
        )
        for name, test in tests.items()
    }


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
    return hits.get(group.counted[0].run_id) if len(group.counted) == 1 else None


def _judged(
    arrangement: Arrangement, pooled: Mapping[tuple[int, int], Mapping[str, _Test]]
) -> Iterator[PairTest]:
    ranked = arrangement.ranked_by
    for metric in sorted(arrangement.metrics, key=lambda name: name != ranked):
        tested = [(pair, found[metric]) for pair, found in pooled.items() if metric in found]
        adjusted = holm([test.p_value for _, test in tested]) if tested else []
        for ((a, b), test), p_value in zip(tested, adjusted, strict=True):
            said = verdict(
                cut(arrangement.groups[a].name),
                cut(arrangement.groups[b].name),
                metric,
                difference=test.difference,
                interval=test.interval,
                p_value=p_value,
                smallest_p=test.smallest_p,
                evidence=test.evidence,
                comparisons=len(tested),
                higher_is_better=arrangement.is_higher_better(metric),
                of_models=test.unit == "images",
                level=arrangement.level,
            )
            yield PairTest(
                a=a,
                b=b,
                metric=metric,
                unit=test.unit,
                difference=test.difference,
                interval=test.interval,
                p_value=test.p_value,
                adjusted=p_value,
                outcome=said.outcome,
                sentence=said.sentence,
            )


def _image_intervals(
    arrangement: Arrangement, hits: Mapping[str, CorrectMatrix]
) -> dict[int, Mapping[str, Interval]]:
    """Of groups of one run: its predictions say more than its counts do."""
    found: dict[int, Mapping[str, Interval]] = {}
    for position, group in enumerate(arrangement.groups):
        if len(group.counted) != 1:
            continue
        run = group.counted[0]
        protocol, level = run.record.protocol, arrangement.level
        if run.run_id in hits:
            found[position] = bootstrap_intervals(
                hits[run.run_id], metrics=arrangement.definitions, protocol=protocol, level=level
            )
        else:
            found[position] = metric_intervals(
                run.record.matrix, metrics=arrangement.definitions, protocol=protocol, level=level
            )
    return found


def _warnings(
    arrangement: Arrangement,
    pairs: Sequence[tuple[int, int]],
    pooled: Mapping[tuple[int, int], Mapping[str, object]],
    unlike: set[tuple[int, int]],
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
    for group in groups:
        for run in group.members:
            stored, width = len([r for r in run.record.rows if r > 0]), len(run.grid[0])
            if run not in group.counted:
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
    alone = [group for group in groups if len(group.counted) == 1]
    if alone:
        names = ", ".join(cut(group.name) for group in alone[:5]) + (", …" if alone[5:] else "")
        yield (
            f"{len(alone)} of {len(groups)} groups are one run each ({names}): they have no spread "
            "over seeds. What holds of one trained model need not hold of the method."
        )
    few = [group for group in groups if 1 < len(group.counted) < 6]
    if few and pairs:
        counts = sorted({len(group.counted) for group in few})
        yield (
            f"Groups of {_either(counts)} seeds are too small for a paired test to reach "
            f"{1 - arrangement.level:.2g}: six seeds are the least, more where several pairs are "
            "compared."
        )
    if unlike:
        a, b = min(unlike)
        yield (
            f"{cut(groups[a].name)} and {cut(groups[b].name)} answered different test images, "
            "though their dataset has the same digest: they are not tested against each other."
        )
    untested = [pair for pair in pairs if not pooled[pair] and pair not in unlike]
    if untested:
        yield (
            f"{len(untested)} of {len(pairs)} pairs could not be tested: that needs two seeds or "
            "more on both sides, or stored predictions of one run on each."
        )
    if sum(bool(group.counted) for group in groups) > MOST_TESTED:
        yield f"Only the {MOST_TESTED} leading groups that share a test set are tested in pairs."


def _either(counts: Sequence[int]) -> str:
    return " or ".join(map(str, counts))
