"""The stored form of a row, one JSON file each, and the run that a set of them describes.

Nothing in a file is trusted: anything wrong with it raises a RecordError of one line that names the
file. docs/record-format.md describes the same format for authors of other programs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec

from clear_mlflow.core.dataset import TIMES, DatasetDescription, check_text
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import TEST, AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import ACCURACY, StoredScore
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    MAX_ROW_BYTES,
    convert,
    format_document,
    format_document_name,
    parse_json_object,
)
from clear_mlflow.core.version import __version__

ROWS_FOLDER = "accuracy_matrix/rows"
SCHEMA_NAME = "clear_mlflow/accuracy_row"
SCHEMA_VERSION = "1.0"

# Fields of a row's file; later versions add optional ones.
_FIELDS = frozenset(
    {
        *("schema", "row", "trained_through", "buckets", "num_instances", "protocol", "split"),
        *("correct", "accuracy", "score", "values"),
        *("dataset", "seed", "package_version", "written_at", "cost"),
    }
)

# Metadata on which all rows of a run agree: name to attribute.
_AGREED = {
    "dataset name": "dataset.name",
    "dataset digest": "dataset.digest",
    "protocol": "dataset.protocol",
    "split": "dataset.split",
    "seed": "seed",
}

# What the clocks of all languages write and fromisoformat of Python 3.10 reads.
_UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}(\d{3})?)?(Z|\+00:00)", re.ASCII)


class _Schema(msgspec.Struct):
    name: str
    version: str


@dataclass(frozen=True, kw_only=True)
class RowRecord:
    """A row with the metadata that identify its run.

    Raises RecordError if a value cannot be stored in the format.
    """

    row: AccuracyRow
    dataset: DatasetDescription  # of a stored row, as far as its file describes it
    seed: int | None  # of the run, or None if it had none
    package_version: str  # of the program that wrote the row
    written_at: str  # time in UTC, ISO 8601, for example 2026-01-31T12:00:00.123Z
    # Fields that a newer or another program wrote; they are kept and written back.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seed is not None and not -(2**63) <= convert(self.seed, int, "seed") < 2**64:
            raise RecordError(
                f"seed is {safe_repr(self.seed)}; expected an integer of at most 64 bits"
            )
        check_text("package_version", self.package_version)
        _check_time(self.written_at)
        if taken := sorted(self.extra.keys() & _FIELDS):
            raise RecordError(f"extra contains {taken[0]!r}, which is a field of the format itself")

    @classmethod
    def build(
        cls,
        row: AccuracyRow,
        dataset: DatasetDescription,
        seed: int | None,
        written_at: str | None = None,
    ) -> RowRecord:
        """Add dataset, seed, version and time to a row.

        written_at: when it was measured, or None for now.
        """
        return cls(
            row=row,
            dataset=dataset,
            seed=seed,
            package_version=__version__,
            written_at=written_at or utc_now(),
            extra=dataset.optional_fields,
        )

    def to_json(self) -> bytes:
        """Return the content of the row's file. Equal records have equal contents."""
        row, score = self.row, self.row.score
        measured: dict[str, Any] = {"correct": row.correct}
        if row.correct is None:
            cells = [None if math.isnan(value) else value for value in row.cells]
            measured = {"accuracy": cells}
            if not score.is_accuracy:
                stored_score = StoredScore(score.name, not score.higher_is_better)
                measured = {"score": msgspec.to_builtins(stored_score), "values": cells}
        fields = {
            "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
            "row": row.row,
            "trained_through": row.trained_through,
            "buckets": row.buckets,
            **measured,
            **({} if row.num_instances is None else {"num_instances": row.num_instances}),
            "protocol": self.dataset.protocol,
            **({} if self.dataset.split == TEST else {"split": self.dataset.split}),
            "dataset": {"name": self.dataset.name, "digest": self.dataset.digest},
            "seed": self.seed,
            "package_version": self.package_version,
            "written_at": self.written_at,
            **({} if row.cost is None else {"cost": row.cost.to_dict()}),
        }
        return format_document({**fields, **self.extra})

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> RowRecord:
        """Parse the untrusted text of a row's file, or raise RecordError.

        Raises RecordError if the text is not a row, or has a newer major version of the format.
        """
        try:
            return _parse_record(parse_json_object(text, MAX_ROW_BYTES))
        except RecordError as error:
            raise RecordError(f"{format_document_name(source)}: {error}") from error


@dataclass(frozen=True, eq=False)
class Record:
    """The rows of one run as a matrix, with their metadata."""

    matrix: AccuracyMatrix
    dataset: DatasetDescription
    seed: int | None
    rows: tuple[int, ...]  # numbers of the stored rows, ascending; 0 is the initialisation
    # Rows that are not stored, below the highest that is; row 0 only if it was expected.
    missing: tuple[int, ...]

    @classmethod
    def build(
        cls,
        rows: Collection[AccuracyRow],
        dataset: DatasetDescription,
        seed: int | None,
        *,
        expects_untrained: bool = False,
    ) -> Record:
        """Combine rows, in any order, into a matrix with metadata.

        expects_untrained: True if row 0 was measured, as :func:`is_training` tells. Raises
        RecordError if rows contradict each other.
        """
        matrix = AccuracyMatrix.from_rows(rows)
        counts = matrix.num_instances
        numbers = sorted(row.row for row in rows)
        first_expected = 0 if expects_untrained else 1
        return cls(
            matrix=matrix,
            dataset=replace(
                dataset,
                buckets=matrix.buckets,
                num_test=None if counts is None else tuple(counts.tolist()),
            ),
            seed=seed,
            rows=tuple(numbers),
            missing=tuple(sorted(set(range(first_expected, numbers[-1])) - set(numbers))),
        )

    @property
    def is_complete(self) -> bool:
        """Whether rows 1 to T are all stored."""
        return set(range(1, self.matrix.num_buckets + 1)) <= set(self.rows)

    @property
    def num_stored(self) -> int:
        """How many of rows 1 to T are stored."""
        return len(set(self.rows) - {0})

    @cached_property
    def masked_matrix(self) -> AccuracyMatrix:
        """The cells of the matrix that count under the protocol."""
        return self.matrix.mask(self.dataset.protocol)


def format_row_file_name(row: int) -> str:
    """Return the name of a row's file.

    >>> format_row_file_name(4)
    'row_004.json'
    """
    return f"row_{row:03d}.json"


def parse_row_index(file_name: str) -> int | None:
    """Parse the row number from a file name, None for other names.

    >>> parse_row_index("row_004.json"), parse_row_index("row_4.json"), parse_row_index("notes.txt")
    (4, None, None)
    """
    match = re.fullmatch(r"row_([0-9]{3,9})\.json", file_name)
    # One name per row: row_0004.json is not another row_004.json.
    return int(match[1]) if match and format_row_file_name(int(match[1])) == file_name else None


def is_training(params: Mapping[str, str]) -> bool:
    """Return True if parameters were logged by a training of this program.

    It tests its untrained model first; other loops need not.
    """
    return "used/arithmetic" in params


def assemble(records: Mapping[str, RowRecord], *, expects_untrained: bool = False) -> Record:
    """Combine the rows of one run into its record.

    Args:
        records: file name to row, in any order.
        expects_untrained: True if row 0 was measured, as :func:`is_training` tells.

    Raises:
        RecordError: no row was passed, a file is not named after its row, or rows contradict each
            other about the run that they belong to.
    """
    if not records:
        raise RecordError("the run is without rows; expected at least one")
    for name, record in records.items():
        if parse_row_index(name) != record.row.row:
            raise RecordError(
                f"{safe_repr(name)} contains row {record.row.row}, whose file is "
                f"{format_row_file_name(record.row.row)}; a file was renamed or copied"
            )
    (first_name, first), *others = sorted(records.items(), key=lambda item: item[1].row.row)
    for name, record in others:
        for key, path in _AGREED.items():
            expected, value = (attrgetter(path)(r) for r in (first, record))
            if value != expected:
                raise RecordError(
                    f"{first_name} and {name} contradict each other: {key} is "
                    f"{safe_repr(expected, 200)} and {safe_repr(value, 200)}; they do not belong "
                    "to one run, remove the foreign one"
                )
    return Record.build(
        [record.row for record in records.values()],
        first.dataset,
        first.seed,
        expects_untrained=expects_untrained,
    )


def check_schema(document: dict[str, Any], name: str) -> None:
    """Raise RecordError if a file has another format or major version.

    document: content of the file. name: name of the expected format.
    """
    if "schema" not in document:
        raise RecordError("lacks the field 'schema', which names the file's format")
    schema: _Schema = convert(document["schema"], _Schema, "schema")
    if schema.name != name:
        raise RecordError(f"schema.name is {safe_repr(schema.name)}; expected {name!r}")
    major = SCHEMA_VERSION.partition(".")[0]
    if not re.fullmatch(rf"{major}\.[0-9]{{1,4}}", schema.version):
        raise RecordError(
            f"has version {safe_repr(schema.version)} of the format; this clear_mlflow reads "
            f"{major}.x: upgrade it if the file is newer"
        )


def _parse_record(document: dict[str, Any]) -> RowRecord:
    check_schema(document, SCHEMA_NAME)
    row = _parse_row(document)
    if _require(document, "trained_through") != row.trained_through:
        raise RecordError(
            f"trained_through is {safe_repr(document['trained_through'])}; row {row.row} of these "
            f"buckets is trained through {safe_repr(row.trained_through)}"
        )
    return RowRecord(
        row=row,
        dataset=_parse_dataset(document, row),
        seed=convert(_require(document, "seed"), int | None, "seed"),
        package_version=convert(_require(document, "package_version"), str, "package_version"),
        written_at=convert(_require(document, "written_at"), str, "written_at"),
        extra={name: value for name, value in document.items() if name not in _FIELDS},
    )


def _require(document: Mapping[str, Any], name: str, prefix: str = "") -> Any:
    if name not in document:
        raise RecordError(f"{prefix}lacks the field {name!r}")
    return document[name]


def _parse_dataset(document: dict[str, Any], row: AccuracyRow) -> DatasetDescription:
    stored = convert(_require(document, "dataset"), dict[str, Any], "dataset")
    return DatasetDescription(
        name=_require(stored, "name", "dataset: "),
        digest=_require(stored, "digest", "dataset: "),
        protocol=_require(document, "protocol"),
        split=document.get("split", TEST),
        buckets=row.buckets,
        num_test=row.num_instances,
        score=row.score,
        times=_parse_times(document.get(TIMES), len(row.buckets)),
    )


def _parse_times(dates: object, num_buckets: int) -> tuple[date, ...]:
    """Parse the buckets' dates, or return () unless they are ascending."""
    if not isinstance(dates, list) or len(dates) != num_buckets:
        return ()
    try:
        times = tuple(date.fromisoformat(text) for text in dates)
    except (TypeError, ValueError):
        return ()
    return times if all(before < after for before, after in pairwise(times)) else ()


def _parse_row(document: dict[str, Any]) -> AccuracyRow:
    score, names = ACCURACY, ["correct", "accuracy"]
    if document.get("score") is not None:
        score = convert(document["score"], StoredScore, "score").score
    if not score.is_accuracy:
        names = ["values"]
    measured = [n for n in ("correct", "accuracy", "values") if document.get(n) is not None]
    if not measured:
        raise RecordError(
            f"lacks the field {' or '.join(map(repr, names))}; expected one entry per bucket"
        )
    if len(measured) > 1 or measured[0] not in names:
        raise RecordError(
            f"has two of correct, accuracy and values; expected only {' or '.join(names)}"
        )
    optional = {name: document.get(name) for name in ("correct", "num_instances")}
    values = None
    if measured != ["correct"]:
        cells = convert(document[measured[0]], tuple[float | None, ...], measured[0])
        values = tuple(math.nan if cell is None else cell for cell in cells)
    fields = {**document, **optional, "values": values, "score": score}
    row: AccuracyRow = convert(fields, AccuracyRow)
    return row


def _check_time(value: str) -> None:
    with suppress(ValueError):
        time = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if _UTC_TIME.fullmatch(value) and time.year >= 1970:  # the epoch of stores that keep it
            return
    raise RecordError(
        f"written_at is {safe_repr(value)}; expected a time in UTC such as 2026-01-31T12:00:00.123Z"
    )


def utc_now() -> str:
    """Return the current UTC time as ISO text with milliseconds."""
    return datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
