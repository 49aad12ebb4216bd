"""Rows of the accuracy matrix in an MLflow run: one artifact each, and a copy of all in a tag."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, Record, RowRecord, assemble, parse_row_index
from clear_mlflow.core.text import format_count, safe_repr, warn
from clear_mlflow.core.untrusted import (
    MAX_RESULTS_BYTES,
    MAX_ROW_BYTES,
    parse_json_object,
    parse_json_texts,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder, is_local
from clear_mlflow.store.client import map_in_threads, mlflow_errors

# MLflow truncates longer tags silently; such a matrix is only in the artifacts.
_MAX_TAG_LENGTH = 8_000
# Threads that fetch rows; a server does not answer more of them faster.
_NUM_THREADS = 8
NO_ROWS = "contains no rows of an accuracy matrix"


class RowConflictError(TrackingError):
    """A row is stored with other numbers, which are never overwritten."""


def hash_rows(run_id: str, files: Mapping[str, bytes]) -> str:
    """Hash a run's id and its row files."""
    hasher = hashlib.sha256(run_id.encode())
    for name, content in sorted(files.items()):
        hasher.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return hasher.hexdigest()[:32]


def pack_matrix_tag(run_id: str, files: Mapping[str, bytes]) -> str | None:
    """Compress row files into a tag's value, or return None.

    Returns None without files, or if the value has more than 8,000 characters.
    """
    content = json.dumps({name: file.decode() for name, file in files.items()}).encode()
    value = hash_rows(run_id, files) + base64.b64encode(zlib.compress(content, 9)).decode()
    return value if files and len(value) <= _MAX_TAG_LENGTH else None


def unpack_matrix_tag(run_id: str, value: str | None) -> dict[str, bytes]:
    """Unpack the row files in a tag's value, {} if invalid.

    Returns {} if *value* is None, damaged, or was copied from another run.
    """
    digest, packed = (value or "")[:32], (value or "")[32:]
    try:
        content = zlib.decompressobj().decompress(
            base64.b64decode(packed, validate=True), MAX_RESULTS_BYTES
        )
        text_by_name = parse_json_texts(content, MAX_RESULTS_BYTES)
    except (ValueError, zlib.error, RecordError):
        return {}
    files = {name: text.encode() for name, text in text_by_name.items()}
    return files if digest == hash_rows(run_id, files) else {}


def store_row(client: MlflowClient, run: Run, name: str, content: bytes) -> None:
    """Store a row's file, or raise RowConflictError over other numbers.

    A stored file that a power cut truncated is replaced, with a warning. Raises RowConflictError if
    the stored row has other numbers or cannot be parsed, for example in a newer format.
    name: file name, such as ``row_003.json``.
    """
    run_id = run.info.run_id
    with mlflow_errors(f"store {name} of run {run_id}"):
        try:
            folder = ArtifactFolder(client, run, ROWS_FOLDER)
            if folder.create_file(name, content):
                return
            stored = folder.read_files([name], MAX_ROW_BYTES)[name]
            if is_truncated_row(stored):
                warn(f"{name} of run {run_id} was cut off; it is stored again")
                folder.write_file(name, content)
                return
            if is_same_row(stored, content, name):
                return
            problem = "with other numbers"
        except RecordError as error:
            problem = f"and cannot be compared ({error})"
    raise RowConflictError(f"{name} of run {run_id} is stored already {problem}; it is kept")


def is_truncated_row(content: bytes) -> bool:
    """Return True if a row file is cut off and not JSON."""
    try:
        parse_json_object(content, MAX_ROW_BYTES)
    except RecordError:
        return True
    return False


def is_same_row(content: bytes, other_content: bytes, name: str) -> bool:
    """Return True if row files have equal numbers and dataset.

    Times may differ.

    name: their file name, for the RecordError that is raised if one is invalid.
    """
    row, other_row = (RowRecord.from_json(c, source=name) for c in (content, other_content))
    return row.row == other_row.row and row.dataset == other_row.dataset


def list_row_sizes(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """List the sizes of row files in order, or raise RecordError.

    Maps file names to bytes, or None if unknown. Raises RecordError if a row file is too large, or
    missing although the run's tags name it.
    """
    sizes = ArtifactFolder(client, run, ROWS_FOLDER).list_numbered(parse_row_index, MAX_ROW_BYTES)
    _check_for_missing_rows(run, sizes)
    return sizes


def check_has_no_rows(client: MlflowClient, run: Run) -> None:
    """Raise TrackingError if a run has rows, which training could contradict.

    Raises RecordError like :func:`list_row_sizes`.
    """
    if rows := list(list_row_sizes(client, run)):
        raise TrackingError(
            f"run {run.info.run_id} already contains {format_count(len(rows), 'row')} "
            f"({rows[0]} to {rows[-1]}); training into it again would contradict them: start a new "
            "run"
        )


def read_row_files(
    client: MlflowClient, run: Run, *, may_be_missing: Collection[str] | None = ()
) -> dict[str, bytes]:
    """Read a run's row files in order, and return contents by name.

    Returns {} for a run without rows. may_be_missing: names of files that need not exist, or None
    if no file needs to. Raises RecordError if another row file is missing although the run's tags
    name it, or one is too large.
    """
    folder = ArtifactFolder(client, run, ROWS_FOLDER)
    files = folder.read_files(folder.list_numbered(parse_row_index, MAX_ROW_BYTES), MAX_ROW_BYTES)
    if may_be_missing is not None:
        _check_for_missing_rows(run, {*files, *may_be_missing})
    return files


def parse_rows(files: Mapping[str, bytes]) -> dict[str, RowRecord]:
    """Parse row files by name, or raise RecordError."""
    return {name: RowRecord.from_json(content, source=name) for name, content in files.items()}


def read_rows(client: MlflowClient, run: Run) -> dict[str, RowRecord]:
    """Read and parse all row files of a run."""
    return parse_rows(read_row_files(client, run))


def build_missing_rows_error(run: Run, missing: str) -> RecordError:
    """Build the error for a run without artifacts *missing*, such as ``row_003.json``."""
    return RecordError(
        f"stored rows of run {run.info.run_id} are missing from its artifacts ({missing} in "
        f"{safe_repr(str(run.info.artifact_uri), 200)}): is a disk not mounted, or another "
        "artifact store used? nothing was written; run the same command again when they are back"
    )


def _check_for_missing_rows(run: Run, row_files: Collection[str]) -> None:
    tags = run.data.tags
    tagged = unpack_matrix_tag(run.info.run_id, tags.get(names.MATRIX_TAG))
    if missing := sorted(set(tagged) - set(row_files)):
        missing_rows = missing[0] if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
        raise build_missing_rows_error(run, missing_rows)
    was_scored = names.SCORED_TAG in tags or tags.get(names.ROWS_TAG) in ("complete", "partial")
    is_training = tags.get(names.KIND_TAG) == names.KIND_TRAIN
    has_points = is_training and any(map(names.is_bucket_series, run.data.metrics))
    if not row_files and (was_scored or has_points):
        raise build_missing_rows_error(run, "all row files")


def load_stored_rows(
    client: MlflowClient, run: Run, *, read_files: bool | None = None
) -> tuple[Mapping[str, bytes], Mapping[str, RowRecord]]:
    """Load a run's rows from its matrix tag or its artifacts.

    Returns file name to content and file name to row, in row order; empty if there are none.

    read_files: False reads the tag if it contains rows of all buckets, else the artifacts; True
    always reads artifacts; None means True if they are on this machine, else False. Raises
    RecordError if a row is damaged, or missing from the artifacts although the tags name it.
    """
    if not (is_local(run.info.artifact_uri) if read_files is None else read_files):
        packed = unpack_matrix_tag(run.info.run_id, run.data.tags.get(names.MATRIX_TAG))
        records = parse_rows(packed)
        if packed and assemble(records).is_complete:
            return packed, records
    files = read_row_files(client, run)
    return files, parse_rows(files)


def read_records(
    client: MlflowClient, runs: Iterable[Run], *, read_files: bool | None = None
) -> Iterator[Record | ClearError | None]:
    """Read runs in order, yielding each matrix with metadata, error or None.

    A run without rows yields None, and one that cannot be read its error. Reads with several
    threads. read_files: see :func:`load_stored_rows`.
    """

    def read_record(run: Run) -> Record | ClearError | None:
        try:
            _, rows = load_stored_rows(client, run, read_files=read_files)
            return assemble(rows) if rows else None
        except ClearError as error:
            return error

    yield from map_in_threads(read_record, runs, _NUM_THREADS)
