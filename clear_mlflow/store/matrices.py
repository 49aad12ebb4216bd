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
from clear_mlflow.store.client import map_in_threads
from clear_mlflow.store.rows import load_stored_rows

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
    yield from map_in_threads(partial(_read_matrix, client, read_files, metrics), runs, _JOBS)


def _read_matrix(
    client: MlflowClient, read_files: bool | None, metrics: Sequence[Metric], run: Run
) -> StoredMatrix:
    record: Record | None = None
    summary: Mapping[str, float] = {}
    problem: str | None = None
    from_tag = False
    try:
        rows = load_stored_rows(client, run, read_files=read_files)
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
