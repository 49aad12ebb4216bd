"""Folders of the cache, and files that are complete on the disk after a power cut."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr

OFFLINE_VARIABLE = "CLEAR_MLFLOW_OFFLINE"
# Errors of file systems that cannot flush a folder: some network and user-space ones.
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP)
# Errors of file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def default_cache_dir() -> Path:
    """Return CLEAR_MLFLOW_CACHE, or clear_mlflow in XDG_CACHE_HOME or in ~/.cache.

    The folder may not exist yet. Raises DataError if a home folder is needed and not known.
    """
    if folder := _read_folder("CLEAR_MLFLOW_CACHE"):
        return folder
    try:
        # The XDG specification says to ignore a relative path.
        caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (caches if caches.is_absolute() else Path.home() / ".cache") / "clear_mlflow"
    except RuntimeError as error:
        raise DataError(
            f"the cache folder is not known: {error}; set CLEAR_MLFLOW_CACHE to one"
        ) from None


def default_data_dir() -> Path:
    """Return CLEAR_MLFLOW_DATA, or ``data`` in the cache folder, for downloaded datasets.

    Raises DataError if a home folder is needed and not known.
    """
    return _read_folder("CLEAR_MLFLOW_DATA") or default_cache_dir() / "data"


def _read_folder(variable: str) -> Path | None:
    """Return the folder that a variable names, or None if blank."""
    folder = os.environ.get(variable, "").strip()
    try:
        return Path(folder).expanduser().absolute() if folder else None
    except RuntimeError as error:
        raise DataError(
            f"{variable} is {safe_repr(folder, 200)}: {error}; set it to another folder"
        ) from None


def write_durably(file: Path, content: bytes) -> None:
    """Write or replace a file, completely on disk or not at all.

    Makes missing folders.
    """
    with _write_draft(file, content) as draft:
        draft.replace(file)
    flush_folder(file.parent)


def create_durably(file: Path, content: bytes) -> bool:
    """Create a file like :func:`write_durably`, or return False if it exists.

    Returns True if it was written.
    """
    if file.exists():
        return False
    with _write_draft(file, content) as draft:
        try:
            # Unlike a rename, a link fails if the name is taken: a file that another process wrote
            # meanwhile is kept.
            os.link(draft, file)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            draft.replace(file)
    flush_folder(file.parent)
    return True


@contextmanager
def _write_draft(file: Path, content: bytes) -> Iterator[Path]:
    """Write a temporary file next to *file*, deleted after the block."""
    _make_folder(file.parent)
    # A unique name: another process may write the same file, here or on another machine.
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    try:
        write_and_flush(draft, content)
        yield draft
    finally:
        with suppress(OSError):
            draft.unlink()


def write_and_flush(file: Path, content: bytes) -> None:
    """Write a file and flush its content to the disk."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, if the system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)


def find_offline_folder() -> Path | None:
    """Return the folder that CLEAR_MLFLOW_OFFLINE names, or None.

    It is None without the variable and for 0, no and false. 1, yes and true mean "offline_runs" in
    the working folder. Raises DataError if a home folder is needed and not known.
    """
    value = os.environ.get(OFFLINE_VARIABLE, "").strip().lower()
    if value in ("0", "no", "false"):
        return None
    is_default = value in ("1", "yes", "true")
    return Path("offline_runs").absolute() if is_default else _read_folder(OFFLINE_VARIABLE)


def set_offline(folder: bool | str | Path) -> None:
    """Set CLEAR_MLFLOW_OFFLINE in this process, unless *folder* is False.

    folder: path, True for "offline_runs" in the working folder, or False to change nothing.
    """
    if folder:
        os.environ[OFFLINE_VARIABLE] = "1" if folder is True else str(Path(folder).absolute())
