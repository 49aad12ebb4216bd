"""Files that survive a power cut: whole and under their name before anyone relies on them."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What file systems answer that cannot flush a folder: some network and user-space ones.
_CANNOT = (errno.EINVAL, errno.ENOTSUP)
# What they answer that know no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def write_durably(file: Path, content: bytes) -> None:
    """Write a file, in the place of one that is there: as a whole or not at all; makes folders."""
    with _draft(file, content) as draft:
        draft.replace(file)
    flush_folder(file.parent)


def create_durably(file: Path, content: bytes) -> bool:
    """Write a file as :func:`write_durably` does, but only where none is; whether none was."""
    if file.exists():
        return False
    with _draft(file, content) as draft:
        try:
            # Refused where the name is taken, which a rename is not: what another process wrote
            # while this one was stopped stays.
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
def _draft(file: Path, content: bytes) -> Iterator[Path]:
    """A file's content on the disk, under a name that is gone afterwards."""
    _make_folder(file.parent)
    # A unique name: another process may write the same file, here or on another machine.
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    try:
        flush_into(draft, content)
        yield draft
    finally:
        with suppress(OSError):
            draft.unlink()


def flush_into(file: Path, content: bytes) -> None:
    """Bring a file's content to the disk; its name may follow with its folder's flush only."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where its file system can."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(opened)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)
