"""Content hashes that stay from run to run: a file that is as it was is not read again.

As in git's index, a file is taken to be as it was where its size, its times and its number on the
disk are. One that was changed within the last moments before it was hashed is not remembered: it
may change again within the same tick of the file system's clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.sealed import ForeignFileError, UnsealedFileError, refuse_others

FILE_NAME = "hashes-v1.sqlite"

_SETTLED_NANOSECONDS = 2 * 10**9  # the coarsest clock in use is FAT's
_SECONDS_TO_WAIT = 10.0  # for another process that writes
_SHA256 = re.compile("[0-9a-f]{64}")


class _State(NamedTuple):
    """What changes when a file does."""

    size: int
    mtime_ns: int
    ctime_ns: int  # an older file's time can be put on a newer one; this one cannot be set
    inode: int


class RememberedHashes:
    """The hashes of the files below one folder; a context that keeps new ones when it is left.

    Safe for several processes at once. Where the file that remembers is damaged, is another user's
    or cannot be written, nothing is remembered, and every file is hashed.
    """

    def __init__(self, folder: Path | None, root: Path) -> None:
        self._file = None if folder is None else folder / FILE_NAME
        self._root = root
        self._known: dict[bytes, tuple[Any, ...]] = {}  # path to a row of the database
        self._new: dict[bytes, tuple[_State, str]] = {}

    def __enter__(self) -> RememberedHashes:
        if self._file is not None and self._file.is_file():
            self._in_database(self._file, self._load)
        return self

    def __exit__(self, *_: object) -> None:
        """Keep what is new, however the context is left: hashing continues where it stopped."""
        if self._file is not None and self._new:
            self._in_database(self._file, self._save)

    def known(self, path: Path, status: os.stat_result) -> str | None:
        """The remembered hash: SHA-256, hexadecimal; None if the file is not as it was."""
        row = self._known.get(os.fsencode(path))  # not every name is Unicode
        if row is None or row[1:5] != _state_of(status):
            return None
        content = row[5]
        return content if isinstance(content, str) and _SHA256.fullmatch(content) else None

    def hash(self, path: Path, status: os.stat_result, compute: Callable[[], str]) -> str:
        """Hash a file that is not known, and remember what it hashes to."""
        before = _state_of(status)
        started = time.time_ns()
        content = compute()
        if _state(path) == before:
            changed = max(before.mtime_ns, before.ctime_ns)
            if changed + _SETTLED_NANOSECONDS < started:
                self._new[os.fsencode(path)] = (before, content)
        return content

    @staticmethod
    def _in_database(file: Path, do: Callable[[sqlite3.Connection], None]) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                refuse_others(file.stat())
            database = sqlite3.connect(file, timeout=_SECONDS_TO_WAIT)
            with contextlib.closing(database), database:
                do(database)
        except (ForeignFileError, sqlite3.OperationalError):
            return  # another user's; or locked, or it cannot be written: it may be in order
        except (UnsealedFileError, OSError, sqlite3.Error, ValueError, TypeError):
            # Damaged, or others may write to it: the next run begins a new one. Nothing is lost
            # that cannot be hashed again.
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _load(self, database: sqlite3.Connection) -> None:
        root = os.fsencode(self._root)
        below, after = root + b"/", root + b"0"  # 0 is the character after the slash
        query = "SELECT path, size, mtime_ns, ctime_ns, inode, content FROM hashes"
        rows = database.execute(f"{query} WHERE path > ? AND path < ?", (below, after))
        self._known = {row[0]: row for row in rows}

    def _save(self, database: sqlite3.Connection) -> None:
        database.execute(
            "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, size INTEGER, "
            "mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER, content TEXT) WITHOUT ROWID"
        )
        database.executemany(
            "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)",
            [(path, *state, content) for path, (state, content) in self._new.items()],
        )


def wrongly_remembered(
    file: Path, *, on_file: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Hash every remembered file again that is as it was; a line for each that hashes otherwise."""
    try:
        refuse_others(file.stat())
        database = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(database):
            rows = database.execute(
                "SELECT path, size, mtime_ns, ctime_ns, inode, content FROM hashes"
            ).fetchall()
        remembered = [(Path(os.fsdecode(row[0])), _State(*row[1:5]), row[5]) for row in rows]
    except UnsealedFileError as error:
        return [f"{path_text(file)} {error}"]
    except (OSError, sqlite3.Error, TypeError) as error:
        return [f"{path_text(file)} is damaged: {reason(error)}"]

    def is_right(path: Path, state: _State, content: str) -> bool:
        try:
            # A file that has changed, or is gone, is hashed when it is read.
            same = _state(path) == state
            return not same or hashlib.sha256(path.read_bytes()).hexdigest() == content
        except OSError:
            return True

    wrong = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        answers = pool.map(lambda row: is_right(*row), remembered)
        for done, (right, row) in enumerate(zip(answers, remembered, strict=True), start=1):
            if not right:
                wrong.append(f"{path_text(file)} has another hash for {path_text(row[0])}")
            on_file(done, len(remembered))
    return wrong


def _state(path: Path) -> _State | None:
    try:
        return _state_of(path.stat())
    except OSError:  # the next reader of the file reports why
        return None


def _state_of(status: os.stat_result) -> _State:
    inode = status.st_ino % 2**63  # the most that the database holds
    return _State(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)
