"""By which test a pair of groups is compared, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clear_mlflow.comparison.groups import Group, cut
from clear_mlflow.comparison.pairs import Pair, PairPlan
from clear_mlflow.comparison.subjects import RowlessRun, Subject
from clear_mlflow.metrics import Metric
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.statistics import (
    BootstrapTest,
    CorrectMatrix,
    Equivalence,
    ImageBootstrap,
    Interval,
    TTest,
    hedges_g,
    holm,
    holm_factors,
    paired_t,
    seeds_needed,
    verdict,
    welch_t,
)
from clear_mlflow.statistics.conclusion import DIFFERENT, EQUIVALENT, TOO_FEW, amount_text
from clear_mlflow.statistics.power import FEWEST, MOST

_PAIRED, _WELCH, _BOOTSTRAP = "paired t-test", "Welch's t-test", "paired bootstrap"
_ASSUMED = {
    _PAIRED: "The paired t-test takes the differences by seed as normally distributed.",
    _WELCH: "Welch's t-test takes the seeds of each side as normally distributed.",
    _BOOTSTRAP: (
        "The paired bootstrap is of two trained models, over test images: it says nothing about "
        "other seeds."
    ),
}


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
class Verdict:
    """What may be said of two groups on the metric that verdicts are on."""

    a: int  # position of the group
    b: int
    metric: str
    outcome: str  # as of statistics.verdict
    sentence: str
    beside: tuple[str, ...] = ()  # further sentences: the effect size, how many more seeds
    test: PairTest | None = None  # None: too few seeds, or nothing varies
    adjusted_interval: Interval | None = None  # leaves out 0 just where the adjusted p is small
    hedges_g: float | None = None
    equivalence: Equivalence | None = None
    more_seeds: tuple[int, int] | None = None  # of A and of B, for a power of 80 %


def judge_pairs(
    groups: Sequence[Group],
    plan: PairPlan,
    *,
    metrics: Sequence[Metric | AnytimeMetric],
    bootstraps: Sequence[ImageBootstrap],
    correct: Mapping[Pair, tuple[CorrectMatrix, CorrectMatrix]],
    level: float,
    margin: float | None,
    in_percent: bool = True,
) -> tuple[list[Verdict], list[PairTest]]:
    """Verdicts on the first metric, and tests of all the others.

    Holm's adjustment is over all pairs of the verdicts, and over all pairs and metrics of the
    others: each of the two contains a false finding in at most ``1 - level`` of all comparisons.

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
    tests: dict[str, dict[Pair, _Test]] = {one.name: {} for one in metrics}
    untested: dict[Pair, _SeedValues] = {}
    for pair in plan.pairs:
        a, b = (groups[position] for position in pair)
        images = _over_images(*correct[pair], bootstraps[a.setting]) if pair in correct else {}
        for name, found in tests.items():
            values = _seed_values(a, b, name)
            test = images.get(name) or (_over_seeds(a, b, values) if values else None)
            if test is not None:
                found[pair] = test
            elif name == metric and values is not None:
                untested[pair] = values
    images_read = any(test.values is None for test in tests[metric].values())
    possible = sum(
        _is_testable(groups[a], groups[b], metric, images_read) for a, b in plan.possible
    )
    judge = _Judge(groups, metric, metrics[0].higher_is_better, level, margin, in_percent)
    verdicts = judge.tested(tests[metric], len(tests[metric]) + possible)
    family = len(tests[metric]) + len(untested) + possible
    verdicts |= {pair: judge.untested(pair, found, family) for pair, found in untested.items()}

    flat = [(name, pair, test) for name in others for pair, test in tests[name].items()]
    adjusted = holm(
        [test.t.p_value for _, _, test in flat], family=len(flat) + possible * len(others)
    )
    exploratory = [
        test.result(pair, name, p_value, level)
        for (name, pair, test), p_value in zip(flat, adjusted, strict=True)
    ]
    return [verdicts[pair] for pair in plan.pairs if pair in verdicts], exploratory


def tests_about(verdicts: Sequence[Verdict], level: float) -> str:
    """What the tests that were used assume, and how they were adjusted."""
    used = {verdict.test.method for verdict in verdicts if verdict.test is not None}
    if not used:
        return ""
    sentences = [assumed for method, assumed in _ASSUMED.items() if method in used]
    sentences.append(
        "Interval and p-value are of one test and adjusted by Holm's method: of comparisons of "
        f"equal methods at most {100 * (1 - level):.2g} % contain any finding."
    )
    return " ".join(sentences)


@dataclass(frozen=True)
class _SeedValues:
    """A metric of two groups, over seeds; in the order of the seeds where they are paired."""

    a: list[float]
    b: list[float]
    paired: bool

    @property
    def difference(self) -> float:
        return math.fsum(self.a) / len(self.a) - math.fsum(self.b) / len(self.b)

    @property
    def fewest(self) -> int:
        return min(len(self.a), len(self.b))

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
    method: str
    t: TTest
    evidence: str
    values: _SeedValues | None  # None: over images

    def result(self, pair: Pair, metric: str, adjusted: float, level: float) -> PairTest:
        return PairTest(
            a=pair[0],
            b=pair[1],
            metric=metric,
            unit="images" if self.values is None else "seeds",
            method=self.method,
            n_a=self.t.n_a,
            n_b=self.t.n_b,
            difference=self.t.difference,
            interval=self.t.interval(level),
            p_value=self.t.p_value,
            adjusted=adjusted,
        )


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
    if t is None or values.fewest < FEWEST:
        return None
    method = _PAIRED if values.paired else _WELCH
    evidence = "; ".join([f"{method} over {values.counts}", *_remarks(a), *_remarks(b)])
    return _Test(method, t, evidence, values)


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
            _BOOTSTRAP,
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


@dataclass(frozen=True)
class _Judge:
    """Makes verdicts of tests."""

    groups: Sequence[Group]
    metric: str
    higher_is_better: bool
    level: float
    margin: float | None
    in_percent: bool

    def tested(self, tests: Mapping[Pair, _Test], family: int) -> dict[Pair, Verdict]:
        """One for each test, adjusted for a family of at least as many."""
        plain = [test.t.p_value for test in tests.values()]
        adjusted, factors = holm(plain, family=family), holm_factors(plain, family=family)
        equivalences = self._equivalences([*tests.values()], family)
        return {
            pair: self._verdict(pair, test, p_value, factor, family, equivalence)
            for (pair, test), p_value, factor, equivalence in zip(
                tests.items(), adjusted, factors, equivalences, strict=True
            )
        }

    def _equivalences(self, tests: Sequence[_Test], family: int) -> list[Equivalence | None]:
        if self.margin is None:
            return [None] * len(tests)
        plain = [test.t.equivalence_p(self.margin) for test in tests]
        adjusted, factors = holm(plain, family=family), holm_factors(plain, family=family)
        return [
            Equivalence(self.margin, p, test.t.interval(1 - 2 * (1 - self.level) / factor))
            for test, p, factor in zip(tests, adjusted, factors, strict=True)
        ]

    def _verdict(
        self,
        pair: Pair,
        test: _Test,
        p_value: float,
        factor: float,
        family: int,
        equivalence: Equivalence | None,
    ) -> Verdict:
        interval = test.t.interval(1 - (1 - self.level) / factor)
        found = verdict(
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
            of_models=test.values is None,
            level=self.level,
        )
        beside, size, more = [], None, None
        if test.values is not None:
            size = hedges_g(test.values.a, test.values.b)
            if size is not None:
                beside.append(f"Effect size: Hedges' g {abs(size):.1f}.")
            if found.outcome not in (DIFFERENT, EQUIVALENT):
                more, how_many = self._more(test.values, test.t, (1 - self.level) / factor)
                beside.append(how_many)
        return Verdict(
            a=pair[0],
            b=pair[1],
            metric=self.metric,
            outcome=found.outcome,
            sentence=found.sentence,
            beside=tuple(beside),
            test=test.result(pair, self.metric, p_value, self.level),
            adjusted_interval=interval,
            hedges_g=size,
            equivalence=equivalence,
            more_seeds=more,
        )

    def untested(self, pair: Pair, values: _SeedValues, family: int) -> Verdict:
        """Of seeds that no test can be made of: fewer than three, or all alike."""
        a, b = (self.groups[position] for position in pair)
        one, other = cut(a.name), cut(b.name)
        leader = one if (values.difference > 0) == self.higher_is_better else other
        size = amount_text(abs(values.difference), in_percent=self.in_percent)
        remarks = "".join(f"; {remark}" for group in (a, b) for remark in _remarks(group))
        more, beside = None, []
        if values.fewest < FEWEST:
            lead = f"{leader} is ahead by {size}" if values.difference else "both are the same"
            sentence = (
                f"Too few seeds to say whether {one} and {other} differ at {self.metric}: {lead} "
                f"over {values.counts}, and a verdict takes {FEWEST}{remarks}."
            )
            more, how_many = self._more(values, values.t, (1 - self.level) / family)
            beside = [how_many]
        elif abs(values.difference) <= 1e-12:
            sentence = (
                f"{one} and {other} gave the same {self.metric} over {values.counts}{remarks}."
            )
        else:
            sentence = (
                f"{leader} is ahead at {self.metric} by the same {size} in all of {values.counts}"
                f"{remarks}: where nothing varies, seeds say nothing of chance. Stored predictions "
                "would, of the test images."
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

    def _more(
        self, values: _SeedValues, t: TTest | None, alpha: float
    ) -> tuple[tuple[int, int] | None, str]:
        """How many more seeds A and B would take, and a sentence on it."""
        needed = None if t is None else seeds_needed(t, alpha=alpha)
        what = "the difference"
        if t is not None and self.margin is not None and abs(t.difference) < self.margin:
            equal = seeds_needed(t, alpha=alpha, margin=self.margin)
            if equal is not None and (needed is None or equal < needed):
                needed, what = equal, "equivalence within the margin"
        if t is None:
            needed, sentence = FEWEST, f"At least {FEWEST} seeds of each are needed"
        elif needed is None:
            return None, (
                f"At this difference and spread, {MOST} seeds of each would still be too few."
            )
        else:
            sentence = (
                f"At this difference and spread, {needed} seeds of each would show {what} with a "
                "power of 80 %"
            )
        more = max(0, needed - len(values.a)), max(0, needed - len(values.b))
        counts = f"{more[0]}" if more[0] == more[1] else f"{more[0]} and {more[1]}"
        return more, f"{sentence}: {counts} more."
