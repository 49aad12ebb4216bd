"""All tests of a run in their order: those inside its buckets, and the rows at their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime.anytime_row import AnytimeRow, anytime_file_name
from clear_mlflow.core.errors import RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import safe_repr


@dataclass(frozen=True, eq=False)
class AnytimeMatrix:
    """Test accuracies inside a run's buckets: T x H x T, H of each bucket; and the rows between."""

    matrix: AccuracyMatrix
    tests: Mapping[int, tuple[AnytimeRow, ...]]
    protocol: str = "iid"

    def __post_init__(self) -> None:
        if self.tests and not self.matrix.score.is_accuracy:
            raise RecordError(
                f"tests inside buckets are of accuracy, and the rows of {self.matrix.score.name}"
            )
        for position, tests in self.tests.items():
            for number, test in enumerate(tests):
                name = anytime_file_name(test.bucket, test.test)
                if test.bucket != position + 1 or (number and tests[number - 1].test >= test.test):
                    raise RecordError(f"{name} is out of its order")
                self._check(name, test, tests[0])
        ordered = {position: tuple(self.tests[position]) for position in sorted(self.tests)}
        object.__setattr__(self, "tests", MappingProxyType(ordered))

    @classmethod
    def of_tests(
        cls, tests: Iterable[AnytimeRow], matrix: AccuracyMatrix, protocol: str = "iid"
    ) -> AnytimeMatrix:
        """The tests of a run, in any order, and its rows."""
        found: dict[int, list[AnytimeRow]] = {}
        for test in sorted(tests, key=lambda test: (test.bucket, test.test)):
            found.setdefault(test.bucket - 1, []).append(test)
        return cls(matrix, {position: tuple(of) for position, of in found.items()}, protocol)

    @property
    def k(self) -> int:
        """Buckets that were trained to their end."""
        return self.matrix.num_rows

    @property
    def is_complete(self) -> bool:
        """Whether each bucket that was trained to its end has all of its tests."""
        return all(self._lacking(position) is None for position in range(self.k))

    def after(self, k: int) -> AnytimeMatrix:
        """Of the run cut off after k buckets."""
        kept = {position: tests for position, tests in self.tests.items() if position < k}
        return AnytimeMatrix(self.matrix.after(k), kept, self.protocol)

    def sequence(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """All tests of the k buckets, row 0 left out, in their order."""
        if self.k == 0:
            raise UndefinedMetricError("needs a trained bucket: k >= 1 (trained on 0)")
        for position in range(self.k):
            if (reason := self._lacking(position)) is not None:
                raise UndefinedMetricError(reason)
        if self.protocol == "streaming":
            raise UndefinedMetricError(
                "under the streaming protocol tests of a bucket trained on score training images"
            )
        trained: list[int] = []
        cells: list[tuple[float, ...]] = []
        for position in range(self.k):
            ends = tuple(float(value) for value in self.matrix.values[position])
            cells += [*(test.accuracy for test in self.tests[position]), ends]
            trained += [position] * (len(self.tests[position]) + 1)
        values = np.array(cells)
        gaps = np.argwhere(np.isnan(values))
        if len(gaps):
            raise UndefinedMetricError(
                f"row {trained[int(gaps[0, 0])] + 1}, column {int(gaps[0, 1]) + 1} was not measured"
            )
        return np.array(trained), values

    def _lacking(self, position: int) -> str | None:
        """What a bucket lacks; None: nothing."""
        tests = self.tests.get(position, ())
        key = safe_repr(self.matrix.buckets[position])
        if not tests:
            return f"needs tests inside of each bucket (test_every); bucket {key} has none"
        missing = set(range(1, tests[0].num_tests + 1)) - {test.test for test in tests}
        if missing:
            return f"test {min(missing)} of {tests[0].num_tests} inside bucket {key} is not stored"
        return None

    def _check(self, name: str, test: AnytimeRow, first: AnytimeRow) -> None:
        if test.buckets != self.matrix.buckets:
            raise RecordError(
                f"{name} is of buckets {safe_repr(test.buckets)}, but the rows say "
                f"{safe_repr(self.matrix.buckets)}"
            )
        counts = self.matrix.num_instances
        if counts is not None and tuple(counts.tolist()) != test.num_instances:
            raise RecordError(
                f"{name} is of {safe_repr(test.num_instances)} images per bucket, but the rows say "
                f"{safe_repr(counts.tolist())}"
            )
        if (test.num_tests, test.num_steps) != (first.num_tests, first.num_steps):
            raise RecordError(
                f"{name} is one of {test.num_tests} tests in {test.num_steps} steps, and the "
                f"first of its bucket one of {first.num_tests} in {first.num_steps}"
            )
