"""All sentences of a comparison: verdicts on pairs of groups, warnings, and parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from clear_mlflow.comparison.groups import COST, Group, format_run, truncate_name
from clear_mlflow.comparison.ranking import MAX_ALL_PAIRS, MAX_PREDICTIONS, RankedGroups
from clear_mlflow.core.matrix import TEST, VALIDATION
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.statistics import Interval
from clear_mlflow.statistics.sample_size import MAX_SEEDS, MIN_SEEDS

DIFFERENT, EQUIVALENT, NOT_SHOWN, TOO_FEW = "different", "equivalent", "not shown", "too few"
PAIRED, WELCH, BOOTSTRAP = "paired t-test", "Welch's t-test", "paired bootstrap"
_ASSUMPTIONS = {
    PAIRED: "The paired t-test assumes that the differences by seed are normally distributed.",
    WELCH: "Welch's t-test assumes that the values of each method are normally distributed.",
    BOOTSTRAP: (
        "The paired bootstrap compares two trained models over test images; other seeds may differ."
    ),
}


@dataclass(frozen=True, kw_only=True)
class VerdictWriter:
    """Writes one sentence on each pair of groups: result, size, interval, p, test and seeds."""

    metric: str
    higher_is_better: bool = True
    in_percent: bool = True  # True for fractions: differences are written in percentage points
    comparisons: int = 1  # number of comparisons that p-values and intervals are adjusted for
    adjustment: str = "Holm"

    def write_tested(self, pair: Mapping[str, Any], level: float) -> str:
        """Write the sentence on a tested pair. level: confidence level, for example 0.95."""
        names = [truncate_name(pair[side]) for side in "ab"]
        both = " and ".join(names)
        if pair["unit"] == "images":
            names, both = [f"the model of {name}" for name in names], f"the models of {both}"
        better, worse = names if self.is_a_better(pair["difference"]) else names[::-1]
        lead = self._describe_difference(pair)
        interval = pair["low"], pair["high"]
        p_value = f"p {format_p(pair['p'])}"
        numbers = f"{lead}, {self._format_result(pair, interval, level, p_value)}"
        if pair["outcome"] == DIFFERENT:
            sentence = f"{_capitalize(better)} is significantly better than {worse} in "
            sentence += f"{self.metric} ({numbers})."
            if pair["margin"] is not None and pair["equivalence_p"] <= 1 - level + 1e-12:
                sentence += f" The difference is within the margin of {self._format_margin(pair)}."
            return sentence
        both = _capitalize(both)
        if pair["margin"] is None:
            return f"{both}: no significant difference in {self.metric} ({numbers})."
        interval = pair["equivalence_low"], pair["equivalence_high"]
        p_value = f"TOST p {format_p(pair['equivalence_p'])}"
        numbers = f"{lead}, {self._format_result(pair, interval, 2 * level - 1, p_value)}"
        within = f"within {self._format_margin(pair)}"
        if pair["outcome"] == EQUIVALENT:
            return f"{both}: equivalent in {self.metric} {within} ({numbers})."
        return (
            f"{both}: neither a significant difference nor equivalence {within} in {self.metric} "
            f"({numbers}; test of a difference: p {format_p(pair['p'])})."
        )

    def write_untested(self, pair: Mapping[str, Any], min_seeds: int) -> str:
        """Write the sentence on a pair without a test. min_seeds: the lower number of seeds."""
        both = f"{truncate_name(pair['a'])} and {truncate_name(pair['b'])}"
        seeds, remarks = pair["seeds"], "".join(f"; {remark}" for remark in pair["remarks"])
        lead = self._describe_difference(pair)
        if min_seeds < MIN_SEEDS:
            return (
                f"{both}: too few seeds to test {self.metric} ({lead}, {seeds}; a test needs "
                f"{MIN_SEEDS}{remarks})."
            )
        if abs(pair["difference"]) <= 1e-12:
            return f"{both}: identical {self.metric} ({seeds}{remarks})."
        return (
            f"{both}: the same difference in {self.metric} for every seed ({lead}, {seeds}"
            f"{remarks}). Without variation between seeds, only a test over test images is "
            "possible, which needs stored predictions."
        )

    def write_seeds_needed(self, seeds: int | None, *, is_equivalence: bool = False) -> str:
        """Write how many new seeds a comparison needs. seeds: None if 100 are not enough."""
        if seeds is None:
            return (
                f"Not even {MAX_SEEDS} seeds per method would detect a difference of this size "
                "with 80 % power."
            )
        result = "show equivalence" if is_equivalence else "detect a difference of this size"
        return (
            f"A new comparison with {seeds} fresh seeds per method would {result} with 80 % power."
        )

    def is_a_better(self, difference: float) -> bool:
        """Return True if A is better than B. difference: A - B."""
        return (difference > 0) == self.higher_is_better

    def _describe_difference(self, pair: Mapping[str, Any]) -> str:
        """Return the better group and its signed difference, for example ``naive +0.8 points``.

        Returns "equal means" if there is no difference.
        """
        direction = "" if self.higher_is_better else "lower is better: "
        if not pair["difference"]:
            return f"{direction}equal means"
        leader = truncate_name(pair["a" if self.is_a_better(pair["difference"]) else "b"])
        size = abs(pair["difference"])
        text = (
            f"{100 * size:.{1 if size >= 0.001 else 2}f} points"
            if self.in_percent
            else (f"{size:.4g}")
        )
        return f"{direction}{leader} {'+' if self.higher_is_better else '-'}{text}{pair['cost']}"

    def _format_margin(self, pair: Mapping[str, Any]) -> str:
        margin = 100 * pair["margin"] if self.in_percent else pair["margin"]
        unit = f" point{'' if margin == 1 else 's'}" if self.in_percent else ""
        return f"{margin:g}{unit}"

    def _format_result(
        self, pair: Mapping[str, Any], interval: tuple[float, float], level: float, p_value: str
    ) -> str:
        """Return interval, p-value, adjustment, test and remarks. The interval is of A - B."""
        ends = Interval(*interval)
        low, high = ends if self.is_a_better(pair["difference"]) else ends.flipped
        decimals = 2 if high - low < 0.004 else 1
        low_text, high_text = (
            f"{100 * end:.{decimals}f}" if self.in_percent else f"{end:.4g}" for end in (low, high)
        )
        parts = [f"{100 * level:g} % CI {low_text} to {high_text}", p_value]
        if self.comparisons > 1:
            parts.append(f"{self.adjustment}-adjusted for {self.comparisons} comparisons")
        parts += [pair["test"], pair["seeds"]]
        return "; ".join([", ".join(parts), *pair["remarks"]])


def _capitalize(names: str) -> str:
    """Return the beginning of a sentence. Names of groups are not changed."""
    return f"T{names[1:]}" if names.startswith(("the model of ", "the models of ")) else names


def format_p(value: float) -> str:
    """Return a p-value with its sign, for example ``= 0.031`` or ``< 0.0001``."""
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"


def write_exploratory(pairs: Sequence[Mapping[str, Any]], ranked_by: str | None) -> str:
    """Write one line on the exploratory difference with the smallest p, or "" without any.

    pairs: significant differences in other metrics than *ranked_by*.
    """
    if not pairs:
        return ""
    first, *others = sorted(pairs, key=lambda pair: float(pair["p"]))
    metrics = ", ".join(dict.fromkeys(pair["metric"] for pair in others))
    return (
        f"Exploratory, without a difference in {ranked_by}: {first['sentence']}"
        + (f" {len(others)} more in {metrics}." if others else "")
        + " Confirm such a finding on new seeds before you report it."
    )


def write_assumptions(pairs: Sequence[Mapping[str, Any]], level: float) -> str:
    """Write what the tests assume and how they are adjusted, or an empty line without tests."""
    tests = {pair["test"] for pair in pairs}
    sentences = [text for test, text in _ASSUMPTIONS.items() if test in tests]
    if not sentences:
        return ""
    method = "Bonferroni's" if any(pair["margin"] is not None for pair in pairs) else "Holm's"
    sentences.append(
        f"Cite interval and p-value together. Both are adjusted by {method} method: if all methods "
        f"are equal, the probability of any significant difference is at most "
        f"{100 * (1 - level):.2g} %."
    )
    return " ".join(sentences)


def write_nothing_tested(num_groups: int) -> str:
    """Write why no pair was tested."""
    if num_groups == 1:
        return "There is only one group, so nothing is tested."
    return (
        "No two groups could be tested against each other. A test needs two seeds or more of each "
        "group, or stored predictions of one run each, and the same test set."
    )


def write_warnings(
    ranked: RankedGroups, pairs: Sequence[Mapping[str, Any]], unequal_images: Set[tuple[int, int]]
) -> Iterator[str]:
    """Yield what a reader has to know about the runs and tests, the most general first.

    unequal_images: pairs whose predictions are for different test images.
    """
    if len(ranked.conditions) > 1:
        first, *others = ranked.conditions
        differences = dict.fromkeys(
            text for item in others for text in first.list_differences(item)
        )
        yield (
            f"The runs were tested under {len(ranked.conditions)} different conditions. They "
            f"differ in {', '.join(differences)}. Groups with different conditions are listed one "
            "below the other and are not tested against each other."
        )
    yield from ranked.notes
    yield from _warn_about_selection(ranked)
    yield from _warn_about_missing_values(ranked)
    for group in ranked.groups:
        yield from _warn_about_group(group)
    for run in ranked.ungrouped:
        yield (
            f"{format_run(run)} diverged before its first row, and no other run belongs to its "
            "group, so it is not listed."
        )
    yield from _warn_about_tests(ranked, pairs, unequal_images)


def _warn_about_selection(ranked: RankedGroups) -> Iterator[str]:
    """Yield what a selection by this leaderboard would be based on."""
    if any(conditions.split == VALIDATION for conditions in ranked.conditions):
        runs = "All runs" if ranked.is_validation else "The groups called validation"
        yield (
            f"{runs} were measured on validation images, a part of the training images that they "
            "were not trained on. Use these numbers to choose a method, not to report it."
        )
    candidates = [
        method
        for method in ranked.list_methods()
        if len(method) > 1 and ranked.conditions[method[0].conditions].split == TEST
    ]
    if candidates:
        names = [
            name
            for name in ranked.group_by
            if name in ranked.tuned
            and any(len({group.labels[name] for group in method}) > 1 for method in candidates)
        ]
        yield (
            f"{sum(map(len, candidates))} groups differ only in {', '.join(names)} and were "
            "measured on test images. The best of them is selected on the test set, so its value "
            "is too high to report. Choose among runs with split=validation, then train the chosen "
            "method with split=auto (docs/sweeps.md)."
        )


def list_test_intervals(ranked: RankedGroups) -> list[str]:
    """Return the different values of test_every of all runs that were tested within buckets."""
    return sorted({run.test_every for run in ranked.runs if run.test_every})


def _warn_about_missing_values(ranked: RankedGroups) -> Iterator[str]:
    """Yield which runs lack tests within buckets or costs that others have."""
    intervals, runs = list_test_intervals(ranked), ranked.runs
    if num_without := sum(not run.test_every for run in runs) if intervals else 0:
        yield (
            f"{num_without} of {len(runs)} runs have no tests within buckets (test_every): their "
            "continual_evaluation metrics are not defined and left empty."
        )
    if len(intervals) > 1:
        yield (
            "Runs were tested within buckets at different intervals (test_every: "
            f"{', '.join(safe_repr(text) for text in intervals[:5])}), on which minima and windows "
            "depend: their continual_evaluation metrics are not tested against each other."
        )
    num_without = sum(COST not in run.summary for run in runs)
    if 0 < num_without < len(runs):
        yield (
            f"{num_without} of {len(runs)} runs have not logged their cost, for example runs of "
            "other programs: their cost metrics are left empty."
        )


def _warn_about_group(group: Group) -> Iterator[str]:
    """Yield what is special about a group and its runs."""
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
                f"buckets, others on {group.length}. Its cells and curves are shown, but its "
                "metrics are left out of means and tests."
            )
        elif not run.record.is_complete:
            yield (
                f"{format_run(run)} is partial: {num_rows} of {num_buckets} rows. Metrics that "
                "these rows do not define are left empty."
            )
    if group.mixed_params:
        yield (
            f"{truncate_name(group.name)} mixes runs with different parameters "
            f"({format_mixed_params(group)}), so its mean describes no single method. The default "
            "grouping separates them."
        )
    for lost_run in group.without_rows:
        yield (
            f"{format_run(lost_run)} diverged before its first row. It counts as a seed, but has "
            "no value in any mean."
        )
    if group.is_deterministic:
        yield (
            f"All {len(group.counted)} seeds of {truncate_name(group.name)} have the same matrix: "
            "its training does not depend on the seed, so there is no interval over seeds."
        )


def _warn_about_tests(
    ranked: RankedGroups, pairs: Sequence[Mapping[str, Any]], unequal_images: Set[tuple[int, int]]
) -> Iterator[str]:
    """Yield warnings on groups of one run, pairs without a test, and the choice of pairs.

    pairs: tested pairs. unequal_images: indices of two groups with different test images.
    """
    groups, plan = ranked.groups, ranked.plan
    single = [group for group in groups if len(group.counted) == 1]
    if single:
        names = ", ".join(truncate_name(group.name) for group in single[:5])
        names += ", …" if single[5:] else ""
        yield (
            f"{len(single)} of {len(groups)} groups are one run each ({names}). A result of one "
            "trained model need not be true for the method."
        )
    if unequal_images:
        a, b = (truncate_name(groups[i].name) for i in min(unequal_images))
        yield (
            f"{a} and {b} have predictions for different test images, though their dataset has the "
            "same digest: they are not tested against each other."
        )
    tested = {(pair["a_index"], pair["b_index"]) for pair in pairs}
    if untested := set(plan.pairs) - tested - unequal_images:
        yield (
            f"{len(untested)} of {len(plan.pairs)} pairs could not be tested. A test needs three "
            "seeds or more of each group, or stored predictions of one run each, for at most "
            f"{MAX_PREDICTIONS} runs."
        )
    for leader in plan.leaders:
        yield (
            f"With more than {MAX_ALL_PAIRS} groups, each is tested against the leader, "
            f"{truncate_name(groups[leader].name)}. The leader was chosen by its results, so p is "
            "adjusted for all pairs. If you name a baseline beforehand (--baseline), p is adjusted "
            "only for the pairs with the baseline."
        )
    if plan.baselines:
        tested_conditions = {groups[i].conditions for i in plan.baselines}
        for index in sorted(set(range(len(ranked.conditions))) - tested_conditions):
            yield (
                f"No group on {truncate_name(ranked.conditions[index].dataset)} is the baseline, "
                "so nothing is tested there."
            )


def format_mixed_params(group: Group) -> str:
    """Return the parameters that differ within a group, with their values."""
    params = (f"{name} {' and '.join(values)}" for name, values in group.mixed_params.items())
    return truncate(", ".join(params), 200)


def format_seeds(group: Group) -> str:
    """Return the number of seeds with values, and of diverged ones, such as ``4, 1 diverged``."""
    diverged = f", {len(group.diverged)} diverged" if group.diverged else ""
    return f"{len(group.counted)}{diverged}"
