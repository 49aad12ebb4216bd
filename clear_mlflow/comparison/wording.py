"""All sentences of a comparison: verdicts on pairs of groups, warnings, and parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from clear_mlflow.comparison.groups import (
    COST,
    LEVEL,
    Group,
    format_conditions,
    format_run,
    truncate_name,
)
from clear_mlflow.comparison.ranking import MAX_ALL_PAIRS
from clear_mlflow.comparison.result import (
    DIFFERENT,
    EQUIVALENT,
    MAX_PREDICTIONS,
    Comparison,
    Pair,
)
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.matrix import TEST, VALIDATION
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.statistics import MAX_SEEDS, MIN_SEEDS

_MAX_NAME_LENGTH = 120  # of a run that stores a comparison
PAIRED, WELCH, BOOTSTRAP = "paired t-test", "Welch's t-test", "paired bootstrap"
ONE_SAMPLE = "one-sample t-test"
_ASSUMPTIONS = {
    PAIRED: "The paired t-test assumes that the differences by seed are normally distributed.",
    WELCH: "Welch's t-test assumes that the values of each method are normally distributed.",
    ONE_SAMPLE: (
        "The one-sample t-test assumes that the values of the method whose seeds differ are "
        "normally distributed."
    ),
    BOOTSTRAP: (
        "The paired bootstrap compares two trained models over test images; other seeds may differ."
    ),
}


def describe_verdict(pair: Pair) -> str:
    """Describe a pair in one sentence: result, size, interval and test."""
    metric, names = pair.metric, [pair.a, pair.b]
    lead = _describe_difference(pair)
    if pair.p is None:
        return _describe_untested(pair, " and ".join(names), lead)
    one, both = "", " and ".join(names)
    if pair.unit == "images":
        one, both = "The model of ", f"The models of {both}"
    ends, p_text = (pair.low, pair.high), f"p {format_p(pair.p)}"
    result = _format_result(pair, ends, LEVEL, p_text)
    margin = None if pair.margin is None else _format_margin(pair.margin, pair)
    if pair.outcome == DIFFERENT:
        better, worse = names if pair.is_a_better else names[::-1]
        sentence = (
            f"{one}{better} is significantly better than {one.lower()}{worse} in {metric} "
            f"({lead}, {result})."
        )
        if pair.is_within_margin:
            sentence += f" The difference is within the margin of {margin}."
        return sentence
    if margin is None or pair.equivalence_p is None:
        return f"{both}: no significant difference in {metric} ({lead}, {result})."
    ends = pair.equivalence_low, pair.equivalence_high
    p_equivalent = f"TOST p {format_p(pair.equivalence_p)}"
    result = _format_result(pair, ends, 2 * LEVEL - 1, p_equivalent)
    if pair.outcome == EQUIVALENT:
        return f"{both}: equivalent in {metric} within {margin} ({lead}, {result})."
    return (
        f"{both}: neither a significant difference nor equivalence within {margin} in {metric} "
        f"({lead}, {result}; test of a difference: {p_text})."
    )


def _describe_untested(pair: Pair, both: str, lead: str) -> str:
    """Describe why a pair was not tested. both: names of the groups."""
    metric, size = pair.metric, pair.size
    notes = "".join(f"; {note}" for note in pair.notes)
    if pair.min_seeds < MIN_SEEDS:
        return (
            f"{both}: too few seeds to test {metric} ({lead}, {size}; a test needs "
            f"{MIN_SEEDS}{notes})."
        )
    if abs(pair.mean_difference) <= 1e-12:
        return f"{both}: identical {metric} ({size}{notes})."
    return (
        f"{both}: the same difference in {metric} for every seed ({lead}, {size}{notes}). "
        "Without variation between seeds, only a test over test images is possible, which needs "
        "stored predictions."
    )


def build_comparison_name(comparison: Comparison) -> str:
    """Return a run's name, such as "compare replay vs naive (6 runs)".

    One group results in "replay: 3 runs". With more than three groups, or if their names are too
    long, it is "compare replay vs 3 others (12 runs)".
    """
    groups = [group.name for group in comparison.groups]
    num_runs = len(comparison.runs)
    split = ", validation" if comparison.is_validation else ""
    if len(groups) == 1:
        return f"{groups[0]}: {format_count(num_runs, 'run')}{split}"
    sides = " vs ".join(groups[:3])
    if len(groups) > 3 or len(sides) > _MAX_NAME_LENGTH:
        sides = f"{groups[0]} vs {format_count(len(groups) - 1, 'other')}"
    return f"compare {sides} ({num_runs} runs{split})"


def describe_seeds_needed(seeds: int | None, result: str) -> str:
    """Describe how many new seeds a comparison needs.

    seeds: None if 100 are not enough. result: verb and object, such as "show equivalence".
    """
    if seeds is None:
        return f"Not even {MAX_SEEDS} seeds per method would {result} with 80 % power."
    return f"A new comparison with {seeds} fresh seeds per method would {result} with 80 % power."


def _describe_difference(pair: Pair) -> str:
    """Return the better group, such as ``naive +0.8 points``, or ``equal means``."""
    sign, direction = ("+", "") if pair.higher_is_better else ("-", "lower is better: ")
    size = abs(pair.mean_difference)
    if not size:
        return f"{direction}equal means"
    leader = pair.a if pair.is_a_better else pair.b
    text = f"{size:.4g}"
    if pair.is_in_percent:
        text = f"{100 * size:.{1 if size >= 0.001 else 2}f} points"
    return f"{direction}{leader} {sign}{text}"


def _format_margin(margin: float, pair: Pair) -> str:
    if not pair.is_in_percent:
        return f"{margin:g}"
    return format_count(100 * margin, "point")


def _format_result(
    pair: Pair,
    ends: tuple[float | None, float | None],
    level: float,
    p_text: str,
) -> str:
    """Return interval, p-value, adjustment, test, cost and remarks of a pair.

    ends: ends of the interval of A - B at a level, which is turned to better - worse. p_text:
    p-value as text, such as ``p = 0.02``.
    """
    low, high = (end or 0.0 for end in ends)
    if not pair.is_a_better:
        low, high = -high, -low
    decimals = 2 if high - low < 0.004 else 1
    low_text, high_text = (
        f"{100 * end:.{decimals}f}" if pair.is_in_percent else f"{end:.4g}" for end in (low, high)
    )
    parts = [f"{100 * level:g} % CI {low_text} to {high_text}", p_text]
    if pair.num_comparisons > 1:
        adjustment = "Holm" if pair.margin is None else "Bonferroni"
        parts.append(f"{adjustment}-adjusted for {pair.num_comparisons} comparisons")
    return "; ".join([", ".join([*parts, pair.method, pair.size]), *pair.notes])


def format_p(value: float) -> str:
    """Return a p-value, such as ``= 0.031`` or ``< 0.0001``."""
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"


def describe_exploratory(pairs: Sequence[Pair], ranked_by: str | None) -> str:
    """Describe the exploratory difference with the smallest p, "" without any.

    pairs: significant differences in other metrics than *ranked_by*.
    """
    if not pairs:
        return ""
    first, *others = sorted(pairs, key=lambda pair: pair.p or 0.0)
    metrics = ", ".join(dict.fromkeys(pair.metric for pair in others))
    return (
        f"Exploratory, without a difference in {ranked_by}: {first.sentence}"
        + (f" {len(others)} more in {metrics}." if others else "")
        + " Confirm such a finding on new seeds before you report it."
    )


def describe_assumptions(pairs: Sequence[Pair]) -> str:
    """Describe what the tests assume, and how they are adjusted.

    Returns "" if no pair was tested.
    """
    tests = {pair.test for pair in pairs}
    sentences = [text for test, text in _ASSUMPTIONS.items() if test in tests]
    if not sentences:
        return ""
    method = "Bonferroni's" if any(pair.margin is not None for pair in pairs) else "Holm's"
    risk = f"significant difference is at most {100 * (1 - LEVEL):.2g} %."
    sentences.append(
        f"Cite interval and p-value together. Both are adjusted by {method} method: if all methods "
        f"are equal, the probability of any {risk}"
        if any(pair.p is not None and pair.num_comparisons > 1 for pair in pairs)
        else "Cite interval and p-value together: if both methods are equal, the probability of a "
        + risk
    )
    return " ".join(sentences)


def describe_reason_without_tests(comparison: Comparison) -> str:
    """Describe why no pair was tested."""
    if len(comparison.groups) == 1:
        return "There is only one group, so no differences are tested."
    if comparison.ranked_by is None:
        return "No group defines a metric to rank by, so no differences are tested."
    identical = _list_identical_pairs(comparison)
    if identical and len(identical) == len(comparison.planned_pairs):
        return _describe_identical(identical)
    return (
        "No two groups could be tested against each other. A test needs the same test set and at "
        "least two seeds of both groups, or one run of each with stored predictions."
    )


def _list_identical_pairs(ranked: Comparison) -> list[tuple[Group, Group]]:
    """Return the planned pairs of groups with one result each, the same."""
    return [
        (a, b)
        for a, b in ranked.planned_pairs
        if len(a.results) == len(b.results) == 1
        and np.array_equal(a.results[0].grid, b.results[0].grid, equal_nan=True)
    ]


def _describe_identical(pairs: Sequence[tuple[Group, Group]]) -> str:
    names = [" and ".join(group.name for group in pair) for pair in pairs]
    listed = names[0] if len(pairs) == 1 else f"{len(pairs)} pairs of groups"
    examples = f" ({'; '.join(names[:5])}{'; …' if names[5:] else ''})" if len(pairs) > 1 else ""
    return (
        f"{listed} have the same matrix{examples}: they do not differ in any metric of the matrix, "
        "so nothing is tested."
    )


def iter_warnings(
    ranked: Comparison, pairs: Sequence[Pair], unequal_images: Sequence[tuple[Group, Group]]
) -> Iterator[str]:
    """Yield warnings about the runs and the tests, the most general first.

    They are about different test conditions, selection on test images, missing values, single
    groups and runs, and untested pairs; the warnings that *ranked* has are among them.

    unequal_images: pairs of groups whose predictions are for different test images.
    """
    if len(ranked.conditions) > 1:
        first, *others = ranked.conditions
        differences = dict.fromkeys(
            text for item in others for text in list_differences(first, item)
        )
        yield (
            f"The runs were tested under {len(ranked.conditions)} different conditions. They "
            f"differ in {', '.join(differences)}. Groups with different conditions are listed one "
            "below the other and are not tested against each other."
        )
    yield from ranked.warnings
    yield from _iter_selection_warnings(ranked)
    yield from _iter_missing_value_warnings(ranked)
    for group in ranked.groups:
        yield from _iter_group_warnings(group)
    for run in ranked.ungrouped:
        yield (
            f"{format_run(run)} diverged before its first row, and no other run belongs to its "
            "group, so it is not listed."
        )
    yield from _iter_test_warnings(ranked, pairs, unequal_images)


def _iter_selection_warnings(ranked: Comparison) -> Iterator[str]:
    if any(conditions.split == VALIDATION for conditions in ranked.conditions):
        runs = "All runs" if ranked.is_validation else "The groups called validation"
        yield (
            f"{runs} were measured on validation images, a part of the training images that they "
            "were not trained on. Use these numbers to choose a method, not to report it."
        )
    num_groups, names = 0, set[str]()
    for method in ranked.list_methods():
        varied = {n for n in ranked.tuned if len({group.labels[n] for group in method}) > 1}
        if varied and method[0].conditions.split == TEST:
            num_groups, names = num_groups + len(method), names | varied
    if names:
        yield (
            f"{num_groups} groups differ only in "
            f"{', '.join(name for name in ranked.group_by if name in names)} and were "
            "measured on test images. The best of them is selected on the test set, so its value "
            "is too high to report. Choose among runs with split=validation, then train the chosen "
            "method with split=auto (docs/sweeps.md)."
        )


def _iter_missing_value_warnings(ranked: Comparison) -> Iterator[str]:
    intervals, runs = ranked.test_intervals, ranked.runs
    if num_without := sum(not run.test_every for run in runs) if intervals else 0:
        have, their = ("has", "its") if num_without == 1 else ("have", "their")
        yield (
            f"{num_without} of {len(runs)} runs {have} no tests within buckets (test_every): "
            f"{their} continual_evaluation metrics are not defined and left empty."
        )
    if len(intervals) > 1:
        yield (
            "Runs were tested within buckets at different intervals (test_every: "
            f"{', '.join(safe_repr(text) for text in intervals[:5])}), on which minima and windows "
            "depend: their continual_evaluation metrics are not tested against each other."
        )
    num_without = sum(COST not in run.summary for run in runs)
    if 0 < num_without < len(runs):
        have, their = ("has", "its") if num_without == 1 else ("have", "their")
        yield (
            f"{num_without} of {len(runs)} runs {have} not logged {their} cost, for example runs "
            f"of other programs: {their} cost metrics are left empty."
        )


def _iter_group_warnings(group: Group) -> Iterator[str]:
    for run in group.members:
        num_rows, num_buckets = sum(row > 0 for row in run.record.rows), len(run.grid[0])
        if run.diverged:
            yield (
                f"{format_run(run)} diverged after {num_rows} of {num_buckets} rows. Its cells and "
                "curves are shown. It counts as a seed, but has no value in any mean."
            )
        elif run not in group.counted:
            yield (
                f"{format_run(run)} was trained on {run.record.matrix.num_rows} of {num_buckets} "
                f"buckets, others on {group.max_trained}. Its cells and curves are shown, but its "
                "metrics are left out of means and tests."
            )
        elif not run.record.is_complete:
            yield (
                f"{format_run(run)} is partial: {num_rows} of {num_buckets} rows. Metrics that "
                "these rows do not define are left empty."
            )
    if group.mixed_params:
        yield (
            f"{group.name} mixes runs with different parameters "
            f"({group.format_mixed_params()}), so its mean describes no single method. The default "
            "grouping separates them."
        )
    for lost_run in group.without_rows:
        yield (
            f"{format_run(lost_run)} diverged before its first row. It counts as a seed, but has "
            "no value in any mean."
        )
    if group.is_deterministic and group.num_seeds < len(group.counted):
        seeds = f"have only {format_count(group.num_seeds, 'known seed', 'different known seeds')}"
        yield (
            f"All {len(group.counted)} runs of {group.name} have the same matrix, and they "
            f"{seeds if group.num_seeds else 'have no known seeds'}. They are one result, like a "
            "single run; if they are copies of one run, delete the others."
        )
    elif group.is_deterministic:
        yield (
            f"All {len(group.counted)} seeds of {group.name} have the same matrix: its training "
            "does not depend on the seed. They are one result, like a single run, without an "
            "interval over seeds."
        )


def _iter_test_warnings(
    ranked: Comparison, pairs: Sequence[Pair], unequal_images: Sequence[tuple[Group, Group]]
) -> Iterator[str]:
    groups = ranked.groups
    single = [group for group in groups if len(group.counted) == 1]
    if single:
        names = ", ".join(group.name for group in single[:5])
        names += ", …" if single[5:] else ""
        has_others = any(len(group.members) + len(group.without_rows) > 1 for group in single)
        run = "one run with values" if has_others else "one run"
        have = f"has only {run}" if len(single) == 1 else f"have only {run} each"
        yield (
            f"{len(single)} of {format_count(len(groups), 'group')} {have} ({names}). A result of "
            "one trained model need not be true for the method."
        )
    if unequal_images:
        a, b = unequal_images[0]
        yield (
            f"{a.name} and {b.name} have predictions for different test images, though their "
            "dataset has the same digest: they are not tested against each other."
        )
    tested = {pair.groups for pair in pairs}
    untested = set(ranked.planned_pairs) - tested - {*unequal_images}
    if identical := [pair for pair in _list_identical_pairs(ranked) if pair in untested]:
        yield _describe_identical(identical)
    if untested := untested - set(identical):
        needs = "" if ranked.ranked_by is None else f" that define {ranked.ranked_by}"
        yield (
            f"{len(untested)} of {format_count(len(ranked.planned_pairs), 'pair')} could not be "
            f"tested. A test needs three seeds or more of each group{needs}, with different "
            f"matrices, or stored predictions of one run each, for at most {MAX_PREDICTIONS} runs."
        )
    for leader in ranked.leaders:
        is_first = leader is next(g for g in groups if g.conditions == leader.conditions)
        note = "" if is_first else f", the best with {MIN_SEEDS} seeds"
        yield (
            f"With more than {MAX_ALL_PAIRS} groups, each is tested against the leader, "
            f"{leader.name}{note}. The leader was chosen by its results, so p is "
            "adjusted for all pairs. If you name a baseline beforehand (--baseline), p is adjusted "
            "only for the pairs with the baseline."
        )
    if ranked.baselines:
        tested_conditions = {group.conditions for group in ranked.baselines}
        for conditions in ranked.conditions:
            if conditions not in tested_conditions:
                yield (
                    f"No group on {truncate_name(conditions.name)} is the baseline, so nothing is "
                    "tested there."
                )


def list_differences(dataset: DatasetDescription, other: DatasetDescription) -> Iterator[str]:
    """Yield each difference of test conditions, such as ``split (test and validation)``."""
    if dataset.digest.startswith("sha256:") and replace(dataset, name=other.name) == other:
        yield f"the name of the dataset ({dataset.name} and {other.name}), not in its content"
        return
    values, other_values = format_conditions(dataset), format_conditions(other)
    for name, value in values.items():
        if value != other_values[name]:
            yield f"{name} ({value} and {other_values[name]})"
