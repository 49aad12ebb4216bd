"""The accuracy matrix in a tag of its run, so that a listing of runs brings the matrices.

The row artifacts are the truth; the tag is a copy, bound to its run, with their digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import RowRecord, row_file_name
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object

_FORM = 1
# MLflow cuts longer tags off without a word; such a matrix is in the artifacts alone.
_LONGEST_TAG = 8_000


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The rows of a run, and where they were read."""

    records: Mapping[str, RowRecord]  # file name to row, in row order; empty: the run holds none
    digest: str  # of the files that they were read from
    tag: str | None  # the rows as the run's matrix tag should have them; None: they do not fit
    from_tag: bool  # the contents of the artifacts were not read


def rows_digest(run_id: str, files: Mapping[str, bytes]) -> str:
    """What changes with any byte of any row file of a run, and from run to run."""
    hasher = hashlib.sha256(run_id.encode())
    for name, content in sorted(files.items()):
        hasher.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return hasher.hexdigest()[:32]


def matrix_tag(
    run_id: str, files: Mapping[str, bytes], records: Mapping[str, RowRecord]
) -> str | None:
    """Rows, by file name as content and as read, as the text of a tag; None: they do not fit."""
    documents = [json.loads(records[name].to_json()) for name in files]
    fields = list(documents[0]) if documents else []
    if not documents or any(set(document) != set(fields) for document in documents):
        return None
    shared, columns = {}, {}
    for field in fields:
        column = [document[field] for document in documents]
        if all(value == column[0] and type(value) is type(column[0]) for value in column):
            shared[field] = column[0]
        else:
            columns[field] = column
    body = {
        "files": {name: len(content) for name, content in files.items()},
        "digest": rows_digest(run_id, files),
        "shared": shared,
        "columns": columns,
    }
    text = _compact({"form": _FORM, "check": _checksum(run_id, body), **body})
    return text if len(text) <= _LONGEST_TAG else None


def read_matrix_tag(run_id: str, text: str | None) -> StoredRows | None:
    """What a run's tag says; None where it is not there, damaged, or of another run or form."""
    if text is None:
        return None
    try:
        body = _body(run_id, text)
        if body is None:
            return None
        records = {}
        for position, name in enumerate(body["files"]):
            row = {field: column[position] for field, column in body["columns"].items()}
            record = RowRecord.from_json(_compact({**body["shared"], **row}), source=name)
            if name != row_file_name(record.row.row):
                return None
            records[name] = record
        return StoredRows(records, body["digest"], text, True)
    # Anything else in it is no tag of ours, and the artifacts are read.
    except (LookupError, TypeError, AttributeError, RecordError):
        return None


def tagged_rows(run_id: str, text: str | None) -> frozenset[str]:
    """Names of the row files that a run's tag was made of; none where it is no tag of that run."""
    try:
        body = None if text is None else _body(run_id, text)
        return frozenset() if body is None else frozenset(body["files"])
    except (LookupError, TypeError, AttributeError, RecordError):
        return frozenset()


def _body(run_id: str, text: str) -> dict[str, Any] | None:
    """The content of a tag; None of one that was changed, or made for another run or form."""
    body = json_object(text, MAX_TAG_BYTES)
    form, check = body.pop("form"), body.pop("check")
    return body if form == _FORM and check == _checksum(run_id, body) else None


def _checksum(run_id: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{run_id}\0{_compact(body)}".encode()).hexdigest()[:16]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
