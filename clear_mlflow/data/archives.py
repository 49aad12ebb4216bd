"""Unpack zip archives of unknown origin: no files outside the folder, no links, limited size."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import path_text, reason

_MAX_NAME_BYTES = 255  # what common file systems allow for one part of a path


def unpack(
    archive: Path, folder: Path, on_bytes: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Unpack a zip archive into a new folder. Checks all entries before it writes one."""
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            if problem := _find_problem(entries):
                raise DataError(
                    f"{path_text(archive)} {problem}; nothing was unpacked: download the archive "
                    "again from its publisher"
                )
            total, written = sum(entry.file_size for entry in entries), 0
            folder.mkdir(parents=True)  # a new folder contains no link
            for entry in entries:
                target = folder.joinpath(*_parts(entry))
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # "x": never through a link, never over another entry
                with opened.open(entry) as packed, target.open("xb") as file:
                    shutil.copyfileobj(packed, file)  # no more than the size that was checked
                written += entry.file_size
                on_bytes(written, total)
    # zipfile raises NotImplementedError for unknown methods, RuntimeError for encrypted files, and
    # EOFError and ValueError for some damaged headers.
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path_text(archive)} is not a complete zip archive: {reason(error)}; delete it and "
            "run again"
        ) from None
    except OSError as error:
        raise DataError(
            f"{path_text(archive)} cannot be unpacked to {path_text(folder)}: {reason(error)}; "
            "free some space or choose another folder, then run again"
        ) from None


def _find_problem(entries: list[zipfile.ZipInfo]) -> str:
    """Return why an archive cannot be unpacked, or an empty text."""
    if all(entry.is_dir() for entry in entries):
        return "contains no files"
    if len(entries) > untrusted.MAX_UNPACKED_FILES:
        return f"contains {len(entries)} entries; expected {untrusted.MAX_UNPACKED_FILES} at most"
    total = sum(entry.file_size for entry in entries)
    if total > untrusted.MAX_UNPACKED_BYTES:
        return f"unpacks to {total} bytes; expected {untrusted.MAX_UNPACKED_BYTES} at most"
    for entry in entries:
        if not _is_plain_path(entry):
            return (
                f"names the path {safe_repr(entry.orig_filename)}; expected a relative path "
                "without '..'"
            )
        file_type = stat.S_IFMT(entry.external_attr >> 16)
        if file_type not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
            name = safe_repr(entry.filename)
            return f"contains {name}, which is a link or a device; expected plain files"
    return ""


def _is_plain_path(entry: zipfile.ZipInfo) -> bool:
    # zipfile truncates a name at NUL and replaces separators: check the stored name
    name, parts = entry.orig_filename, _parts(entry)
    return (
        name.isprintable()
        and not name.startswith("/")
        and len(parts) <= untrusted.MAX_UNPACKED_FOLDERS
        and not any(
            part in ("", ".", "..")
            or "\\" in part
            or ":" in part
            or len(os.fsencode(part)) > _MAX_NAME_BYTES
            for part in parts
        )
    )


def _parts(entry: zipfile.ZipInfo) -> tuple[str, ...]:
    return tuple(entry.orig_filename.removesuffix("/").split("/"))
