"""Send what a process that is gone left in its journal: by ``sync``, and before a resume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache

from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, assemble, row_index
from clear_mlflow.core.text import warn
from clear_mlflow.journal.journal import Entry, Journal, left_journals, read_origin
from clear_mlflow.journal.sender import is_final, store_entry, store_metrics
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.lease import Lease, LeaseLostError
from clear_mlflow.store.rows import (
    RowConflictError,
    is_same_row,
    is_torn,
    parse_rows,
    read_row_files,
)

# Name of a series to the steps of its points.
StoredSteps = Mapping[str, frozenset[int]]


def send_waiting(client: MlflowClient, run: Run, journal: Journal) -> Iterator[Entry]:
    """Send what waits, in order; each entry that the store has taken is removed, and yielded."""
    run_id = run.info.run_id
    entries = journal.entries()
    waiting = {(entry.artifact or "").removeprefix(f"{ROWS_FOLDER}/") for entry in entries}
    there = read_row_files(client, run, waiting=waiting)
    lease = Lease(client, run_id)
    is_acquired = False
    steps = cache(lambda: stored_steps(client, run))
    tests = cache(lambda: list_artifacts(client, run_id, ANYTIME_FOLDER))
    refused: TrackingError | None = None

    def store(entry: Entry) -> None:
        if entry.artifact is None:
            # Points of metrics follow from rows, and scoring logs those that lack. Another process
            # may have stored the same rows since, at other times: these would double its points. A
            # curve follows from nothing.
            curve = [point for point in entry.metrics() if point.key in names.CURVE]
            if points := lacking(curve, steps() if curve else {}):
                store_metrics(client, run_id, points, lease)
        # A bucket that another process trained on again has that one's tests.
        elif not entry.artifact.startswith(f"{ANYTIME_FOLDER}/") or entry.artifact not in tests():
            store_entry(client, entry, lease)

    try:
        for entry in entries:
            there |= _checked_row(entry, run_id, there)
            if not is_acquired:
                lease.acquire()
                is_acquired = True
            try:
                store(entry)
            except TrackingError as error:
                if not is_final(error) or isinstance(error, (LeaseLostError, RowConflictError)):
                    raise
                refused = refused or error  # what the store will never take holds nothing else up
                continue
            entry.remove()
            yield entry
        if refused is not None:
            raise refused
    finally:  # another process than this one may continue the run, for example in a sweep
        if is_acquired:
            with suppress(ClearError):
                lease.release()


def send_left_journals(client: MlflowClient, run: Run) -> None:
    """Send what earlier processes on this machine measured for a run and could not store.

    Raises HeldError if one of them still writes to its journal.
    """
    run_id = run.info.run_id
    for folder in left_journals(run_id):
        named = read_origin(folder).run_id
        if named != run_id:
            raise TrackingError(
                f"{folder} holds what was measured for run {named}; move it to a folder of that "
                "name, or send it: clear-mlflow sync FOLDER"
            )
        journal = Journal.take(folder, run_id)
        done = False
        try:
            for _ in send_waiting(client, run, journal):
                pass
            done = True
        finally:
            journal.close(remove=done)


def list_artifacts(client: MlflowClient, run_id: str, folder: str) -> frozenset[str]:
    """Paths of the files in a folder of a run's artifacts."""
    with mlflow_errors(f"list {folder} of run {run_id}"):
        listed = client.list_artifacts(run_id, folder)
    return frozenset(f"{folder}/{file.path.rsplit('/', 1)[-1]}" for file in listed)


def stored_steps(client: MlflowClient, run: Run) -> StoredSteps:
    """The steps at which a run holds points of its curve; one without a curve is asked nothing."""
    run_id = run.info.run_id
    found = {}
    for name in names.CURVE:
        if name in run.data.metrics:
            with mlflow_errors(f"read {name} of run {run_id}"):
                history = client.get_metric_history(run_id, name)
            found[name] = frozenset(point.step for point in history)
    return found


def lacking(points: Iterable[Metric], there: StoredSteps) -> list[Metric]:
    """Points of a curve at whose steps a run holds none: of a step, the first one stays."""
    return [point for point in points if point.step not in there.get(point.key, ())]


def _checked_row(entry: Entry, run_id: str, there: Mapping[str, bytes]) -> dict[str, bytes]:
    """Name to content of an entry that is a row, which may contradict none of *there*."""
    folder, _, name = (entry.artifact or "").rpartition("/")
    if folder != ROWS_FOLDER or row_index(name) is None:
        return {}
    row = {name: entry.file.read_bytes()}
    assemble(parse_rows(row))  # a file that was renamed is refused
    if name not in there:
        return row
    try:
        is_same = is_same_row(row[name], there[name], name)
    except RecordError as error:  # a power cut, or a store that does not flush
        if not is_torn(there[name]):
            raise
        warn(f"run {run_id}: {error}; the row that waited takes its place")
        return row
    if not is_same:
        raise RecordError(
            f"{entry.file} contradicts {name} of run {run_id}: it was measured twice; remove one "
            "of them"
        )
    return row
