"""Describe one run of a comparison: its matrix, its labels, and how it was tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.matrix import AccuracyMatrix, stack_all_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score


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
    diverged: bool = False  # True if its loss or output was not finite
    # Interval of the tests within buckets, or "own"; None if there were none.
    test_every: str | None = None

    @property
    def seed(self) -> int | None:
        """Seed of the run, or None if it is not known."""
        return self.record.seed

    @property
    def masked_matrix(self) -> AccuracyMatrix:
        """The matrix without the cells that the protocol excludes."""
        return self.record.masked_matrix

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """(T + 1, T) cells of the masked matrix, the untrained model first, or NaN."""
        cells = stack_all_rows(self.masked_matrix)
        cells.setflags(write=False)
        return cells

    @cached_property
    def conditions(self) -> TestConditions:
        """What must be the same in two runs whose numbers are compared."""
        record, matrix = self.record, self.record.matrix
        return TestConditions(
            record.dataset.name,
            record.dataset.digest,
            record.protocol,
            record.split,
            matrix.buckets,
            None if matrix.num_instances is None else tuple(matrix.num_instances.tolist()),
            matrix.score,
        )


@dataclass(frozen=True, kw_only=True)
class RunWithoutRows:
    """A run that diverged before its first row: a result of its method without a matrix."""

    run_id: str
    name: str
    seed: int | None  # None if not known
    labels: Mapping[str, str]
    method_params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TestConditions:
    """Test set, protocol and score. Numbers under different conditions are not comparable."""

    dataset: str
    digest: str
    protocol: str
    split: str  # "test" or "validation"
    buckets: tuple[str, ...]
    num_instances: tuple[int, ...] | None
    score: Score

    def list_differences(self, other: TestConditions) -> Iterator[str]:
        """Yield a few words for each difference to other conditions."""
        for name, value, other_value in (
            ("dataset", self.dataset, other.dataset),
            ("protocol", self.protocol, other.protocol),
            ("split", self.split, other.split),
            ("dataset digest", _shorten_digest(self.digest), _shorten_digest(other.digest)),
        ):
            if value != other_value:
                yield f"{name} ({value} and {other_value})"
        if self.buckets != other.buckets:
            counts = len(self.buckets), len(other.buckets)
            yield "buckets" + (f" ({counts[0]} and {counts[1]})" if counts[0] != counts[1] else "")
        elif self.num_instances != other.num_instances:
            yield "number of test images"


def _shorten_digest(digest: str) -> str:
    return digest.removeprefix("sha256:")[:8]
