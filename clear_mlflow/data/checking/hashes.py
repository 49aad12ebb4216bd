"""Content hashes that stay from run to run: a file that is as it was is not read again.

As in git's index, a file is taken to be as it was where its size, its times and its number on the
disk are. One that was changed within the last moments before it was hashed is not remembered: it
may change again within the same tick of the file system's clock.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clear_mlflow.core.untrusted import sha256_of
from clear_mlflow.data.cached_arrays import ForeignFileError, UnusableFileError, refuse_others

FILE_NAME = "hashes-v1.sqlite"

_SETTLED_NANOSECONDS = 2 * 10**9  # the coarsest clock in use is FAT's
_SECONDS_TO_WAIT = 10.0  # for another process that writes


class RememberedHashes:
    """Hashes of files below *root*; where they cannot be kept in *folder*, all are hashed."""

    def __init__(self, folder: Path | None, root: Path) -> None:
        self._file = None if folder is None else folder / FILE_NAME
        self._root = root
        self._known: dict[bytes, tuple[Any, ...]] = {}  # path to its state and its hash
        self._new: dict[bytes, tuple[Any, ...]] = {}

    def __enter__(self) -> RememberedHashes:
        if self._file is not None and self._file.is_file():
            self._in_database(self._file, self._load)
        return self

    def __exit__(self, *_: object) -> None:
        """Keep what is new, however the context is left: hashing continues where it stopped."""
        if self._file is not None and self._new:
            self._in_database(self._file, self._save)

    def of(self, path: Path, status: os.stat_result) -> str:
        """SHA-256 of a file, hexadecimal; *status* is its own, links followed. Of any thread."""
        before, name = _state_of(status), os.fsencode(path)  # not every name is Unicode
        if (known := self._known.get(name)) is not None and known[:-1] == before:
            return str(known[-1])
        started = time.time_ns()
        content = sha256_of(path)
        settled = max(status.st_mtime_ns, status.st_ctime_ns) + _SETTLED_NANOSECONDS < started
        if settled and _state_of(path.stat()) == before:
            self._new[name] = (*before, content)
        return content

    @staticmethod
    def _in_database(file: Path, do: Callable[[sqlite3.Connection], None]) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                refuse_others(file)
            database = sqlite3.connect(file, timeout=_SECONDS_TO_WAIT)
            with contextlib.closing(database), database:
                do(database)
        except (ForeignFileError, sqlite3.OperationalError):
            return  # another user's; or locked, or it cannot be written: it may be in order
        except (UnusableFileError, OSError, sqlite3.Error):
            # Damaged, or others may write to it: the next run begins a new one. Nothing is lost
            # that cannot be hashed again.
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _load(self, database: sqlite3.Connection) -> None:
        root = os.fsencode(self._root)
        below, after = root + b"/", root + b"0"  # 0 is the character after the slash
        rows = database.execute(
            "SELECT path, size, mtime_ns, ctime_ns, inode, content FROM hashes "
            "WHERE path > ? AND path < ?",
            (below, after),
        )
        self._known = {path: tuple(rest) for path, *rest in rows}

    def _save(self, database: sqlite3.Connection) -> None:
        database.execute(
            "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, size INTEGER, "
            "mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER, content TEXT) WITHOUT ROWID"
        )
        database.executemany(
            "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)",
            [(path, *row) for path, row in self._new.items()],
        )


def _state_of(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does: size, times and inode; the change time cannot be set."""
    inode = status.st_ino % 2**63  # the most that the database holds
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)
