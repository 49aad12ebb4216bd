"""A test inside a bucket, and its stored form: one JSON file each, in a folder of its own.

docs/record-format.md is the same format for writers of other programs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import SCHEMA_VERSION, check_schema
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    MAX_COUNT,
    MAX_ROW_BYTES,
    convert,
    document_name,
    document_text,
    json_object,
)

# Not below the folder of the rows: whoever reads those never lists these.
ANYTIME_FOLDER = "anytime_accuracy"
SCHEMA_NAME = "clear_mlflow/anytime_row"
_NAME = re.compile(r"bucket_([0-9]{3,9})_test_([0-9]{4,9})\.json")
_PER_BUCKET = ("buckets", "correct", "num_instances")
_NUMBERS = ("bucket", "test", "num_tests", "step", "num_steps")


class _Fields(msgspec.Struct):
    """A test's file, beside its schema; later versions add optional fields."""

    bucket: int
    training_on: str
    test: int
    num_tests: int
    step: int
    num_steps: int
    buckets: tuple[str, ...]
    correct: tuple[int, ...]
    num_instances: tuple[int, ...]
    written_at: str


@dataclass(frozen=True)
class AnytimeRow:
    """Right test images per bucket while a bucket is being trained on."""

    bucket: int  # being trained on, from 1: the row that follows is row *bucket*
    test: int  # of those inside this bucket, from 1
    num_tests: int  # inside this bucket, at least 1; its end, where the row is measured, is none
    step: int  # optimiser steps taken on this bucket so far, at least 1
    num_steps: int  # that the bucket takes in all; more than step
    buckets: tuple[str, ...]  # keys of all buckets in stream order
    correct: tuple[int, ...]  # right test images, per bucket
    num_instances: tuple[int, ...]  # test images, per bucket

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if not 1 <= convert(value, int, name) <= MAX_COUNT:
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
        # The same bounds as of a row, which has the same counts.
        row = AccuracyRow(self.bucket, self.buckets, self.correct, self.num_instances)
        for name in _PER_BUCKET:
            object.__setattr__(self, name, getattr(row, name))

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Fraction of test images classified correctly, per bucket."""
        return tuple(c / n for c, n in zip(self.correct, self.num_instances, strict=True))

    def to_json(self, written_at: str) -> str:
        """The text of its file; ``written_at`` is ISO 8601 in UTC, for people and charts."""
        fields = {
            "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
            "bucket": self.bucket,
            "training_on": self.buckets[self.bucket - 1],
            **vars(self),
            "written_at": written_at,
        }
        return document_text(fields)

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> AnytimeRow:
        """Read the text of a file named ``source``; nothing about it is trusted."""
        try:
            document = json_object(text, MAX_ROW_BYTES)
            check_schema(document, SCHEMA_NAME)
            fields: _Fields = convert(document, _Fields)
            row = cls(**{name: getattr(fields, name) for name in (*_NUMBERS, *_PER_BUCKET)})
            if fields.training_on != row.buckets[row.bucket - 1]:
                raise RecordError(
                    f"training_on is {safe_repr(fields.training_on)}; bucket {row.bucket} of these "
                    f"is {safe_repr(row.buckets[row.bucket - 1])}"
                )
            if anytime_file_name(row.bucket, row.test) != source:
                raise RecordError(
                    f"holds test {row.test} of bucket {row.bucket}; a file was renamed or copied"
                )
        except RecordError as error:
            raise RecordError(f"{document_name(source)}: {error}") from error
        return row


def anytime_file_name(bucket: int, test: int) -> str:
    """The name of the file of a test.

    >>> anytime_file_name(3, 12)
    'bucket_003_test_0012.json'
    """
    return f"bucket_{bucket:03d}_test_{test:04d}.json"


def anytime_place(file_name: str) -> tuple[int, int] | None:
    """The bucket and the test that a file is named after; None for every other name.

    >>> anytime_place("bucket_003_test_0012.json"), anytime_place("row_003.json")
    ((3, 12), None)
    """
    match = _NAME.fullmatch(file_name)
    place = (int(match[1]), int(match[2])) if match else None
    return place if place and anytime_file_name(*place) == file_name else None
