"""Upload the entries of run folders to MLflow, in order: during training, by ``sync``, on a resume.

During training a thread uploads. While the store cannot be reached, entries stay on disk and
training continues.
"""

from __future__ import annotations

import math
import os
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import cache

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, assemble
from clear_mlflow.core.text import warn
from clear_mlflow.journal.run_folder import (
    METRICS_JSON,
    PARAMS_JSON,
    TAGS_JSON,
    Entry,
    Outcome,
    RunFolder,
    find_run_folders,
    read_header,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.lease import Lease, LeaseLostError
from clear_mlflow.store.rows import RowConflictError, parse_rows, read_row_files, store_row

# Metric name to the steps at which a run has points of it.
CurveSteps = Mapping[str, frozenset[int]]
EXIT_WAIT_VARIABLE = "CLEAR_MLFLOW_EXIT_WAIT"
_EXIT_WAIT_SECONDS, _MAX_EXIT_WAIT_SECONDS = 60.0, 86_400.0
_WAIT_SECONDS = 5.0  # for one row; a healthy store takes it in a tenth of a second
_HURRIED_WAIT_SECONDS = 2.0  # at the end, after Ctrl-C
_FIRST_PAUSE_SECONDS = 0.5  # between tries; doubles with each try
_MAX_PAUSE_SECONDS = 15.0
_MAX_LAST_PAUSE_SECONDS = 1.0  # once training has ended
_JOIN_SECONDS = 1.0
# HTTP statuses below 500 that mean "try again later".
_RETRY_STATUSES = (408, 425, 429)


class UnsentError(TrackingError):
    """Training is over, and some of what it measured is only on local disk."""


class Uploader:
    """Uploads files of one run to MLflow in order, in a thread or in the calling thread.

    Before every upload, it checks that this process still has the run's lease, the right to write
    to the run. An upload may be repeated: it changes nothing then.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self.lease = Lease(client, run_id)  # it may not be acquired yet; nothing is sent once lost
        self.problem: TrackingError | None = None  # why the last upload failed; None if it did not
        self._changed = threading.Condition()
        self._queue: deque[Entry | Callable[[], None]] = deque()
        self._refused: list[Entry] = []  # tried once more at the end
        self._has_warned = False
        self._is_finishing = False
        self._is_stopped = False
        self._last_progress, self._max_wait = 0.0, math.inf
        # A daemon, since a call that hangs must not keep the process: its entry is on the disk.
        self._thread = threading.Thread(target=self._work, name="clear_mlflow upload", daemon=True)

    @property
    def is_failing(self) -> bool:
        """True if the store did not take the last file that was sent."""
        return self.problem is not None

    def start(self) -> None:
        """Start the thread that uploads."""
        self._thread.start()

    def enqueue(self, *items: Entry | Callable[[], None]) -> None:
        """Have the thread upload files, or call functions, after all earlier items.

        A function is called once; if it raises TrackingError, that is printed as a warning.
        """
        with self._changed:
            self._queue.extend(items)
            self._changed.notify_all()

    def wait_until_stored(self, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until all items are uploaded, at most *seconds*. Returns at once while uploads fail.

        After the time limit, it prints a warning, and later calls return at once until an upload
        has succeeded. Raises LeaseLostError if another process has taken over the run.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self.is_failing, seconds)
            if self._queue and not self.is_failing:
                # Later rows do not wait, until the store has taken something again.
                entry = next((item for item in self._queue if isinstance(item, Entry)), None)
                name = "the training state" if entry is None else entry.name
                error = TrackingError(f"the tracking store has not taken {name} so far")
                self._report_failure(error, entry)
        if self.lease.error is not None:
            raise self.lease.error

    def finish(self, seconds: float) -> None:
        """Upload what is left and stop the thread.

        seconds: gives up when no upload has succeeded for so long. Gives up at once if another
        process has taken over a run. Raises nothing: :meth:`build_unsent_error` reports what was
        not uploaded.
        """
        with self._changed:
            self._is_finishing = True
            self._queue.extend(self._refused)
            self._refused.clear()
            self._last_progress = time.monotonic()
            self._changed.notify_all()
            while self._queue and self.lease.error is None and self._thread.is_alive():
                deadline = self._last_progress + min(seconds, self._max_wait)
                if (remaining := deadline - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(remaining, _HURRIED_WAIT_SECONDS))  # hurry() notifies nobody
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def hurry(self) -> None:
        """Shorten the time limit of :meth:`finish` to 2 seconds. Safe in a signal handler."""
        self._max_wait = _HURRIED_WAIT_SECONDS

    def list_unsent(self) -> list[Entry]:
        """Return the enqueued files that the store does not have."""
        with self._changed:
            return [item for item in (*self._queue, *self._refused) if isinstance(item, Entry)]

    def build_unsent_error(self) -> UnsentError | None:
        """Return the error that names the files not uploaded and how to upload them, or None."""
        unsent = self.list_unsent()
        if not unsent:
            return None
        folders = sorted({entry.file.parent for entry in unsent})
        reason = f" ({self.problem})" if self.problem else ""
        commands = " and ".join(f"'clear-mlflow sync {shlex.quote(str(path))}'" for path in folders)
        return UnsentError(
            f"the tracking store did not take {len(unsent)} files of rows and metrics{reason}; "
            f"they are in {' and '.join(map(str, folders))}: send them with {commands}"
        )

    def upload(self, entry: Entry) -> None:
        """Upload one file. A row that is stored with the same numbers is left as it is.

        Raises:
            LeaseLostError: another process has taken over the run.
            RowConflictError: the row is stored with other numbers.
            TrackingError: the store does not take the file.
        """
        run_id, name = self._run_id, entry.name
        run = self.lease.check()
        with mlflow_errors(f"store {name} of run {run_id}"):
            if name == METRICS_JSON:
                self._client.log_batch(run_id, metrics=entry.read_metrics())
            elif name == TAGS_JSON:
                log_tags(self._client, run_id, entry.read())
            elif name == PARAMS_JSON:
                params = [Param(*item) for item in entry.read().items()]
                self._client.log_batch(run_id, params=params)
            elif name.startswith(f"{ROWS_FOLDER}/"):
                row_file = name.removeprefix(f"{ROWS_FOLDER}/")
                store_row(self._client, run, row_file, entry.read())
            else:
                log_durably(self._client, run_id, entry.read(), name)

    def upload_folder(self, run: Run, folder: RunFolder) -> Iterator[Entry]:
        """Upload what an earlier process left. Delete and yield each file once it is stored.

        Acquires the run's lease, and keeps it unless this fails. The final status of the run is not
        uploaded. A file that the store rejects is kept, and the error is raised at the end.

        Raises:
            RecordError: a row is damaged, or rows that the run once had are missing.
            RowConflictError: a row is stored with other numbers. Later files are kept, too.
            TrackingError: the store does not take a file.
        """
        entries = folder.list_entries()
        rows = {
            entry.name: entry.name.rpartition("/")[2]
            for entry in entries
            if entry.name.startswith(f"{ROWS_FOLDER}/")
        }
        # Raises if other rows are missing.
        read_row_files(self._client, run, may_be_missing=rows.values())
        read_steps = cache(lambda: read_curve_steps(self._client, run))
        list_tests = cache(lambda: list_artifacts(self._client, self._run_id, ANYTIME_FOLDER))
        refusal: TrackingError | None = None
        try:
            for number, entry in enumerate(entries):
                if entry.name in rows:
                    assemble(parse_rows({rows[entry.name]: entry.read()}))  # raises if damaged
                if number == 0:
                    self.lease.acquire()
                try:
                    if entry.name == METRICS_JSON:
                        self._upload_curve(entry, read_steps())
                    # If another process trained on a bucket again, the tests of that process stay.
                    elif not entry.name.startswith(f"{ANYTIME_FOLDER}/") or (
                        entry.name not in list_tests()
                    ):
                        self.upload(entry)
                except RowConflictError as error:
                    raise RowConflictError(
                        f"{error}; {entry.file} was measured again: remove that file if the stored "
                        "row is right"
                    ) from error
                except TrackingError as error:
                    if not is_permanent_error(error) or isinstance(error, LeaseLostError):
                        raise
                    refusal = refusal or error
                    continue
                entry.remove()
                yield entry
            if refusal is not None:
                raise refusal
        except ClearError:
            with suppress(ClearError):
                self.lease.release()
            raise

    def _upload_curve(self, entry: Entry, steps: CurveSteps) -> None:
        """Upload values of the training curve from a metrics.json, except at stored *steps*.

        Other metrics are computed from rows: scoring logs those that are missing. If another
        process has stored the same rows since, these values have other times and would be
        duplicates.
        """
        curve = [point for point in entry.read_metrics() if point.key in names.CURVE]
        if points := drop_stored_points(curve, steps):
            self.lease.check()
            with mlflow_errors(f"store metrics of run {self._run_id}"):
                self._client.log_batch(self._run_id, metrics=points)

    def _work(self) -> None:
        """Upload enqueued items until the uploader is stopped. Retry after a pause."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_stopped)
                if self._is_stopped:
                    return
                item = self._queue[0]
            entry = item if isinstance(item, Entry) else None
            error: TrackingError | None = None
            try:
                if isinstance(item, Entry):
                    self.upload(item)
                else:
                    item()
            except TrackingError as upload_error:
                error = upload_error
            with self._changed:
                if error is None:
                    self._remove_first(entry)
                    pause = _FIRST_PAUSE_SECONDS
                elif isinstance(error, LeaseLostError):
                    self.problem = error
                    self._changed.notify_all()
                    return
                elif entry is None or is_permanent_error(error):
                    self._set_aside(error, entry)
                elif not self._is_stopped:
                    self._report_failure(error, entry)
                    longest = _MAX_LAST_PAUSE_SECONDS if self._is_finishing else _MAX_PAUSE_SECONDS
                    pause = min(2 * pause, longest)
                    self._wait_to_retry(pause)

    def _remove_first(self, entry: Entry | None) -> None:
        """Remove the first item, which is done. entry: its file, which is deleted, or None."""
        if entry is not None:
            entry.remove()
            self.problem = None
        self._queue.popleft()
        self._last_progress = time.monotonic()
        if self._has_warned and not self._queue:
            warn("the tracking store is back; what waited is stored")
            self._has_warned = False
        self._changed.notify_all()

    def _set_aside(self, error: TrackingError, entry: Entry | None) -> None:
        """Skip the first item: a file that was rejected or a function that failed. Print *error*.

        A rejected file is uploaded once more at the end. entry: the file, or None for a function.
        """
        self._queue.popleft()
        self._refused += filter(None, [entry])
        self.problem = error
        warn(f"{error}; it is kept in {entry.file.parent}" if entry else str(error))
        self._changed.notify_all()

    def _wait_to_retry(self, seconds: float) -> None:
        """Wait between two tries, but not beyond the call or the end of :meth:`finish`."""
        was_finishing = self._is_finishing
        self._changed.wait_for(
            lambda: self._is_stopped or self._is_finishing != was_finishing, seconds
        )

    def _report_failure(self, error: TrackingError, entry: Entry | None) -> None:
        """Remember *error*, and print it unless uploads failed before and that was printed."""
        self.problem = error
        if not self._has_warned:
            location = "on local disk" if entry is None else f"in {entry.file.parent}"
            warn(
                f"{error}; training continues; what is measured is kept {location} and sent when "
                "the store takes it"
            )
            self._has_warned = True
        self._changed.notify_all()


def upload_left_folders(client: MlflowClient, run: Run) -> None:
    """Upload what earlier processes on this machine left of a run, and delete their folders.

    Does not set the final status of the run. Releases the run's lease afterwards, since another
    process may continue the run.

    Raises:
        FolderLockedError: one of these processes is still alive.
        RecordError, TrackingError: as :meth:`Uploader.upload_folder`.
    """
    run_id = run.info.run_id
    for path in find_run_folders(run_id):
        header_run_id = read_header(path).run_id
        if header_run_id != run_id:
            raise TrackingError(
                f"{path} contains what was measured for run {header_run_id}; move it to a folder "
                "of that name, or send it: clear-mlflow sync FOLDER"
            )
        with closing(RunFolder.reopen(path)) as folder:
            uploader = Uploader(client, run_id)
            for _ in uploader.upload_folder(run, folder):
                pass
            uploader.lease.release()
            folder.close(remove=True)


def store_outcome(
    client: MlflowClient,
    run_id: str,
    outcome: Outcome,
    *,
    check: Callable[[Run], object] | None = None,
) -> Run:
    """Set the final status and error of a run in the store, and return the run.

    Deletes the tag of the process that trained it, and an outdated error of a run that is FINISHED
    now. A status of None leaves the status as it is.

    check: function that is called first, with the stored run, and may raise.
    """
    with mlflow_errors(f"close run {run_id}"):
        if check is not None:
            check(client.get_run(run_id))
        if outcome.error:
            client.set_tag(run_id, names.ERROR_TAG, outcome.error[:8000])
        if outcome.diverged:
            client.set_tag(run_id, names.DIVERGED_TAG, "true")
        # The status before the process: while a run is RUNNING, its process has to be known.
        active = mlflow.active_run()
        if outcome.status is not None and active is not None and active.info.run_id == run_id:
            mlflow.end_run(outcome.status)
        elif outcome.status is not None:
            client.set_terminated(run_id, outcome.status)
        run = client.get_run(run_id)
        outdated = {names.PROCESS_TAG}
        if outcome.status == "FINISHED" and not outcome.error:
            outdated.add(names.ERROR_TAG)  # evaluate found the process gone, and it came back
        for tag in outdated & run.data.tags.keys():
            try:
                client.delete_tag(run_id, tag)
            except MlflowException as error:  # another evaluate has closed the run, too
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
    return run


def list_artifacts(client: MlflowClient, run_id: str, folder: str) -> frozenset[str]:
    """Return the paths of the files in a folder of a run's artifacts."""
    with mlflow_errors(f"list {folder} of run {run_id}"):
        files = client.list_artifacts(run_id, folder)
    return frozenset(f"{folder}/{file.path.rsplit('/', 1)[-1]}" for file in files)


def read_curve_steps(client: MlflowClient, run: Run) -> CurveSteps:
    """Return the steps at which a run has values of the training curve, by metric name."""
    run_id = run.info.run_id
    steps = {}
    for name in names.CURVE:
        if name in run.data.metrics:
            with mlflow_errors(f"read {name} of run {run_id}"):
                history = client.get_metric_history(run_id, name)
            steps[name] = frozenset(point.step for point in history)
    return steps


def drop_stored_points(points: Iterable[Metric], steps: CurveSteps) -> list[Metric]:
    """Return the metric values whose steps are not stored. steps: stored steps by metric name."""
    return [point for point in points if point.step not in steps.get(point.key, ())]


def is_permanent_error(error: ClearError) -> bool:
    """Return True if sending the same again cannot succeed, because the store rejects it."""
    if isinstance(error, (LeaseLostError, RowConflictError)):
        return True
    cause = error.__cause__
    if isinstance(cause, MlflowException):
        status = cause.get_http_status_code()
    else:
        status = getattr(getattr(cause, "response", None), "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in _RETRY_STATUSES


def read_exit_wait() -> float:
    """Return how many seconds a training waits at its end for a store that does not respond.

    From the environment variable CLEAR_MLFLOW_EXIT_WAIT, by default 60. Raises TrackingError if it
    is not a number from 0 to 86,400.
    """
    value = os.environ.get(EXIT_WAIT_VARIABLE, "")
    try:
        seconds = float(value) if value else _EXIT_WAIT_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MAX_EXIT_WAIT_SECONDS:
        raise TrackingError(
            f"{EXIT_WAIT_VARIABLE} is {value!r}; expected seconds, 0 to "
            f"{_MAX_EXIT_WAIT_SECONDS:.0f}"
        )
    return seconds
