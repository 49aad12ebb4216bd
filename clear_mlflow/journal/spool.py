"""A journal on local disk of what was measured, in order, until the store has taken it.

Each run has a folder, and each entry has a numbered folder in it. The file of an entry is under the
path that it has among the run's artifacts. ``unsent/RUN_ID`` contains, for example:

- ``spool.json``: which run, of which store
- ``00000001-file/accuracy_matrix/rows/row_000.json``
- ``00000002-metrics/metrics.json``
- ``end.json``: how the training ended

An entry is there as a whole or not at all, and is on the disk before :meth:`Spool.put` returns. It
is removed when the store has it. A journal may come from anywhere: nothing in one is trusted.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Metric

from clear_mlflow.core.cache_dir import default_cache_dir
from clear_mlflow.core.credentials import has_credentials, masked
from clear_mlflow.core.durable import flush_folder, flush_into, write_durably
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.text import shortened
from clear_mlflow.core.untrusted import json_object
from clear_mlflow.store.client import absolute_store

SPOOL_JSON = "spool.json"
END_JSON = "end.json"
_METRICS_JSON = "metrics.json"
_LOCK = "lock"
_FORMAT = 1
_LARGEST_DESCRIPTION = 1 << 16  # bytes of a file of ours
_LARGEST_METRICS = 1 << 20
_MOST_ENTRIES = 1_000_000
_DEEPEST = 8  # folders of an artifact's path
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_ENTRY = re.compile(r"([0-9]{8})-(file|metrics)")
# No "#", "?" or "%": MLflow's requests to a server hang on them or name another file.
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
STATUSES = ("FINISHED", "FAILED", "KILLED")


class HeldError(TrackingError):
    """Another process writes to a journal now."""


@dataclass(frozen=True)
class Entry:
    """One thing to send.

    Args:
        run_id: of the run that it is sent to.
        folder: of the entry.
        file: what it holds, below that folder.
        artifact: the file's path among the run's artifacts; None for points of metrics.
    """

    run_id: str
    folder: Path
    file: Path
    artifact: str | None

    def metrics(self) -> list[Metric]:
        """The points that it holds.

        Raises:
            TrackingError: it holds something else.
        """
        try:
            points = json.loads(_read(self.file, _LARGEST_METRICS))
            return [
                Metric(str(name), float(value), int(time), int(step))
                for name, value, time, step in points
            ]
        except (ValueError, TypeError, OverflowError) as error:
            raise TrackingError(f"{self.file} holds no metrics: {error}") from error

    def remove(self) -> None:
        """The store has it: forget it. What cannot be removed is sent again, and is the same."""
        with suppress(OSError):
            self.file.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class End:
    """How a training ended that could not be closed in the store.

    Args:
        status: what its run is to be given: FINISHED, FAILED or KILLED; None leaves it as it is.
        error: why it ended early, in one line.
        diverged: whether the loss or the output was no longer a number.
    """

    status: str | None
    error: str | None = None
    diverged: bool = False


@dataclass(frozen=True)
class Origin:
    """Which run a journal is of, and of which store.

    Args:
        run_id: of the run.
        tracking_uri: of the store; without credentials.
        password: whether the URI had one, which is not kept.
    """

    run_id: str
    tracking_uri: str
    password: bool


class Spool:
    """One run's journal, held by this process alone until it is closed.

    Args:
        folder: where it lies.
        run_id: of the run.
        lock: the open file by which this process holds it.
    """

    def __init__(self, folder: Path, run_id: str, lock: int) -> None:
        self.folder = folder
        self.run_id = run_id
        self._lock: int | None = lock
        self._next = 1 + max(
            (int(found[1]) for at in folder.iterdir() if (found := _ENTRY.fullmatch(at.name))),
            default=0,
        )

    @classmethod
    def create(cls, folder: Path, run_id: str, tracking_uri: str) -> Spool:
        """Open the journal of a run that trains here; its folder may be there already.

        Raises:
            OSError: the folder cannot be written.
            TrackingError: another process holds it, or what an earlier one left waits in it.
        """
        fresh = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        spool = cls(folder, run_id, _locked(folder))
        try:
            if waiting := sum(1 for _ in spool.entries()):
                raise TrackingError(
                    f"{waiting} files that an earlier process measured for run {run_id} wait in "
                    f"{folder}; send them first: clear-mlflow sync {folder}"
                )
            uri = absolute_store(tracking_uri)
            origin = {
                "format": _FORMAT,
                "run_id": run_id,
                "tracking_uri": masked(uri),
                "password": has_credentials(uri),
            }
            write_durably(folder / SPOOL_JSON, json.dumps(origin, indent=1).encode())
            (folder / END_JSON).unlink(missing_ok=True)
        except BaseException:
            spool.close(remove=fresh)
            raise
        return spool

    @classmethod
    def take(cls, folder: Path, run_id: str) -> Spool:
        """Open a journal that was left, of the run that :func:`read_origin` named.

        Raises:
            HeldError: the process that writes it lives.
            TrackingError: the folder cannot be written.
        """
        try:
            return cls(folder, run_id, _locked(folder))
        except OSError as error:
            raise TrackingError(f"{folder} cannot be opened: {error.strerror}") from error

    def put(self, artifact: str, content: bytes) -> Entry:
        """Keep a file; it is on the disk when this returns.

        Args:
            artifact: its path in the run's artifacts.
            content: what it holds.

        Raises:
            OSError: the disk does not take it; then nothing of it is there.
        """
        return self._put("file", artifact, content, artifact)

    def put_metrics(self, metrics: Sequence[Metric]) -> Entry:
        """Keep points of metrics; as :meth:`put`."""
        points = [[m.key, m.value, m.timestamp, m.step] for m in metrics]
        return self._put("metrics", _METRICS_JSON, json.dumps(points).encode(), None)

    def entries(self) -> Iterator[Entry]:
        """What waits, in order.

        Raises:
            TrackingError: an entry is none that this program wrote: a link, another name.
        """
        numbered = sorted(
            (int(found[1]), at.name, found[2])
            for at in self.folder.iterdir()
            if (found := _ENTRY.fullmatch(at.name))
        )
        if len(numbered) > _MOST_ENTRIES:
            raise TrackingError(f"{self.folder} holds {len(numbered)} entries; no training does")
        for _, name, kind in numbered:
            folder = self.folder / name
            file = _only_file(folder)
            if file is None:  # sent, and half removed
                shutil.rmtree(folder, ignore_errors=True)
                continue
            artifact = file.relative_to(folder).as_posix()
            if kind == "metrics" and artifact != _METRICS_JSON:
                raise TrackingError(f"{folder} holds {artifact}; expected {_METRICS_JSON}")
            yield Entry(self.run_id, folder, file, None if kind == "metrics" else artifact)

    def write_end(self, end: End) -> None:
        """Keep how the training ended.

        Raises:
            OSError: the disk does not take it.
        """
        told = {"status": end.status, "error": end.error, "diverged": end.diverged}
        write_durably(self.folder / END_JSON, json.dumps(told, indent=1).encode())

    def end(self) -> End | None:
        """How the training ended; None where its process did not write it down.

        Raises:
            TrackingError: the file is damaged.
        """
        file = self.folder / END_JSON
        if not file.exists():
            return None
        told = _described(file)
        status, error = told.get("status"), told.get("error")
        if status not in (*STATUSES, None) or not isinstance(error, (str, type(None))):
            raise TrackingError(f"{file} does not say how a training ended")
        # It becomes a tag that people read.
        error = None if error is None else shortened(error, 4000)
        return End(status, error, told.get("diverged") is True)

    def close(self, *, remove: bool = False) -> None:
        """Let other processes at it; or remove it as a whole, when all of it was sent."""
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _put(self, kind: str, path: str, content: bytes, artifact: str | None) -> Entry:
        folder = self.folder / f"{self._next:08d}-{kind}"
        draft = self.folder / f"{folder.name}.part"
        file = draft / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            flush_into(file, content)
            # A new file's flush brings the new folders above it along on Linux's file systems; one
            # flush each would take ten times as long.
            draft.rename(folder)
            flush_folder(self.folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._next += 1
        return Entry(self.run_id, folder, folder / path, artifact)


def default_root() -> Path:
    """Where journals are, if it can be written: in the cache folder, which survives."""
    return default_cache_dir() / "unsent"


def working_root() -> Path:
    """Where journals are instead: in the working folder."""
    return Path("unsent_rows").absolute()


def places(run_id: str) -> Iterator[Callable[[], Path]]:
    """Folders for a run's journal, the best first; the last is a fresh temporary one."""
    yield lambda: default_root() / run_id
    yield lambda: working_root() / run_id
    yield lambda: Path(tempfile.mkdtemp(prefix=f"unsent_rows_{run_id}_"))


def left_spools(run_id: str | None = None) -> list[Path]:
    """Journals in the default places, of all runs or of one."""
    found = []
    for root in (default_root, working_root):
        with suppress(OSError, ClearError):
            found += [
                path
                for path in sorted(root().iterdir())
                if (path / SPOOL_JSON).is_file() and run_id in (None, path.name)
            ]
    return found


def read_origin(folder: Path) -> Origin:
    """Which run a folder is the journal of, and of which store.

    Raises:
        TrackingError: it is no journal, or one of a newer format.
    """
    file = folder / SPOOL_JSON
    told = _described(file)
    if told.get("format") != _FORMAT:
        raise TrackingError(
            f"{file} is of format {shortened(repr(told.get('format')), 40)}; "
            f"this program knows {_FORMAT}: update it"
        )
    run_id, uri = told.get("run_id"), told.get("tracking_uri")
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id) or not isinstance(uri, str):
        raise TrackingError(f"{file} names no run")
    return Origin(run_id, shortened(uri, 2000), told.get("password") is True)


def _locked(folder: Path) -> int:
    """Hold a folder against other processes; the system lets go when this one ends, however."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise HeldError(f"a process that lives writes to {folder}; it sends it by itself") from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _only_file(folder: Path) -> Path | None:
    """The one file of an entry, at the end of a chain of folders; None where it is gone.

    Raises:
        TrackingError: something else is there.
    """
    at = folder
    for _ in range(_DEEPEST):
        mode = os.lstat(at).st_mode  # a link is not followed: it may lead to any file
        if stat.S_ISREG(mode) and at != folder:
            return at
        if not stat.S_ISDIR(mode):
            break
        inside = [path for _, path in zip(range(2), at.iterdir(), strict=False)]
        if not inside:
            return None
        if len(inside) > 1 or not _NAME.fullmatch(inside[0].name):
            break
        at = inside[0]
    raise TrackingError(f"{folder} holds something that no training wrote; look at it, remove it")


def _described(file: Path) -> dict[str, Any]:
    try:
        return json_object(_read(file, _LARGEST_DESCRIPTION), _LARGEST_DESCRIPTION)
    except RecordError as error:
        raise TrackingError(f"{file} is damaged: {error}") from error


def _read(file: Path, most: int) -> bytes:
    """A small file, if it is one.

    Raises:
        TrackingError: it is none: a link, a device, too large, not there.
    """
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as stream:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise TrackingError(f"{file} is no plain file")
            content = stream.read(most + 1)
    except OSError as error:
        raise TrackingError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise TrackingError(f"{file} has more than {most} bytes; no training writes that many")
    return content
