"""Rank groups of runs, and choose the pairs of groups that are tested."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb

from clear_mlflow.comparison.groups import (
    NOT_LOGGED,
    ComparedRun,
    Group,
    RunWithoutRows,
    contains_label,
    group_runs,
    is_equal_cost,
    split_labels,
    truncate_name,
)
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.metrics import (
    EXTRA_METRICS,
    METRICS,
    Metric,
    adapt_metrics,
)

# Up to so many groups, all pairs are tested: 15 sentences. With more groups, each is tested against
# the leader.
MAX_ALL_PAIRS = 6


def rank_groups(
    runs: Sequence[ComparedRun],
    group_by: Sequence[str],
    *,
    rank_by: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    across: str | None = None,
    without_rows: Sequence[RunWithoutRows] = (),
    metrics: Sequence[Metric] = METRICS,
) -> Comparison:
    """Group runs by labels, rank the groups, and choose pairs.

    Groups are sorted by test conditions, then best first, those without the metric last.

    group_by: labels; () to make each run its own group. rank_by: metric of the ranking, or None for
    the one that most groups define and, among these, has the highest ``rank_priority``. baseline:
    name or label of the group to test all others against, or None. margin: largest difference that
    does not matter, or None. across: parameter; only groups with the same value of it are tested
    against each other. Raises ConfigError if an option does not fit the runs.
    """
    metrics = adapt_metrics(metrics, get_common_score(runs))
    definitions = (*metrics, *EXTRA_METRICS)
    groups, notes = group_runs(runs, group_by, without_rows)
    defined = {name for group in groups for name in group.metrics}
    names = tuple(metric.name for metric in definitions if metric.name in defined)
    if rank_by is not None and rank_by not in defined:
        raise ConfigError(
            f"rank_by is {safe_repr(rank_by)}, which no run defines; "
            f"there are {', '.join(names) or 'none'}",
            parameter="rank_by",
        )
    directions = {metric.name: metric.higher_is_better for metric in definitions}
    if rank_by is not None and directions.get(rank_by, True) is None:
        raise ConfigError(
            f"rank_by is {rank_by}, a function that does not declare which values are better; "
            "set the attribute lower_is_better of the function",
            parameter="rank_by",
        )
    counts = Counter(name for group in groups for name in group.metrics)
    ranked_by = rank_by or choose_ranking_metric(definitions, counts, runs)
    sign = -1 if directions.get(ranked_by or "", True) else 1
    conditions = list(dict.fromkeys(group.conditions for group in groups))

    def get_rank(group: Group) -> tuple[int, bool, float]:
        summary = group.metrics.get(ranked_by or "")
        index = conditions.index(group.conditions)
        return index, summary is None, sign * summary.mean if summary else 0.0

    ranked = tuple(sorted(groups, key=get_rank))
    grouped = {run.run_id for group in groups for run in group.without_rows}
    values = split_labels(ranked, across)[0] if across else {}
    planned_pairs, num_untested, baselines, leaders = _plan_pairs(
        ranked, values, baseline, ranked_by
    )
    return Comparison(
        groups=ranked,
        group_by=tuple(group_by),
        metrics=names,
        definitions=tuple(metrics),
        ranked_by=ranked_by,
        planned_pairs=tuple(planned_pairs),
        num_untested=num_untested,
        baselines=tuple(baselines),
        leaders=tuple(leaders),
        ungrouped=tuple(run for run in without_rows if run.run_id not in grouped),
        margin=margin,
        tuned=frozenset(
            name
            for name in group_by
            # Nothing is selected among the values of *across*: groups of one value are compared.
            if not (across and contains_label(across, name))
            and (
                name.startswith(("strategy/", "strategy_args"))
                or any(name in run.tuned for run in runs)
            )
        ),
        warnings=tuple(notes),
    )


def choose_ranking_metric(
    metrics: Sequence[Metric], counts: Mapping[str, int], runs: Iterable[ComparedRun]
) -> str | None:
    """Return the metric with the highest count, then priority, or None.

    counts: by name, how many groups or runs define a metric. runs: those that are ranked.
    """
    has_new_classes = any(run.params.get("scenario", "domain") != "domain" for run in runs)
    priorities = {
        metric.name: 0 if has_new_classes and not metric.ranks_new_classes else metric.rank_priority
        for metric in metrics
        if counts.get(metric.name)
        and metric.rank_priority is not None
        and metric.higher_is_better is not None
    }
    return max(priorities, key=lambda name: (counts[name], priorities[name]), default=None)


def _plan_pairs(
    groups: Sequence[Group],
    values: Mapping[Group, str],
    baseline: str | None,
    metric: str | None,
) -> tuple[list[tuple[Group, Group]], int, list[Group], list[Group]]:
    """Plan the pairs to test: groups with runs, conditions, and values.

    With a baseline, each group is paired with it. Otherwise up to MAX_ALL_PAIRS groups are all
    paired, and of more groups, each with the leader: the best one with enough seeds for a test, or
    the best one if no two groups have them. Returns the pairs, the number of further pairs to
    adjust for, baselines and leaders. Raises ConfigError if no group is the baseline, or if
    several are under the same test conditions.
    """
    comparable_groups: dict[tuple[DatasetDescription, str], list[Group]] = defaultdict(list)
    for group in groups:
        if group.counted:
            comparable_groups[group.conditions, values.get(group, "")].append(group)
    pairs: list[tuple[Group, Group]] = []
    num_untested = 0
    baselines: list[Group] = []
    leaders: list[Group] = []
    for comparable in comparable_groups.values():
        all_pairs = combinations(comparable, 2)
        if baseline is not None:
            chosen = _find_baseline(comparable, baseline)
            if chosen is not None:
                baselines.append(chosen)
                pairs += [pair for pair in all_pairs if chosen in pair]
        elif len(comparable) <= MAX_ALL_PAIRS:
            pairs += all_pairs
        else:
            testable = [group for group in comparable if group.has_seeds(metric)]
            leader = testable[0] if len(testable) > 1 else comparable[0]
            leaders.append(leader)
            pairs += [pair for pair in all_pairs if leader in pair]
            num_untested += comb(len(comparable) - 1, 2)
    if baseline is not None and not baselines:
        names = ", ".join(safe_repr(group.name, 80) for group in groups[:20])
        raise ConfigError(
            f"baseline is {safe_repr(baseline)}, which no group is; there are {names}",
            parameter="baseline",
        )
    return pairs, num_untested, baselines, leaders


def _find_baseline(groups: Sequence[Group], baseline: str) -> Group | None:
    """Return the baseline's group, by name or label."""
    matching = [group for group in groups if group.name == baseline]
    matching = matching or [group for group in groups if baseline in group.labels.values()]
    if len(matching) > 1:
        names = ", ".join(safe_repr(group.name, 80) for group in matching[:20])
        raise ConfigError(
            f"baseline is {safe_repr(baseline)}, which {len(matching)} groups on "
            f"{truncate_name(matching[0].conditions.name)} are; name one of {names}",
            parameter="baseline",
        )
    return matching[0] if matching else None


def get_default_group_by(
    runs: Sequence[ComparedRun], without_rows: Sequence[RunWithoutRows] = ()
) -> tuple[str, ...]:
    """Return strategy and dataset, and the parameters that vary within.

    Only parameters that affect results count. One that only some runs log is added if nothing else
    separates these runs. Groups that would have equal labels and differ in their test sets are
    named by the parameters in which they differ, such as borders.
    """
    labels = {name for run in runs for name in run.labels}
    group_by: tuple[str, ...] = tuple(n for n in ("strategy", "dataset") if n in labels)
    while True:
        groups, _ = group_runs(runs, group_by, without_rows)
        mixed = [item for g in groups for item in g.mixed_params.items() if item[0] not in group_by]
        varying = [name for name, values in mixed if len({*values} - {NOT_LOGGED}) > 1]
        if not mixed:
            return (*group_by, *_find_separating(groups))
        group_by = (*group_by, *dict.fromkeys(varying or [mixed[0][0]]))


def add_varying(
    runs: Sequence[ComparedRun], group_by: Sequence[str], parameter: str
) -> tuple[str, ...]:
    """Return labels to group by, with a parameter if it varies."""
    values: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for run in runs:
        key = (run.record.dataset, *(run.labels.get(name) for name in group_by))
        values[key].add(run.labels.get(parameter, NOT_LOGGED))
    is_mixed = any(len(texts) > 1 for texts in values.values())
    return (*group_by, parameter) if is_mixed else tuple(group_by)


def _find_separating(groups: Sequence[Group]) -> Iterator[str]:
    """Yield parameters in which groups with equal labels differ, in order."""
    by_labels: dict[tuple[str, ...], list[ComparedRun]] = defaultdict(list)
    for group in groups:
        by_labels[tuple(group.labels.values())].append(group.members[0])
    names = dict.fromkeys(name for group in groups for name in group.members[0].method_params)
    for name in names:
        if any(
            len({run.method_params.get(name, NOT_LOGGED) for run in runs}) > 1
            for runs in by_labels.values()
        ):
            yield name


def select_equal_cost(
    runs: Sequence[ComparedRun], cost: str, group_by: Sequence[str]
) -> tuple[list[ComparedRun], list[str]]:
    """Select runs of equal cost within 1 %, of most methods.

    Returns the runs, and sentences about the other runs, among them all without this cost. Seconds
    are equal only on one device. Raises ConfigError if no two methods have equal costs.

    cost: name without ``cost/``. group_by: labels that identify a method.
    """
    metric, is_time = f"cost/{cost}", cost == "seconds"
    with_cost = sorted((r for r in runs if metric in r.summary), key=lambda r: r.summary[metric])
    if not with_cost:
        raise ConfigError(
            f"at_equal is {cost}, and no run has logged its {metric}", parameter="at_equal"
        )

    def format_cost(run: ComparedRun) -> str:
        return f"{run.summary[metric]:.3g}" + (f" on {_format_devices(run)}" if is_time else "")

    def has_budget(run: ComparedRun) -> bool:
        return run.labels.get("budget", NOT_LOGGED) not in ("off", NOT_LOGGED)

    def list_labels(run: ComparedRun, names: Sequence[str]) -> list[str]:
        return [run.labels.get(name, NOT_LOGGED) for name in names]

    def count_methods(runs: Sequence[ComparedRun]) -> int:
        return len({tuple(list_labels(run, group_by)) or run.run_id for run in runs})

    windows = [
        [
            run
            for run in with_cost[i:]
            if is_equal_cost(run.summary[metric], first.summary[metric])
            and (not is_time or _format_devices(run) == _format_devices(first))
        ]
        for i, first in enumerate(with_cost)
    ]
    # More seeds of one method must not displace another method.
    selected = max(windows, key=lambda window: (count_methods(window), len(window)))
    are_equal = count_methods(selected) > 1
    names = [n for n in group_by if len({r.labels.get(n) for r in runs}) > 1] or group_by[:1]
    costs = {
        truncate_name(", ".join(list_labels(run, names)) or run.name): format_cost(run)
        + (f" with budget={run.labels['budget']}" if has_budget(run) else "")
        for run in with_cost
        if not are_equal or run not in selected
    }
    others = ", ".join(f"{name} {value}" for name, value in [*costs.items()][:6])
    if len(costs) > 6:
        others += f" and {len(costs) - 6} more"
    if not are_equal:
        on_device, advice = " on one device" if is_time else "", "train them with budget=naive:1"
        if any(map(has_budget, with_cost)):
            advice = (
                "they have budgets already: train all with the same one and this version, or leave "
                "at_equal out, and each verdict states how the training FLOPs differ"
            )
        raise ConfigError(
            f"at_equal is {cost}, and no two methods are within 1 % of each other{on_device} "
            f"({others}); {advice}",
            parameter="at_equal",
        )
    notes = []
    if num_without := len(runs) - len(with_cost):
        are, they = ("is", "it") if num_without == 1 else ("are", "they")
        notes.append(
            f"{num_without} of {len(runs)} runs {are} left out: {they} logged no {metric}."
        )
    notes.append(
        f"The {len(selected)} runs are within 1 % of {metric} {format_cost(selected[0])}"
        + (f"; left out: {others}." if others else ".")
    )
    return selected, notes


def _format_devices(run: ComparedRun) -> str:
    devices = {cost.device for cost in run.record.masked_matrix.costs if cost and cost.device}
    return truncate_name(" and ".join(sorted(devices))) or "an unknown device"


def get_common_score(runs: Sequence[ComparedRun]) -> Score:
    """Return the score of all runs. Raises ConfigError unless there is one."""
    counts = Counter(run.record.matrix.score for run in runs)
    if not counts:
        raise ConfigError("none of the runs has a row of an accuracy matrix; nothing to compare")
    if len(counts) > 1:
        scores = ", ".join(
            f"{score.name} ({score.better} is better; {format_count(count, 'run')})"
            for score, count in counts.items()
        )
        raise ConfigError(
            f"the runs have different scores: {scores}; compare only runs with one score"
        )
    return next(iter(counts))
