"""Arrays of the cache that results rest on: ``NAME.npy`` and, beside it, ``NAME.json``.

The JSON says what the array is of, and has one SHA-256 of that and of the array's file. A file
counts only if it is the user's or root's, and nobody else may write to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_METADATA_BYTES, json_object, read_bytes
from clear_mlflow.data.files import path_text

_DIGEST = "sha256"
_BLOCK_BYTES = 2**20


class UnusableFileError(Exception):
    """A file of the cache does not count; the message begins with its path."""


class ForeignFileError(UnusableFileError):
    """It is another user's."""


@contextlib.contextmanager
def new_array(path: Path, about: dict[str, Any]) -> Iterator[BinaryIO]:
    """The file of a new array, and *about*, which may grow meanwhile: there whole or not at all."""
    with _new_file(path) as file:
        yield file
        file.flush()
        document = {**about, _DIGEST: _digest(file, about)}
    with _new_file(path.with_suffix(".json")) as file:
        file.write(json.dumps(document).encode())


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Written beside *path* and renamed when it is on the disk; a ``.part`` may stay of a crash."""
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


class CachedArrays:
    """The arrays that one process reads, each verified when it is opened and was changed."""

    def __init__(self) -> None:
        self._verified: set[tuple[object, ...]] = set()

    def open(
        self, path: Path, expected: Mapping[str, Any]
    ) -> tuple[NDArray[Any], dict[str, Any]] | None:
        """The array, mapped copy-on-write, and what it is of; None where there is none."""
        about_path = path.with_suffix(".json")
        try:
            states = [refuse_others(file) for file in (path, about_path)]
            about = described(about_path)
            if any(about.get(name) != value for name, value in expected.items()):
                raise _changed(path)
            state = (path, *states)
            if state not in self._verified:
                digest = about.pop(_DIGEST, None)
                with path.open("rb") as file:
                    if digest != _digest(file, about):
                        raise _changed(path)
                self._verified.add(state)
            return np.load(path, mmap_mode="c", allow_pickle=False), about
        except FileNotFoundError:
            return None


def described(path: Path) -> dict[str, Any]:
    """What the JSON beside an array says; it is verified where the array is opened."""
    try:
        return json_object(read_bytes(path, MAX_METADATA_BYTES), MAX_METADATA_BYTES)
    except RecordError:
        raise _changed(path) from None


def refuse_others(path: Path) -> tuple[int, ...]:
    """Refuse a file that another user could have written to; gives what changes when it does."""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ForeignFileError(f"{path_text(path)} belongs to another user (uid {status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise UnusableFileError(f"{path_text(path)} may be written by other users (mode {mode:o})")
    if not stat.S_ISREG(status.st_mode):  # whoever opens a pipe waits
        raise UnusableFileError(f"{path_text(path)} is no plain file")
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _changed(path: Path) -> UnusableFileError:
    return UnusableFileError(f"{path_text(path)} is not as it was written")


def _digest(file: BinaryIO, about: Mapping[str, Any]) -> str:
    """SHA-256 of what an array is of and of its whole file."""
    content = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    file.seek(0)
    while block := file.read(_BLOCK_BYTES):
        content.update(block)
    return content.hexdigest()
