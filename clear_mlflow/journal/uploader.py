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
from collections.abc import Callable, Iterator, Set
from contextlib import closing, suppress
from functools import cache

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from clear_mlflow.core.anytime import ANYTIME_FOLDER
from clear_mlflow.core.batch_record import PREQUENTIAL_FILE
from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, assemble
from clear_mlflow.core.text import format_count, warn
from clear_mlflow.journal.run_folder import (
    METRICS_JSON,
    Entry,
    Outcome,
    RunFolder,
    find_run_folders,
    read_header,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import log_tags, mlflow_errors, switch_store
from clear_mlflow.store.lease import Lease, LeaseLostError, check_has_lease
from clear_mlflow.store.rows import RowConflictError, parse_rows, read_row_files, store_row

EXIT_WAIT_VARIABLE = "CLEAR_MLFLOW_EXIT_WAIT"
_WAIT_SECONDS = 5.0  # for one row; a healthy store takes it in a tenth of a second
_HURRIED_WAIT_SECONDS = 2.0  # at the end, after Ctrl-C
_PAUSE_SECONDS = 0.5  # between tries, of which each takes some seconds
_JOIN_SECONDS = 1.0


class UnsentError(TrackingError):
    """Training is over, but measured files are only on local disk."""


class Uploader:
    """Uploads files of one run to MLflow in order.

    It uploads in a thread, or in the calling one. Before an upload, it checks that this process
    still has the run's lease, the right to write to the run, unless it did so within the last
    second. An upload may be repeated: it changes nothing then. The thread and :meth:`upload_folder`
    delete a local file once it is stored.
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
        self._is_stopped = False
        self._last_progress, self._max_wait = 0.0, math.inf
        # A daemon, since a call that hangs must not keep the process: its entry is on the disk.
        self._thread = threading.Thread(
            target=self._upload_queue, name="clear_mlflow upload", daemon=True
        )

    @property
    def is_failing(self) -> bool:
        """True if the store did not take the last file."""
        return self.problem is not None

    def start(self) -> None:
        """Start the thread that uploads."""
        self._thread.start()

    def enqueue(self, *items: Entry | Callable[[], None]) -> None:
        """Let the thread upload files or call functions, without waiting.

        A function must handle its own errors: one that raises TrackingError is called again.
        """
        with self._changed:
            self._queue.extend(items)
            self._changed.notify_all()

    def wait_until_stored(self, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until all is uploaded or uploads fail, at most *seconds*.

        Returns at once while uploads fail. After the time limit, it prints a warning, and later
        calls return at once until an upload has succeeded. Raises LeaseLostError if another process
        has taken over the run.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self.is_failing, seconds)
            if self._queue and not self.is_failing:
                # Later rows do not wait, until the store has taken something again.
                self._report_failure(TrackingError("the tracking store has not taken it so far"))
        if self.lease.error is not None:
            raise self.lease.error

    def finish(self, seconds: float) -> None:
        """Upload the rest, also files that were rejected, and stop the thread.

        Gives up when no upload has succeeded for *seconds* (2 at most after :meth:`hurry`), or
        another process has taken over the run. Raises nothing: :meth:`build_unsent_error` reports
        what was not uploaded.
        """
        with self._changed:
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
        """Shorten the time limit of :meth:`finish` to 2 seconds, now or later.

        It is safe in a signal handler.
        """
        self._max_wait = _HURRIED_WAIT_SECONDS

    def list_unsent(self) -> list[Entry]:
        """Return the enqueued files that the store does not have."""
        with self._changed:
            return [item for item in (*self._queue, *self._refused) if isinstance(item, Entry)]

    def build_unsent_error(self) -> UnsentError | None:
        """Return an error that names the files not uploaded, or None."""
        unsent = self.list_unsent()
        if not unsent:
            return None
        folders = sorted({entry.folder for entry in unsent})
        reason = f" ({self.problem})" if self.problem else ""
        commands = " and ".join(f"'clear-mlflow sync {shlex.quote(str(path))}'" for path in folders)
        return UnsentError(
            f"the tracking store did not take {format_count(len(unsent), 'file')} of rows and "
            f"metrics{reason}, in {' and '.join(map(str, folders))}: send with {commands}"
        )

    def upload(self, entry: Entry) -> None:
        """Upload a file in the calling thread, without deleting it.

        A row that is stored with the same numbers is left as it is. Raises
        LeaseLostError if another process has taken over the run, RowConflictError if the row is
        stored with other numbers, and TrackingError if the store does not take the file.
        """
        run_id, name = self._run_id, entry.name
        run = self.lease.read_recent_run()
        if entry.is_replaced:  # its later content is uploaded in its own turn
            return
        with mlflow_errors(f"store {name} of run {run_id}"):
            if name.startswith(f"{ROWS_FOLDER}/"):
                row_file = name.removeprefix(f"{ROWS_FOLDER}/")
                store_row(self._client, run, row_file, entry.read())
            elif entry.artifact is not None:
                ArtifactFolder(self._client, run).write_file(entry.artifact, entry.read())
            elif name == METRICS_JSON:
                self._client.log_batch(run_id, metrics=entry.read_metrics())
            else:
                log_tags(self._client, run_id, entry.read_tags())

    def upload_folder(self, run: Run, folder: RunFolder) -> Iterator[Entry]:
        """Upload and delete a folder's files, and yield each one.

        Acquires the run's lease, and releases it only if this fails.
        Leaves out the file with the run's final status. Deletes and yields, without uploading them,
        metrics that scoring computes, and curve values and tests within buckets that the run has
        already. A file that the store rejects is kept, and the error is raised at the end.

        Raises RecordError if a row is damaged or rows that the run once had are missing, and
        RowConflictError if a row is stored with other numbers; later files are kept, too.
        """
        entries = [(entry, *entry.name.rpartition("/")[::2]) for entry in folder.list_entries()]
        unsent_rows = [name for _, parent, name in entries if parent == ROWS_FOLDER]
        read_row_files(self._client, run, may_be_missing=unsent_rows)  # raises if rows are missing
        read_steps = cache(lambda: read_curve_steps(self._client, run))
        list_tests = cache(ArtifactFolder(self._client, run, ANYTIME_FOLDER).list_sizes)
        refusal: TrackingError | None = None
        try:
            if entries:
                self.lease.acquire()
            for entry, parent, name in entries:
                if parent == ROWS_FOLDER:
                    assemble(parse_rows({name: entry.read()}))  # raises if it is damaged
                try:
                    if name == METRICS_JSON:
                        self._upload_curve(entry, read_steps())
                    # If another process trained on a bucket again, the tests of that process stay.
                    elif parent != ANYTIME_FOLDER or name not in list_tests():
                        self._upload_unless_outdated(entry)
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

    def _upload_unless_outdated(self, entry: Entry) -> None:
        """Upload a file unless the store has one of more rows."""
        folder, _, name = (entry.artifact or "").rpartition("/")
        if name == PREQUENTIAL_FILE:
            run = self._client.get_run(self._run_id)
            size = ArtifactFolder(self._client, run, folder).list_sizes().get(name)
            if (size or 0) > len(entry.read()):
                return
        self.upload(entry)

    def _upload_curve(self, entry: Entry, stored_steps: Set[tuple[str, int]]) -> None:
        """Upload values of the training curve that are not stored.

        Scoring logs the others: of rows that another process stored again, they would be doubled.
        """
        points = [
            point
            for point in entry.read_metrics()
            if point.key in names.CURVE and (point.key, point.step) not in stored_steps
        ]
        if points:
            self.lease.read_run()
            with mlflow_errors(f"store metrics of run {self._run_id}"):
                self._client.log_batch(self._run_id, metrics=points)

    def _upload_queue(self) -> None:
        """Upload items, in the thread, until stopped or the lease is lost."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_stopped)
                if self._is_stopped:
                    return
                item = self._queue[0]
            try:
                if isinstance(item, Entry):
                    self.upload(item)
                    item.remove()
                else:
                    item()
            except TrackingError as error:
                with self._changed:
                    self.problem = error
                    if isinstance(error, LeaseLostError):
                        self._changed.notify_all()
                        return
                    if isinstance(item, Entry) and is_permanent_error(error):
                        self._queue.popleft()
                        self._refused.append(item)
                        warn(f"{error}; it is kept in {item.folder}")
                        self._changed.notify_all()
                    elif not self._is_stopped:
                        self._report_failure(error)
                        self._changed.wait_for(lambda: self._is_stopped, _PAUSE_SECONDS)
                continue
            with self._changed:
                self._queue.popleft()
                if isinstance(item, Entry):
                    self.problem = None
                self._last_progress = time.monotonic()
                if self._has_warned and not self._queue:
                    warn("the tracking store is back; all that was kept on local disk is stored")
                    self._has_warned = False
                self._changed.notify_all()

    def _report_failure(self, error: TrackingError) -> None:
        """Remember an error, and print it once per outage, under the lock."""
        self.problem = error
        if not self._has_warned:
            warn(
                f"{error}; training continues; what is measured is kept on local disk and sent "
                "when the store takes it"
            )
            self._has_warned = True
        self._changed.notify_all()


def upload_remaining_folders(client: MlflowClient, run: Run) -> None:
    """Upload and delete what earlier processes here left of a run.

    Deletes their folders, too. Does not set the final status of the run. Releases the run's lease
    afterwards, since another process may continue the run. Raises FolderLockedError if one of these
    processes is still alive, and the errors of :meth:`Uploader.upload_folder`.
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
    client: MlflowClient, run_id: str, outcome: Outcome, *, needs_lease: bool = False
) -> Run:
    """Store a run's final status and error, and unmark its process.

    If the training diverged, sets a tag for it. Deletes the tag of the process that trained the
    run, artifacts that killed processes did not finish, and an outdated error of a run that is
    FINISHED now. A status of None leaves the status as it is. needs_lease: raises LeaseLostError if
    this process does not have the run's lease.
    """
    with mlflow_errors(f"close run {run_id}"):
        if needs_lease:
            check_has_lease(client.get_run(run_id))
        if outcome.error:
            client.set_tag(run_id, names.ERROR_TAG, outcome.error[:8000])
        if outcome.diverged:
            client.set_tag(run_id, names.DIVERGED_TAG, "true")
        # The status before the process: while a run is RUNNING, its process has to be known.
        active = mlflow.active_run()
        if outcome.status is not None and active is not None and active.info.run_id == run_id:
            uri = mlflow.get_tracking_uri()
            switch_store(client.tracking_uri)  # the program may have set another one since
            try:
                mlflow.end_run(outcome.status)
            finally:
                switch_store(uri)
        elif outcome.status is not None:
            client.set_terminated(run_id, outcome.status)
        run = client.get_run(run_id)
        if outcome.status is not None:
            ArtifactFolder(client, run).remove_drafts()
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


def read_curve_steps(client: MlflowClient, run: Run) -> set[tuple[str, int]]:
    """Read name and step of each stored point of training curves."""
    run_id = run.info.run_id
    steps: set[tuple[str, int]] = set()
    for name in run.data.metrics.keys() & names.CURVE:
        with mlflow_errors(f"read {name} of run {run_id}"):
            steps |= {(name, point.step) for point in client.get_metric_history(run_id, name)}
    return steps


def is_permanent_error(error: ClearError) -> bool:
    """Return True if the store would reject the same again.

    That is after a lost lease, a row with other numbers, and an HTTP status 400 to 499 except 408,
    425 and 429.
    """
    if isinstance(error, (LeaseLostError, RowConflictError)):
        return True
    cause = error.__cause__
    if isinstance(cause, MlflowException):
        status = cause.get_http_status_code()
    else:
        status = getattr(getattr(cause, "response", None), "status_code", None)
    # 408, 425 and 429 mean "try again later".
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429)


def read_exit_wait() -> float:
    """Read CLEAR_MLFLOW_EXIT_WAIT, seconds that a training waits for its store.

    A training waits at its end for a store that does not respond, by default 60 seconds. Raises
    TrackingError if the variable is not a number from 0 to 86,400.
    """
    value = os.environ.get(EXIT_WAIT_VARIABLE, "").strip()
    try:
        seconds = float(value or 60.0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise TrackingError(f"{EXIT_WAIT_VARIABLE} is {value!r}; expected seconds, 0 to 86400")
    return seconds
