"""What was measured, on its way to the store: on local disk first, then sent from one thread.

While the store is away, training continues, and what it measures waits on the disk.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.text import warn
from clear_mlflow.journal.journal import TAGS_JSON, Entry, Journal, journal_places
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.lease import Lease, LeaseLostError
from clear_mlflow.store.rows import RowConflictError, put_row

# A healthy store takes a row in a tenth of a second.
ACKNOWLEDGEMENT_SECONDS = 5.0
EXIT_VARIABLE = "CLEAR_MLFLOW_EXIT_WAIT"
MOST_METRICS = 900  # points in one request; MLflow takes 1,000
_EXIT_SECONDS, _LONGEST_EXIT_SECONDS = 60.0, 86_400.0
_HURRIED_SECONDS = 2.0  # that finish waits for a store after Ctrl-C
_LONGEST_PAUSE_SECONDS = 15.0
_LAST_PAUSE_SECONDS = 1.0
_JOIN_SECONDS = 1.0
# Answers that say "later", not "no".
_LATER = (408, 425, 429)


class UnsentError(TrackingError):
    """The training is over, and what it measured waits on local disk."""

    def __init__(self, message: str, folders: Mapping[str, Path]) -> None:
        super().__init__(message)
        self.folders = folders  # run to a folder in which something of it waits


class Sender:
    """Writes what was measured to local disk, and sends it in order from one thread."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._leases: dict[str, Lease] = {}  # by run
        self._changed = threading.Condition()
        self.rows: dict[str, dict[int, AccuracyRow]] = {}  # that each run contains, by number
        self._places: dict[str, Iterator[Path]] = {}  # of each run, not tried yet
        self._journals: dict[str, list[Journal]] = {}  # of each run; the last one is written to
        self._queue: deque[Entry | Callable[[], None]] = deque()
        self._aside: list[Entry] = []
        self.problem: TrackingError | None = None  # why the last try failed; None: it did not
        self._warned = False
        self._finishing = False
        self._stopped = False
        self._progress, self._most_patience = 0.0, math.inf
        # A call that hangs must not keep the process: what it sends is on the disk.
        self._thread = threading.Thread(target=self._work, name="clear_mlflow sender", daemon=True)

    @property
    def is_away(self) -> bool:
        """Whether the store did not take what it was last asked to take."""
        return self.problem is not None

    @property
    def lost(self) -> LeaseLostError | None:
        """Why nothing is sent any more: another process has taken a run over."""
        return next((lease.lost for lease in list(self._leases.values()) if lease.lost), None)

    def lease(self, run_id: str) -> Lease:
        """Return this process's lease of a run."""
        return self._leases.setdefault(run_id, Lease(self._client, run_id))

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def open(self, run_id: str) -> None:
        """Find a place for a run's journal, or another one; TrackingError where there is none."""
        problems = []
        for folder in self._places.setdefault(run_id, iter(journal_places(run_id))):
            try:
                journal = Journal.create(folder, run_id, self._client.tracking_uri)
            except OSError as error:
                problems.append(f"{error.filename or folder}: {error.strerror}")
            else:
                self._journals.setdefault(run_id, []).append(journal)
                if problems:
                    others = "; ".join(problems)
                    warn(f"rows on their way to the store are kept in {folder} (not in {others})")
                return
        raise TrackingError(
            f"there is no place to keep what is measured ({'; '.join(problems)}); make room, or "
            "set CLEAR_MLFLOW_CACHE to a folder that can be written"
        )

    def append(self, run_id: str, artifact: str, content: bytes) -> Entry:
        """Write a file to local disk; a row that no disk takes goes to standard error."""
        while True:
            try:
                return self._journals[run_id][-1].append(artifact, content)
            except OSError as error:
                self._move_on(run_id, artifact, content, error)

    def append_metrics(self, run_id: str, metrics: Sequence[Metric]) -> list[Entry] | None:
        """Write points of metrics; None, and none of them, where the disk does not take them."""
        entries: list[Entry] = []
        try:
            for at in range(0, len(metrics), MOST_METRICS):
                batch = metrics[at : at + MOST_METRICS]
                entries.append(self._journals[run_id][-1].append_metrics(batch))
        except OSError:
            for entry in entries:
                entry.remove()
            return None
        return entries

    def send(self, *items: Entry | Callable[[], None]) -> None:
        """Send entries in order, or call a function once in its turn."""
        with self._changed:
            self._queue.extend(items)
            self._changed.notify_all()

    def wait_delivered(self, seconds: float = ACKNOWLEDGEMENT_SECONDS) -> None:
        """Wait until the store has all; not at all while it is known to be away."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self.is_away, seconds)
            if self._queue and not self.is_away:
                # From here on nobody waits, until it has taken something again.
                late = next((item for item in self._queue if isinstance(item, Entry)), None)
                what = "what it was sent" if late is None else _name(late)
                self._failed(TrackingError(f"the tracking store has not taken {what} so far"), late)

    def finish(self, patience: float) -> None:
        """Send what waits, until the store has taken nothing for so many seconds, and stop."""
        with self._changed:
            self._finishing = True
            self._queue.extend(self._aside)
            self._aside.clear()
            self._progress = time.monotonic()
            self._changed.notify_all()
            while self._queue:
                left = self._progress + min(patience, self._most_patience) - time.monotonic()
                if left <= 0 or self.lost is not None or not self._thread.is_alive():
                    break
                self._changed.wait(min(left, _HURRIED_SECONDS))  # hurry() wakes nobody
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def hurry(self) -> None:
        """Shorten the wait of :meth:`finish`, also from a signal handler."""
        self._most_patience = _HURRIED_SECONDS

    def waiting(self) -> dict[str, list[Entry]]:
        """What the store does not have, by run."""
        with self._changed:
            found: dict[str, list[Entry]] = {}
            for item in (*self._queue, *self._aside):
                if isinstance(item, Entry):
                    found.setdefault(item.run_id, []).append(item)
            return found

    def close(self) -> None:
        """Let go of the journals; those of which the store has all are removed."""
        for journals in self._journals.values():
            for journal in journals:
                journal.close(remove=not journal.entries())

    def _work(self) -> None:
        pause = 0.5
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopped)
                if self._stopped:
                    return
                item = self._queue[0]
            entry = item if isinstance(item, Entry) else None
            try:
                if isinstance(item, Entry):
                    store_entry(self._client, item, self.lease(item.run_id))
                else:
                    item()
            except LeaseLostError as error:
                with self._changed:
                    self.problem = error
                    self._changed.notify_all()
                return
            except TrackingError as error:
                with self._changed:
                    if self._stopped:
                        return
                    if entry is None or is_final(error):  # it blocks nothing that follows
                        self._queue.popleft()
                        self._aside += filter(None, [entry])
                        self.problem = error
                        warn(f"{error}; it is kept in {entry.file.parent}" if entry else str(error))
                        self._changed.notify_all()
                        continue
                    self._failed(error, entry)
                    most = _LAST_PAUSE_SECONDS if self._finishing else _LONGEST_PAUSE_SECONDS
                    pause = min(2 * pause, most)
                    self._pause(pause)
                continue
            if entry is not None:
                entry.remove()
                pause = 0.5
            with self._changed:
                self._queue.popleft()
                if entry is not None:
                    self.problem = None
                self._progress = time.monotonic()
                if self._warned and not self._queue:
                    warn("the tracking store is back; what waited is stored")
                    self._warned = False
                self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        """Wait; less where the training ends meanwhile."""
        finishing = self._finishing
        self._changed.wait_for(lambda: self._stopped or self._finishing != finishing, seconds)

    def _move_on(self, run_id: str, artifact: str, content: bytes, error: OSError) -> None:
        """Find another folder, on another disk perhaps."""
        full = f"{self._journals[run_id][-1].folder} takes no more ({error.strerror})"
        try:
            self.open(run_id)
        except TrackingError as none:
            is_row = artifact.startswith(f"{ROWS_FOLDER}/")
            if is_row:
                # The last resort: whoever keeps this process's output has the row.
                with suppress(OSError):
                    print(content.decode(), file=sys.stderr, flush=True)
            what = f"the row {artifact} is printed above" if is_row else f"{artifact} is lost"
            raise TrackingError(f"{full}; {none}; {what}") from error
        warn(f"{full}; what follows is kept in {self._journals[run_id][-1].folder}")

    def _failed(self, error: TrackingError, entry: Entry | None) -> None:
        self.problem = error
        if not self._warned:
            where = "on local disk" if entry is None else f"in {entry.file.parent}"
            warn(
                f"{error}; training continues; what is measured is kept {where} and sent when "
                "the store takes it"
            )
            self._warned = True
        self._changed.notify_all()


def store_entry(client: MlflowClient, entry: Entry, lease: Lease) -> None:
    """Store one entry, which may be there already, where this process holds its run."""
    if entry.artifact is None:
        store_metrics(client, entry.run_id, entry.metrics(), lease)
        return
    run = lease.check()
    with mlflow_errors(f"store {_name(entry)} of run {entry.run_id}"):
        if entry.artifact == TAGS_JSON:
            log_tags(client, entry.run_id, entry.tags())
        elif entry.artifact.startswith(f"{ROWS_FOLDER}/"):
            name = entry.artifact.removeprefix(f"{ROWS_FOLDER}/")
            put_row(client, run, name, entry.file.read_bytes())
        else:
            log_durably(client, entry.run_id, entry.file.read_bytes(), entry.artifact)


def store_metrics(
    client: MlflowClient, run_id: str, metrics: Sequence[Metric], lease: Lease
) -> None:
    """Store points of metrics; as :func:`store_entry`."""
    lease.check()
    with mlflow_errors(f"store metrics of run {run_id}"):
        client.log_batch(run_id, metrics=metrics)


def is_final(error: ClearError) -> bool:
    """Whether a store has answered that it will not take something, however often it is asked."""
    if isinstance(error, (LeaseLostError, RowConflictError)):
        return True
    cause = error.__cause__
    if isinstance(cause, MlflowException):
        code = cause.get_http_status_code()
    else:
        code = getattr(getattr(cause, "response", None), "status_code", None)
    return isinstance(code, int) and 400 <= code < 500 and code not in _LATER


def exit_patience() -> float:
    """Seconds that the end of a training waits for a store that takes nothing."""
    text = os.environ.get(EXIT_VARIABLE, "")
    try:
        seconds = float(text) if text else _EXIT_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_EXIT_SECONDS:
        raise TrackingError(
            f"{EXIT_VARIABLE} is {text!r}; expected seconds, 0 to {_LONGEST_EXIT_SECONDS:.0f}"
        )
    return seconds


def unsent_error(sender: Sender) -> UnsentError | None:
    """What a training says at its end of what the store does not have; None where it has all."""
    left = sender.waiting()
    if not left:
        return None
    count = sum(map(len, left.values()))
    folders = {entry.file.parent for entries in left.values() for entry in entries}
    # Of an ensemble's runs one folder holds all of theirs; on two disks there are two.
    beside = Counter(folder.parent for folder in folders)
    places = sorted({f.parent if beside[f.parent] > 1 else f for f in folders})
    why = f" ({sender.problem})" if sender.problem else ""
    send = " and ".join(f"'clear-mlflow sync {shlex.quote(str(place))}'" for place in places)
    return UnsentError(
        f"the tracking store did not take {count} files of rows and metrics{why}; they are in "
        f"{' and '.join(map(str, places))}: send them with {send}",
        {run_id: entries[-1].file.parent for run_id, entries in left.items()},
    )


def _name(entry: Entry) -> str:
    return entry.artifact or "metrics"
