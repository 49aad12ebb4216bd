"""Unpacking a zip archive that others made: nothing outside the folder, no links, bounded size."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.files import path_text, reason

_BLOCK_BYTES = 2**20
_MAX_NAME_BYTES = 255  # what common file systems allow for one part of a path
_RATIO_FREE_BYTES = 2**20  # small text files may well shrink a thousandfold


@dataclass(frozen=True)
class Bounds:
    """What an archive may unpack to."""

    max_files: int = untrusted.MAX_UNPACKED_FILES
    max_bytes: int = untrusted.MAX_UNPACKED_BYTES
    max_ratio: int = untrusted.MAX_UNPACKED_RATIO  # of one file's unpacked to its packed size


def unpack(
    archive: Path,
    folder: Path,
    *,
    bounds: Bounds = Bounds(),
    on_bytes: Callable[[int, int], None] | None = None,
) -> None:
    """Unpack a zip archive into a new folder, checked whole before a file is written."""
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            _check(entries, archive=archive, bounds=bounds)
            total = sum(entry.file_size for entry in entries)
            written = 0
            folder.mkdir(parents=True)
            for entry in entries:
                target = folder.joinpath(*_parts(entry))
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # "x": never through a link, never over another entry
                with opened.open(entry) as packed, target.open("xb") as file:
                    # zipfile reads no more than the size that was checked
                    while block := packed.read(_BLOCK_BYTES):
                        file.write(block)
                        written += len(block)
                        if on_bytes is not None:
                            on_bytes(written, total)
    # zipfile raises NotImplementedError for methods that it lacks, RuntimeError where a password
    # is asked for, EOFError and ValueError on some damaged headers.
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path_text(archive)} is not a whole zip archive: {reason(error)}; delete it and run "
            "again"
        ) from None
    except OSError as error:
        raise DataError(
            f"{path_text(archive)} cannot be unpacked to {path_text(folder)}: {reason(error)}; "
            "make room or choose another folder, then run again"
        ) from None


def _check(entries: list[zipfile.ZipInfo], *, archive: Path, bounds: Bounds) -> None:
    def refuse(what: str) -> DataError:
        return DataError(
            f"{path_text(archive)} {what}; nothing was unpacked: fetch the archive again from "
            "where its authors published it"
        )

    files = [entry for entry in entries if not entry.is_dir()]
    if not files:
        raise refuse("holds no files")
    if len(entries) > bounds.max_files:
        raise refuse(f"holds {len(entries)} entries; expected {bounds.max_files} at most")
    total = sum(entry.file_size for entry in entries)
    if total > bounds.max_bytes:
        raise refuse(f"unpacks to {total} bytes; expected {bounds.max_bytes} at most")
    if sum(entry.compress_size for entry in entries) > archive.stat().st_size:
        raise refuse("holds entries that overlap")
    seen: set[PurePosixPath] = set()
    for entry in entries:
        if not _is_plain_path(entry):
            raise refuse(
                f"names the path {shown(entry.orig_filename)}; expected a relative path without "
                "'..'"
            )
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (
            kind and (kind == stat.S_IFDIR) != entry.is_dir()
        ):
            raise refuse(
                f"holds {shown(entry.filename)}, which is a link or a device; expected plain files"
            )
        if entry.flag_bits & 1:
            raise refuse(f"holds {shown(entry.filename)}, which is encrypted")
        if entry.file_size > _RATIO_FREE_BYTES + bounds.max_ratio * entry.compress_size:
            raise refuse(
                f"holds {shown(entry.filename)}, which unpacks from {entry.compress_size} to "
                f"{entry.file_size} bytes; expected {bounds.max_ratio} times as many at most"
            )
        path = PurePosixPath(*_parts(entry))
        if path in seen:
            raise refuse(f"holds {shown(entry.filename)} twice")
        seen.add(path)


def _is_plain_path(entry: zipfile.ZipInfo) -> bool:
    # zipfile cuts a name at NUL and turns the separators of the machine: look at the name as stored
    name = entry.orig_filename
    if not name.isprintable() or "\\" in name or name.startswith("/"):
        return False
    parts = name.removesuffix("/").split("/")
    return len(parts) <= untrusted.MAX_UNPACKED_FOLDERS and all(
        part not in ("", ".", "..")
        and ":" not in part
        and len(os.fsencode(part)) <= _MAX_NAME_BYTES
        for part in parts
    )


def _parts(entry: zipfile.ZipInfo) -> list[str]:
    return entry.orig_filename.removesuffix("/").split("/")
