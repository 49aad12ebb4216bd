"""Tests within a bucket: tests between the rows of the accuracy matrix, while a bucket is trained.

Each is stored as a JSON file in a separate folder; docs/record-format.md describes the format for
authors of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import SCHEMA_VERSION, check_schema
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import (
    MAX_COUNT,
    MAX_ROW_BYTES,
    convert,
    format_document,
    format_document_name,
    parse_json_object,
)

# Not below the folder of the rows: readers of rows never list these files.
ANYTIME_FOLDER = "anytime_accuracy"
SCHEMA_NAME = "clear_mlflow/anytime_row"
_NAME = re.compile(r"bucket_([0-9]{3,9})_test_([0-9]{4,9})\.json")


class AnytimeRow(msgspec.Struct, frozen=True):
    """Correct test images per bucket while a bucket is being trained on."""

    bucket: int  # number of the bucket in training, from 1: the row that follows is row *bucket*
    test: int  # number of this test within the bucket, from 1
    num_tests: int  # tests within this bucket, at least 1; the row at its end does not count
    step: int  # optimiser steps taken on this bucket so far, at least 1
    num_steps: int  # optimiser steps of the complete bucket; more than step
    buckets: tuple[str, ...]  # keys of all buckets in stream order
    correct: tuple[int, ...]  # test images classified correctly, per bucket
    num_instances: tuple[int, ...]  # test images, per bucket

    def __post_init__(self) -> None:
        for name in ("bucket", "test", "num_tests", "step", "num_steps"):
            if not 1 <= (value := getattr(self, name)) <= MAX_COUNT:
                raise RecordError(
                    f"{name} is {safe_repr(value)}; expected a whole number from 1 on"
                )
        if self.test > self.num_tests:
            raise RecordError(f"test is {self.test}, of {self.num_tests} inside the bucket")
        if self.step >= self.num_steps:
            raise RecordError(
                f"step is {self.step} of {self.num_steps}; a test at the end of a bucket is a row "
                "of the matrix"
            )
        # Counts have the bounds of a row.
        AccuracyRow(self.bucket, self.buckets, self.correct, self.num_instances)

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Fraction of test images classified correctly, per bucket."""
        return tuple(c / n for c, n in zip(self.correct, self.num_instances, strict=True))

    def check_agrees(self, other: AnytimeRow) -> None:
        """Raise RecordError if another test of the same bucket contradicts it."""
        name = format_anytime_file_name(self.bucket, self.test)
        if (self.num_tests, self.num_steps) != (other.num_tests, other.num_steps):
            raise RecordError(
                f"{name} is one of {self.num_tests} tests in {self.num_steps} steps, and test "
                f"{other.test} of its bucket one of {other.num_tests} in {other.num_steps}"
            )
        if (self.test - other.test) * (self.step - other.step) < 0:
            raise RecordError(
                f"{name} follows {format_count(self.step, 'step')}, and test {other.test} of its "
                f"bucket {other.step}; expected tests in the order of their steps"
            )

    def to_json(self, written_at: str) -> bytes:
        """Return the content of the test's file. written_at: ISO 8601, UTC."""
        fields = {
            "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
            "bucket": self.bucket,
            "training_on": self.buckets[self.bucket - 1],
            **msgspec.structs.asdict(self),
            "written_at": written_at,
        }
        return format_document(fields)

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> AnytimeRow:
        """Parse the untrusted text of a test's file, or raise RecordError.

        Raises RecordError if it is invalid, or if the file's name *source* is not the name of this
        test.
        """
        try:
            document = parse_json_object(text, MAX_ROW_BYTES)
            check_schema(document, SCHEMA_NAME)
            row: AnytimeRow = convert(document, cls)
            key = row.buckets[row.bucket - 1]
            if document.get("training_on") != key:
                raise RecordError(
                    f"training_on is {safe_repr(document.get('training_on'))}; bucket "
                    f"{row.bucket} of these is {safe_repr(key)}"
                )
            if format_anytime_file_name(row.bucket, row.test) != source:
                raise RecordError(
                    f"contains test {row.test} of bucket {row.bucket}; a file was renamed or copied"
                )
        except RecordError as error:
            raise RecordError(f"{format_document_name(source)}: {error}") from error
        return row


def format_anytime_file_name(bucket: int, test: int) -> str:
    """Return the name of a test's file.

    >>> format_anytime_file_name(3, 12)
    'bucket_003_test_0012.json'
    """
    return f"bucket_{bucket:03d}_test_{test:04d}.json"


def parse_anytime_file_name(file_name: str) -> tuple[int, int] | None:
    """Parse bucket and test from a file name, None for other names.

    >>> parse_anytime_file_name("bucket_003_test_0012.json")
    (3, 12)
    """
    match = _NAME.fullmatch(file_name)
    numbers = (int(match[1]), int(match[2])) if match else None
    return numbers if numbers and format_anytime_file_name(*numbers) == file_name else None


@dataclass(frozen=True, eq=False)
class AnytimeMatrix:
    """All tests of a run in order: within buckets, and rows.

    Args:
        matrix: rows of the run.
        tests: tests within each bucket, by the bucket's index.
        protocol: ``iid`` or ``streaming``.
    """

    matrix: AccuracyMatrix
    tests: Mapping[int, tuple[AnytimeRow, ...]]
    protocol: str = "iid"

    def __post_init__(self) -> None:
        if self.tests and not self.matrix.score.is_accuracy:
            raise RecordError(
                f"tests within buckets measure accuracy, but rows {self.matrix.score.name}"
            )
        for bucket_index, tests in self.tests.items():
            for number, test in enumerate(tests):
                name = format_anytime_file_name(test.bucket, test.test)
                is_later = number == 0 or tests[number - 1].test < test.test
                if test.bucket != bucket_index + 1 or not is_later:
                    raise RecordError(f"{name} is out of its order")
                self._check_test(name, test)
                test.check_agrees(tests[max(number - 1, 0)])
        object.__setattr__(self, "tests", MappingProxyType(dict(sorted(self.tests.items()))))

    @classmethod
    def from_tests(
        cls, tests: Iterable[AnytimeRow], matrix: AccuracyMatrix, protocol: str = "iid"
    ) -> AnytimeMatrix:
        """Assemble the tests of a run, in any order, and its rows.

        Raises RecordError if a test occurs twice, or contradicts the rows or another test of its
        bucket.
        """
        ordered = sorted(tests, key=attrgetter("bucket", "test"))
        groups = groupby(ordered, key=attrgetter("bucket"))
        return cls(matrix, {bucket - 1: tuple(group) for bucket, group in groups}, protocol)

    @property
    def k(self) -> int:
        """Buckets that were trained to their end."""
        return self.matrix.num_rows

    @property
    def is_complete(self) -> bool:
        """Whether each bucket trained to its end has all its tests."""
        return all(self._describe_gap(bucket_index) is None for bucket_index in range(self.k))

    def after(self, k: int) -> AnytimeMatrix:
        """Return the tests of the first k buckets, or raise RecordError.

        Raises RecordError if there are fewer than k rows.
        """
        tests = {index: tests for index, tests in self.tests.items() if index < k}
        return AnytimeMatrix(self.matrix.after(k), tests, self.protocol)

    def stack_accuracies(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return bucket indices and accuracies of all tests, or raise UndefinedMetricError.

        Returns (N,), the index of the bucket in training, and (N, T), accuracies. Row 0 is left
        out.

        Raises UndefinedMetricError if a test is missing, a cell was not measured, the protocol is
        streaming, or k is 0.
        """
        if self.k == 0:
            raise UndefinedMetricError("needs a trained bucket: k >= 1 (trained on 0)")
        for bucket_index in range(self.k):
            if (gap := self._describe_gap(bucket_index)) is not None:
                raise UndefinedMetricError(gap)
        if self.protocol == "streaming":
            raise UndefinedMetricError(
                "under the streaming protocol tests of a bucket trained on score training images"
            )
        trained: list[int] = []
        cells: list[tuple[float, ...]] = []
        for bucket_index in range(self.k):
            last_row = tuple(self.matrix.values[bucket_index].tolist())
            cells += [*(test.accuracy for test in self.tests[bucket_index]), last_row]
            trained += [bucket_index] * (len(self.tests[bucket_index]) + 1)
        values = np.array(cells)
        gaps = np.argwhere(np.isnan(values))
        if len(gaps):
            raise UndefinedMetricError(
                f"row {trained[int(gaps[0, 0])] + 1}, column {int(gaps[0, 1]) + 1} was not measured"
            )
        return np.array(trained), values

    def _describe_gap(self, bucket_index: int) -> str | None:
        """Describe the first missing test of a bucket, or return None."""
        tests = self.tests.get(bucket_index, ())
        key = safe_repr(self.matrix.buckets[bucket_index])
        if not tests:
            return f"needs tests inside of each bucket (test_every); bucket {key} has none"
        # The tests are in order; their stated number may be any, and is not counted up to.
        numbers = enumerate((test.test for test in tests), start=1)
        missing = next((i for i, number in numbers if i != number), len(tests) + 1)
        if missing <= tests[0].num_tests:
            return f"test {missing} of {tests[0].num_tests} inside bucket {key} is not stored"
        return None

    def _check_test(self, name: str, test: AnytimeRow) -> None:
        counts = self.matrix.num_instances
        if test.buckets != self.matrix.buckets:
            raise RecordError(
                f"{name} has buckets {safe_repr(test.buckets)}, but the rows have "
                f"{safe_repr(self.matrix.buckets)}"
            )
        if counts is not None and tuple(counts.tolist()) != test.num_instances:
            raise RecordError(
                f"{name} has {safe_repr(test.num_instances)} images per bucket, but the rows have "
                f"{safe_repr(counts.tolist())}"
            )
