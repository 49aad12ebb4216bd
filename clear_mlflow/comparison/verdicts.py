"""By which test a pair of groups is compared, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clear_mlflow.comparison.groups import COST, Group, cut, within_one_percent
from clear_mlflow.comparison.pairs import Pair, PairPlan
from clear_mlflow.comparison.sentences import (
    DIFFERENT,
    EQUIVALENT,
    TOO_FEW,
    Equivalence,
    Sentences,
)
from clear_mlflow.comparison.subjects import RowlessRun, Subject
from clear_mlflow.core.score import significant
from clear_mlflow.metrics import Metric, Predictions, is_cost
from clear_mlflow.statistics import (
    ImageBootstrap,
    Interval,
    TTest,
    hedges_g,
    holm_factors,
    paired_t,
    seeds_needed,
    welch_t,
)
from clear_mlflow.statistics.sample_size import FEWEST, MOST

# How far a seed lies from the others, in spans of these, and how many times the spread of the other
# method a spread is, before it is said: of five normal values in 3 and 0.4 % of paired comparisons.
_FAR, _UNLIKE, _JUDGED = 3, 6, 5
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
    """The one test of two groups on a metric."""

    unit: str  # what was drawn: "seeds" or "images"
    method: str
    n_a: int  # seeds, or test images
    n_b: int
    difference: float  # a - b
    interval: Interval  # of this test alone: leaves out 0 just where p is small
    p_value: float
    adjusted: float  # for all comparisons


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What may be said of two groups on the metric that verdicts are on."""

    a: int  # position of the group
    b: int
    metric: str
    outcome: str  # as of sentences
    sentence: str
    beside: tuple[str, ...] = ()  # further sentences: the effect size, how many more seeds
    test: PairTest | None = None  # None: too few seeds, or nothing varies
    adjusted_interval: Interval | None = None  # leaves out 0 just where the adjusted p is small
    hedges_g: float | None = None
    equivalence: Equivalence | None = None
    more_seeds: int | None = None  # new ones of each, compared alone: for a power of 80 %


def judge_pairs(
    groups: Sequence[Group],
    plan: PairPlan,
    *,
    metric: Metric,
    bootstrap: ImageBootstrap,
    answered: Mapping[Pair, tuple[Predictions, Predictions]],
    level: float,
    margin: float | None,
    in_percent: bool = True,
    comparisons: int | None = None,
) -> list[Verdict]:
    """Return verdicts on a metric, with p adjusted for all pairs or for *comparisons*.

    *answered* are predictions of single runs.
    """
    known: dict[Pair, _Evidence] = {}
    for pair in plan.pairs:
        a, b = (groups[position] for position in pair)
        found = None
        if pair in answered:
            found = _over_images(*answered[pair], bootstrap, metric.name)
        found = found or _over_seeds(a, b, metric.name)
        if found is not None:
            known[pair] = found
    tested = {pair: found for pair, found in known.items() if found.is_testable}
    sentences = Sentences(
        metric=metric.name,
        higher_is_better=metric.higher_is_better is not False,
        in_percent=in_percent,
        level=level,
        comparisons=comparisons or len(tested) + plan.possible,
    )
    judge = _Judge(groups, sentences, margin)
    verdicts = judge.tested(tested)
    family = len(known) + plan.possible
    verdicts |= {p: judge.untested(p, known[p], family) for p in known.keys() - tested.keys()}
    return [verdicts[pair] for pair in plan.pairs if pair in verdicts]


def tests_about(verdicts: Sequence[Verdict], level: float) -> str:
    """What the tests that were used assume, and how they were adjusted."""
    used = {verdict.test.method for verdict in verdicts if verdict.test is not None}
    if not used:
        return ""
    sentences = [assumed for method, assumed in _ASSUMED.items() if method in used]
    how = "Bonferroni's" if any(verdict.equivalence for verdict in verdicts) else "Holm's"
    sentences.append(
        f"Cite interval and p-value: they are of one test, and adjusted by {how} method, so that "
        f"at most {100 * (1 - level):.2g} % of comparisons of equal methods contain any finding."
    )
    return " ".join(sentences)


@dataclass(frozen=True)
class _Evidence:
    """What is known of a metric of two groups."""

    method: str  # of the test
    counts: str  # what it is over
    difference: float  # a - b
    t: TTest | None  # None: nothing varies
    values: tuple[list[float], list[float]] | None  # one per seed; None: over images
    seeds: tuple[Sequence[int | None], Sequence[int | None]] = ((), ())  # of the values

    @property
    def fewest(self) -> int:
        return min(map(len, self.values)) if self.values else FEWEST

    @property
    def is_testable(self) -> bool:
        return self.t is not None and self.fewest >= FEWEST


def _over_seeds(a: Group, b: Group, metric: str) -> _Evidence | None:
    """Paired where a side trained the other's seeds, diverged ones too; None: too few values."""
    of_a, of_b = a.values(metric), b.values(metric)
    if min(len(of_a), len(of_b)) < 2:
        return None
    by_a = {subject.record.seed: value for subject, value in of_a}
    by_b = {subject.record.seed: value for subject, value in of_b}
    lost_a, lost_b = ({_seed(run) for run in group.diverged} for group in (a, b))
    seeds: tuple[Sequence[int | None], Sequence[int | None]]
    common = [seed for seed in by_a if seed in by_b and seed is not None]
    smaller, larger = sorted([by_a.keys() | lost_a, by_b.keys() | lost_b], key=len)
    is_whole = len(by_a) == len(of_a) and len(by_b) == len(of_b)
    if is_whole and None not in smaller and smaller <= larger and len(common) > 1:
        seeds = (common, common)
        values = [by_a[seed] for seed in common], [by_b[seed] for seed in common]
        method, counts, t = _PAIRED, f"{len(common)} shared seeds", paired_t(*values)
    else:
        seeds = [run.record.seed for run, _ in of_a], [run.record.seed for run, _ in of_b]
        values = [value for _, value in of_a], [value for _, value in of_b]
        method, counts, t = _WELCH, f"{len(of_a)} and {len(of_b)} seeds", welch_t(*values)
    difference = math.fsum(values[0]) / len(values[0]) - math.fsum(values[1]) / len(values[1])
    return _Evidence(method, counts, difference, t, values, seeds)


def _seed(run: Subject | RowlessRun) -> int | None:
    return run.record.seed if isinstance(run, Subject) else run.seed


def _over_images(
    a: Predictions, b: Predictions, bootstrap: ImageBootstrap, metric: str
) -> _Evidence | None:
    """The bootstrap's test of two runs of one length; None where it has none of the metric."""
    t = bootstrap.test(a, b).get(metric) if a.k == b.k else None
    if t is None:
        return None
    counts = f"{t.n_a:,} test images of one training each, which says nothing about other seeds"
    return _Evidence(_BOOTSTRAP, counts, t.difference, t, None)


@dataclass(frozen=True)
class _Judge:
    """Makes verdicts of what is known of pairs."""

    groups: Sequence[Group]
    sentences: Sentences
    margin: float | None

    def tested(self, tests: Mapping[Pair, _Evidence]) -> dict[Pair, Verdict]:
        """One for each test, adjusted for as many comparisons as the sentences name."""
        alpha, margin, metric = 1 - self.sentences.level, self.margin, self.sentences.metric
        known = [found.t for found in tests.values() if found.t is not None]

        def adjusted(p_values: Sequence[float]) -> Iterator[tuple[float, float]]:
            family = self.sentences.comparisons
            factors = holm_factors(p_values, family=family)
            # Of a pair that is asked both for a difference and for equivalence one may be false
            # at a time: that many tests at alpha / family err in alpha together (Bonferroni).
            if margin is not None:
                factors = [float(family)] * len(p_values)
            return ((min(1.0, f * p), f) for p, f in zip(p_values, factors, strict=True))

        equivalences: list[Equivalence | None] = [None] * len(known)
        if margin is not None:
            by_margin = adjusted([t.equivalence_p(margin) for t in known])
            equivalences = [
                Equivalence(margin, p, t.interval(1 - 2 * alpha / factor))
                for t, (p, factor) in zip(known, by_margin, strict=True)
            ]
        verdicts = {}
        for (pair, found), t, (p_value, factor), equivalence in zip(
            tests.items(), known, adjusted([t.p_value for t in known]), equivalences, strict=True
        ):
            interval = t.interval(1 - alpha / factor)
            a, b = (cut(self.groups[position].name) for position in pair)
            outcome, sentence = self.sentences.conclude(
                a,
                b,
                t.difference,
                interval,
                p_value,
                f"{found.method} over {found.counts}{self._remarks(pair, found)}",
                equivalence=equivalence,
                price=self._price(pair, t.difference),
                of_models=found.values is None,
            )
            size, more, beside = None, None, []
            if found.values is not None:
                size = hedges_g(*found.values)
                beside += [] if size is None else [f"Effect size: Hedges' g {abs(size):.1f}."]
                if outcome not in (DIFFERENT, EQUIVALENT):
                    more, how_many = self._more(t, alpha / self.sentences.comparisons)
                    beside.append(how_many)
            verdicts[pair] = Verdict(
                a=pair[0],
                b=pair[1],
                metric=metric,
                outcome=outcome,
                sentence=sentence,
                beside=tuple(beside),
                test=PairTest(
                    unit="images" if found.values is None else "seeds",
                    method=found.method,
                    n_a=t.n_a,
                    n_b=t.n_b,
                    difference=t.difference,
                    interval=t.interval(self.sentences.level),
                    p_value=t.p_value,
                    adjusted=p_value,
                ),
                adjusted_interval=interval,
                hedges_g=size,
                equivalence=equivalence,
                more_seeds=more,
            )
        return verdicts

    def untested(self, pair: Pair, found: _Evidence, family: int) -> Verdict:
        """Of seeds that no test can be made of: fewer than three, or all alike."""
        at = self.sentences.at
        one, other = (cut(self.groups[position].name) for position in pair)
        leader = one if self.sentences.a_leads(found.difference) else other
        size, remarks = self.sentences.amount(found.difference), self._remarks(pair, found)
        price = self._price(pair, found.difference)
        more, beside = None, []
        if found.fewest < FEWEST:
            lead = (
                f"{leader} is ahead by {size}{price}" if found.difference else "both are the same"
            )
            sentence = (
                f"Too few seeds to say whether {one} and {other} differ {at}: {lead} over "
                f"{found.counts}, and a verdict takes {FEWEST}{remarks}."
            )
            more, how_many = self._more(found.t, (1 - self.sentences.level) / family)
            beside = [how_many]
        elif abs(found.difference) <= 1e-12:
            sentence = f"{one} and {other} are the same {at} over {found.counts}{remarks}."
        else:
            sentence = (
                f"{leader} is ahead {at} by the same {size}{price} in all of {found.counts}"
                f"{remarks}: where nothing varies, seeds say nothing of chance. Stored predictions "
                "would, of the test images."
            )
        return Verdict(
            a=pair[0],
            b=pair[1],
            metric=self.sentences.metric,
            outcome=TOO_FEW,
            sentence=sentence,
            beside=tuple(beside),
            more_seeds=more,
        )

    def _price(self, pair: Pair, difference: float) -> str:
        """How often the other's training FLOPs the better one took; nothing within one percent."""
        if is_cost(self.sentences.metric):
            return ""
        costs = [self.groups[position].metrics.get(COST) for position in pair]
        if not self.sentences.a_leads(difference):
            costs.reverse()
        better, worse = costs
        if better is None or worse is None or not (better.mean and worse.mean):
            return ""
        if within_one_percent(better.mean, worse.mean):
            return ""
        return f", at {significant(better.mean / worse.mean, 2)} times the training FLOPs"

    def _remarks(self, pair: Pair, found: _Evidence) -> str:
        """What a reader has to know of seeds, in a few words each."""
        remarks = ""
        for group in (self.groups[position] for position in pair):
            if group.mixed_params:
                remarks += f"; {cut(group.name)} mixes {group.mixed_text}"
            if found.values is None:
                continue
            if lost := len(group.diverged):
                have = "has" if lost == 1 else "have"
                total = len(group.counted) + lost
                remarks += (
                    f"; {lost} of {total} seeds of {cut(group.name)} diverged and {have} no value"
                )
            if group.is_deterministic:
                remarks += f"; all seeds of {cut(group.name)} gave the same matrix"
        return remarks + self._of_other_spread(pair, found)

    def _of_other_spread(self, pair: Pair, found: _Evidence) -> str:
        """A seed far from all others, and methods of unlike spread: there the tests err more."""
        if found.values is None:
            return ""
        a, b = found.values
        if found.method == _PAIRED:
            far = _far_from_others(np.subtract(a, b))
            return "" if far is None else f"; seed {found.seeds[0][far]} differs unlike all others"
        remarks = ""
        names = [cut(self.groups[position].name) for position in pair]
        for name, values, seeds in zip(names, found.values, found.seeds, strict=True):
            if (far := _far_from_others(values)) is not None:
                seed = "one seed" if seeds[far] is None else f"seed {seeds[far]}"
                remarks += f"; {seed} of {name} is far from all others"
        small, large = sorted([(float(np.std(a)), names[0]), (float(np.std(b)), names[1])])
        if min(len(a), len(b)) >= _JUDGED and large[0] > _UNLIKE * small[0]:
            remarks += f"; {large[1]} varies {_UNLIKE} times as much as {small[1]}"
        return remarks

    def _more(self, t: TTest | None, alpha: float) -> tuple[int | None, str]:
        """How many new seeds it would take, which are tested alone, and a sentence on it."""
        if t is None:
            return FEWEST, f"At least {FEWEST} new seeds of each are needed."
        candidates = [(seeds_needed(t, alpha=alpha), "the difference")]
        if self.margin is not None and abs(t.difference) < self.margin:
            equal = seeds_needed(t, alpha=alpha, margin=self.margin)
            candidates.append((equal, "equivalence within the margin"))
        enough = [(n, what) for n, what in candidates if n is not None]
        if not enough:
            return None, (
                f"At this difference and spread, {MOST} seeds of each would still be too few."
            )
        needed, what = min(enough, key=lambda one: one[0])
        return needed, (
            f"At this difference and spread, {needed} new seeds of each, compared alone, would "
            f"show {what} with a power of 80 %."
        )


def _far_from_others(values: ArrayLike) -> int | None:
    """Which of some values is three times as far from its neighbour as all others span."""
    found = np.asarray(values, dtype=np.float64)
    order = np.argsort(found)
    ordered = found[order]
    if len(ordered) >= _JUDGED:
        for gap, span, at in (
            (ordered[-1] - ordered[-2], ordered[-2] - ordered[0], order[-1]),
            (ordered[1] - ordered[0], ordered[-1] - ordered[1], order[0]),
        ):
            if gap > max(_FAR * span, 1e-12):
                return int(at)
    return None
