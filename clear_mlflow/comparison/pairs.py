"""Test pairs of groups on a metric: one row for each pair, with numbers and a sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame

from clear_mlflow.comparison.groups import COST, LEVEL, Group, is_equal_cost
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.wording import (
    BOOTSTRAP,
    DIFFERENT,
    EQUIVALENT,
    NOT_SHOWN,
    PAIRED,
    TOO_FEW,
    WELCH,
    format_mixed_params,
    is_a_better,
    list_test_intervals,
    write_exploratory,
    write_seeds_needed,
    write_verdict,
    write_warnings,
)
from clear_mlflow.core.score import format_significant
from clear_mlflow.metrics import (
    SCRATCH_METRICS,
    WITHIN_BUCKET_METRICS,
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
# Columns of the frame of pairs, in order. A column that is added here and to a row of
# compare_pairs is in all outputs that list numbers of pairs.
PAIR_COLUMNS = (
    *("a", "b", "metric", "higher_is_better", "outcome", "difference", "low", "high", "p", "test"),
    *(
        "sentence",
        "details",
        "unit",
        "n_a",
        "n_b",
        "unadjusted_low",
        "unadjusted_high",
        "unadjusted_p",
    ),
    *("margin", "equivalence_p", "equivalence_low", "equivalence_high", "hedges_g", "more_seeds"),
    *("a_index", "b_index"),
)


def compare_groups(
    ranked: Comparison, predictions: Mapping[str, Predictions] | None = None
) -> Comparison:
    """Test the planned pairs, and return the comparison with results, intervals and warnings.

    Two groups with a single result each are tested over test images, others over seeds. If a pair
    does not differ in the ranking metric, the other headline metrics are tested as well, and the
    clearest difference is reported as exploratory.

    predictions: predictions by run id; only groups with a single result are tested on them;
    without them, these groups are not tested.
    """
    by_group = {
        index: predictions[group.results[0].run_id]
        for index, group in enumerate(ranked.groups)
        if predictions and len(group.results) == 1 and group.results[0].run_id in predictions
    }
    by_pair = {
        (a, b): (by_group[a], by_group[b])
        for a, b in ranked.planned_pairs
        if a in by_group and b in by_group
    }
    unequal_images = frozenset(
        pair for pair, (a, b) in by_pair.items() if a.images.digest != b.images.digest
    )
    by_pair = {pair: sides for pair, sides in by_pair.items() if pair not in unequal_images}
    bootstrap = ImageBootstrap(metrics=ranked.definitions, level=LEVEL)
    metrics: list[Metric] = [*ranked.definitions]
    if len(list_test_intervals(ranked)) < 2:  # minima over different intervals are not comparable
        metrics += WITHIN_BUCKET_METRICS
    metrics += SCRATCH_METRICS
    ranking_metric = [metric for metric in metrics if metric.name == ranked.ranked_by]
    pairs = compare_pairs(ranked, ranking_metric, bootstrap, by_pair, margin=ranked.margin)
    names = {*ranked.headline_metrics} - {ranked.ranked_by, COST}
    others = [m for m in metrics if m.name in names and m.higher_is_better is not None]
    undecided = {(p["a_index"], p["b_index"]) for p in pairs if p["outcome"] != DIFFERENT}
    num_comparisons = len(others) * (len(ranked.planned_pairs) + ranked.num_untested)
    exploratory = [
        pair
        for pair in compare_pairs(
            ranked, others if undecided else (), bootstrap, by_pair, num_comparisons=num_comparisons
        )
        if pair["outcome"] == DIFFERENT and (pair["a_index"], pair["b_index"]) in undecided
    ]
    return replace(
        ranked,
        # Objects keep integers, and None for what is not defined.
        pairs=DataFrame(pairs, columns=PAIR_COLUMNS, dtype=object),
        best=_find_best(ranked, pairs),
        exploratory=write_exploratory(exploratory, ranked.ranked_by),
        image_intervals={i: bootstrap.intervals(run) for i, run in by_group.items()},
        warnings=tuple(write_warnings(ranked, pairs, unequal_images)),
    )


def _find_best(ranked: Comparison, pairs: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the groups that are significantly better than all others under their conditions."""
    num_groups = Counter(group.conditions_index for group in ranked.groups)
    num_worse = Counter(
        pair["a_index" if is_a_better(pair) else "b_index"]
        for pair in pairs
        if pair["outcome"] == DIFFERENT
    )
    return frozenset(
        index
        for index, num in num_worse.items()
        if num == num_groups[ranked.groups[index].conditions_index] - 1
    )


def compare_pairs(
    ranked: Comparison,
    metrics: Sequence[Metric],
    bootstrap: ImageBootstrap,
    predictions: Mapping[tuple[int, int], tuple[Predictions, Predictions]],
    *,
    margin: float | None = None,
    num_comparisons: int | None = None,
) -> list[dict[str, Any]]:
    """Test each planned pair on each metric, and return a row for each.

    Left out are pairs that have neither two values per group nor predictions that define the
    metric. A row has PAIR_COLUMNS, and the values that only its sentence contains. Numbers of a
    test are None if the pair was not tested. The others are adjusted for several comparisons: by
    Holm's method, or with a margin by Bonferroni's.

    predictions: by indices of the groups of a pair. margin: also test for equivalence within it.
    num_comparisons: number of comparisons to adjust p for, or None for the tested pairs of the
    metric and ``ranked.num_untested``.
    """
    rows = []
    for metric in metrics:
        samples = _sample_pairs(ranked, metric.name, bootstrap, predictions)
        tests: dict[tuple[int, int], TTest] = {
            pair: sample["t_test"]
            for pair, sample in samples.items()
            if sample["t_test"] is not None and sample["min_seeds"] >= MIN_SEEDS
        }
        family = num_comparisons or len(tests) + ranked.num_untested
        factors = holm_factors([test.p_value for test in tests.values()], family=family)
        # A pair is tested for a difference and for equivalence, and one of these is true. Tests at
        # alpha / family have an error rate of alpha together (Bonferroni).
        if margin is not None:
            factors = [float(family)] * len(tests)
        factor_by_pair = dict(zip(tests, factors, strict=True))
        for pair, sample in samples.items():
            a, b = (ranked.groups[i] for i in pair)
            row = {**dict.fromkeys(PAIR_COLUMNS), **sample, "outcome": TOO_FEW, "details": []}
            row |= {"a": a.name, "b": b.name, "a_index": pair[0], "b_index": pair[1]}
            row |= {"metric": metric.name, "comparisons": family}
            row["higher_is_better"] = metric.higher_is_better is not False
            row["in_percent"] = ranked.score.is_accuracy and not is_cost(metric.name)
            row["cost_ratio"] = _format_cost_ratio(a, b, row)
            row["remarks"] = [*_list_remarks(a, b, row)]
            if pair in tests:
                row |= _describe_test(tests[pair], factor_by_pair[pair])
                if margin is not None:
                    row |= _describe_equivalence(row, tests[pair], margin)
            row["sentence"] = write_verdict(row)
            if pair in tests and row["values"] is not None:
                row["hedges_g"] = effect = hedges_g(*row["values"])
                if effect is not None:
                    row["details"].append(f"Effect size: Hedges' g {abs(effect):.1f}.")
            has_few_seeds = row["min_seeds"] < MIN_SEEDS
            if has_few_seeds or (row["outcome"] == NOT_SHOWN and row["values"] is not None):
                count = len(samples) + ranked.num_untested if has_few_seeds else family
                row["more_seeds"], sentence = _count_new_seeds(
                    row["t_test"], (1 - LEVEL) / count, margin
                )
                row["details"].append(sentence)
            if pair not in tests:
                row |= dict.fromkeys(("difference", "unit", "test"))
            rows.append(row)
    return rows


def _sample_pairs(
    ranked: Comparison,
    metric: str,
    bootstrap: ImageBootstrap,
    predictions: Mapping[tuple[int, int], tuple[Predictions, Predictions]],
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the unadjusted test of each planned pair by its indices: over images, or over seeds.

    Seeds are used without predictions that define the metric. If a group then has fewer than two
    values, the pair is left out. For the keys, see :func:`_compare_over_seeds`.
    """
    samples = {}
    for pair in ranked.planned_pairs:
        sample = None
        if pair in predictions:
            sample = _compare_over_images(*predictions[pair], bootstrap, metric)
        if sample is None:
            a, b = (ranked.groups[i] for i in pair)
            sample = _compare_over_seeds(a, b, metric)
        if sample is not None:
            samples[pair] = sample
    return samples


def _describe_test(test: TTest, factor: float) -> dict[str, Any]:
    """Return the outcome, DIFFERENT or NOT_SHOWN, and the numbers of a test of a difference.

    factor: number by which p is multiplied, at least 1; the interval gets wider accordingly.
    """
    p_value, alpha = min(1.0, factor * test.p_value), 1 - LEVEL
    interval, unadjusted = test.interval(1 - alpha / factor), test.interval(LEVEL)
    # A p of exactly 0.05 is significant despite rounding in 1 - 0.95.
    is_different = p_value <= alpha + 1e-12 and test.difference != 0
    return {
        "outcome": DIFFERENT if is_different else NOT_SHOWN,
        "difference": test.difference,
        "low": interval.low,
        "high": interval.high,
        "p": p_value,
        "n_a": test.n_a,
        "n_b": test.n_b,
        "unadjusted_low": unadjusted.low,
        "unadjusted_high": unadjusted.high,
        "unadjusted_p": test.p_value,
    }


def _describe_equivalence(row: Mapping[str, Any], test: TTest, margin: float) -> dict[str, Any]:
    """Return the numbers of a test of equivalence, and the outcome, unless it is DIFFERENT already.

    row: columns of the pair; p is multiplied by its ``comparisons``.
    """
    alpha, comparisons = 1 - LEVEL, row["comparisons"]
    p_value = min(1.0, comparisons * test.equivalence_p(margin))
    # The level 1 - 2 alpha: the interval is within the margin if p is at most alpha.
    low, high = test.interval(1 - 2 * alpha / comparisons)
    is_within, outcome = p_value <= alpha + 1e-12, row["outcome"]
    return {
        "outcome": EQUIVALENT if is_within and outcome == NOT_SHOWN else outcome,
        "is_within_margin": is_within,
        "margin": margin,
        "equivalence_p": p_value,
        "equivalence_low": low,
        "equivalence_high": high,
    }


def _compare_over_seeds(a: Group, b: Group, metric: str) -> dict[str, Any] | None:
    """Compare two groups over seeds, or return None if one has fewer than two values.

    If the seeds of one group, including diverged ones, are all seeds of the other, too, the values
    of shared seeds are paired; otherwise, or if a seed is repeated, it is Welch's test. ``t_test``
    of the result is None without variation.
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
    seeds: tuple[Sequence[int | None], Sequence[int | None]]
    if is_unique and None not in smaller and smaller <= larger and len(common) > 1:
        seeds = common, common
        values = [by_seed_a[seed] for seed in common], [by_seed_b[seed] for seed in common]
        method, count, test = PAIRED, f"{len(common)} shared seeds", paired_t(*values)
    else:
        seeds = [run.seed for run, _ in values_a], [run.seed for run, _ in values_b]
        values = [value for _, value in values_a], [value for _, value in values_b]
        method, count, test = WELCH, f"{len(values_a)} and {len(values_b)} seeds", welch_t(*values)
    return {
        "test": method,
        "unit": "seeds",
        "sample": count,
        "difference": math.fsum(values[0]) / len(values[0]) - math.fsum(values[1]) / len(values[1]),
        "t_test": test,
        "values": values,
        "seeds": seeds,
        "min_seeds": min(map(len, values)),
    }


def _compare_over_images(
    a: Predictions, b: Predictions, bootstrap: ImageBootstrap, metric: str
) -> dict[str, Any] | None:
    """Compare two runs over their test images.

    Returns None if they have different numbers of rows, or predictions do not define the metric.
    """
    test = bootstrap.test(a, b).get(metric) if a.k == b.k else None
    if test is None:
        return None
    return {
        "test": BOOTSTRAP,
        "unit": "images",
        "sample": f"{test.n_a:,} test images, one training run per method, other seeds may differ",
        "difference": test.difference,
        "t_test": test,
        "values": None,
        "min_seeds": MIN_SEEDS,
    }


def _format_cost_ratio(a: Group, b: Group, row: Mapping[str, Any]) -> str:
    """Return the better group's training FLOPs relative to the other group's, such as "1.9".

    Returns "" if costs are within 1 % or not both above 0, and for a metric that is a cost.
    """
    better, worse = (group.metrics.get(COST) for group in (a, b))
    if not is_a_better(row):
        better, worse = worse, better
    if is_cost(row["metric"]) or better is None or worse is None or not better.mean * worse.mean:
        return ""
    if is_equal_cost(better.mean, worse.mean):
        return ""
    ratio = better.mean / worse.mean
    return format_significant(ratio, 3 if 1 < ratio < 1.05 else 2)  # 1.02 instead of 1.0


def _list_remarks(a: Group, b: Group, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks on mixed parameters and, in a test over seeds, on the values of the seeds.

    Those name diverged seeds, outliers, and without pairing very different standard deviations.
    """
    names = a.name, b.name
    for name, group in zip(names, (a, b), strict=True):
        if group.mixed_params:
            yield f"{name} mixes {format_mixed_params(group)}"
        if row["values"] is None:
            continue
        if diverged := len(group.diverged):
            verb, total = "has" if diverged == 1 else "have", len(group.counted) + diverged
            yield f"{diverged} of {total} seeds of {name} diverged and {verb} no value"
    if row["values"] is None:
        return
    if row["test"] == PAIRED:
        outlier = _find_outlier(np.subtract(*row["values"]))
        if outlier is not None:
            yield f"seed {row['seeds'][0][outlier]} is an outlier"
        return
    for name, values, seeds in zip(names, row["values"], row["seeds"], strict=True):
        if (outlier := _find_outlier(values)) is not None:
            seed = "one seed" if seeds[outlier] is None else f"seed {seeds[outlier]}"
            yield f"{seed} of {name} is an outlier"
    low, high = sorted(zip(map(np.std, row["values"]), names, strict=True))
    if row["min_seeds"] >= _MIN_SEEDS_FOR_REMARKS and high[0] > _MAX_RATIO * low[0]:
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
    test: TTest | None, alpha: float, margin: float | None
) -> tuple[int | None, str]:
    """Return how many new seeds per method a significant result needs, and a sentence on it.

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
            return for_equivalence, write_seeds_needed(for_equivalence, "show equivalence")
    return needed, write_seeds_needed(needed, "detect a difference of this size")
