"""Which groups are set against which, by which test, and what may be said of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from clear_mlflow.comparison.groups import Group, cut
from clear_mlflow.comparison.subjects import RowlessRun, Setting, Subject
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import Metric
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.statistics import (
    BootstrapTest,
    CorrectMatrix,
    Equivalence,
    ImageBootstrap,
    Interval,
    SeedTest,
    TTest,
    hedges_g,
    holm,
    holm_factors,
    p_text,
    paired_permutation,
    paired_t,
    probability_of_improvement,
    seeds_needed,
    unpaired_permutation,
    verdict,
    welch_t,
)
from clear_mlflow.statistics.conclusion import DIFFERENT, EQUIVALENT, TOO_FEW, amount_text
from clear_mlflow.statistics.power import FEWEST, MOST

# Groups of a setting that are all tested against each other: 15 sentences. Of more groups, each is
# tested against the leader.
ALL_PAIRS = 6
# Single runs of a setting whose predictions are read: megabytes each.
MOST_READ = 24


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """Two groups, one metric: the difference, and how sure it is."""

    a: int  # position of the group
    b: int
    metric: str
    unit: str  # what was drawn: "seeds" or "images"
    method: str  # of the test
    n_a: int  # seeds, or test images
    n_b: int
    difference: float  # a - b
    interval: Interval  # of this test alone: leaves out 0 just where p is small
    p_value: float
    adjusted: float  # by Holm


@dataclass(frozen=True, kw_only=True)
class SeedEvidence:
    """What seeds say of a pair beside the t-test."""

    hedges_g: float | None
    better: float  # the probability that a run of A is better than a run of B
    better_interval: Interval
    permutation: SeedTest


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What may be said of two groups on the metric that verdicts are on."""

    a: int  # position of the group
    b: int
    metric: str
    outcome: str  # as of statistics.verdict
    sentence: str
    beside: tuple[
        str, ...
    ] = ()  # further sentences: effect sizes, the permutation test, more seeds
    test: PairTest | None = None  # None: too few seeds, or nothing varies
    adjusted_interval: Interval | None = None  # leaves out 0 just where the adjusted p is small
    evidence: SeedEvidence | None = None
    equivalence: Equivalence | None = None
    more_seeds: tuple[int, int] | None = None  # of A and of B, for a power of 80 %


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """Which pairs are tested.

    Args:
        pairs: positions of groups, each pair in the order of the leaderboard.
        possible: pairs that could be tested and are not, because the leader was found by looking:
            they are adjusted for as if they were.
        baselines: positions of groups that the others are set against; none: the leaders are.
        leaders: positions of groups that were found by looking, and that all others of many are
            set against.
    """

    pairs: tuple[tuple[int, int], ...]
    possible: tuple[tuple[int, int], ...] = ()
    baselines: tuple[int, ...] = ()
    leaders: tuple[int, ...] = ()


def plan_pairs(
    groups: Sequence[Group], settings: Sequence[Setting], baseline: str | None
) -> PairPlan:
    """All pairs of a few groups, every group against the leader of many, or against a baseline.

    Args:
        groups: best first.
        settings: that the groups are of; two groups of different ones are never tested.
        baseline: name of a group, or one of its labels; None: none.

    Raises:
        ConfigError: no group, or several of one setting, have the name of the baseline.
    """
    by_setting: dict[int, list[int]] = defaultdict(list)
    for position, group in enumerate(groups):
        if group.counted:
            by_setting[group.setting].append(position)
    pairs: list[tuple[int, int]] = []
    possible: list[tuple[int, int]] = []
    baselines, leaders = [], []
    for setting, positions in by_setting.items():
        if baseline is not None:
            found = _baseline(groups, positions, baseline, settings[setting])
            if found is not None:
                baselines.append(found)
                pairs += [(min(p, found), max(p, found)) for p in positions if p != found]
        elif len(positions) <= ALL_PAIRS:
            pairs += combinations(positions, 2)
        else:
            leaders.append(positions[0])
            pairs += [(positions[0], p) for p in positions[1:]]
            possible += combinations(positions[1:], 2)
    if baseline is not None and not baselines:
        names = ", ".join(shown(cut(group.name)) for group in groups[:20])
        raise ConfigError(f"baseline is {shown(baseline)}, which no group is; there are {names}")
    return PairPlan(
        pairs=tuple(pairs),
        possible=tuple(possible),
        baselines=tuple(baselines),
        leaders=tuple(leaders),
    )


def _baseline(
    groups: Sequence[Group], positions: Sequence[int], baseline: str, setting: Setting
) -> int | None:
    named = [p for p in positions if groups[p].name == baseline]
    named = named or [p for p in positions if baseline in groups[p].labels.values()]
    if len(named) > 1:
        names = ", ".join(shown(cut(groups[p].name)) for p in named[:20])
        raise ConfigError(
            f"baseline is {shown(baseline)}, which {len(named)} groups on {cut(setting.dataset)} "
            f"are; name one of {names}"
        )
    return named[0] if named else None


def judge_pairs(
    groups: Sequence[Group],
    plan: PairPlan,
    *,
    metrics: Sequence[Metric | AnytimeMetric],
    bootstraps: Sequence[ImageBootstrap],
    correct: Mapping[tuple[int, int], tuple[CorrectMatrix, CorrectMatrix]],
    level: float,
    margin: float | None,
    in_percent: bool = True,
) -> tuple[list[Verdict], list[PairTest]]:
    """Verdicts on the first metric, and tests of all the others.

    Holm's adjustment is over all pairs of the verdicts, and over all pairs and metrics of the
    others: each of the two holds a false finding in at most ``1 - level`` of all comparisons.

    Args:
        groups: best first.
        plan: which pairs are tested.
        metrics: the one that verdicts are on, then the others.
        bootstraps: of each setting.
        correct: what the stored predictions of both got right, of pairs of single runs.
        level: of confidence.
        margin: the largest difference that does not matter; None: equivalence is not asked for.
        in_percent: metrics are fractions: sentences give differences in percentage points.
    """
    metric, *others = (one.name for one in metrics)
    judge = _Judge(groups, metric, metrics[0].higher_is_better, level, margin, in_percent)
    tests: dict[str, dict[tuple[int, int], _Test]] = {one.name: {} for one in metrics}
    untested: dict[tuple[int, int], _SeedValues] = {}
    for pair in plan.pairs:
        a, b = (groups[position] for position in pair)
        images = {}
        if pair in correct:
            images = _over_images(*correct[pair], bootstraps[a.setting])
        for name, found in tests.items():
            values = _seed_values(a, b, name)
            test = images.get(name) or (_over_seeds(a, b, values) if values else None)
            if test is not None:
                found[pair] = test
            elif name == metric and values is not None:
                untested[pair] = values
    images_read = any(test.unit == "images" for test in tests[metric].values())
    possible = sum(
        _is_testable(groups[a], groups[b], metric, images_read) for a, b in plan.possible
    )
    verdicts = judge.tested(tests[metric], possible)
    family = len(tests[metric]) + len(untested) + possible
    verdicts |= {pair: judge.untested(pair, found, family) for pair, found in untested.items()}
    flat = [(name, pair, test) for name in others for pair, test in tests[name].items()]
    adjusted = holm(
        [test.t.p_value for _, _, test in flat], family=len(flat) + possible * len(others)
    )
    exploratory = [
        _pair_test(pair, name, test, p_value, level)
        for (name, pair, test), p_value in zip(flat, adjusted, strict=True)
    ]
    return [verdicts[pair] for pair in plan.pairs if pair in verdicts], exploratory


_ASSUMED = {
    "paired t-test": "The paired t-test takes the differences by seed as normally distributed.",
    "Welch's t-test": "Welch's t-test takes the seeds of each side as normally distributed.",
    "paired bootstrap": (
        "The paired bootstrap is of two trained models, over test images: it says nothing about "
        "other seeds."
    ),
}


def tests_about(verdicts: Sequence[Verdict], level: float) -> str:
    """What the tests that were used assume, and how they were adjusted."""
    used = {verdict.test.method for verdict in verdicts if verdict.test is not None}
    if not used:
        return ""
    sentences = [assumed for method, assumed in _ASSUMED.items() if method in used]
    sentences.append(
        "Interval and p-value are of one test and adjusted by Holm's method: of comparisons of "
        f"equal methods at most {100 * (1 - level):.2g} % hold any finding."
    )
    return " ".join(sentences)


@dataclass(frozen=True)
class _SeedValues:
    """A metric of two groups, over seeds."""

    a: list[float]  # in the order of the seeds where they are paired
    b: list[float]
    paired: bool

    @property
    def difference(self) -> float:
        return math.fsum(self.a) / len(self.a) - math.fsum(self.b) / len(self.b)

    @property
    def t(self) -> TTest | None:
        return paired_t(self.a, self.b) if self.paired else welch_t(self.a, self.b)

    @property
    def counts(self) -> str:
        if self.paired:
            return f"{len(self.a)} shared seeds"
        return f"{len(self.a)} and {len(self.b)} seeds"


@dataclass(frozen=True)
class _Test:
    unit: str
    method: str
    t: TTest
    evidence: str
    values: _SeedValues | None  # None: over images


def _seed_values(a: Group, b: Group, metric: str) -> _SeedValues | None:
    """Paired where both were trained from the same seeds, or one from some of the other's.

    Seeds that diverged are seeds that were trained from. None: a side has fewer than two values.
    """
    of_a, of_b = a.values(metric), b.values(metric)
    if min(len(of_a), len(of_b)) < 2:
        return None
    seeds_a = {subject.record.seed: value for subject, value in of_a}
    seeds_b = {subject.record.seed: value for subject, value in of_b}
    lost_a, lost_b = ({_seed(run) for run in group.diverged} for group in (a, b))
    common = [seed for seed in seeds_a if seed in seeds_b and seed is not None]
    smaller, larger = sorted([seeds_a.keys() | lost_a, seeds_b.keys() | lost_b], key=len)
    is_whole = len(seeds_a) == len(of_a) and len(seeds_b) == len(of_b)
    if is_whole and None not in smaller and smaller <= larger and len(common) > 1:
        return _SeedValues([seeds_a[s] for s in common], [seeds_b[s] for s in common], True)
    return _SeedValues([value for _, value in of_a], [value for _, value in of_b], False)


def _seed(run: Subject | RowlessRun) -> int | None:
    return run.record.seed if isinstance(run, Subject) else run.seed


def _over_seeds(a: Group, b: Group, values: _SeedValues) -> _Test | None:
    t = values.t
    if t is None or min(len(values.a), len(values.b)) < FEWEST:
        return None
    method = "paired t-test" if values.paired else "Welch's t-test"
    evidence = "; ".join([f"{method} over {values.counts}", *_remarks(a), *_remarks(b)])
    return _Test("seeds", method, t, evidence, values)


def _remarks(group: Group) -> Iterator[str]:
    """What a reader has to know of a group's seeds, in a few words each."""
    if lost := len(group.diverged):
        have = "has" if lost == 1 else "have"
        total = len(group.counted) + lost
        yield f"{lost} of {total} seeds of {cut(group.name)} diverged and {have} no value"
    if group.is_deterministic:
        yield f"all seeds of {cut(group.name)} gave the same matrix"


def _over_images(a: CorrectMatrix, b: CorrectMatrix, bootstrap: ImageBootstrap) -> dict[str, _Test]:
    """The bootstrap's standard error, with the normal distribution: of thousands of images.

    The counted p-values of 2,000 resamples end at 0.001, which an adjustment for many pairs takes
    above 0.05 whatever was found.
    """
    if a.num_rows != b.num_rows:
        return {}
    return {
        name: _Test(
            "images",
            "paired bootstrap",
            TTest(test.difference, test.error, math.inf, test.n, test.n, paired=True),
            f"paired bootstrap over {_images(test)} of one training each, which says nothing about "
            "other seeds",
            None,
        )
        for name, test in bootstrap.test(a, b).items()
        if test.error > 0
    }


def _images(test: BootstrapTest) -> str:
    if test.clusters == test.n:
        return f"{test.n:,} test images"
    return f"{test.n:,} test images in {test.clusters:,} clusters,"


def _is_testable(a: Group, b: Group, metric: str, images_read: bool) -> bool:
    if a.is_alone and b.is_alone:
        return images_read
    values = _seed_values(a, b, metric)
    return values is not None and _over_seeds(a, b, values) is not None


def _pair_test(
    pair: tuple[int, int], metric: str, test: _Test, adjusted: float, level: float
) -> PairTest:
    return PairTest(
        a=pair[0],
        b=pair[1],
        metric=metric,
        unit=test.unit,
        method=test.method,
        n_a=test.t.n_a,
        n_b=test.t.n_b,
        difference=test.t.difference,
        interval=test.t.interval(level),
        p_value=test.t.p_value,
        adjusted=adjusted,
    )


@dataclass(frozen=True)
class _Judge:
    """Makes verdicts of tests."""

    groups: Sequence[Group]
    metric: str
    higher_is_better: bool
    level: float
    margin: float | None
    in_percent: bool

    def tested(
        self, tests: Mapping[tuple[int, int], _Test], possible: int
    ) -> dict[tuple[int, int], Verdict]:
        """One for each test, adjusted for all of them and for *possible* ones beside them."""
        family = len(tests) + possible
        plain = [test.t.p_value for test in tests.values()]
        adjusted, factors = holm(plain, family=family), holm_factors(plain, family=family)
        equivalences: list[Equivalence | None] = [None] * len(tests)
        if self.margin is not None:
            equivalences = [*self._equivalences(list(tests.values()), self.margin, family)]
        return {
            pair: self._verdict(pair, test, p_value, factor, family, equivalence)
            for (pair, test), p_value, factor, equivalence in zip(
                tests.items(), adjusted, factors, equivalences, strict=True
            )
        }

    def untested(self, pair: tuple[int, int], values: _SeedValues, family: int) -> Verdict:
        """Of seeds that no test can be made of: fewer than three, or all alike."""
        a, b = (self.groups[position] for position in pair)
        one, other, t = cut(a.name), cut(b.name), values.t
        fewest = min(len(values.a), len(values.b))
        size = amount_text(abs(values.difference), in_percent=self.in_percent)
        remarks = "".join(f"; {remark}" for group in (a, b) for remark in _remarks(group))
        more, beside = None, []
        if fewest < FEWEST:
            lead = "both are the same"
            if values.difference:
                lead = f"{self._leader(pair, values.difference)} is ahead by {size}"
            sentence = (
                f"Too few seeds to say whether {one} and {other} differ at {self.metric}: {lead} "
                f"over {values.counts}, and a verdict takes {FEWEST}{remarks}."
            )
            more, how_many = self._more(values, t, (1 - self.level) / family)
            beside = [how_many]
        elif abs(values.difference) <= 1e-12:
            sentence = (
                f"{one} and {other} gave the same {self.metric} over {values.counts}{remarks}."
            )
        else:
            sentence = (
                f"{self._leader(pair, values.difference)} is ahead at {self.metric} by the same "
                f"{size} in all of {values.counts}{remarks}: where nothing varies, seeds say "
                "nothing of chance. Stored predictions would, of the test images."
            )
        return Verdict(
            a=pair[0],
            b=pair[1],
            metric=self.metric,
            outcome=TOO_FEW,
            sentence=sentence,
            beside=tuple(beside),
            more_seeds=more,
        )

    def _equivalences(
        self, tests: Sequence[_Test], margin: float, family: int
    ) -> Iterator[Equivalence]:
        plain = [test.t.equivalence_p(margin) for test in tests]
        for test, adjusted, factor in zip(
            tests, holm(plain, family=family), holm_factors(plain, family=family), strict=True
        ):
            level = 1 - 2 * (1 - self.level) / factor
            yield Equivalence(margin, adjusted, test.t.interval(level))

    def _verdict(
        self,
        pair: tuple[int, int],
        test: _Test,
        p_value: float,
        factor: float,
        family: int,
        equivalence: Equivalence | None,
    ) -> Verdict:
        interval = test.t.interval(1 - (1 - self.level) / factor)
        said = verdict(
            cut(self.groups[pair[0]].name),
            cut(self.groups[pair[1]].name),
            self.metric,
            difference=test.t.difference,
            interval=interval,
            p_value=p_value,
            evidence=test.evidence,
            comparisons=family,
            equivalence=equivalence,
            higher_is_better=self.higher_is_better,
            in_percent=self.in_percent,
            of_models=test.unit == "images",
            level=self.level,
        )
        beside, evidence, more = [], None, None
        if test.values is not None:
            evidence = self._evidence(pair, test.values)
            beside = self._beside(pair, test, evidence)
            if said.outcome not in (DIFFERENT, EQUIVALENT):
                more, how_many = self._more(test.values, test.t, (1 - self.level) / factor)
                beside.append(how_many)
        return Verdict(
            a=pair[0],
            b=pair[1],
            metric=self.metric,
            outcome=said.outcome,
            sentence=said.sentence,
            beside=tuple(beside),
            test=_pair_test(pair, self.metric, test, p_value, self.level),
            adjusted_interval=interval,
            evidence=evidence,
            equivalence=equivalence,
            more_seeds=more,
        )

    def _evidence(self, pair: tuple[int, int], values: _SeedValues) -> SeedEvidence:
        higher = self.higher_is_better
        worst = -math.inf if higher else math.inf
        runs_a, runs_b = (
            [value for _, value in group.values(self.metric)] + [worst] * len(group.diverged)
            for group in (self.groups[position] for position in pair)
        )
        better, interval = probability_of_improvement(
            runs_a, runs_b, higher_is_better=higher, level=self.level
        )
        permutation = paired_permutation if values.paired else unpaired_permutation
        return SeedEvidence(
            hedges_g=hedges_g(values.a, values.b),
            better=better,
            better_interval=interval,
            permutation=permutation(values.a, values.b),
        )

    def _beside(self, pair: tuple[int, int], test: _Test, evidence: SeedEvidence) -> list[str]:
        """From the side of the one that is ahead."""
        a_leads = (test.t.difference > 0) == self.higher_is_better
        ahead, behind = pair if a_leads else pair[::-1]
        chance, (low, high) = evidence.better, evidence.better_interval
        if not a_leads:
            chance, low, high = 1 - chance, 1 - high, 1 - low
        size = "" if evidence.hedges_g is None else f"Hedges' g {abs(evidence.hedges_g):.1f}; "
        chances = (
            f"Effect size, not adjusted: {size}a run of {cut(self.groups[ahead].name)} beats one "
            f"of {cut(self.groups[behind].name)} with probability {chance:.2f} "
            f"({100 * self.level:g} % interval {low:.2f} to {high:.2f})"
        )
        if any(self.groups[position].diverged for position in pair):
            chances += ", where a run that diverged is worse than any"
        permutation = evidence.permutation
        kind = "An exact permutation test" if permutation.exact else "A permutation test"
        counts = test.values.counts if test.values else ""
        least = f", the smallest that {counts} allow"
        if permutation.p_value > permutation.smallest_p * (1 + 1e-9):
            least = f" ({counts} allow no less than {permutation.smallest_p:.2g})"
        return [
            f"{chances}.",
            f"{kind}, not adjusted, gives p {p_text(permutation.p_value)}{least}.",
        ]

    def _more(
        self, values: _SeedValues, t: TTest | None, alpha: float
    ) -> tuple[tuple[int, int] | None, str]:
        """How many more seeds A and B would take, and a sentence on it."""
        counts = len(values.a), len(values.b)
        needed = None if t is None else seeds_needed(t, alpha=alpha)
        what = "the difference"
        if t is not None and self.margin is not None and abs(t.difference) < self.margin:
            equal = seeds_needed(t, alpha=alpha, margin=self.margin)
            if equal is not None and (needed is None or equal < needed):
                needed, what = equal, "equivalence within the margin"
        if t is None:
            needed = FEWEST
            sentence = f"At least {needed} seeds of each are needed."
        elif needed is None:
            return None, (
                f"At this difference and spread, {MOST} seeds of each would still be too few."
            )
        else:
            sentence = (
                f"At this difference and spread, {needed} seeds of each would show {what} with a "
                "power of 80 %."
            )
        more = max(0, needed - counts[0]), max(0, needed - counts[1])
        if more[0] == more[1]:
            return more, f"{sentence[:-1]}: {more[0]} more."
        return more, f"{sentence[:-1]}: {more[0]} and {more[1]} more."

    def _leader(self, pair: tuple[int, int], difference: float) -> str:
        a_leads = (difference > 0) == self.higher_is_better
        return cut(self.groups[pair[0 if a_leads else 1]].name)
