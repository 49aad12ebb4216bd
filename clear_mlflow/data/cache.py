"""The cache folder: arrays from which results are computed, and hashes of known files.

An array is ``NAME.npy`` and ``NAME.json``: its metadata, its size and modification time, and two
SHA-256 sums, each of the metadata and of bytes of the array: one of all of them, one of a sample.
Files are trusted if they belong to the user or to root, and nobody else may write to them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.core.untrusted import MAX_METADATA_BYTES, hash_file, parse_json_object, read_bytes
from clear_mlflow.data.files import path_text, reason, stat_image

HASHES_FILE = "hashes-v1.sqlite"

_SAMPLES, _SAMPLE_BYTES = 16, 2**14
_BLOCK_BYTES = 2**20
_CHECKS = ("sha256", "sampled_sha256", "num_bytes", "mtime_ns")  # in the JSON, not metadata
_SETTLED_NANOSECONDS = 2 * 10**9  # the coarsest clock in use is FAT's
_SECONDS_BETWEEN_SAVES = 10.0
_SECONDS_TO_WAIT = 10.0  # for another process that writes hashes


class UnusableFileError(Exception):
    """A file of the cache is damaged or not private.

    The message begins with its path.
    """


class ForeignFileError(UnusableFileError):
    """The file belongs to another user."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and lock it against other processes for the block.

    Waits until no other process has the lock. Deletes the unfinished files of builders that were
    killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it however a process ends
        for part in folder.glob("*.part"):  # of builders that were killed
            part.unlink(missing_ok=True)
        yield


@contextlib.contextmanager
def write_array(path: Path, metadata: dict[str, Any]) -> Iterator[BinaryIO]:
    """Open a new array file, and write its JSON at the end.

    Both get their names only when they are complete. metadata: content of the JSON file, which the
    block may still change.
    """
    with _write_file(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        metadata_text = json.dumps(metadata, sort_keys=True)
        status = os.fstat(file.fileno())
        checks = {
            "sha256": _hash_all(file, metadata_text),
            "sampled_sha256": _hash_sample(file, metadata_text),
            "num_bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
        }
    with _write_file(path.with_suffix(".json")) as file:
        file.write(json.dumps({**metadata, **checks}).encode())


@contextlib.contextmanager
def _write_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is on disk.

    SIGKILL may leave a ``.part``.
    """
    part = path.with_suffix(f".{secrets.token_hex(8)}.part")
    try:
        # Whatever else the umask would allow, others may not write to it.
        with open(part, "x+b", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_array(
    path: Path, expected: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]] | None:
    """Map an array copy-on-write, and return it with its metadata.

    Returns None if a file is missing. Its size, its modification time and a sample of its bytes are
    checked. If the time differs, as after copying the cache, all bytes are checked instead, and the
    file gets the recorded time.

    expected: fields that the metadata must have. Raises UnusableFileError if they do not, if other
    users may write to a file, or if it is not as it was written.
    """
    json_path = path.with_suffix(".json")
    try:
        status, _ = stat_private(path), stat_private(json_path)
        metadata = read_metadata(json_path)
        checks = {name: metadata.pop(name, None) for name in _CHECKS}
        is_expected = all(metadata.get(name) == value for name, value in expected.items())
        if not is_expected or checks["num_bytes"] not in (status.st_size, None):
            raise _build_damage_error(path)
        metadata_text = json.dumps(metadata, sort_keys=True)
        if checks["mtime_ns"] == status.st_mtime_ns:
            with path.open("rb") as file:
                intact = checks["sampled_sha256"] == _hash_sample(file, metadata_text)
        else:
            intact = checks["sha256"] == _hash_all_cached(path, _get_state(status), metadata_text)
        if not intact:
            raise _build_damage_error(path)
        if checks["mtime_ns"] not in (status.st_mtime_ns, None):
            with contextlib.suppress(OSError):  # of root's file
                os.utime(path, ns=(status.st_atime_ns, checks["mtime_ns"]))
        return np.load(path, mmap_mode="c", allow_pickle=False), metadata
    except FileNotFoundError:
        return None


def read_metadata(path: Path) -> dict[str, Any]:
    """Read an array's JSON file, whose hashes are not checked.

    path: of the JSON file. Raises UnusableFileError if it is not a JSON object.
    """
    try:
        return parse_json_object(read_bytes(path, MAX_METADATA_BYTES), MAX_METADATA_BYTES)
    except RecordError:
        raise _build_damage_error(path) from None


def stat_private(path: Path) -> os.stat_result:
    """Return the status of a regular file of this user or root.

    Raises UnusableFileError if another user could have written to it, or it is not a regular file;
    ForeignFileError if it belongs to another user; and FileNotFoundError if it is missing.
    """
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ForeignFileError(f"{path_text(path)} belongs to another user (uid {status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise UnusableFileError(f"{path_text(path)} may be written by other users (mode {mode:o})")
    if not stat.S_ISREG(status.st_mode):  # whoever opens a pipe waits
        raise UnusableFileError(f"{path_text(path)} is not a regular file")
    return status


def _build_damage_error(path: Path) -> UnusableFileError:
    return UnusableFileError(f"{path_text(path)} is not as it was written")


@cache
def _hash_all_cached(path: Path, state: tuple[int, ...], metadata_text: str) -> str:
    """Hash a file, cached in this process by size, times, inode."""
    with path.open("rb") as file:
        return _hash_all(file, metadata_text)


def _hash_all(file: BinaryIO, metadata_text: str) -> str:
    content = hashlib.sha256(metadata_text.encode())
    file.seek(0)
    while block := file.read(_BLOCK_BYTES):
        content.update(block)
    return content.hexdigest()


def _hash_sample(file: BinaryIO, metadata_text: str) -> str:
    """Hash the metadata and 16 blocks at equal distances."""
    content = hashlib.sha256(metadata_text.encode())
    last = max(0, os.fstat(file.fileno()).st_size - _SAMPLE_BYTES)
    for n in range(_SAMPLES):
        content.update(os.pread(file.fileno(), _SAMPLE_BYTES, last * n // (_SAMPLES - 1)))
    return content.hexdigest()


class HashCache:
    """SHA-256 sums of the images below *root*, in a database.

    It is stored in *folder*. A stored sum is used while a file's size, times and inode are the
    same. Use it as a context manager, which reads and writes the database. Without a folder, every
    file is hashed.
    """

    def __init__(self, folder: Path | None, root: Path) -> None:
        self._file = None if folder is None else folder / HASHES_FILE
        self._root = root
        self._stored: dict[bytes, tuple[Any, ...]] = {}  # path to its state and its hash
        self._new: dict[bytes, tuple[Any, ...]] = {}
        self._saved_at = time.monotonic()

    def __enter__(self) -> HashCache:
        if self._file is not None and self._file.is_file():
            self._use_database(self._file, self._load_hashes)
        return self

    def __exit__(self, *_: object) -> None:
        """Store new hashes, also after an error: hashing continues where it stopped."""
        self._save()

    def save_at_times(self) -> None:
        """Store new hashes every ten seconds, so that a kill loses little."""
        if time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_SAVES:
            self._save()
            self._saved_at = time.monotonic()

    def _save(self) -> None:
        if self._file is not None and self._new:
            self._use_database(self._file, self._save_hashes)

    def hash_file(self, path: str) -> str:
        """Return an image file's SHA-256, hexadecimal, from the database if known.

        The hash of a file that was changed in the last two seconds, or meanwhile, is not stored.
        Threads may call it at the same time. Raises the errors of :func:`~.files.stat_image`, and
        DataError if the file cannot be read.
        """
        status = stat_image(path, root=self._root)
        before, name = _get_state(status), os.fsencode(path)  # not every name is Unicode
        stored = self._stored.get(name)
        if stored is not None and stored[:-1] == before:
            return str(stored[-1])
        started = time.time_ns()
        try:
            content = hash_file(path)
            after = os.stat(path)  # noqa: PTH116 (a text)
        except OSError as error:
            raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
        settled = max(status.st_mtime_ns, status.st_ctime_ns) + _SETTLED_NANOSECONDS < started
        if settled and _get_state(after) == before:
            self._new[name] = (*before, content)
        return content

    @staticmethod
    def _use_database(file: Path, use: Callable[[sqlite3.Connection], None]) -> None:
        """Call *use* with the open database, and delete a damaged one."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                stat_private(file)
            database = sqlite3.connect(file, timeout=_SECONDS_TO_WAIT)
            with contextlib.closing(database), database:
                use(database)
        except (ForeignFileError, sqlite3.OperationalError):
            return  # another user's; or locked, or it cannot be written: it may be in order
        except (UnusableFileError, OSError, sqlite3.Error):
            # Damaged, or others may write to it: the next run begins a new one.
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _load_hashes(self, database: sqlite3.Connection) -> None:
        root = os.fsencode(self._root)
        first, last = root + b"/", root + b"0"  # 0 is the character after the slash
        rows = database.execute(
            "SELECT path, size, mtime_ns, ctime_ns, inode, content FROM hashes "
            "WHERE path > ? AND path < ?",
            (first, last),
        )
        self._stored = {path: tuple(rest) for path, *rest in rows}

    def _save_hashes(self, database: sqlite3.Connection) -> None:
        database.execute(
            "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, size INTEGER, "
            "mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER, content TEXT) WITHOUT ROWID"
        )
        saved = self._new.copy()  # threads may add to it
        database.executemany(
            "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)",
            [(path, *row) for path, row in saved.items()],
        )
        for path in saved:
            del self._new[path]


def _get_state(status: os.stat_result) -> tuple[int, ...]:
    """Return a file's size, times and inode. Nobody can set ``ctime``."""
    inode = status.st_ino % 2**63  # the most that the database stores
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)
