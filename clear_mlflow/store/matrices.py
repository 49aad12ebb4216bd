"""The matrices of many runs, the quick way: from a listing alone, where that can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.record import Record, assemble
from clear_mlflow.metrics import METRICS, Metric, summarize
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import is_local
from clear_mlflow.store.matrix_tag import StoredRows, matrix_tag, read_matrix_tag, rows_digest
from clear_mlflow.store.pool import mapped
from clear_mlflow.store.rows import parse_rows, read_row_files

# Requests under way at once where rows have to be fetched: a server answers no faster to more.
_JOBS = 8
NO_ROWS = "holds no rows of an accuracy matrix"


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """What a run holds, as far as it can be read."""

    run: Run
    record: Record | None  # None: there is a problem
    summary: Mapping[str, float]  # every metric asked for that the record defines
    problem: str | None  # one line: why there is no record; NO_ROWS where the run holds none
    from_tag: bool  # read from the run's tag, not from its row artifacts


def read_matrices(
    client: MlflowClient,
    runs: Iterable[Run],
    *,
    metrics: Sequence[Metric] = METRICS,
    read_files: bool | None = None,
) -> Iterator[StoredMatrix]:
    """Read the matrix of each run, in the order of the runs; one that cannot be read says why."""
    yield from mapped(partial(_read_matrix, client, read_files, metrics), runs, _JOBS)


def stored_rows_of(client: MlflowClient, run: Run, *, read_files: bool | None = None) -> StoredRows:
    """The rows of a run, from its artifacts or, where all rows are in it, from its tag."""
    run_id = run.info.run_id
    tag = run.data.tags.get(names.MATRIX_TAG)
    # Files of this machine's disk are read, unless somebody asks for the tag.
    if not (is_local(run.info.artifact_uri) if read_files is None else read_files):
        packed = read_matrix_tag(run_id, tag)
        records = parse_rows(packed)
        if packed and assemble(records).is_complete:
            return StoredRows(records, rows_digest(run_id, packed), tag, True)
    files = read_row_files(client, run)
    return StoredRows(
        parse_rows(files), rows_digest(run_id, files), matrix_tag(run_id, files), False
    )


def _read_matrix(
    client: MlflowClient, read_files: bool | None, metrics: Sequence[Metric], run: Run
) -> StoredMatrix:
    record: Record | None = None
    summary: Mapping[str, float] = {}
    problem: str | None = None
    from_tag = False
    try:
        rows = stored_rows_of(client, run, read_files=read_files)
        from_tag = rows.from_tag
        if rows.records:
            assembled = assemble(rows.records)
            summary = summarize(assembled.matrix, assembled.protocol, metrics)
            record = assembled
        else:
            problem = NO_ROWS
    except ClearError as error:
        problem = str(error)
    return StoredMatrix(run, record, summary, problem, from_tag)
