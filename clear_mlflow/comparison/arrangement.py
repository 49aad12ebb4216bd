"""From runs to groups: which there are, which leads, and which are to be tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clear_mlflow.comparison.groups import (
    COST,
    NOT_SAID,
    Group,
    cut,
    group_runs,
    within_one_percent,
)
from clear_mlflow.comparison.pairs import PairPlan, plan_pairs
from clear_mlflow.comparison.subjects import RowlessRun, Setting, Subject
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import VALIDATION
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import (
    COST_METRICS,
    METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
    adapt_metrics,
    get_headlines,
)

LEVEL = 0.95
# Single runs whose predictions are read: megabytes each.
MOST_READ = 24


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Runs in groups, best first; nothing is tested yet."""

    groups: tuple[Group, ...]
    settings: tuple[Setting, ...]
    group_by: tuple[str, ...]
    metrics: tuple[str, ...]  # that one group at least defines
    definitions: tuple[Metric, ...]  # of the metrics of matrices that are compared
    ranked_by: str | None  # that verdicts are on, too; None: no group defines any
    plan: PairPlan
    lost: tuple[RowlessRun, ...]  # runs that diverged before their first row, of no group
    notes: tuple[str, ...]  # sentences on how the groups came to be
    level: float
    margin: float | None  # the largest difference that does not matter
    tuned: frozenset[str]  # of group_by, the parameters that are chosen by their results

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """All runs that have rows, group by group."""
        return tuple(member for group in self.groups for member in group.members)

    @property
    def is_validation(self) -> bool:
        """Whether all runs were measured on validation images."""
        return all(setting.split == VALIDATION for setting in self.settings)

    @property
    def score(self) -> Score:
        """What all runs were scored by."""
        return self.settings[0].score

    @property
    def headline_metrics(self) -> list[str]:
        """The metric that ranks, those named most often, and those asked for beside the usual."""
        usual = (metric.name for metric in get_headlines(self.score))
        always = {metric.name for metric in (*adapt_metrics(METRICS, self.score), *COST_METRICS)}
        asked = (m.name for m in self.definitions if m.name not in always)
        names = dict.fromkeys([self.ranked_by, *usual, *asked, COST])
        return [name for name in names if name in self.metrics]

    def is_higher_better(self, metric: str | None) -> bool | None:
        """Return True if more of a metric is better, or None if that is not declared."""
        return _is_higher_better((*self.definitions, *WITHIN_BUCKET_METRICS), metric)

    def wants_predictions(self) -> list[Subject]:
        """Groups' only results, tested pairs first: their test images give tests and intervals."""
        if not self.score.is_accuracy:  # predictions are of classes
            return []
        alone = [p for p, group in enumerate(self.groups) if group.is_alone]
        paired = [p for pair in self.plan.pairs if set(pair) <= set(alone) for p in pair]
        return [self.groups[p].counted[0] for p in dict.fromkeys([*paired, *alone])][:MOST_READ]


def arrange(
    subjects: Sequence[Subject],
    by: Sequence[str],
    *,
    rank_by: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    rowless: Sequence[RowlessRun] = (),
    level: float = LEVEL,
    metrics: Sequence[Metric] = METRICS,
    tuned: Iterable[str] = (),
) -> Arrangement:
    """Group runs by labels (none: each by itself), rank groups, and choose what is tested."""
    metrics = adapt_metrics(metrics, only_score(subjects))
    definitions: list[Metric] = [*metrics, *WITHIN_BUCKET_METRICS]
    groups, settings, notes = group_runs(subjects, by, level, rowless)
    defined = {name for group in groups for name in group.metrics}
    compared = tuple(metric.name for metric in definitions if metric.name in defined)
    if rank_by is not None and rank_by not in defined:
        raise ConfigError(
            f"rank_by is {safe_repr(rank_by)}, which no run defines; "
            f"there are {', '.join(compared) or 'none'}"
        )
    if _is_higher_better(definitions, rank_by) is None:
        raise ConfigError(
            f"rank_by is {rank_by}, a function that does not declare which values are better; pass "
            "lower_is_better, or set the attribute lower_is_better of the function"
        )
    has_new_classes = any(s.params.get("scenario", "domain") != "domain" for s in subjects)
    priorities = {
        metric.name: 0 if has_new_classes and not metric.ranks_new_classes else metric.rank_priority
        for metric in definitions
        if metric.name in defined
        and metric.rank_priority is not None
        and metric.higher_is_better is not None
    }
    ranked_by = rank_by or max(
        priorities,
        key=lambda name: (sum(name in group.metrics for group in groups), priorities[name]),
        default=None,
    )

    def rank(group: Group) -> tuple[int, bool, float]:
        found = group.metrics.get(ranked_by or "")
        sign = -1 if _is_higher_better(definitions, ranked_by) else 1
        return group.setting, found is None, sign * found.mean if found else 0.0

    ranked = tuple(sorted(groups, key=rank))
    known_runs = {run.run_id for group in groups for run in group.rowless}
    return Arrangement(
        groups=ranked,
        settings=tuple(settings),
        group_by=tuple(by),
        metrics=compared,
        definitions=tuple(metrics),
        ranked_by=ranked_by,
        plan=plan_pairs(ranked, settings, baseline),
        lost=tuple(run for run in rowless if run.run_id not in known_runs),
        notes=tuple(notes),
        level=level,
        margin=margin,
        tuned=frozenset(tuned),
    )


def default_group_by(
    subjects: Sequence[Subject], rowless: Sequence[RowlessRun] = ()
) -> tuple[str, ...]:
    """Return strategy and dataset, where logged, and all parameters that vary within both.

    A parameter that only some runs log is added if nothing else separates these runs.
    """
    labels = {name for subject in subjects for name in subject.labels}
    by: tuple[str, ...] = tuple(name for name in ("strategy", "dataset") if name in labels)
    while True:
        groups, _, _ = group_runs(subjects, by, LEVEL, rowless)
        mixed = [item for g in groups for item in g.mixed_params.items() if item[0] not in by]
        varying = [name for name, values in mixed if len({*values} - {NOT_SAID}) > 1]
        if not mixed:
            return by
        by = (*by, *dict.fromkeys(varying or [mixed[0][0]]))


def at_equal(
    subjects: Sequence[Subject], what: str, by: Sequence[str]
) -> tuple[list[Subject], list[str]]:
    """The most methods of equal cost within 1 %, and sentences on others; ConfigError: no two."""
    metric, is_of_device = f"cost/{what}", what == "seconds"
    known = sorted((s for s in subjects if metric in s.summary), key=lambda s: s.summary[metric])
    if not known:
        raise ConfigError(f"at_equal is {what}, and no run says its {metric}")
    windows = [
        [
            s
            for s in known[i:]
            if within_one_percent(s.summary[metric], first.summary[metric])
            and (not is_of_device or _devices(s) == _devices(first))
        ]
        for i, first in enumerate(known)
    ]

    def methods_of(runs: Sequence[Subject]) -> int:
        return len({tuple(s.labels.get(n, NOT_SAID) for n in by) or s.run_id for s in runs})

    # More seeds of one method are no reason to leave another method out.
    kept = max(windows, key=lambda runs: (methods_of(runs), len(runs)))
    are_equal = methods_of(kept) > 1
    named = {s.run_id for s in kept} if are_equal else set()
    varying = [n for n in by if len({s.labels.get(n, NOT_SAID) for s in subjects}) > 1] or by[:1]
    costs = {
        cut(", ".join(s.labels.get(n, NOT_SAID) for n in varying) or s.name): (
            f"{s.summary[metric]:.3g}" + (f" on {_devices(s)}" if is_of_device else "")
        )
        for s in subjects
        if metric in s.summary and s.run_id not in named
    }
    others = ", ".join(f"{name} {cost}" for name, cost in [*costs.items()][:6])
    if len(costs) > 6:
        others += f" and {len(costs) - 6} more"
    if not are_equal:
        where = " on one device" if is_of_device else ""
        raise ConfigError(
            f"at_equal is {what}, and no two methods lie within 1 % of each other{where} "
            f"({others}); train them with budget=naive:1"
        )
    told = []
    if without := len(subjects) - len(known):
        told.append(f"{without} of {len(subjects)} runs say nothing of their {metric}: left out.")
    about = f"The {len(kept)} runs lie within 1 % of {metric} {kept[0].summary[metric]:.3g}"
    unlike = "another cost"
    if is_of_device:
        about, unlike = f"{about} on {_devices(kept[0])}", "another cost or device"
    told.append(f"{about}; left out, of {unlike}: {others}." if others else f"{about}.")
    return kept, told


def _devices(subject: Subject) -> str:
    """What a run's seconds are of."""
    found = {cost.device for cost in subject.masked_matrix.costs if cost and cost.device}
    return cut(" and ".join(sorted(found))) or "a device not said"


def only_score(subjects: Sequence[Subject]) -> Score:
    """What all runs were scored by; ConfigError where there is no run, or several scores."""
    counts = Counter(subject.record.matrix.score for subject in subjects)
    if not counts:
        raise ConfigError("no run with rows of an accuracy matrix arrived; nothing to compare")
    if len(counts) > 1:
        listed = ", ".join(
            f"{score.name} ({score.better} is better; {count} run{'' if count == 1 else 's'})"
            for score, count in counts.items()
        )
        raise ConfigError(f"runs of different scores arrived: {listed}; compare those of one score")
    return next(iter(counts))


def methods(arrangement: Arrangement) -> list[list[Group]]:
    """Groups of one setting that differ in nothing but what is tuned, in order of rank."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in arrangement.groups:
        labels = tuple((n, text) for n, text in group.labels.items() if n not in arrangement.tuned)
        # Runs for themselves have no labels: nobody said what they are candidates of.
        key = (group.setting, labels) if group.labels else (group.setting, group.name)
        found.setdefault(key, []).append(group)
    return list(found.values())


def _is_higher_better(metrics: Iterable[Metric], name: str | None) -> bool | None:
    return next((metric.higher_is_better for metric in metrics if metric.name == name), True)
