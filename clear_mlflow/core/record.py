"""The stored form of a row: one JSON file each, and the run that a set of them describes.

Anyone may have written to the places that rows are read from: anything wrong with a file raises a
RecordError of one line that names it. docs/record-format.md describes the same format for authors
of other programs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import PROTOCOLS, SPLITS, TEST, AccuracyMatrix, AccuracyRow, RowCost
from clear_mlflow.core.score import ACCURACY, StoredScore
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    JSON,
    MAX_ROW_BYTES,
    MAX_TEXT_CHARACTERS,
    convert,
    document_name,
    document_text,
    json_object,
)

ROWS_FOLDER = "accuracy_matrix/rows"
SCHEMA_NAME = "clear_mlflow/accuracy_row"
SCHEMA_VERSION = "1.0"

# Of rows whose buckets have dates: one for each, as 2004-05-17, ascending. A reader may leave it.
TIMES = "bucket_times"

# Written by every language's clock, and read by Python 3.10's narrow fromisoformat.
_UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}(\d{3})?)?(Z|\+00:00)", re.ASCII)


@dataclass(frozen=True)
class DatasetIdentity:
    """Which data a row was measured on: a name for people, a digest that settles it.

    Raises:
        RecordError: one of them is no printable text.
    """

    name: str
    digest: str

    def __post_init__(self) -> None:
        _check_text("the dataset's name", self.name)
        _check_text("the dataset's digest", self.digest)


class _Schema(msgspec.Struct):
    name: str
    version: str


class _Fields(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row's file, in its order; later versions add optional fields."""

    schema: _Schema
    row: int
    trained_through: str | None
    buckets: tuple[str, ...]
    correct: tuple[int, ...] | None = None
    accuracy: tuple[float | None, ...] | None = None  # None = not measured
    score: StoredScore | None = None
    values: tuple[float | None, ...] | None = None  # of another score than accuracy, likewise
    num_instances: tuple[int, ...] | None = None
    protocol: str
    split: str = TEST
    dataset: DatasetIdentity
    seed: int | None
    package_version: str
    written_at: str
    cost: RowCost | None = None


@dataclass(frozen=True)
class RowRecord:
    """A row, and what is needed to know which run it belongs to.

    Args:
        row: what was measured.
        protocol: ``iid`` or ``streaming``.
        dataset: which data it was measured on.
        seed: of the run; None when it had none.
        package_version: of the program that wrote the row.
        written_at: ISO 8601 in UTC, as 2026-01-31T12:00:00.123Z.
        extra: fields that a newer or another program wrote; kept and written back.
        split: which images it was measured on, ``test`` or ``validation``.

    Raises:
        RecordError: a value is not one that the format holds.
    """

    row: AccuracyRow
    protocol: str
    dataset: DatasetIdentity
    seed: int | None
    package_version: str
    written_at: str
    extra: Mapping[str, JSON] = field(default_factory=dict)
    split: str = TEST

    def __post_init__(self) -> None:
        for name, value, known in (
            ("protocol", self.protocol, PROTOCOLS),
            ("split", self.split, SPLITS),
        ):
            if value not in known:
                raise RecordError(f"{name} is {safe_repr(value)}; expected {' or '.join(known)}")
        if self.seed is not None and not -(2**63) <= convert(self.seed, int, "seed") < 2**64:
            raise RecordError(f"seed is {safe_repr(self.seed)}; expected a 64-bit integer or null")
        _check_text("package_version", self.package_version)
        _check_time(self.written_at)
        if taken := sorted(set(_Fields.__struct_fields__) & set(self.extra)):
            raise RecordError(f"extra holds {taken[0]!r}, which is a field of the format itself")

    def to_json(self) -> str:
        """The row as the text of its file; equal records give equal text."""
        row, score = self.row, self.row.score
        cells = None
        if row.correct is None:
            cells = tuple(None if math.isnan(value) else value for value in row.cells)
        fields = _Fields(
            schema=_Schema(SCHEMA_NAME, SCHEMA_VERSION),
            row=row.row,
            trained_through=row.trained_through,
            buckets=row.buckets,
            correct=row.correct,
            accuracy=cells if score.is_accuracy else None,
            score=None
            if score.is_accuracy
            else StoredScore(score.name, not score.higher_is_better),
            values=None if score.is_accuracy else cells,
            num_instances=row.num_instances,
            protocol=self.protocol,
            split=self.split,
            dataset=self.dataset,
            seed=self.seed,
            package_version=self.package_version,
            written_at=self.written_at,
            cost=row.cost,
        )
        return document_text({**msgspec.to_builtins(fields), **self.extra})

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> RowRecord:
        """Read the text of a row's file.

        Args:
            text: what the file holds, or its bytes; nothing about it is trusted.
            source: what the file is called, for messages.

        Raises:
            RecordError: the text is no row, or one of a newer major version of the format.
        """
        try:
            return _from_document(json_object(text, MAX_ROW_BYTES))
        except RecordError as error:
            raise RecordError(f"{document_name(source)}: {error}") from error


@dataclass(frozen=True, eq=False)
class Record:
    """All that the stored rows of one run say."""

    matrix: AccuracyMatrix
    protocol: str
    split: str  # what was measured on: "test" or "validation"
    dataset: DatasetIdentity
    seed: int | None
    rows: tuple[int, ...]  # rows that are stored, ascending; 0 is the initialisation
    # Rows that are not, below the highest that is; row 0 only where this program's rows are held.
    missing: tuple[int, ...]
    times: tuple[date, ...] = ()  # of the buckets, ascending; empty where they have none

    @property
    def is_complete(self) -> bool:
        """Whether rows 1 to T are all there; the initialisation row may be missing."""
        return set(range(1, self.matrix.num_buckets + 1)) <= set(self.rows)

    @property
    def num_stored(self) -> int:
        """Return how many of rows 1 to T are stored."""
        return len(set(self.rows) - {0})

    @cached_property
    def masked_matrix(self) -> AccuracyMatrix:
        """The cells of the matrix that count under the protocol."""
        return self.matrix.masked(self.protocol)


def row_file_name(row: int) -> str:
    """The name of a row's file.

    >>> row_file_name(4)
    'row_004.json'
    """
    return f"row_{row:03d}.json"


def row_index(file_name: str) -> int | None:
    """The row that a file is named after; None for every other name.

    >>> row_index("row_004.json"), row_index("row_4.json"), row_index("notes.txt")
    (4, None, None)
    """
    match = re.fullmatch(r"row_([0-9]{3,9})\.json", file_name)
    # One name per row: row_0004.json is not another row_004.json.
    return int(match[1]) if match and row_file_name(int(match[1])) == file_name else None


def assemble(records: Mapping[str, RowRecord]) -> Record:
    """Put the rows of one run together.

    Args:
        records: file name to row, in any order.

    Raises:
        RecordError: there is no row, a file is not named after its row, or rows contradict each
            other about the run that they belong to.
    """
    if not records:
        raise RecordError("the run holds no row; expected at least one")
    for name, record in records.items():
        if row_index(name) != record.row.row:
            raise RecordError(
                f"{safe_repr(name)} holds row {record.row.row}, whose file is "
                f"{row_file_name(record.row.row)}; a file was renamed or copied"
            )
    ordered = sorted(records.items(), key=lambda item: item[1].row.row)
    first_name, first = ordered[0]
    for name, record in ordered[1:]:
        for what, one in _identity(first).items():
            if (other := _identity(record)[what]) != one:
                raise RecordError(
                    f"{first_name} and {name} contradict each other: {what} is "
                    f"{safe_repr(one, 200)} and {safe_repr(other, 200)}; they are not of one run, "
                    "remove the one that is foreign"
                )
    rows = tuple(record.row.row for _, record in ordered)
    # Rows without counts are another program's, and few of those test before they train.
    least = 0 if first.row.correct is not None else 1
    return Record(
        matrix=AccuracyMatrix.from_rows(record.row for _, record in ordered),
        protocol=first.protocol,
        split=first.split,
        dataset=first.dataset,
        seed=first.seed,
        rows=rows,
        missing=tuple(sorted(set(range(least, rows[-1])) - set(rows))),
        times=_times(first),
    )


def _times(record: RowRecord) -> tuple[date, ...]:
    """The dates that a row gives its buckets; none of them where it gives anything else."""
    dates = record.extra.get(TIMES)
    if not isinstance(dates, list) or len(dates) != len(record.row.buckets):
        return ()
    try:
        found = tuple(date.fromisoformat(text) for text in dates)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    return found if all(before < after for before, after in pairwise(found)) else ()


def _identity(record: RowRecord) -> dict[str, object]:
    """What rows of one run agree on, beside what their matrix holds."""
    return {
        "dataset name": record.dataset.name,
        "dataset digest": record.dataset.digest,
        "protocol": record.protocol,
        "split": record.split,
        "seed": record.seed,
    }


def check_schema(document: dict[str, Any], name: str) -> None:
    """Refuse a file of another format, or of a newer major version, before all else of it."""
    if "schema" not in document:
        raise RecordError("lacks the field 'schema', which says what the file is")
    schema: _Schema = convert(document["schema"], _Schema, "schema")
    if schema.name != name:
        raise RecordError(f"schema.name is {safe_repr(schema.name)}; expected {name!r}")
    match = re.fullmatch(r"([0-9]{1,4})\.[0-9]{1,4}", schema.version)
    ours = int(SCHEMA_VERSION.partition(".")[0])
    if match and int(match[1]) > ours:
        raise RecordError(
            f"is of version {schema.version} of the format; this clear_mlflow reads {ours}.x: "
            "upgrade it"
        )
    if not match or int(match[1]) != ours:
        raise RecordError(
            f"schema.version is {safe_repr(schema.version)}; expected {SCHEMA_VERSION!r}"
        )


def _from_document(document: dict[str, Any]) -> RowRecord:
    check_schema(document, SCHEMA_NAME)
    fields: _Fields = convert(document, _Fields)
    row = replace(_row(fields), cost=fields.cost)
    if fields.trained_through != row.trained_through:
        raise RecordError(
            f"trained_through is {safe_repr(fields.trained_through)}; row {row.row} of these "
            f"buckets is trained through {safe_repr(row.trained_through)}"
        )
    return RowRecord(
        row=row,
        protocol=fields.protocol,
        dataset=fields.dataset,
        seed=fields.seed,
        package_version=fields.package_version,
        written_at=fields.written_at,
        extra={k: v for k, v in document.items() if k not in _Fields.__struct_fields__},
        split=fields.split,
    )


def _row(fields: _Fields) -> AccuracyRow:
    """What was measured: counts, else accuracies, or another score."""
    score = ACCURACY if fields.score is None else fields.score.score
    cells, name, other = fields.accuracy, "'correct' or 'accuracy'", fields.values
    if not score.is_accuracy:
        cells, name, other = fields.values, "'values'", fields.accuracy or fields.correct
    if other is not None or (fields.correct is not None and cells is not None):
        raise RecordError(
            f"has two of correct, accuracy and values; expected {name.replace(chr(39), '')} alone"
        )
    if fields.correct is not None:
        return AccuracyRow(fields.row, fields.buckets, fields.correct, fields.num_instances)
    if cells is None:
        raise RecordError(f"lacks the field {name}; expected one entry per bucket")
    values = [math.nan if value is None else value for value in cells]
    return AccuracyRow.from_values(fields.row, fields.buckets, values, fields.num_instances, score)


def _check_text(what: str, value: str) -> None:
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or not 1 <= len(value) <= MAX_TEXT_CHARACTERS
    ):
        raise RecordError(
            f"{what} is {safe_repr(value)}; expected a text of 1 to {MAX_TEXT_CHARACTERS} "
            "printable characters"
        )


def _check_time(value: str) -> None:
    try:
        is_time = bool(_UTC_TIME.fullmatch(value))
        # Not before the epoch of the stores that keep it.
        is_time = is_time and datetime.fromisoformat(value.replace("Z", "+00:00")).year >= 1970
    except ValueError:
        is_time = False
    if not is_time:
        raise RecordError(
            f"written_at is {safe_repr(value)}; expected a time in UTC as 2026-01-31T12:00:00.123Z"
        )
