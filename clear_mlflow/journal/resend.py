"""Send what a process that is gone left in its journal: by ``sync``, and before a resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.record import ROWS_FOLDER, assemble, row_index
from clear_mlflow.core.warning import warn
from clear_mlflow.journal.sender import store_entry, store_metrics
from clear_mlflow.journal.spool import Entry, Spool
from clear_mlflow.journal.stored_points import StoredSteps, lacking, stored_steps
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.heartbeat import Hold, give_back, take_hold
from clear_mlflow.store.rows import is_same_row, parse_rows, read_row_files


def send_waiting(client: MlflowClient, run: Run, spool: Spool) -> Iterator[Entry]:
    """Send what waits, in order; each entry that the store has taken is removed, and yielded.

    Args:
        client: the store.
        run: that the journal is of.
        spool: the journal; nothing in it is trusted, since anyone may have written it.

    Raises:
        RecordError: a row is damaged, or contradicts the one that is there.
        TrackingError: an entry is none, or the store does not take it.
    """
    run_id = run.info.run_id
    entries = list(spool.entries())
    waiting = {(entry.artifact or "").removeprefix(f"{ROWS_FOLDER}/") for entry in entries}
    there = read_row_files(client, run, waiting=waiting)
    hold = Hold(client)
    steps: StoredSteps | None = None
    tests: frozenset[str] | None = None
    try:
        for number, entry in enumerate(entries):
            there |= _checked_row(entry, run_id, there)
            if number == 0:
                with mlflow_errors(f"take run {run_id}"):
                    take_hold(client, run)
            if entry.artifact is None:
                # Points of metrics follow from rows, and scoring logs those that lack. Another
                # process may have stored the same rows since, at other times: these would double
                # its points. A curve follows from nothing.
                curve = [point for point in entry.metrics() if point.key in names.CURVE]
                if curve and steps is None:
                    steps = stored_steps(client, run)
                if points := lacking(curve, steps or {}):
                    store_metrics(client, run_id, points, hold)
            elif entry.artifact.startswith(f"{ANYTIME_FOLDER}/"):
                # A bucket that another process trained on again has that one's tests.
                if tests is None:
                    tests = _stored_tests(client, run)
                if entry.artifact not in tests:
                    store_entry(client, entry, hold)
            else:
                store_entry(client, entry, hold)
            entry.remove()
            yield entry
    except ClearError:
        with suppress(ClearError), mlflow_errors(f"give run {run_id} back"):
            give_back(client, run)
        raise


def _stored_tests(client: MlflowClient, run: Run) -> frozenset[str]:
    """Paths of the tests inside buckets that a run holds."""
    run_id = run.info.run_id
    with mlflow_errors(f"list {ANYTIME_FOLDER} of run {run_id}"):
        listed = client.list_artifacts(run_id, ANYTIME_FOLDER)
    return frozenset(f"{ANYTIME_FOLDER}/{file.path.rsplit('/', 1)[-1]}" for file in listed)


def _checked_row(entry: Entry, run_id: str, there: Mapping[str, bytes]) -> dict[str, bytes]:
    """Make sure that an entry, if it is a row, is a whole one and says nothing new of an old one.

    Args:
        entry: of any kind.
        run_id: of the run.
        there: the rows that the run holds, by file name.

    Returns:
        File name to content of the row; empty where it is none.
    """
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
        warn(f"run {run_id}: {error}; the row that waited takes its place")
        return row
    if not is_same:
        raise RecordError(
            f"{entry.file} contradicts {name} of run {run_id}: it was measured twice; remove one "
            "of them"
        )
    return row
