"""Rows of the accuracy matrix as artifacts of an MLflow run: write one, read all."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.durable import create_durably
from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, RowRecord, assemble, row_index
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    MAX_RESULTS_BYTES,
    MAX_ROW_BYTES,
    json_object,
    json_texts,
    read_bytes,
)
from clear_mlflow.store.artifacts import ArtifactFolder, is_local, log_durably
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.names import (
    KIND_TAG,
    KIND_TRAIN,
    MATRIX_TAG,
    ROWS_TAG,
    SCORED_TAG,
    is_bucket_series,
)

# MLflow cuts longer tags off without a word; such a matrix is in the artifacts alone.
_LONGEST_TAG = 8_000


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The rows of a run, and where they were read."""

    records: Mapping[str, RowRecord]  # file name to row, in row order; empty: the run holds none
    digest: str  # of the files that they were read from
    tag: str | None  # the rows as the run's matrix tag should have them; None: they do not fit
    from_tag: bool  # the contents of the artifacts were not read


def hash_rows(run_id: str, files: Mapping[str, bytes]) -> str:
    """What changes with any byte of any row file of a run, and from run to run."""
    hasher = hashlib.sha256(run_id.encode())
    for name, content in sorted(files.items()):
        hasher.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return hasher.hexdigest()[:32]


def pack_matrix_tag(run_id: str, files: Mapping[str, bytes]) -> str | None:
    """Row files, by name, as the text of a tag; None: there are none, or they do not fit."""
    content = json.dumps({name: file.decode() for name, file in files.items()}).encode()
    text = hash_rows(run_id, files) + base64.b64encode(zlib.compress(content, 9)).decode()
    return text if files and len(text) <= _LONGEST_TAG else None


def read_matrix_tag(run_id: str, text: str | None) -> dict[str, bytes]:
    """The row files in a run's tag; none where it is not there, damaged, or of another run."""
    digest, packed = (text or "")[:32], (text or "")[32:]
    try:
        content = zlib.decompressobj().decompress(
            base64.b64decode(packed, validate=True), MAX_RESULTS_BYTES
        )
        found = json_texts(content, MAX_RESULTS_BYTES)
    except (ValueError, zlib.error, RecordError):
        return {}
    files = {name: file.encode() for name, file in found.items()}
    return files if digest == hash_rows(run_id, files) else {}


class RowConflictError(TrackingError):
    """A row is stored already, and says something else; a stored row is never overwritten."""


def store_row(client: MlflowClient, run: Run, name: str, content: bytes) -> None:
    """Store a row's file, unless the row is stored; replaces only a torn file.

    Raises RowConflictError if the stored row has other numbers, or is of a newer format.
    """
    run_id = run.info.run_id
    with mlflow_errors(f"store {name} of run {run_id}"):
        try:
            stored = _put_or_read(client, run, name, content)
            if stored is not None and is_torn_row(stored):
                log_durably(client, run_id, content, f"{ROWS_FOLDER}/{name}")
                return
            if stored is None or is_same_row(stored, content, name):
                return
            problem = "with other numbers"
        except RecordError as error:
            problem = f"and cannot be compared ({error})"
    raise RowConflictError(f"{name} of run {run_id} is stored already {problem}; it stays as it is")


def is_torn_row(content: bytes) -> bool:
    """Return True if a row's file is not JSON: a power cut left a part of it."""
    try:
        json_object(content, MAX_ROW_BYTES)
    except RecordError:
        return True
    return False


def _put_or_read(client: MlflowClient, run: Run, name: str, content: bytes) -> bytes | None:
    """Store a file where none is of its name; else give what is there."""
    rows = ArtifactFolder(client, run, ROWS_FOLDER)
    if rows.local is not None:
        return None if create_durably(rows.local / name, content) else _content(rows.local / name)
    if name not in rows.list_sizes():
        log_durably(client, run.info.run_id, content, f"{ROWS_FOLDER}/{name}")
        return None
    with rows.open_scratch() as scratch:
        return _content(rows.fetch_file(name, scratch))


def is_same_row(one: bytes, other: bytes, name: str) -> bool:
    """Whether two row files say the same, whenever they were written."""
    (first,), (second,) = parse_rows({name: one}).values(), parse_rows({name: other}).values()
    return first.row == second.row and first.dataset == second.dataset


def list_row_sizes(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """Names of the row files that a run holds, in row order, and their bytes where known."""
    with mlflow_errors(f"list the rows of run {run.info.run_id}"):
        found = _checked(ArtifactFolder(client, run, ROWS_FOLDER).list_sizes())
    _refuse_lost_rows(run, found)
    return found


def check_has_no_rows(client: MlflowClient, run: Run) -> None:
    """Make sure that a run to be trained into holds no row yet."""
    if rows := list(list_row_sizes(client, run)):
        raise TrackingError(
            f"run {run.info.run_id} already holds {len(rows)} rows ({rows[0]} to {rows[-1]}); "
            "training into it again would contradict them: start a new run"
        )


def read_row_files(
    client: MlflowClient, run: Run, *, waiting: Collection[str] | None = ()
) -> dict[str, bytes]:
    """Every row file of a run, in row order; *waiting* ones may be absent (None: any may be)."""
    rows, files = ArtifactFolder(client, run, ROWS_FOLDER), {}
    with mlflow_errors(f"list the rows of run {run.info.run_id}"):
        names = _checked(rows.list_sizes())
    with rows.open_scratch() as scratch:
        for name in names:
            with mlflow_errors(f"read {name} of run {run.info.run_id}"):
                files[name] = _content(rows.fetch_file(name, scratch))
    if waiting is not None:
        _refuse_lost_rows(run, {*files, *waiting})
    return files


def parse_rows(files: Mapping[str, bytes]) -> dict[str, RowRecord]:
    """What row files, by name, say; nothing about them is trusted."""
    return {name: RowRecord.from_json(content, source=name) for name, content in files.items()}


def read_rows(client: MlflowClient, run: Run) -> dict[str, RowRecord]:
    """All rows of a run from its artifact store, by file name in row order."""
    return parse_rows(read_row_files(client, run))


def build_missing_rows_error(run: Run, what: str) -> RecordError:
    """The refusal of a run whose artifacts lack something, as ``row_003.json``."""
    return RecordError(
        f"run {run.info.run_id} was stored with rows that its artifacts lack now ({what} in "
        f"{safe_repr(str(run.info.artifact_uri), 200)}): is a disk not mounted, or another "
        "artifact store in its place? nothing was written; when it is back, run the same command "
        "again"
    )


def _refuse_lost_rows(run: Run, found: Collection[str]) -> None:
    """Refuse an artifact folder that lacks rows of which the tracking store knows."""
    tags = run.data.tags
    tagged = read_matrix_tag(run.info.run_id, tags.get(MATRIX_TAG))
    if lost := sorted(set(tagged) - set(found)):
        raise build_missing_rows_error(
            run, lost[0] if len(lost) == 1 else f"{lost[0]} to {lost[-1]}"
        )
    was_scored = SCORED_TAG in tags or tags.get(ROWS_TAG) in ("complete", "partial")
    is_training = tags.get(KIND_TAG) == KIND_TRAIN
    has_points = is_training and any(map(is_bucket_series, run.data.metrics))
    if not found and (was_scored or has_points):
        raise build_missing_rows_error(run, "no row file is")


def _content(path: Path) -> bytes:
    """A file's bytes, no more than a row has, whatever a store said of its size."""
    try:
        return read_bytes(path, MAX_ROW_BYTES)
    except RecordError as error:
        raise RecordError(f"{path.name} {error}; expected a row") from error


def _checked(sizes: Mapping[str, int | None]) -> dict[str, int | None]:
    """The row files among files, in row order, once it is sure that each may be read."""
    rows = {}
    for name, size in sizes.items():
        index = row_index(name)
        if index is None:
            continue
        if size is not None and size > MAX_ROW_BYTES:
            raise RecordError(f"{name} has {size} bytes; a row has at most 1 MiB")
        rows[name] = index
    return {name: sizes[name] for name in sorted(rows, key=rows.__getitem__)}


def load_stored_rows(
    client: MlflowClient, run: Run, *, read_files: bool | None = None
) -> StoredRows:
    """The rows of a run, from its artifacts or, where all rows are in it, from its tag."""
    run_id = run.info.run_id
    tag = run.data.tags.get(MATRIX_TAG)
    # Files of this machine's disk are read, unless somebody asks for the tag.
    if not (is_local(run.info.artifact_uri) if read_files is None else read_files):
        packed = read_matrix_tag(run_id, tag)
        records = parse_rows(packed)
        if packed and assemble(records).is_complete:
            return StoredRows(records, hash_rows(run_id, packed), tag, True)
    files = read_row_files(client, run)
    return StoredRows(
        parse_rows(files), hash_rows(run_id, files), pack_matrix_tag(run_id, files), False
    )
