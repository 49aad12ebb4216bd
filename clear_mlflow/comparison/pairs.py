"""Test pairs of groups on a metric: one row for each pair, with numbers and a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clear_mlflow.comparison.groups import COST, Group, is_equal_cost, truncate_name
from clear_mlflow.comparison.ranking import RankedGroups
from clear_mlflow.comparison.wording import (
    BOOTSTRAP,
    DIFFERENT,
    EQUIVALENT,
    NOT_SHOWN,
    PAIRED,
    TOO_FEW,
    WELCH,
    VerdictWriter,
    format_mixed_params,
)
from clear_mlflow.core.score import format_significant
from clear_mlflow.metrics import Metric, Predictions, is_cost
from clear_mlflow.statistics import (
    ImageBootstrap,
    TTest,
    hedges_g,
    holm_factors,
    paired_t,
    seeds_needed,
    welch_t,
)
from clear_mlflow.statistics.sample_size import MIN_SEEDS

# A remark names a seed whose distance to the others is three times their range, and a standard
# deviation six times the other one: of five normal values in 3 and 0.4 % of paired comparisons.
_MAX_DISTANCE, _MAX_RATIO, _MIN_SEEDS_FOR_REMARKS = 3, 6, 5
# Columns of the frame of pairs, in order. A column that is added here, and to _describe_sample or
# _describe_test, is in all outputs that list numbers of pairs.
PAIR_COLUMNS = (
    *("a", "b", "metric", "outcome", "difference", "low", "high", "p", "test", "sentence"),
    *("details", "unit", "n_a", "n_b", "unadjusted_low", "unadjusted_high", "unadjusted_p"),
    *("margin", "equivalence_p", "equivalence_low", "equivalence_high", "hedges_g", "more_seeds"),
    *("a_index", "b_index"),
)


@dataclass(frozen=True)
class _Sample:
    """The values of two groups, which may suffice for a test."""

    method: str
    seeds: str  # number of seeds or images, for a sentence
    difference: float  # a - b
    test: TTest | None  # None without variation
    values: tuple[list[float], list[float]] | None  # by seed, or None for a test over images
    seeds_a: Sequence[int | None] = ()  # seeds of the values
    seeds_b: Sequence[int | None] = ()

    @property
    def min_seeds(self) -> int:
        return min(map(len, self.values)) if self.values else MIN_SEEDS


def compare_pairs(
    ranked: RankedGroups,
    metric: Metric,
    *,
    bootstrap: ImageBootstrap,
    predictions: Mapping[tuple[int, int], tuple[Predictions, Predictions]],
    margin: float | None,
    num_comparisons: int | None = None,
) -> list[dict[str, Any]]:
    """Return a row with PAIR_COLUMNS for each planned pair with values of a metric.

    predictions: of pairs of single runs. num_comparisons: number of comparisons to adjust p for, or
    None for the pairs that are tested or were not chosen.
    """
    samples = {}
    for pair in ranked.plan.pairs:
        a, b = (ranked.groups[i] for i in pair)
        sample = None
        if pair in predictions:
            sample = _compare_over_images(*predictions[pair], bootstrap, metric.name)
        sample = sample or _compare_over_seeds(a, b, metric.name)
        if sample is not None:
            samples[pair] = sample
    tests = {
        pair: sample.test
        for pair, sample in samples.items()
        if sample.test is not None and sample.min_seeds >= MIN_SEEDS
    }
    alpha = 1 - ranked.level
    comparisons = num_comparisons or len(tests) + ranked.plan.num_untested
    writer = VerdictWriter(
        metric=metric.name,
        higher_is_better=metric.higher_is_better is not False,
        in_percent=ranked.score.is_accuracy and not is_cost(metric.name),
        comparisons=comparisons,
        adjustment="Holm" if margin is None else "Bonferroni",
    )

    def adjust(p_values: Sequence[float]) -> Iterator[tuple[float, float]]:
        """Yield each adjusted p-value and its factor."""
        factors = holm_factors(p_values, family=comparisons)
        # A pair is tested for a difference and for equivalence, and one of these is true. Tests at
        # alpha / comparisons have an error rate of alpha together (Bonferroni).
        if margin is not None:
            factors = [float(comparisons)] * len(p_values)
        return ((min(1.0, f * p), f) for p, f in zip(p_values, factors, strict=True))

    results = dict(zip(tests, adjust([test.p_value for test in tests.values()]), strict=True))
    equivalences = {}
    if margin is not None:
        p_values = [test.equivalence_p(margin) for test in tests.values()]
        equivalences = dict(zip(tests, adjust(p_values), strict=True))
    rows = []
    for pair, sample in samples.items():
        row = _describe_sample(ranked, pair, sample, writer)
        if pair not in tests:
            row["outcome"] = TOO_FEW
            row["sentence"] = writer.write_untested(row, sample.min_seeds)
            if sample.min_seeds < MIN_SEEDS:
                alpha_adjusted = alpha / (len(samples) + ranked.plan.num_untested)
                count, sentence = _count_new_seeds(sample.test, alpha_adjusted, margin, writer)
                row["more_seeds"], row["details"] = count, [sentence]
            # Only tested pairs have these, as in the JSON of a comparison.
            row |= dict.fromkeys(("difference", "unit", "test"))
        else:
            row |= _describe_test(
                tests[pair], results[pair], equivalences.get(pair), ranked.level, margin
            )
            row["sentence"] = writer.write_tested(row, ranked.level)
            row["details"] = []
            if sample.values is not None:
                row["hedges_g"] = effect = hedges_g(*sample.values)
                if effect is not None:
                    row["details"].append(f"Effect size: Hedges' g {abs(effect):.1f}.")
                if row["outcome"] == NOT_SHOWN:
                    count, sentence = _count_new_seeds(
                        tests[pair], alpha / comparisons, margin, writer
                    )
                    row["more_seeds"] = count
                    row["details"].append(sentence)
        rows.append(row)
    return rows


def _describe_sample(
    ranked: RankedGroups, pair: tuple[int, int], sample: _Sample, writer: VerdictWriter
) -> dict[str, Any]:
    """Return the columns of a pair that do not need a test, and parts of its sentence."""
    a, b = (ranked.groups[i] for i in pair)
    return {
        **dict.fromkeys(PAIR_COLUMNS),
        "details": [],
        "a": a.name,
        "b": b.name,
        "a_index": pair[0],
        "b_index": pair[1],
        "metric": writer.metric,
        "test": sample.method,
        "difference": sample.difference,
        "unit": "images" if sample.values is None else "seeds",
        "seeds": sample.seeds,
        "cost": _format_cost_ratio(a, b, sample.difference, writer),
        "remarks": [*_list_remarks(a, b, sample)],
    }


def _describe_test(
    test: TTest,
    adjusted: tuple[float, float],
    equivalence: tuple[float, float] | None,
    level: float,
    margin: float | None,
) -> dict[str, Any]:
    """Return the columns of a tested pair. Adjusted values are p and the factor of adjustment."""
    alpha, (p_value, factor) = 1 - level, adjusted
    low, high = test.interval(1 - alpha / factor)
    unadjusted = test.interval(level)
    # A p of exactly 0.05 is significant despite rounding in 1 - 0.95.
    is_different = p_value <= alpha + 1e-12 and test.difference != 0
    row = {
        "outcome": DIFFERENT if is_different else NOT_SHOWN,
        "difference": test.difference,
        "low": low,
        "high": high,
        "p": p_value,
        "n_a": test.n_a,
        "n_b": test.n_b,
        "unadjusted_low": unadjusted.low,
        "unadjusted_high": unadjusted.high,
        "unadjusted_p": test.p_value,
    }
    if equivalence is not None:
        # The level 1 - 2 alpha: the interval is within the margin if p is at most alpha.
        ends = test.interval(1 - 2 * alpha / equivalence[1])
        row |= {"margin": margin, "equivalence_p": equivalence[0]}
        row |= {"equivalence_low": ends.low, "equivalence_high": ends.high}
        if not is_different and equivalence[0] <= alpha + 1e-12:
            row["outcome"] = EQUIVALENT
    return row


def _compare_over_seeds(a: Group, b: Group, metric: str) -> _Sample | None:
    """Compare two groups over seeds, or return None if one has fewer than two values.

    Paired if the seeds of one group, including diverged ones, are among the seeds of the other.
    """
    values_a, values_b = a.list_values(metric), b.list_values(metric)
    if min(len(values_a), len(values_b)) < 2:
        return None
    by_seed_a = {run.seed: value for run, value in values_a}
    by_seed_b = {run.seed: value for run, value in values_b}
    diverged_a, diverged_b = ({run.seed for run in group.diverged} for group in (a, b))
    common = [seed for seed in by_seed_a if seed in by_seed_b and seed is not None]
    smaller, larger = sorted(
        [by_seed_a.keys() | diverged_a, by_seed_b.keys() | diverged_b], key=len
    )
    is_unique = len(by_seed_a) == len(values_a) and len(by_seed_b) == len(values_b)
    seeds: list[Sequence[int | None]]
    if is_unique and None not in smaller and smaller <= larger and len(common) > 1:
        seeds = [common, common]
        values = [by_seed_a[seed] for seed in common], [by_seed_b[seed] for seed in common]
        method, count, test = PAIRED, f"{len(common)} shared seeds", paired_t(*values)
    else:
        seeds = [[run.seed for run, _ in side] for side in (values_a, values_b)]
        values = [value for _, value in values_a], [value for _, value in values_b]
        method, count, test = WELCH, f"{len(values_a)} and {len(values_b)} seeds", welch_t(*values)
    difference = math.fsum(values[0]) / len(values[0]) - math.fsum(values[1]) / len(values[1])
    return _Sample(method, count, difference, test, values, *seeds)


def _compare_over_images(
    a: Predictions, b: Predictions, bootstrap: ImageBootstrap, metric: str
) -> _Sample | None:
    """Compare two runs of equal length over test images, or return None without a test."""
    test = bootstrap.test(a, b).get(metric) if a.k == b.k else None
    if test is None:
        return None
    count = f"{test.n_a:,} test images, one training run per method, other seeds may differ"
    return _Sample(BOOTSTRAP, count, test.difference, test, None)


def _format_cost_ratio(a: Group, b: Group, difference: float, writer: VerdictWriter) -> str:
    """Return the training FLOPs of the better group relative to the other, or "" within 1 %."""
    better, worse = (group.metrics.get(COST) for group in (a, b))
    if not writer.is_a_better(difference):
        better, worse = worse, better
    if is_cost(writer.metric) or better is None or worse is None or not better.mean * worse.mean:
        return ""
    if is_equal_cost(better.mean, worse.mean):
        return ""
    return f" at {format_significant(better.mean / worse.mean, 2)} times the training FLOPs"


def _list_remarks(a: Group, b: Group, sample: _Sample) -> Iterator[str]:
    """Yield what a reader has to know about the seeds, in a few words each."""
    for group in (a, b):
        name = truncate_name(group.name)
        if group.mixed_params:
            yield f"{name} mixes {format_mixed_params(group)}"
        if sample.values is None:
            continue
        if diverged := len(group.diverged):
            verb, total = "has" if diverged == 1 else "have", len(group.counted) + diverged
            yield f"{diverged} of {total} seeds of {name} diverged and {verb} no value"
        if group.is_deterministic:
            yield f"all seeds of {name} have the same matrix"
    if sample.values is None:
        return
    values_a, values_b = sample.values
    if sample.method == PAIRED:
        outlier = _find_outlier(np.subtract(values_a, values_b))
        if outlier is not None:
            yield f"seed {sample.seeds_a[outlier]} is an outlier"
        return
    names = [truncate_name(group.name) for group in (a, b)]
    for name, values, seeds in zip(
        names, sample.values, (sample.seeds_a, sample.seeds_b), strict=True
    ):
        if (outlier := _find_outlier(values)) is not None:
            seed = "one seed" if seeds[outlier] is None else f"seed {seeds[outlier]}"
            yield f"{seed} of {name} is an outlier"
    low, high = sorted([(float(np.std(values_a)), names[0]), (float(np.std(values_b)), names[1])])
    if sample.min_seeds >= _MIN_SEEDS_FOR_REMARKS and high[0] > _MAX_RATIO * low[0]:
        yield f"the standard deviation of {high[1]} is over {_MAX_RATIO} times that of {low[1]}"


def _find_outlier(values: ArrayLike) -> int | None:
    """Return the index of a value that is far from all others, or None.

    Its gap to the next value is more than _MAX_DISTANCE times the range of the others. With fewer
    than _MIN_SEEDS_FOR_REMARKS values, there is none.
    """
    array = np.asarray(values, dtype=np.float64)
    order = np.argsort(array)
    ordered = array[order]
    if len(ordered) >= _MIN_SEEDS_FOR_REMARKS:
        for gap, span, index in (
            (ordered[-1] - ordered[-2], ordered[-2] - ordered[0], order[-1]),
            (ordered[1] - ordered[0], ordered[-1] - ordered[1], order[0]),
        ):
            if gap > max(_MAX_DISTANCE * span, 1e-12):
                return int(index)
    return None


def _count_new_seeds(
    test: TTest | None, alpha: float, margin: float | None, writer: VerdictWriter
) -> tuple[int | None, str]:
    """Return how many new seeds per method a decision needs, or None, and a sentence on it."""
    if test is None:
        return MIN_SEEDS, f"A test needs at least {MIN_SEEDS} new seeds per method."
    needed = seeds_needed(test, alpha=alpha)
    if margin is not None and abs(test.difference) < margin:
        for_equivalence = seeds_needed(test, alpha=alpha, margin=margin)
        if for_equivalence is not None and (needed is None or for_equivalence < needed):
            return for_equivalence, writer.write_seeds_needed(for_equivalence, is_equivalence=True)
    return needed, writer.write_seeds_needed(needed)
