"""Group runs: the seeds of one method, tested under the same conditions."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix, get_measured_split, stack_all_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.text import one_line, safe_repr, show_blank, truncate, truncate_apart
from clear_mlflow.metrics import ScratchMatrix
from clear_mlflow.statistics import MIN_SEEDS, SeedSummary, seed_summary

LEVEL = 0.95  # confidence level of all intervals and tests
COST = "cost/training_flops"  # shown next to every ranking
NOT_LOGGED = "not logged"  # label of a run without the parameter, which is not the value "none"
# Labels that need no name in front of them.
_CLEAR_LABELS = frozenset({"strategy", "dataset", "model"})
# All arguments in one label, as in strategy_args, or a single one, as in strategy/alpha.
_ARGUMENTS = re.compile(r"(strategy|dataset|scenario)(?:_args|/(.+))", re.DOTALL)
# Labels of runs whose parameters were tuned on another stream: of its name and its digest.
TUNED_ON, TUNED_ON_DIGEST = "tuned_on", "tuned_on_digest"
MAX_NAME = 60  # characters of a group's name
# Options whose arguments are separate labels, such as dataset/buckets.
_PREFIXES = {"dataset_args": "dataset/", "scenario_args": "scenario/", "strategy_args": "strategy/"}
Labels: TypeAlias = tuple[tuple[str, str], ...]
# Labels, test conditions, and digest of the stream that parameters were tuned on.
_GroupKey: TypeAlias = tuple[tuple[str, ...], DatasetDescription, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedRun:
    """One run of a comparison, with its matrix."""

    run_id: str
    name: str  # any text
    record: Record
    summary: Mapping[str, float]  # metric name to value, without undefined metrics
    labels: Mapping[str, str]  # parameters and tags to group by
    params: Mapping[str, str] = field(default_factory=dict)  # as logged
    # Parameters that affect results. All seeds of one method agree in them.
    method_params: Mapping[str, str] = field(default_factory=dict)
    tuned: frozenset[str] = frozenset()  # the ones chosen by their results
    diverged: bool = False  # True if its loss or output was not finite
    # Interval of the tests within buckets, or "own"; None if there were none.
    test_every: str | None = None
    # Its rows next to training from scratch, if that was requested.
    scratch: ScratchMatrix | None = None

    @property
    def seed(self) -> int | None:
        """Seed of the run, or None if it is not known."""
        return self.record.seed

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """(T + 1, T) cells of the masked matrix, untrained model first."""
        cells = stack_all_rows(self.record.masked_matrix)
        cells.setflags(write=False)
        return cells


@dataclass(frozen=True, kw_only=True)
class RunWithoutRows:
    """A run that diverged before its first row, without a matrix."""

    run_id: str
    name: str
    seed: int | None  # None if not known
    labels: Mapping[str, str]
    method_params: Mapping[str, str] = field(default_factory=dict)


def format_conditions(dataset: DatasetDescription) -> dict[str, str]:
    """Return the test conditions by name, as they are shown."""
    ends = f"{dataset.buckets[0]} to {dataset.buckets[-1]}"
    return {
        "dataset": dataset.name,
        "protocol": dataset.protocol,
        "split": dataset.split,
        "dataset digest": dataset.digest.removeprefix("sha256:")[:8],
        "buckets": f"{len(dataset.buckets)}, {truncate(ends, 40)}",
        "test images": str(sum(dataset.num_test or ())),
    }


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Runs that differ only in their seed, or a single run."""

    name: str  # unique among the groups, printable, and of at most MAX_NAME characters
    labels: Mapping[str, str]  # labels that the runs were grouped by
    members: tuple[ComparedRun, ...]  # runs with rows, ordered by seed
    max_trained: int  # largest number of trained buckets under these conditions
    without_rows: tuple[RunWithoutRows, ...] = ()  # runs that diverged before their first row

    @property
    def conditions(self) -> DatasetDescription:
        """The test conditions that all members share."""
        return self.members[0].record.dataset

    @cached_property
    def counted(self) -> tuple[ComparedRun, ...]:
        """The members trained on *max_trained* buckets that did not diverge."""
        return tuple(
            run
            for run in self.members
            if run.record.matrix.num_rows == self.max_trained and not run.diverged
        )

    @cached_property
    def diverged(self) -> tuple[ComparedRun | RunWithoutRows, ...]:
        """The diverged runs, which count as seeds, without a value."""
        return (*(run for run in self.members if run.diverged), *self.without_rows)

    @cached_property
    def is_deterministic(self) -> bool:
        """True if several runs have the same matrix: they are one result."""
        return len(self.counted) > 1 and len({run.grid.tobytes() for run in self.counted}) == 1

    @cached_property
    def num_seeds(self) -> int:
        """Number of different known seeds: runs without one may be copies."""
        return len({run.seed for run in self.counted} - {None})

    @property
    def is_constant(self) -> bool:
        """True if enough seeds have the same matrix to be a constant."""
        return self.is_deterministic and self.num_seeds >= MIN_SEEDS

    def has_seeds(self, metric: str | None) -> bool:
        """Return True if a metric can be tested over seeds."""
        summary = self.metrics.get(metric or "")
        return summary is not None and (self.is_constant or summary.n >= MIN_SEEDS)

    @property
    def results(self) -> tuple[ComparedRun, ...]:
        """The members with values: of seeds with equal matrices, the first."""
        return self.counted[:1] if self.is_deterministic else self.counted

    @cached_property
    def mixed_params(self) -> Mapping[str, tuple[str, ...]]:
        """Parameters that affect results and differ within the group, with their values."""
        runs: list[ComparedRun | RunWithoutRows] = [*self.members]
        runs += [run for run in self.without_rows if run.method_params]
        names = dict.fromkeys(name for run in runs for name in run.method_params)
        values = {n: sorted({run.method_params.get(n, NOT_LOGGED) for run in runs}) for n in names}
        return {name: tuple(values[name]) for name in names if len(values[name]) > 1}

    def format_mixed_params(self) -> str:
        """Return the parameters that differ in the group, in 200 characters."""
        params = (f"{name} {' and '.join(values)}" for name, values in self.mixed_params.items())
        return truncate(", ".join(params), 200)

    @cached_property
    def metrics(self) -> Mapping[str, SeedSummary]:
        """Summary of each metric over the seeds that define it."""
        values: dict[str, list[float]] = defaultdict(list)
        for run in self.results:
            for name, value in run.summary.items():
                values[name].append(value)
        return {name: seed_summary(seeds, level=LEVEL) for name, seeds in values.items()}

    def list_values(self, metric: str) -> list[tuple[ComparedRun, float]]:
        """Return the *results* that define a metric by seed, with values."""
        return [(run, run.summary[metric]) for run in self.results if metric in run.summary]

    def format_partial_seeds(self, metric: str) -> str:
        """Return such as ``1 of 3`` if some seeds define a metric.

        Returns "" if all or none do.
        """
        n = self.metrics[metric].n if metric in self.metrics else 0
        return f"{n} of {len(self.results)}" if 0 < n < len(self.results) else ""

    def format_seeds(self) -> str:
        """Return the number of seeds with values, like ``4, 1 diverged``."""
        diverged = f", {len(self.diverged)} diverged" if self.diverged else ""
        return f"{len(self.counted)}{', identical' if self.is_deterministic else ''}{diverged}"

    @cached_property
    def seeds_per_cell(self) -> NDArray[np.int64]:
        """(T + 1, T) numbers of members that measured each cell."""
        measured = ~np.isnan([run.grid for run in self.members])
        return np.asarray(measured.sum(axis=0), dtype=np.int64)

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """(T + 1, T) means over members that measured each cell.

        A cell that no member measured is NaN.
        """
        seeds, total = self.seeds_per_cell, np.nansum([run.grid for run in self.members], axis=0)
        return np.where(seeds > 0, total / np.maximum(seeds, 1), np.nan)

    @cached_property
    def scratch(self) -> ScratchMatrix | None:
        """Means over the results of their rows, and of training from scratch."""
        measured = [run.scratch for run in self.results if run.scratch is not None]
        if not measured:
            return None
        values, scratch = zip(*((rows.values, rows.scratch) for rows in measured), strict=True)
        return ScratchMatrix(np.mean(values, axis=0), np.mean(scratch, axis=0))

    @property
    def matrix(self) -> AccuracyMatrix:
        """The mean matrix, for plots."""
        first = self.members[0].record.matrix
        grid = self.grid.clip(0, 1) if first.score.is_accuracy else self.grid
        return AccuracyMatrix(grid[1:], grid[0], None, first.buckets, first.score)


def group_runs(
    runs: Sequence[ComparedRun],
    group_by: Sequence[str],
    without_rows: Sequence[RunWithoutRows] = (),
) -> tuple[list[Group], list[str]]:
    """Group runs with equal labels and test conditions, each run once.

    Runs that were tuned on different streams are in different groups, whatever *group_by* is.
    Of runs in a group with the same seed, parameters and matrix, one is kept, if possible one with
    tests within buckets. Runs without rows join the groups with their labels and test conditions,
    or none.

    group_by: labels, or () for a group per run. Returns the groups, and sentences about repeated
    runs and seeds. Raises ConfigError if no run has one of the labels.
    """
    valid_labels = {name for run in runs for name in run.labels}
    for name in group_by:
        if name not in valid_labels:
            raise ConfigError(
                f"group_by names {safe_repr(name)}, which no run has as a parameter or a tag; "
                f"there are {', '.join(sorted(valid_labels)[:20])}",
                parameter="group_by",
            )
    repeated: list[str] = []
    unique = {run.run_id: run for run in runs}.values()
    members_by_key: dict[_GroupKey, list[ComparedRun]] = {}
    for run in unique:
        labels = tuple(run.labels.get(name, NOT_LOGGED) for name in group_by) or (run.run_id,)
        key = labels, run.record.dataset, _get_tuning_digest(run)
        members = members_by_key.setdefault(key, [])
        duplicate = _find_duplicate(run, members)
        if duplicate is None:
            members.append(run)
            continue
        if run.test_every and not duplicate.test_every:  # the run with more results is kept
            members[members.index(duplicate)], run, duplicate = run, duplicate, run
        repeated.append(f"{format_run(run)} repeats {format_run(duplicate)}")
    lengths: dict[DatasetDescription, int] = defaultdict(int)
    for run in unique:
        if not run.diverged:
            num_rows = run.record.matrix.num_rows
            lengths[run.record.dataset] = max(num_rows, lengths[run.record.dataset])
    groups = [
        Group(
            name=name,
            labels=dict(zip(group_by, labels, strict=False)),
            members=tuple(sorted(members, key=_get_seed_order)),
            max_trained=lengths[conditions] or len(conditions.buckets),
            without_rows=tuple(
                run
                for run in without_rows
                if _belongs_to_group(run, group_by, labels, conditions)
                and _get_tuning_digest(run) == digest
            ),
        )
        for name, ((labels, conditions, digest), members) in zip(
            _build_names(members_by_key, group_by), members_by_key.items(), strict=True
        )
    ]
    return groups, [*_describe_repeated_runs(repeated), *_iter_repeated_seed_warnings(groups)]


def _describe_repeated_runs(repeated: Sequence[str]) -> list[str]:
    reason = "the same seed and the same matrix"
    if len(repeated) > 1:
        number = len(repeated)
        return [f"{number} runs repeat another one, {reason}; each is counted once: {repeated[0]}."]
    return [f"{text}: {reason}; it is counted once." for text in repeated]


def _belongs_to_group(
    run: RunWithoutRows,
    group_by: Sequence[str],
    labels: Sequence[str],
    conditions: DatasetDescription,
) -> bool:
    """Return True if dataset, protocol, split and labels are a group's."""
    tested = {"dataset": conditions.name, "protocol": conditions.protocol}
    return bool(group_by) and all(
        [
            *(run.labels.get(n, NOT_LOGGED) == v for n, v in zip(group_by, labels, strict=True)),
            *(run.labels.get(n, value) == value for n, value in tested.items()),
            get_measured_split(run.labels.get("split", "")) == conditions.split,
        ]
    )


def _build_names(
    members_by_key: Mapping[_GroupKey, Sequence[ComparedRun]], group_by: Sequence[str]
) -> list[str]:
    """Return a unique name for each group: labels that differ."""
    runs = [members[0] for members in members_by_key.values()]
    names: list[list[str]] = [[] for _ in runs]
    if group_by:
        labels = [dict(zip(group_by, labels, strict=True)) for labels, *_ in members_by_key]
        parts = [_list_parts(label_by_name) for label_by_name in labels]
        _append_varying(names, [settings for settings, _ in parts], [None] * len(names))
        strategies = [run.labels.get("strategy") for run in runs]
        _append_varying(names, [arguments for _, arguments in parts], strategies)
        first = group_by[0]
        names = [n or [format_label(first, x[first])] for n, x in zip(names, labels, strict=True)]
    else:
        names = [[show_blank(run.name)] for run in runs]
    if len({run.record.dataset.split for run in runs}) > 1:
        for name, run in zip(names, runs, strict=True):
            name[0] = f"{run.record.dataset.split}: {name[0]}"
    fields = [
        {
            **{n: f"{n}={value}" for n, value in format_conditions(run.record.dataset).items()},
            TUNED_ON: f"{TUNED_ON}={run.labels.get(TUNED_ON)} ({_get_tuning_digest(run)[:8]})"
            if TUNED_ON in run.labels
            else "not tuned",
        }
        for run in runs
    ]
    if not group_by:
        fields = [
            {**parts, "run": f"run={x.run_id[:8]}"} for parts, x in zip(fields, runs, strict=True)
        ]
    _append_varying(names, fields, [tuple(name) for name in names])
    return truncate_apart([one_line(", ".join(name)) for name in names], MAX_NAME)


def _get_tuning_digest(run: ComparedRun | RunWithoutRows) -> str:
    return run.labels.get(TUNED_ON_DIGEST, "").removeprefix("sha256:")


def _list_parts(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a group's labels by name: without arguments, and arguments."""
    settings, arguments = dict[str, str](), dict[str, str]()
    for name, label in labels.items():
        if label == NOT_LOGGED:
            continue
        if match := _ARGUMENTS.fullmatch(name):
            text = f"{match[2]}={label}" if match[2] else label
            texts = [argument for argument in re.split(r",(?=\w+=)", text) if "=" in argument]
            arguments |= {f"{match[1]}/{text.partition('=')[0]}": text for text in texts}
        else:
            settings[name] = format_label(name, label)
    return settings, arguments


def split_labels(
    groups: Sequence[Group], parameter: str
) -> tuple[dict[Group, str], dict[Group, Labels]]:
    """Return each group's value of a parameter, and its method's labels.

    Labels that follow from the value, such as a model that depends on the dataset, are left out.
    """
    prefix = _PREFIXES.get(parameter, "")
    values: dict[Group, str] = {}
    others: dict[Group, dict[str, str]] = {}
    for group in groups:
        labels = group.labels if parameter in group.labels else group.members[0].labels
        chosen = {n: v for n, v in group.labels.items() if prefix and n.startswith(prefix)}
        texts = [f"{n.removeprefix(prefix)}={v}" for n, v in chosen.items() if v != NOT_LOGGED]
        values[group] = ",".join(texts) if chosen else labels.get(parameter, NOT_LOGGED)
        others[group] = {n: v for n, v in group.labels.items() if not contains_label(parameter, n)}
    by_value: dict[str, dict[str, set[str]]] = {}
    for group, labels in others.items():
        for name, label in labels.items():
            by_value.setdefault(values[group], {}).setdefault(name, set()).add(label)
    varying = {n for labels in by_value.values() for n, texts in labels.items() if len(texts) > 1}
    methods = {
        group: tuple((n, v) for n, v in labels.items() if n in varying)
        for group, labels in others.items()
    }
    return values, methods


def contains_label(parameter: str, name: str) -> bool:
    """Return True if a parameter is a label, or consists of several."""
    prefix = _PREFIXES.get(parameter, "")
    return name == parameter or bool(prefix and name.startswith(prefix))


def format_label(name: str, label: str) -> str:
    """Return a label, after its name unless its meaning is clear."""
    shown_label = show_blank(label)
    is_clear = name in _CLEAR_LABELS and label and shown_label == label
    return label if is_clear else f"{name}={shown_label}"


def _append_varying(
    names: Sequence[list[str]], parts: Sequence[Mapping[str, str]], keys: Sequence[Hashable]
) -> None:
    """Append to names what differs between groups of the same key."""
    for part in dict.fromkeys(part for texts in parts for part in texts):
        texts = [group.get(part, "") for group in parts]
        texts_by_key = defaultdict[Hashable, set[str]](set)
        for key, text in zip(keys, texts, strict=True):
            texts_by_key[key].add(text)
        distinct = [*dict.fromkeys(texts)]
        cut = dict(zip(distinct, truncate_apart(distinct, 40), strict=True))
        for name, key, text in zip(names, keys, texts, strict=True):
            if text and len(texts_by_key[key]) > 1:
                name.append(cut[text])


def _iter_repeated_seed_warnings(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        seeds = Counter(run.seed for run in group.members if run.seed is not None)
        if repeated := [seed for seed, count in seeds.items() if count > 1]:
            yield (
                f"{group.name} contains seed {repeated[0]} more than once, with "
                "different results. Group by what differs; otherwise its standard deviation is not "
                "one over seeds."
            )


def _find_duplicate(run: ComparedRun, members: Sequence[ComparedRun]) -> ComparedRun | None:
    """Return a member with a run's seed, parameters and matrix, or None."""
    for member in members:
        is_same_training = member.seed == run.seed and member.method_params == run.method_params
        is_same_matrix = np.array_equal(member.grid, run.grid, equal_nan=True)
        if run.seed is not None and is_same_training and is_same_matrix:
            return member
    return None


def _get_seed_order(run: ComparedRun) -> tuple[bool, int, str]:
    return run.seed is None, run.seed or 0, run.run_id


def format_run(run: ComparedRun | RunWithoutRows) -> str:
    """Return a run's name and the beginning of its id."""
    return f"{truncate_name(run.name)} ({truncate_name(run.run_id[:8])})"


def truncate_name(name: str) -> str:
    """Return an untrusted name, printable, cut to 60 characters."""
    return truncate(show_blank(name), 60)


def is_equal_cost(a: float, b: float) -> bool:
    """Return True if two costs differ by at most 1 %."""
    return abs(a - b) <= 0.01 * max(a, b)
