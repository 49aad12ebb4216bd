"""Files of the cache that results rest on: sealed when written, checked before they are read.

The last 32 bytes of such a file are its seal: SHA-256 over what the file is of, and over the
SHA-256 of each 8 MiB before it. A file that was changed since, by a failing disk or by a program,
or that is of something else, does not have its own seal. Another user could make a seal that fits
other content. So a file counts only if it belongs to the user or to root, and nobody else may write
to it.

Unlike BLAKE2, SHA-256 has instructions of its own in most processors: twice the speed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import path_text

SEAL_BYTES = 32

_AT_ONCE = 2**23
_MOST_THREADS = 8  # as many as the memory of most machines can feed


class UnsealedFileError(Exception):
    """A file does not count; the message continues its name: ``is not as it was written``."""


class ForeignFileError(UnsealedFileError):
    """It is another user's."""


class _State(NamedTuple):
    """What changes when a file does, as the hashes of a dataset's files take it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


@contextlib.contextmanager
def sealed_file(path: Path, subject: str) -> Iterator[BinaryIO]:
    """A new file in the place of one that is there: sealed and whole, or not there at all."""
    part = path.with_suffix(f".{secrets.token_hex(8)}.part")
    try:
        with open(part, "x+b", opener=_for_one_writer) as file:
            yield file
            file.flush()
            file.seek(0, io.SEEK_END)
            file.write(_seal(file.fileno(), file.tell(), subject))
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class SealedFiles:
    """The sealed files that one process reads: each is checked once, and again where it changes."""

    def __init__(self) -> None:
        self._checked: dict[Path, tuple[str, _State]] = {}

    @contextlib.contextmanager
    def open(self, path: Path, subject: str) -> Iterator[tuple[BinaryIO, int]]:
        """A file that is as it was written, and its size without the seal."""
        # A pipe in a file's place would have whoever opens it wait.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(opened, "rb") as file:
            status = os.fstat(opened)
            refuse_others(status)
            size = status.st_size - SEAL_BYTES
            state = _state_of(status)
            if self._checked.get(path) != (subject, state):
                if size < 0 or os.pread(opened, SEAL_BYTES, size) != _seal(opened, size, subject):
                    raise UnsealedFileError("is not as it was written")
                self._checked[path] = subject, state
            yield file, size

    def refuse_changes(self) -> None:
        """Check those again that were written to since they were opened.

        A file that was deleted or replaced is let be: what is mapped of it is as it was.
        """
        for path, (subject, state) in tuple(self._checked.items()):
            with contextlib.suppress(OSError):
                now = _state_of(path.stat())
                if now == state or now[:2] != state[:2]:
                    continue
                try:
                    with self.open(path, subject):
                        pass
                except UnsealedFileError as error:
                    raise DataError(
                        f"{path_text(path)} {error}, and was when this training began; what was "
                        "measured since its last row is not stored: resume the run, which looks "
                        "at every file anew"
                    ) from None


def refuse_others(status: os.stat_result) -> None:
    """Refuse a file that another user could have written to."""
    if status.st_uid not in (os.geteuid(), 0):
        raise ForeignFileError(f"belongs to another user (uid {status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise UnsealedFileError(f"may be written by other users (mode {mode:o})")
    if not stat.S_ISREG(status.st_mode):
        raise UnsealedFileError("is no plain file")


def _for_one_writer(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o644)  # whatever else the umask would allow


def _state_of(status: os.stat_result) -> _State:
    return _State(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def _seal(file: int, size: int, subject: str) -> bytes:
    """The seal of the first *size* bytes of an opened file."""

    def hashed(start: int) -> bytes:
        piece = os.pread(file, min(_AT_ONCE, size - start), start)
        return hashlib.sha256(piece).digest()

    starts = range(0, size, _AT_ONCE)
    whole = hashlib.sha256(f"{subject}\n{size}\n".encode())
    # Threads, since hashing lets go of the interpreter's lock.
    with ThreadPoolExecutor(max(1, min(len(starts), os.cpu_count() or 1, _MOST_THREADS))) as pool:
        for digest in pool.map(hashed, starts):
            whole.update(digest)
    return whole.digest()
