"""What a reader of a comparison has to know before its numbers, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from clear_mlflow.comparison.arrangement import MOST_READ, Arrangement, methods
from clear_mlflow.comparison.groups import COST, Group, cut, label_of
from clear_mlflow.comparison.pairs import ALL_PAIRS, Pair
from clear_mlflow.comparison.verdicts import Verdict
from clear_mlflow.core.matrix import TEST, VALIDATION
from clear_mlflow.core.text import safe_repr


def warnings_of(
    arrangement: Arrangement, verdicts: Sequence[Verdict], unlike: Set[Pair]
) -> Iterator[str]:
    """All of them, the most general first; *unlike*: pairs that answered different images."""
    settings = arrangement.settings
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
    yield from _costs(arrangement)
    for group in arrangement.groups:
        yield from _about_runs(group)
    for lost in arrangement.lost:
        yield (
            f"{label_of(lost)} diverged before its first row, and no other run is of its group: "
            "there is nothing to show of it."
        )
    yield from _untested(arrangement, verdicts, unlike)


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
        varied = [
            name
            for name in arrangement.group_by
            if name in arrangement.tuned
            and any(len({group.labels[name] for group in method}) > 1 for method in chosen)
        ]
        yield (
            f"{sum(map(len, chosen))} groups differ in {', '.join(varied)} alone and were measured "
            "on test images: whoever picks the best of them has chosen on the test set, and its "
            "value is too high to report. Choose among runs with split=validation, then train what "
            "was chosen with split=auto (docs/sweeps.md)."
        )


def intervals_of_tests(arrangement: Arrangement) -> list[str]:
    """How often runs were tested inside their buckets; runs that were not are left out."""
    return sorted({run.test_every for run in arrangement.subjects if run.test_every})


def _tests_inside(arrangement: Arrangement) -> Iterator[str]:
    """What a reader has to know of the metrics of tests inside buckets."""
    intervals = intervals_of_tests(arrangement)
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
            f"{', '.join(safe_repr(text) for text in intervals[:5])}), on which minima and windows "
            "depend: their continual_evaluation metrics are shown, and not tested against each "
            "other."
        )


def _costs(arrangement: Arrangement) -> Iterator[str]:
    """Which runs say nothing of what they cost, where others do."""
    runs = arrangement.subjects
    without = sum(COST not in run.summary for run in runs)
    if 0 < without < len(runs):
        yield (
            f"{without} of {len(runs)} runs say nothing of their cost, as those of earlier "
            "versions and of other programs: their cost metrics are left empty."
        )


def _about_runs(group: Group) -> Iterator[str]:
    """What is special about the runs of a group."""
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
    if group.mixed_params:
        yield (
            f"{cut(group.name)} mixes runs with different parameters ({group.mixed_text}): its "
            "mean and spread describe no single method. The default grouping separates them."
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


def _untested(
    arrangement: Arrangement, verdicts: Sequence[Verdict], unlike: Set[Pair]
) -> Iterator[str]:
    """What could not be tested, and what was tested against what."""
    groups, plan = arrangement.groups, arrangement.plan
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
    untested = set(plan.pairs) - {(verdict.a, verdict.b) for verdict in verdicts} - unlike
    if untested:
        yield (
            f"{len(untested)} of {len(plan.pairs)} pairs could not be tested: that needs three "
            "seeds or more on both sides, or stored predictions of one run on each, of "
            f"{MOST_READ} runs at most."
        )
    for leader in plan.leaders:
        yield (
            f"Of more than {ALL_PAIRS} groups each is tested against the leader, "
            f"{cut(groups[leader].name)}. It was found by looking, so p is adjusted for all pairs; "
            "a baseline named beforehand (--baseline) is adjusted for its own pairs alone."
        )
    if plan.baselines:
        tested = {groups[position].setting for position in plan.baselines}
        for without in sorted(set(range(len(arrangement.settings))) - tested):
            yield (
                f"No group on {cut(arrangement.settings[without].dataset)} is the baseline: "
                "nothing is tested there."
            )
