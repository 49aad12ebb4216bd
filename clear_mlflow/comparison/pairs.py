"""Test pairs of groups on a metric: numbers and a sentence for each pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from clear_mlflow.comparison.groups import COST, LEVEL, Group, is_equal_cost
from clear_mlflow.comparison.result import (
    ALPHA,
    DIFFERENT,
    EQUIVALENT,
    NOT_SHOWN,
    Comparison,
    Pair,
)
from clear_mlflow.comparison.wording import (
    BOOTSTRAP,
    ONE_SAMPLE,
    PAIRED,
    WELCH,
    describe_exploratory,
    describe_seeds_needed,
    describe_verdict,
    iter_warnings,
)
from clear_mlflow.core.score import format_significant
from clear_mlflow.core.text import format_count
from clear_mlflow.metrics import (
    EXTRA_METRICS,
    WITHIN_BUCKET,
    Metric,
    Predictions,
    is_cost,
)
from clear_mlflow.statistics import (
    MIN_SEEDS,
    ImageBootstrap,
    TTest,
    hedges_g,
    holm_factors,
    paired_t,
    seeds_needed,
    welch_t,
)

# A remark names a seed whose distance to the others is three times their range, and a standard
# deviation six times the other one: of five normal values in 3 and 0.4 % of paired comparisons.
_MAX_DISTANCE, _MAX_RATIO, _MIN_SEEDS_FOR_REMARKS = 3, 6, 5


def compare_groups(
    ranked: Comparison, predictions: Mapping[str, Predictions] | None = None
) -> Comparison:
    """Test the planned pairs, and return the comparison with results.

    Two groups with a single result each are tested over test images, others over seeds. If a pair
    does not differ in the ranking metric, the other headline metrics are tested as well, and the
    clearest difference is reported as exploratory.

    predictions: predictions by run id; only groups with a single result are tested on them;
    without them, these groups are not tested.
    """
    by_group = {
        group: predictions[group.results[0].run_id]
        for group in ranked.groups
        if predictions and len(group.results) == 1 and group.results[0].run_id in predictions
    }
    unequal_images, image_tests, intervals = [], {}, {}
    if by_group:
        bootstrap = ImageBootstrap(metrics=ranked.definitions, level=LEVEL)
        for pair in ranked.planned_pairs:
            a, b = map(by_group.get, pair)
            if a is None or b is None:
                continue
            if a.images.digest != b.images.digest:
                unequal_images.append(pair)
            elif a.k == b.k:
                image_tests[pair] = bootstrap.test(a, b)
        intervals = {group: bootstrap.intervals(run) for group, run in by_group.items()}
    # Minima over different intervals are not comparable.
    excluded = WITHIN_BUCKET if len(ranked.test_intervals) > 1 else None
    metrics = [m for m in (*ranked.definitions, *EXTRA_METRICS) if m.needs != excluded]
    ranking_metric = [metric for metric in metrics if metric.name == ranked.ranked_by]
    pairs = compare_pairs(ranked, ranking_metric, image_tests, margin=ranked.margin)
    names = {*ranked.headline_metrics} - {ranked.ranked_by, COST}
    others = [m for m in metrics if m.name in names and m.higher_is_better is not None]
    undecided = {pair.groups for pair in pairs if pair.outcome != DIFFERENT}
    num_comparisons = len(others) * (len(ranked.planned_pairs) + ranked.num_untested)
    exploratory = [
        pair
        for pair in compare_pairs(
            ranked, others if undecided else (), image_tests, num_comparisons=num_comparisons
        )
        if pair.outcome == DIFFERENT and pair.groups in undecided
    ]
    return replace(
        ranked,
        pairs=tuple(pairs),
        best=_find_best(ranked, pairs),
        exploratory=describe_exploratory(exploratory, ranked.ranked_by),
        image_intervals=intervals,
        warnings=tuple(iter_warnings(ranked, pairs, unequal_images)),
    )


def _find_best(ranked: Comparison, pairs: Sequence[Pair]) -> frozenset[str]:
    """Name the groups significantly better than all others under their conditions."""
    num_groups = Counter(group.conditions for group in ranked.groups)
    num_worse = Counter(
        pair.groups[not pair.is_a_better] for pair in pairs if pair.outcome == DIFFERENT
    )
    return frozenset(
        group.name for group, num in num_worse.items() if num == num_groups[group.conditions] - 1
    )


def compare_pairs(
    ranked: Comparison,
    metrics: Sequence[Metric],
    image_tests: Mapping[tuple[Group, Group], Mapping[str, TTest]],
    *,
    margin: float | None = None,
    num_comparisons: int | None = None,
) -> list[Pair]:
    """Test each planned pair on each metric.

    Left out are pairs that have neither two values per group nor a test over images. Results are
    adjusted for several comparisons: by Holm's method, or with a margin by Bonferroni's.

    image_tests: tests over images, by the groups of a pair and by metric. margin: also
    test for equivalence within it. num_comparisons: number of comparisons to adjust p for, or None
    for the tested pairs of the metric and ``ranked.num_untested``.
    """
    results = []
    for metric in metrics:
        pairs = [*_sample_pairs(ranked, metric, image_tests)]
        tests = {
            pair.groups: pair.t_test
            for pair in pairs
            if pair.t_test is not None and pair.min_seeds >= MIN_SEEDS
        }
        family = num_comparisons or len(tests) + ranked.num_untested
        factors = holm_factors([test.p_value for test in tests.values()], family=family)
        # A pair is tested for a difference and for equivalence, and one of these is true. Tests at
        # alpha / family have an error rate of alpha together (Bonferroni).
        if margin is not None:
            factors = [float(family)] * len(tests)
        factor_by_pair = dict(zip(tests, factors, strict=True))
        for pair in pairs:
            notes = (*_describe_cost(pair), *_iter_remarks(pair))
            pair = replace(pair, num_comparisons=family, notes=notes)
            if (test := tests.get(pair.groups)) is not None:
                pair = _add_test(pair, test, factor_by_pair[pair.groups])
                if margin is not None:
                    pair = _add_equivalence(pair, test, margin, family)
            results.append(_add_sentences(pair, len(pairs) + ranked.num_untested, margin))
    return results


def _add_sentences(pair: Pair, few: int, margin: float | None) -> Pair:
    """Add sentences, effect size, and how many new seeds a result needs.

    few: number of comparisons to adjust for once pairs with too few seeds are tested as well.
    """
    details, effect, more_seeds = list[str](), None, None
    if pair.p is not None and pair.values is not None and pair.method != ONE_SAMPLE:
        effect = hedges_g(*pair.values)
        if effect is not None:
            details.append(f"Effect size: Hedges' g {abs(effect):.1f}.")
    has_few_seeds = pair.min_seeds < MIN_SEEDS
    if has_few_seeds or (pair.outcome == NOT_SHOWN and pair.values is not None):
        count = few if has_few_seeds else pair.num_comparisons
        more_seeds, sentence = _count_new_seeds(pair.t_test, (1 - LEVEL) / count, margin)
        details.append(sentence)
    return replace(
        pair,
        sentence=describe_verdict(pair),
        details=details,
        hedges_g=effect,
        more_seeds=more_seeds,
    )


def _sample_pairs(
    ranked: Comparison,
    metric: Metric,
    image_tests: Mapping[tuple[Group, Group], Mapping[str, TTest]],
) -> Iterator[Pair]:
    """Yield each pair with its unadjusted test, over images or over seeds.

    Seeds are used without a test over images. If a group then has fewer than two values, the pair
    is left out.
    """
    is_in_percent = ranked.score.is_accuracy and not is_cost(metric.name)
    for a, b in ranked.planned_pairs:
        pair = Pair(
            a=a.name,
            b=b.name,
            metric=metric.name,
            higher_is_better=metric.higher_is_better is not False,
            groups=(a, b),
            is_in_percent=is_in_percent,
        )
        if (test := image_tests.get((a, b), {}).get(metric.name)) is not None:
            size = f"{test.n_a:,} test images, one training run per method, other seeds may differ"
            yield replace(
                pair,
                method=BOOTSTRAP,
                size=size,
                t_test=test,
                mean_difference=test.difference,
                min_seeds=MIN_SEEDS,
            )
        elif (compared := _compare_over_seeds(pair)) is not None:
            yield compared


def _add_test(pair: Pair, test: TTest, factor: float) -> Pair:
    """Add the numbers of a test of a difference.

    factor: number by which p is multiplied, at least 1; the interval gets wider accordingly.
    """
    p_value = min(1.0, factor * test.p_value)
    interval, unadjusted = test.interval(1 - (1 - LEVEL) / factor), test.interval(LEVEL)
    is_different = p_value <= ALPHA and test.difference != 0
    return replace(
        pair,
        test=pair.method,
        unit="images" if pair.values is None else "seeds",
        outcome=DIFFERENT if is_different else NOT_SHOWN,
        difference=test.difference,
        low=interval.low,
        high=interval.high,
        p=p_value,
        n_a=test.n_a,
        n_b=test.n_b,
        unadjusted_low=unadjusted.low,
        unadjusted_high=unadjusted.high,
        unadjusted_p=test.p_value,
    )


def _add_equivalence(pair: Pair, test: TTest, margin: float, comparisons: int) -> Pair:
    """Add a test of equivalence, whose p is multiplied by *comparisons*."""
    # The level 1 - 2 alpha: the interval is within the margin if p is at most alpha.
    low, high = test.interval(1 - 2 * (1 - LEVEL) / comparisons)
    pair = replace(
        pair,
        margin=margin,
        equivalence_p=min(1.0, comparisons * test.equivalence_p(margin)),
        equivalence_low=low,
        equivalence_high=high,
    )
    is_equivalent = pair.is_within_margin and pair.outcome == NOT_SHOWN
    return replace(pair, outcome=EQUIVALENT) if is_equivalent else pair


def _compare_over_seeds(pair: Pair) -> Pair | None:
    """Add a test over seeds: paired, Welch, or against a constant.

    If the seeds of one group, including diverged ones, are all seeds of the other, too, the values
    of shared seeds are paired; otherwise, or if a seed is repeated, it is Welch's test. A group
    whose seeds all have one matrix is a constant, which the seeds of the other are tested against.
    """
    a, b = pair.groups
    values_a, values_b = a.list_values(pair.metric), b.list_values(pair.metric)
    constants = [group for group in (a, b) if group.is_constant]
    if len(constants) == 1:
        # The constant next to each seed of the other: with that, the paired test has one sample.
        if a in constants:
            values_a = [(run, value) for run, _ in values_b for _, value in values_a]
        else:
            values_b = [(run, value) for run, _ in values_a for _, value in values_b]
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
    seeds: tuple[Sequence[int | None], Sequence[int | None]]
    if is_unique and None not in smaller and smaller <= larger and len(common) > 1:
        seeds = common, common
        values = [by_seed_a[seed] for seed in common], [by_seed_b[seed] for seed in common]
        method, size, test = PAIRED, f"{len(common)} shared seeds", paired_t(*values)
    else:
        seeds = [run.seed for run, _ in values_a], [run.seed for run, _ in values_b]
        values = [value for _, value in values_a], [value for _, value in values_b]
        method, size, test = WELCH, f"{len(values_a)} and {len(values_b)} seeds", welch_t(*values)
    if len(constants) == 1:
        method = ONE_SAMPLE
        size = f"{len(values[0])} seeds, {constants[0].name} has one result for all seeds"
    mean_a, mean_b = (math.fsum(side) / len(side) for side in values)
    return replace(
        pair,
        method=method,
        size=size,
        t_test=test,
        mean_difference=mean_a - mean_b if test is None else test.difference,
        values=values,
        seeds=seeds,
        min_seeds=min(map(len, values)),
    )


def _describe_cost(pair: Pair) -> Iterator[str]:
    """Yield what a better mean costs: ``1.9 times the training FLOPs``."""
    better, worse = pair.groups if pair.is_a_better else pair.groups[::-1]
    cost, other_cost = better.metrics.get(COST), worse.metrics.get(COST)
    if is_cost(pair.metric) or not pair.mean_difference or cost is None or other_cost is None:
        return
    if not cost.mean * other_cost.mean or is_equal_cost(cost.mean, other_cost.mean):
        return
    ratio = cost.mean / other_cost.mean
    text = format_significant(ratio, 3 if 1 < ratio < 1.05 else 2)  # 1.02 instead of 1.0
    yield f"{better.name} at {text} times the training FLOPs"


def _iter_remarks(pair: Pair) -> Iterator[str]:
    for group in pair.groups:
        if group.mixed_params:
            yield f"{group.name} mixes {group.format_mixed_params()}"
        if pair.values is None:
            continue
        if diverged := len(group.diverged):
            verb, total = "has" if diverged == 1 else "have", len(group.counted) + diverged
            count = format_count(total, "seed")
            yield f"{diverged} of {count} of {group.name} diverged and {verb} no value"
    if pair.values is None or pair.seeds is None:
        return
    if pair.method != WELCH:
        outlier = _find_outlier(np.subtract(*pair.values))
        if outlier is not None:
            yield f"seed {pair.seeds[0][outlier]} is an outlier"
        return
    names = pair.a, pair.b
    for name, values, seeds in zip(names, pair.values, pair.seeds, strict=True):
        if (outlier := _find_outlier(values)) is not None:
            seed = "one seed" if seeds[outlier] is None else f"seed {seeds[outlier]}"
            yield f"{seed} of {name} is an outlier"
    low, high = sorted(zip(map(np.std, pair.values), names, strict=True))
    if pair.min_seeds >= _MIN_SEEDS_FOR_REMARKS and high[0] > _MAX_RATIO * low[0]:
        yield f"the standard deviation of {high[1]} is over {_MAX_RATIO} times that of {low[1]}"


def _find_outlier(values: ArrayLike) -> int | None:
    """Return the index of a value far from all others, if any.

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
    test: TTest | None, alpha: float, margin: float | None
) -> tuple[int | None, str]:
    """Return the new seeds that a significant result needs, and words.

    The result is a difference or, if that takes fewer seeds, equivalence within the margin. The
    number is None if 100 seeds are not enough, and MIN_SEEDS if *test* is None. alpha: largest
    significant p-value, adjusted.
    """
    if test is None:
        return MIN_SEEDS, f"A test needs at least {MIN_SEEDS} new seeds per method."
    needed = seeds_needed(test, alpha=alpha)
    if margin is not None and abs(test.difference) < margin:
        for_equivalence = seeds_needed(test, alpha=alpha, margin=margin)
        if for_equivalence is not None and (needed is None or for_equivalence < needed):
            return for_equivalence, describe_seeds_needed(for_equivalence, "show equivalence")
    return needed, describe_seeds_needed(needed, "detect a difference of this size")
