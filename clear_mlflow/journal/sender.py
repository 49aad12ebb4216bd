"""What was measured, on its way to the store: on local disk first, then sent from one thread.

While the store is well, the caller that puts a file waits until the store has it. When the store is
away, training continues: all that is measured waits on the disk, and is sent in order when the
store is back.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from clear_mlflow.core.errors import ClearError, DataError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.warning import warn
from clear_mlflow.journal.spool import Entry, Spool, default_root, places
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.heartbeat import Hold, LostRunError
from clear_mlflow.store.rows import RowConflictError, put_row

# A healthy store takes a row in a tenth of a second.
ACKNOWLEDGEMENT_SECONDS = 5.0
EXIT_VARIABLE = "CLEAR_MLFLOW_EXIT_WAIT"
MOST_METRICS = 900  # points in one request; MLflow takes 1,000
_EXIT_SECONDS, _LONGEST_EXIT_SECONDS = 60.0, 86_400.0
_LONGEST_PAUSE_SECONDS = 15.0
_LAST_PAUSE_SECONDS = 1.0
_JOIN_SECONDS = 1.0
# Answers that say "later", not "no".
_LATER = (408, 425, 429)


class UnsentError(TrackingError):
    """The training is over, and what it measured waits on local disk.

    Args:
        message: the one line.
        where: the folder that holds all that waits.
        folders: run to a folder in which something of it waits.
    """

    def __init__(self, message: str, where: Path, folders: Mapping[str, Path]) -> None:
        super().__init__(message)
        self.where = where
        self.folders = folders


class Sender:
    """Keeps what was measured on local disk, and sends it in order from one thread.

    It is for one run, or for those of an ensemble. Nothing that was measured is lost on the way: a
    file is on the disk when :meth:`keep` returns. A store that is away is asked again after 1, 2,
    4, ... 15 seconds. What it refuses for good (a file that is too large, a missing permission) is
    set aside, and tried once more at the end: it holds nothing else up.

    Args:
        client: the store.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.hold = Hold(client)
        self._changed = threading.Condition()
        self._places: dict[str, Iterator[Callable[[], Path]]] = {}  # of each run, not tried yet
        self._spools: dict[str, list[Spool]] = {}  # of each run; the last one is written to
        self._queue: deque[Entry | Callable[[], None]] = deque()
        self._aside: list[Entry] = []
        # A curve is kept from another thread than rows are.
        self._keeping = threading.RLock()
        self._problem: TrackingError | None = None  # why the last try failed; None: it did not
        self._told = False
        self._finishing = False
        self._stopped = False
        self._progress = 0.0
        # A call that hangs must not keep the process: what it sends is on the disk.
        self._thread = threading.Thread(target=self._work, name="clear_mlflow sender", daemon=True)

    @property
    def is_away(self) -> bool:
        """Whether the store did not take what it was last asked to take."""
        return self._problem is not None

    @property
    def lost(self) -> LostRunError | None:
        """Why nothing is sent any more: another process has taken a run over."""
        return self.hold.lost

    @property
    def problem(self) -> TrackingError | None:
        """Why what waits is not stored yet, as far as known."""
        return self._problem

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def open(self, run_id: str) -> None:
        """Find a place for a run's journal, or another one.

        Raises:
            TrackingError: no folder can be written, or an earlier process's journal waits there.
        """
        problems = []
        for place in self._places.setdefault(run_id, places(run_id)):
            try:
                folder = place()
                spool = Spool.create(folder, run_id, self._client.tracking_uri)
            except OSError as error:
                problems.append(f"{error.filename or default_root()}: {error.strerror}")
                continue
            except DataError as error:  # no cache folder
                problems.append(str(error))
                continue
            self._spools.setdefault(run_id, []).append(spool)
            if problems:
                told = "; ".join(problems)
                warn(f"rows on their way to the store are kept in {folder} (not in {told})")
            return
        raise TrackingError(
            f"there is no place to keep what is measured ({'; '.join(problems)}); make room, or "
            "set CLEAR_MLFLOW_CACHE to a folder that can be written"
        )

    def keep(self, run_id: str, artifact: str, content: bytes) -> Entry:
        """Keep a file on local disk; :meth:`send` it then.

        Args:
            run_id: of the run, which is open here.
            artifact: the file's path in the run's artifacts.
            content: what it holds.

        Raises:
            TrackingError: no disk takes it. A row is then written to standard error.
        """
        with self._keeping:
            while True:
                try:
                    return self._spools[run_id][-1].put(artifact, content)
                except OSError as error:
                    self._move_on(run_id, artifact, content, error)

    def keep_metrics(self, run_id: str, metrics: Sequence[Metric]) -> list[Entry] | None:
        """Keep points of metrics; None, and none of them, where the disk does not take them."""
        kept: list[Entry] = []
        with self._keeping:
            try:
                for at in range(0, len(metrics), MOST_METRICS):
                    batch = metrics[at : at + MOST_METRICS]
                    kept.append(self._spools[run_id][-1].put_metrics(batch))
            except OSError:
                for entry in kept:
                    entry.remove()
                return None
        return kept

    def send(self, what: Entry | Callable[[], None] | None) -> None:
        """Send what is kept after all that was sent before.

        Args:
            what: an entry; or something to do with the store, whose content is not on the disk. It
                is done again for as long as it raises a TrackingError.
        """
        if what is not None:
            with self._changed:
                self._queue.append(what)
                self._changed.notify_all()

    def wait_delivered(self, seconds: float = ACKNOWLEDGEMENT_SECONDS) -> TrackingError | None:
        """Wait until the store has all; not at all while it is known to be away.

        Returns:
            Why it has not; None where it has.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._problem is not None, seconds)
            if self._queue and self._problem is None:
                # From here on nobody waits, until it has taken something again.
                late = next((item for item in self._queue if isinstance(item, Entry)), None)
                what = "what it was sent" if late is None else _name(late)
                self._failed(TrackingError(f"the tracking store has not taken {what} so far"), late)
            return self._problem

    def finish(self, patience: float) -> None:
        """Send what waits, and stop.

        Args:
            patience: seconds after the last file that the store took, when the rest is left.
        """
        with self._changed:
            self._finishing = True
            self._queue.extend(self._aside)
            self._aside.clear()
            self._progress = time.monotonic()
            self._changed.notify_all()
            while self._queue:
                left = self._progress + patience - time.monotonic()
                if left <= 0 or self.lost is not None or not self._thread.is_alive():
                    break
                self._changed.wait(left)
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

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
        for spools in self._spools.values():
            for spool in spools:
                spool.close(remove=next(spool.entries(), None) is None)

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
                    store_entry(self._client, item, self.hold)
                else:
                    item()
            except LostRunError as error:
                with self._changed:
                    self._problem = error
                    self._changed.notify_all()
                return
            except TrackingError as error:
                with self._changed:
                    if self._stopped:
                        return
                    if entry is not None and is_final(error):
                        self._queue.popleft()
                        self._aside.append(entry)
                        self._problem = error
                        warn(f"{error}; it is kept in {entry.folder.parent}")
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
                    self._problem = None
                self._progress = time.monotonic()
                if self._told and not self._queue:
                    warn("the tracking store is back; what waited is stored")
                    self._told = False
                self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        """Wait; less where the training ends meanwhile."""
        finishing = self._finishing
        self._changed.wait_for(lambda: self._stopped or self._finishing != finishing, seconds)

    def _move_on(self, run_id: str, artifact: str, content: bytes, error: OSError) -> None:
        """Find another folder, on another disk perhaps."""
        told = f"{self._spools[run_id][-1].folder} takes no more ({error.strerror})"
        try:
            self.open(run_id)
        except TrackingError as none:
            is_row = artifact.startswith(f"{ROWS_FOLDER}/")
            if is_row:
                # The last resort: whoever keeps this process's output has the row.
                with suppress(OSError):
                    print(content.decode(), file=sys.stderr, flush=True)
            what = f"the row {artifact} is printed above" if is_row else f"{artifact} is lost"
            raise TrackingError(f"{told}; {none}; {what}") from error
        warn(f"{told}; what follows is kept in {self._spools[run_id][-1].folder}")

    def _failed(self, error: TrackingError, entry: Entry | None) -> None:
        self._problem = error
        if not self._told:
            where = "on local disk" if entry is None else f"in {entry.folder.parent}"
            warn(
                f"{error}; training continues; what is measured is kept {where} and sent when "
                "the store takes it"
            )
            self._told = True
        self._changed.notify_all()


def store_entry(client: MlflowClient, entry: Entry, hold: Hold) -> None:
    """Store one entry, if this process holds its run; it may be there already.

    A row stays as it was stored first; any other file takes the place of the one before; a point of
    a metric is the same entry of the store.

    Raises:
        LostRunError: another process holds the run.
        TrackingError: the store did not take it.
    """
    if entry.artifact is None:
        store_metrics(client, entry.run_id, entry.metrics(), hold)
        return
    run = hold.check(entry.run_id)
    with mlflow_errors(f"store {_name(entry)} of run {entry.run_id}"):
        if entry.artifact.startswith(f"{ROWS_FOLDER}/"):
            put_row(client, run, entry.file.name, entry.file.read_bytes())
        else:
            log_durably(client, entry.run_id, entry.file.read_bytes(), entry.artifact)


def store_metrics(client: MlflowClient, run_id: str, metrics: Sequence[Metric], hold: Hold) -> None:
    """Store points of metrics; as :func:`store_entry`."""
    hold.check(run_id)
    with mlflow_errors(f"store metrics of run {run_id}"):
        client.log_batch(run_id, metrics=metrics)


def is_final(error: ClearError) -> bool:
    """Whether a store has answered that it will not take something, however often it is asked."""
    if isinstance(error, (LostRunError, RowConflictError)):
        return True
    cause = error.__cause__
    if isinstance(cause, MlflowException):
        code = cause.get_http_status_code()
    else:
        code = getattr(getattr(cause, "response", None), "status_code", None)
    return isinstance(code, int) and 400 <= code < 500 and code not in _LATER


def exit_patience() -> float:
    """Seconds that the end of a training waits for a store that takes nothing.

    Raises:
        TrackingError: the environment's word on it is no number.
    """
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
    left: Mapping[str, Sequence[Entry]] = sender.waiting()
    if not left:
        return None
    count = sum(map(len, left.values()))
    folders = sorted({entry.folder.parent for entries in left.values() for entry in entries})
    at = folders[0] if len(folders) == 1 else Path(os.path.commonpath(folders))
    why = f" ({sender.problem})" if sender.problem else ""
    return UnsentError(
        f"the tracking store did not take {count} files of rows and metrics{why}; they are in "
        f"{at}: send them with 'clear-mlflow sync {shlex.quote(str(at))}'",
        at,
        {run_id: entries[-1].folder.parent for run_id, entries in left.items()},
    )


def _name(entry: Entry) -> str:
    return entry.artifact or "metrics"
