"""Runs put together: the seeds of one method, tested on the same images."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.subjects import RowlessRun, Setting, Subject
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix, measured_split
from clear_mlflow.core.text import NOT_MEASURED, safe_repr, truncate
from clear_mlflow.statistics import SeedSummary, seed_summary

COST = "cost/training_flops"  # beside every ranking, where runs say it
NOT_SAID = "not logged"  # of a run without the parameter; one that is none says "none"
# What says of itself what it is; of another parameter, its name stands before it.
_PLAIN = frozenset({"strategy", "dataset", "model"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Runs that differ by their seed, or one run alone."""

    name: str  # differs from every other group's
    labels: Mapping[str, str]  # what the runs were grouped by
    setting: int  # position of the setting that all of them share
    members: tuple[Subject, ...]  # the runs that have rows, by seed
    length: int  # buckets that the runs of this setting were trained on at most
    level: float  # of the intervals
    rowless: tuple[RowlessRun, ...] = ()  # runs that diverged before their first row

    @cached_property
    def counted(self) -> tuple[Subject, ...]:
        """The runs whose metrics count: whole ones that did not diverge."""
        return tuple(
            m for m in self.members if m.record.matrix.num_rows == self.length and not m.diverged
        )

    @cached_property
    def diverged(self) -> tuple[Subject | RowlessRun, ...]:
        """The runs whose loss or output was no longer a number: results, too, without a value."""
        return (*(member for member in self.members if member.diverged), *self.rowless)

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether several seeds gave one and the same matrix: then the seed changes nothing."""
        return len(self.counted) > 1 and len({m.grid.tobytes() for m in self.counted}) == 1

    @cached_property
    def mixed_params(self) -> Mapping[str, tuple[str, ...]]:
        """Parameters that affect results and differ within the group, with their values."""
        runs: list[Subject | RowlessRun] = [*self.members]
        runs += [run for run in self.rowless if run.method_params]
        names = dict.fromkeys(name for run in runs for name in run.method_params)
        values = {n: sorted({run.method_params.get(n, NOT_SAID) for run in runs}) for n in names}
        return {name: tuple(values[name]) for name in names if len(values[name]) > 1}

    @property
    def mixed_text(self) -> str:
        """The mixed parameters with their values, or an empty text."""
        listed = (f"{name} {' and '.join(values)}" for name, values in self.mixed_params.items())
        return truncate(", ".join(listed), 200)

    @property
    def is_alone(self) -> bool:
        """Whether there is one result only: of one run, or of seeds that all gave the same."""
        return len(self.counted) == 1 or self.is_deterministic

    @cached_property
    def metrics(self) -> Mapping[str, SeedSummary]:
        """Each metric over the seeds that define it; one that no seed defines is not there."""
        values: dict[str, list[float]] = defaultdict(list)
        for member in self.counted:
            for name, value in member.summary.items():
                values[name].append(value)
        return {name: seed_summary(found, level=self.level) for name, found in values.items()}

    def values(self, metric: str) -> list[tuple[Subject, float]]:
        """The runs that define a metric, by seed, with its values."""
        return [(m, m.summary[metric]) for m in self.counted if metric in m.summary]

    def partial_seeds(self, metric: str) -> str:
        """Return such as ``1 of 3`` if some seeds do not define a metric, or an empty text."""
        n = self.metrics[metric].n if metric in self.metrics else 0
        return f"{n} of {len(self.counted)}" if 0 < n < len(self.counted) else ""

    @cached_property
    def seeds_per_cell(self) -> NDArray[np.int64]:
        """(T + 1, T): runs that measured each cell."""
        measured = ~np.isnan([member.grid for member in self.members])
        return np.asarray(measured.sum(axis=0), dtype=np.int64)

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """(T + 1, T): each cell's mean over the runs that measured it; NaN where none did."""
        cells = np.array([member.grid for member in self.members])
        seeds = self.seeds_per_cell
        total = np.nansum(cells, axis=0)
        return np.where(seeds > 0, total / np.maximum(seeds, 1), np.nan)

    @property
    def matrix(self) -> AccuracyMatrix:
        """The mean matrix, for what draws a matrix."""
        first = self.members[0].record.matrix
        grid = self.grid.clip(0, 1) if first.score.is_accuracy else self.grid
        return AccuracyMatrix(grid[1:], grid[0], None, first.buckets, first.score)


def group_runs(
    subjects: Sequence[Subject],
    by: Sequence[str],
    level: float,
    rowless: Sequence[RowlessRun] = (),
) -> tuple[list[Group], list[Setting], list[str]]:
    """Groups of runs that agree in labels *by* and in their setting, the settings, and notes."""
    known = {name for subject in subjects for name in subject.labels}
    for name in by:
        if name not in known:
            raise ConfigError(
                f"group_by names {safe_repr(name)}, which no run has as a parameter or a tag; "
                f"there are {', '.join(sorted(known)[:20])}"
            )
    notes: list[str] = []
    unique = {subject.run_id: subject for subject in reversed(subjects)}
    settings = list(dict.fromkeys(subject.setting for subject in reversed(unique.values())))
    found: dict[tuple[tuple[str, ...], int], list[Subject]] = {}
    for subject in reversed(unique.values()):
        labels = tuple(subject.labels.get(name, NOT_SAID) for name in by) or (subject.run_id,)
        members = found.setdefault((labels, settings.index(subject.setting)), [])
        twin = _twin(subject, members)
        if twin is None:
            members.append(subject)
            continue
        if subject.test_every and not twin.test_every:  # the one that says more
            members[members.index(twin)], subject, twin = subject, twin, subject
        notes.append(
            f"{label_of(subject)} repeats {label_of(twin)}: the same seed and the same matrix; "
            "it is counted once."
        )
    lengths = dict.fromkeys(settings, 0)
    for subject in unique.values():
        if not subject.diverged:
            rows = subject.record.matrix.num_rows
            lengths[subject.setting] = max(rows, lengths[subject.setting])
    names = _names(found, by, settings)
    groups = [
        Group(
            name=name,
            labels=dict(zip(by, labels, strict=False)),
            setting=setting,
            members=tuple(sorted(members, key=_seed_order)),
            length=lengths[settings[setting]] or len(settings[setting].buckets),
            level=level,
            rowless=tuple(run for run in rowless if _joins(run, by, labels, settings[setting])),
        )
        for name, ((labels, setting), members) in zip(names, found.items(), strict=True)
    ]
    return groups, settings, [*notes, *_same_seeds(groups)]


def _joins(run: RowlessRun, by: Sequence[str], labels: Sequence[str], setting: Setting) -> bool:
    """Whether a run without rows is of a group, as far as its labels show."""
    tested = {"dataset": setting.dataset, "protocol": setting.protocol}
    return bool(by) and all(
        [
            *(run.labels.get(n, NOT_SAID) == label for n, label in zip(by, labels, strict=True)),
            *(run.labels.get(n, found) == found for n, found in tested.items()),
            measured_split(run.labels.get("split", "")) == setting.split,
        ]
    )


def _names(
    found: Mapping[tuple[tuple[str, ...], int], Sequence[Subject]],
    by: Sequence[str],
    settings: Sequence[Setting],
) -> list[str]:
    """A name for each group: its labels where they differ, its run's where it is one run."""
    if by:
        columns = {
            name: [label if name in _PLAIN else f"{name}={label}" for label in column]
            for name, column in zip(
                by, zip(*(labels for labels, _ in found), strict=True), strict=True
            )
        }
        varying = [column for column in columns.values() if len(set(column)) > 1]
        rows = zip(*(varying or [columns[by[0]]]), strict=True)
        unset = {f"{name}={NOT_SAID}" for name in by}
        names = [", ".join([t for t in row if t not in unset] or row) for row in rows]
    else:
        names = [members[0].name for members in found.values()]
    # What tells groups of one name apart comes first: behind a name cut short it would be lost.
    if len({setting.split for setting in settings}) > 1:
        names = [f"{settings[at].split}: {n}" for n, (_, at) in zip(names, found, strict=True)]
    repeated, seen = Counter(names), Counter[str]()
    for position, name in enumerate(names):
        if repeated[name] > 1:
            seen[name] += 1
            names[position] = f"({seen[name]}) {name}"
    return names


def _same_seeds(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        seeds = Counter(m.record.seed for m in group.members if m.record.seed is not None)
        if twice := [seed for seed, count in seeds.items() if count > 1]:
            yield (
                f"{cut(group.name)} holds seed {twice[0]} more than once, with other numbers; "
                "group by what differs, or its spread is not one over seeds."
            )


def _twin(subject: Subject, members: Sequence[Subject]) -> Subject | None:
    """A run that is this one again: no second piece of evidence."""
    alike = (m for m in members if m.record.seed == subject.record.seed is not None)
    alike = (m for m in alike if m.method_params == subject.method_params)
    return next((m for m in alike if np.array_equal(m.grid, subject.grid, equal_nan=True)), None)


def _seed_order(subject: Subject) -> tuple[bool, int, str]:
    seed = subject.record.seed
    return seed is None, seed or 0, subject.run_id


def label_of(subject: Subject | RowlessRun) -> str:
    """A run as a sentence names it."""
    return f"{cut(subject.name)} ({cut(subject.run_id[:8])})"


def seeds_text(group: Group) -> str:
    """How many seeds have values, and how many diverged, as in ``4`` or ``4, 1 diverged``."""
    lost = len(group.diverged)
    return f"{len(group.counted)}, {lost} diverged" if lost else str(len(group.counted))


def cut(name: str) -> str:
    """A name from outside as a sentence may have it."""
    return truncate(name, 60)


def within_one_percent(a: float, b: float) -> bool:
    """Whether two costs count as equal."""
    return abs(a - b) <= 0.01 * max(a, b)


def mean_text(found: SeedSummary | None, number: Callable[[float], str], sign: str = "± ") -> str:
    """A metric's mean over seeds and its deviation, or a dash where no seed defines it."""
    if found is None:
        return NOT_MEASURED
    spread = "" if found.std is None else f" {sign}{number(found.std)}"
    return f"{number(found.mean)}{spread}"
