"""What is compared: one run each, with its matrix and what it may be grouped by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.matrix import AccuracyMatrix, whole_grid
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """One run of a comparison."""

    run_id: str
    name: str  # any text
    record: Record
    summary: Mapping[str, float]  # metric name to value; one that is not defined is not there
    labels: Mapping[str, str]  # what it may be grouped by, as strategy and dataset
    # As they were asked for and logged; none of an imported run.
    params: Mapping[str, str] = field(default_factory=dict)
    # Parameters that affect results; the seeds of one method agree in all of them.
    method_params: Mapping[str, str] = field(default_factory=dict)
    diverged: bool = False  # its loss or output was no longer a number
    # How often it was tested inside its buckets, or "own"; None: at their ends alone.
    test_every: str | None = None

    @property
    def masked_matrix(self) -> AccuracyMatrix:
        """The cells that count under the run's protocol."""
        return self.record.masked_matrix

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """(T + 1, T): the initialisation row, then a row per bucket; NaN = not measured."""
        cells = whole_grid(self.masked_matrix)
        cells.setflags(write=False)
        return cells

    @cached_property
    def setting(self) -> Setting:
        """What has to be the same in two runs whose numbers are set side by side."""
        record, matrix = self.record, self.record.matrix
        return Setting(
            record.dataset.name,
            record.dataset.digest,
            record.protocol,
            record.split,
            matrix.buckets,
            None if matrix.num_instances is None else tuple(matrix.num_instances.tolist()),
            matrix.score,
        )

    @property
    def is_partial(self) -> bool:
        """Whether rows of the matrix are not stored."""
        return not self.record.is_complete


@dataclass(frozen=True, kw_only=True)
class RowlessRun:
    """A run that diverged before its first row: a result of its method, and no matrix."""

    run_id: str
    name: str
    seed: int | None  # None: not known
    labels: Mapping[str, str]
    method_params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What was tested on, and how. Numbers of two settings are no answer to the same question."""

    dataset: str
    digest: str
    protocol: str
    split: str  # what was measured on: "test" or "validation"
    buckets: tuple[str, ...]
    num_instances: tuple[int, ...] | None
    score: Score

    def differences(self, other: Setting) -> Iterator[str]:
        """What differs, a few words each."""
        if self.dataset != other.dataset:
            yield f"dataset ({self.dataset} and {other.dataset})"
        if self.protocol != other.protocol:
            yield f"protocol ({self.protocol} and {other.protocol})"
        if self.split != other.split:
            yield f"split ({self.split} and {other.split})"
        if self.buckets != other.buckets:
            counts = len(self.buckets), len(other.buckets)
            yield "buckets" + (f" ({counts[0]} and {counts[1]})" if counts[0] != counts[1] else "")
        if self.digest != other.digest:
            yield f"dataset digest ({_short(self.digest)} and {_short(other.digest)})"
        if self.buckets == other.buckets and self.num_instances != other.num_instances:
            yield "number of test images"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:8]
