"""The stored form of a row: one JSON file each, and the run that a set of them describes.

Anyone may have written to the places that rows are read from: anything wrong with a file raises a
RecordError of one line that names it. docs/record-format.md describes the same format for authors
of other programs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import PROTOCOLS, SPLITS, TEST, AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import (
    JSON,
    MAX_ROW_BYTES,
    MAX_TEXT_CHARACTERS,
    document_name,
    document_text,
    json_object,
)

ROWS_FOLDER = "accuracy_matrix/rows"
SCHEMA_NAME = "clear_mlflow/accuracy_row"
SCHEMA_VERSION = "1.0"
# Rows of accuracies without counts; what has counts stays 1.0, which every reader knows.
ACCURACIES_VERSION = "1.1"
# Rows that are measured on validation images.
SPLIT_VERSION = "1.2"
# Rows of another score than accuracy.
SCORE_VERSION = "1.3"

# Of rows whose buckets have dates: one for each, as 2004-05-17, ascending. A reader may leave it.
TIMES = "bucket_times"

# Written by every language's clock, and read by Python 3.10's narrow fromisoformat.
_UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}(\d{3})?)?(Z|\+00:00)", re.ASCII)
_KNOWN_FIELDS = (
    "schema",
    "row",
    "trained_through",
    "buckets",
    "correct",
    "num_instances",
    "protocol",
    "dataset",
    "seed",
    "package_version",
    "written_at",
)


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
        schema_version: of the format, "major.minor"; kept from the file that was read. A row
            without counts is at least of version 1.1, one on validation images of version 1.2,
            one of another score than accuracy of version 1.3.
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
    schema_version: str = SCHEMA_VERSION
    split: str = TEST

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise RecordError(
                f"protocol is {shown(self.protocol)}; expected one of {', '.join(PROTOCOLS)}"
            )
        if self.seed is not None and (
            not isinstance(self.seed, int)
            or isinstance(self.seed, bool)
            or not -(2**63) <= self.seed < 2**64
        ):
            raise RecordError(f"seed is {shown(self.seed)}; expected a 64-bit integer or null")
        _check_text("package_version", self.package_version)
        _check_time(self.written_at)
        _check_version(self.schema_version)
        if self.row.correct is None and _minor(self.schema_version) < 1:
            object.__setattr__(self, "schema_version", ACCURACIES_VERSION)
        if self.split not in SPLITS:
            raise RecordError(f"split is {shown(self.split)}; expected {' or '.join(SPLITS)}")
        if self.split != TEST and _minor(self.schema_version) < 2:
            object.__setattr__(self, "schema_version", SPLIT_VERSION)
        if not self.row.score.is_accuracy and _minor(self.schema_version) < 3:
            object.__setattr__(self, "schema_version", SCORE_VERSION)
        taken = sorted(set(_fields_of(self.schema_version)) & set(self.extra))
        if taken:
            raise RecordError(f"extra holds {taken[0]!r}, which is a field of the format itself")

    def to_json(self) -> str:
        """The row as the text of its file; equal records give equal text."""
        fields_in_order: dict[str, Any] = {
            "schema": {"name": SCHEMA_NAME, "version": self.schema_version},
            "row": self.row.row,
            "trained_through": self.row.trained_through,
            "buckets": list(self.row.buckets),
            **_measured(self.row),
            "protocol": self.protocol,
            **({} if self.split == TEST else {"split": self.split}),
            "dataset": {"name": self.dataset.name, "digest": self.dataset.digest},
            "seed": self.seed,
            "package_version": self.package_version,
            "written_at": self.written_at,
            **self.extra,
        }
        return document_text(fields_in_order)

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

    @cached_property
    def evidence(self) -> AccuracyMatrix:
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
                f"{shown(name)} holds row {record.row.row}, whose file is "
                f"{row_file_name(record.row.row)}; a file was renamed or copied"
            )
    ordered = sorted(records.items(), key=lambda item: item[1].row.row)
    first_name, first = ordered[0]
    for name, record in ordered[1:]:
        for what, one, other in _comparisons(first, record):
            if one != other:
                raise RecordError(
                    f"{first_name} and {name} contradict each other: {what} is "
                    f"{shown(one, 200)} and {shown(other, 200)}; they are not of one run, "
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
    told = record.extra.get(TIMES)
    if not isinstance(told, list) or len(told) != len(record.row.buckets):
        return ()
    try:
        found = tuple(date.fromisoformat(text) for text in told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    return found if all(before < after for before, after in pairwise(found)) else ()


def _comparisons(one: RowRecord, other: RowRecord) -> Iterator[tuple[str, object, object]]:
    """What rows of one run agree on; per bucket, so that a message shows what differs."""
    yield "dataset name", one.dataset.name, other.dataset.name
    yield "dataset digest", one.dataset.digest, other.dataset.digest
    yield "protocol", one.protocol, other.protocol
    yield "split", one.split, other.split
    yield "score", _score_text(one.row.score), _score_text(other.row.score)
    yield "seed", one.seed, other.seed
    yield "number of buckets", len(one.row.buckets), len(other.row.buckets)
    for j, (key, there) in enumerate(zip(one.row.buckets, other.row.buckets, strict=True)):
        yield f"key of bucket {j + 1}", key, there
    counts, others = one.row.num_instances, other.row.num_instances
    if counts is None or others is None:
        yield "num_instances", counts, others
        return
    for j, (total, there_too) in enumerate(zip(counts, others, strict=True)):
        yield f"num_instances of bucket {j + 1}", total, there_too


def _measured(row: AccuracyRow) -> dict[str, JSON]:
    """The fields of a file that hold what was measured."""
    found: dict[str, JSON] = {}
    if row.correct is not None:
        found["correct"] = list(row.correct)
    else:
        cells: list[JSON] = [None if math.isnan(value) else value for value in row.cells]
        if row.score.is_accuracy:
            found["accuracy"] = cells
        else:
            # Not as "accuracy", which a reader of before would take them for.
            found["score"] = {
                "name": row.score.name,
                "lower_is_better": not row.score.higher_is_better,
            }
            found["values"] = cells
    if row.num_instances is not None:
        found["num_instances"] = list(row.num_instances)
    return found


def _from_document(document: dict[str, Any]) -> RowRecord:
    # The schema first: a newer version may well lack what this one looks for.
    schema = _members("schema", _field(document, "schema"), ("name", "version"))
    if schema["name"] != SCHEMA_NAME:
        raise RecordError(f"schema.name is {shown(schema['name'])}; expected {SCHEMA_NAME!r}")
    _check_version(schema["version"])

    buckets = _list(document, "buckets")
    score = _score(document, schema["version"])
    if score.is_accuracy and ("correct" in document or _minor(schema["version"]) < 1):
        row = AccuracyRow(
            row=_field(document, "row"),
            buckets=buckets,
            correct=_list(document, "correct"),
            num_instances=_list(document, "num_instances"),
        )
    else:
        row = _row_of_values(document, buckets, score)
    trained_through = _field(document, "trained_through")
    if trained_through != row.trained_through:
        raise RecordError(
            f"trained_through is {shown(trained_through)}; row {row.row} of these buckets is "
            f"trained through {shown(row.trained_through)}"
        )
    if "accuracy" in document and row.correct is not None:
        _check_accuracy(_list(document, "accuracy"), row)
    dataset = _members("dataset", _field(document, "dataset"), ("name", "digest"))
    known = _fields_of(schema["version"])
    return RowRecord(
        row=row,
        protocol=_field(document, "protocol"),
        dataset=DatasetIdentity(dataset["name"], dataset["digest"]),
        seed=_field(document, "seed"),
        package_version=_field(document, "package_version"),
        written_at=_field(document, "written_at"),
        extra={k: v for k, v in document.items() if k not in known},
        schema_version=schema["version"],
        split=document.get("split", TEST) if "split" in known else TEST,
    )


def _fields_of(version: str) -> tuple[str, ...]:
    """The fields of a version; before it, a field of such a name was another program's."""
    known: tuple[str, ...] = (*_KNOWN_FIELDS, "accuracy")
    if _minor(version) >= 2:
        known = (*known, "split")
    if _minor(version) >= 3:
        known = (*known, "score", "values")
    return known


def _score(document: dict[str, Any], version: str) -> Score:
    """What the row is of: accuracy, where nothing else is said."""
    if _minor(version) < 3 or "score" not in document:
        return ACCURACY
    found = _members("score", document["score"], ("name", "lower_is_better"))
    lower = found["lower_is_better"]
    if not isinstance(lower, bool):
        raise RecordError(f"score.lower_is_better is {shown(lower)}; expected true or false")
    return Score(found["name"], higher_is_better=not lower)


def _score_text(score: Score) -> str:
    return f"{score.name}, {score.better} is better"


def _row_of_values(document: dict[str, Any], buckets: tuple[Any, ...], score: Score) -> AccuracyRow:
    """A row without counts; null = not measured."""
    if not score.is_accuracy and (other := {"correct", "accuracy"} & set(document)):
        raise RecordError(f"has {min(other)} beside the score {score.name}; expected values alone")
    return AccuracyRow(
        row=_field(document, "row"),
        buckets=buckets,
        correct=None,
        num_instances=_list(document, "num_instances") if "num_instances" in document else None,
        values=tuple(
            math.nan if value is None else value
            for value in _list(document, "accuracy" if score.is_accuracy else "values")
        ),
        score=score,
    )


def _field(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise RecordError(f"lacks the field {name!r}; the fields are {', '.join(_KNOWN_FIELDS)}")
    return document[name]


def _list(document: dict[str, Any], name: str) -> tuple[Any, ...]:
    value = _field(document, name)
    if not isinstance(value, list):
        raise RecordError(f"{name} is {shown(value)}; expected a list, one entry per bucket")
    return tuple(value)


def _members(name: str, value: object, expected: tuple[str, ...]) -> dict[str, Any]:
    """The object in a field, which has just these members: no version adds to them."""
    if not isinstance(value, dict) or set(value) != set(expected):
        raise RecordError(
            f"{name} is {shown(value)}; expected an object of {' and '.join(expected)}"
        )
    return value


def _check_accuracy(stated: tuple[Any, ...], row: AccuracyRow) -> None:
    """Accuracy is derived; where another program wrote it too, it has to be the same."""
    agrees = len(stated) == len(row.cells) and all(
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= 1
        and abs(value - derived) <= 1e-6
        for value, derived in zip(stated, row.cells, strict=True)
    )
    if not agrees:
        raise RecordError(
            f"accuracy is {shown(list(stated))}, but correct / num_instances is "
            f"{shown(list(row.cells))}; leave accuracy out, or mend it"
        )


def _check_text(what: str, value: object) -> None:
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or not 1 <= len(value) <= MAX_TEXT_CHARACTERS
    ):
        raise RecordError(
            f"{what} is {shown(value)}; expected a text of 1 to {MAX_TEXT_CHARACTERS} printable "
            "characters"
        )


def _check_time(value: object) -> None:
    problem = f"written_at is {shown(value)}; expected a time in UTC as 2026-01-31T12:00:00.123Z"
    if not isinstance(value, str) or not _UTC_TIME.fullmatch(value):
        raise RecordError(problem)
    try:
        year = datetime.fromisoformat(value.replace("Z", "+00:00")).year
    except ValueError as error:
        raise RecordError(problem) from error
    if year < 1970:  # before the epoch of the stores that keep it
        raise RecordError(problem)


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def _check_version(value: object) -> None:
    match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", value) if isinstance(value, str) else None
    ours = int(SCHEMA_VERSION.split(".")[0])
    if match and int(match[1]) > ours:
        raise RecordError(
            f"is of version {value} of the format; this clear_mlflow reads {ours}.x: upgrade it"
        )
    if not match or int(match[1]) != ours:
        raise RecordError(f"schema.version is {shown(value)}; expected {SCHEMA_VERSION!r}")
