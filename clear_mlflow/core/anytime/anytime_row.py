"""A test inside a bucket, and its stored form: one JSON file each, in a folder of its own.

docs/record-format.md is the same format for writers of other programs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import (
    MAX_COUNT,
    MAX_ROW_BYTES,
    document_name,
    document_text,
    json_object,
)

# Not below the folder of the rows: whoever reads those never lists these.
ANYTIME_FOLDER = "anytime_accuracy"
SCHEMA_NAME = "clear_mlflow/anytime_row"
SCHEMA_VERSION = "1.0"

_FIELDS = (
    "schema",
    "bucket",
    "training_on",
    "test",
    "num_tests",
    "step",
    "num_steps",
    "buckets",
    "correct",
    "num_instances",
    "written_at",
)
_NAME = re.compile(r"bucket_([0-9]{3,9})_test_([0-9]{4,9})\.json")


@dataclass(frozen=True)
class AnytimeRow:
    """Right test images per bucket while a bucket is being trained on.

    Args:
        bucket: that is being trained on, counted from 1: the row that follows is row *bucket*.
        test: of those inside this bucket, counted from 1.
        num_tests: inside this bucket, at least 1; its end, where the row is measured, is none.
        step: optimiser steps taken on this bucket so far, at least 1.
        num_steps: that the bucket takes in all; more than *step*.
        buckets: keys of all buckets in stream order.
        correct: right test images, per bucket.
        num_instances: test images, per bucket.

    Raises:
        RecordError: a value is out of bounds, or they do not fit each other.
    """

    bucket: int
    test: int
    num_tests: int
    step: int
    num_steps: int
    buckets: tuple[str, ...]
    correct: tuple[int, ...]
    num_instances: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("bucket", "test", "num_tests", "step", "num_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
                raise RecordError(f"{name} is {shown(value)}; expected a whole number from 1 on")
        if self.test > self.num_tests:
            raise RecordError(f"test is {self.test}, of {self.num_tests} inside the bucket")
        if self.step >= self.num_steps:
            raise RecordError(
                f"step is {self.step} of {self.num_steps}; a test at the end of a bucket is a row "
                "of the matrix"
            )
        # The same bounds as of a row, which has the same counts.
        row = AccuracyRow(self.bucket, self.buckets, self.correct, self.num_instances)
        for name in ("buckets", "correct", "num_instances"):
            object.__setattr__(self, name, getattr(row, name))

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Fraction of test images classified correctly, per bucket."""
        return tuple(c / n for c, n in zip(self.correct, self.num_instances, strict=True))

    def to_json(self, written_at: str) -> str:
        """The text of its file.

        Args:
            written_at: ISO 8601 in UTC; for people and charts.
        """
        fields = {
            "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
            "bucket": self.bucket,
            "training_on": self.buckets[self.bucket - 1],
            "test": self.test,
            "num_tests": self.num_tests,
            "step": self.step,
            "num_steps": self.num_steps,
            "buckets": list(self.buckets),
            "correct": list(self.correct),
            "num_instances": list(self.num_instances),
            "written_at": written_at,
        }
        return document_text(fields)

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> AnytimeRow:
        """Read the text of a file; fields that a later version added are left alone.

        Args:
            text: what the file holds; nothing about it is trusted.
            source: what the file is called, which has to be the name of this test.

        Raises:
            RecordError: it is none, or one of a newer major version of the format.
        """
        try:
            row = _from_document(json_object(text, MAX_ROW_BYTES))
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
    if match is None:
        return None
    place = int(match[1]), int(match[2])
    return place if anytime_file_name(*place) == file_name else None


def _from_document(document: dict[str, Any]) -> AnytimeRow:
    schema = document.get("schema")
    if not isinstance(schema, dict) or schema.get("name") != SCHEMA_NAME:
        raise RecordError(f"schema is {shown(schema)}; expected the name {SCHEMA_NAME!r}")
    version = schema.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"1\.[0-9]{1,4}", version):
        raise RecordError(f"schema.version is {shown(version)}; this program reads 1.x: update it")
    for name in _FIELDS:
        if name not in document:
            raise RecordError(f"lacks the field {name!r}; the fields are {', '.join(_FIELDS)}")
    for name in ("buckets", "correct", "num_instances"):
        if not isinstance(document[name], list):
            raise RecordError(
                f"{name} is {shown(document[name])}; expected a list, one entry per bucket"
            )
    row = AnytimeRow(
        bucket=document["bucket"],
        test=document["test"],
        num_tests=document["num_tests"],
        step=document["step"],
        num_steps=document["num_steps"],
        buckets=tuple(document["buckets"]),
        correct=tuple(document["correct"]),
        num_instances=tuple(document["num_instances"]),
    )
    if document["training_on"] != row.buckets[row.bucket - 1]:
        raise RecordError(
            f"training_on is {shown(document['training_on'])}; bucket {row.bucket} of these is "
            f"{shown(row.buckets[row.bucket - 1])}"
        )
    return row
