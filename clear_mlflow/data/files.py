"""Read files of unknown origin: sizes are limited, and no path leads out of its folder."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from msgspec import Meta

from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.core.text import safe_repr, show_blank
from clear_mlflow.core.untrusted import (
    MAX_CLASS_LIST_BYTES,
    MAX_IMAGE_BYTES,
    MAX_METADATA_BYTES,
    convert,
    decode_text,
    parse_json,
)

# Endings of image files in folders without lists; the decoder reads these formats.
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm"),
)

# Names of files and folders in CLEAR's layouts.
IMAGE_FOLDER = "labeled_images"  # with <bucket>/<class>/<id>.jpg
CLASS_LIST = "class_names.txt"
METADATA = "labeled_metadata.json"
METADATA_FOLDER = "labeled_metadata"
TRAINING_FOLDER = "training_folder"  # in the older layout
FILE_LISTS = "filelists"  # in it: lists of images for each bucket
ALL_IMAGES = "all.txt"

# Files that Windows writes into folders.
_SYSTEM_FILES = ("thumbs.db", "ehthumbs.db", "desktop.ini")
_LABEL = re.compile("[0-9]{1,9}")  # not isdigit, which takes superscripts


def path_text(path: Path | str) -> str:
    """Return a path for one-line messages, with invisible characters escaped."""
    return show_blank("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path)))


def reason(error: BaseException) -> str:
    """Return the message of an error as part of a one-line message."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def is_folder(path: Path) -> bool:
    """Return True if a path is known to be a folder.

    A link to one counts.
    """
    try:
        return path.is_dir()
    except OSError:
        return False


def stat_file(path: Path | str, *, root: Path) -> os.stat_result:
    """Return the status of a file, links followed.

    Raises DataError if it is missing or not a plain file, or a link leads out of *root*.
    """
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            if not Path(path).resolve(strict=True).is_relative_to(root):
                raise _build_link_error(path, root)
            status = os.stat(path)  # noqa: PTH116 (a path or a text, for each image)
    except FileNotFoundError:
        raise DataError(f"{path_text(path)} is missing; expected every listed image") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path_text(path)} is not a plain file; unpack the dataset again")
    return status


def stat_image(path: Path | str, *, root: Path) -> os.stat_result:
    """Return the status of an image file, links followed.

    Raises the errors of :func:`stat_file`, and DataError if it is empty or too large.
    """
    status = stat_file(path, root=root)
    if not 0 < status.st_size <= MAX_IMAGE_BYTES:
        raise DataError(
            f"{path_text(path)} has {status.st_size} bytes; expected an image of 1 to "
            f"{MAX_IMAGE_BYTES}; unpack the dataset again"
        )
    return status


def _build_link_error(path: Path | str, root: Path) -> DataError:
    if not Path(path).absolute().is_relative_to(root):
        return DataError(
            f"{path_text(path)} is not in {path_text(root)}; pass the folder that contains all "
            "images as root"
        )
    return DataError(
        f"{path_text(path)} is a link that leads out of {path_text(root)}; replace the link by a "
        "copy of its target"
    )


def resolve_root(root: Path | str) -> Path:
    """Return the data root, absolute, without links. Raises DataError if missing."""
    if not isinstance(root, (str, os.PathLike)):
        raise DataError(
            f"root is {safe_repr(root)}; expected the folder of the data: pass data_root to the "
            "training, or a folder as root"
        )
    try:
        return Path(root).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"data root {path_text(root)} cannot be read: {reason(error)}") from None


def list_names(folder: Path) -> list[str]:
    """Return the sorted names in a folder, without hidden and system files.

    Raises DataError if the folder cannot be read.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise DataError(f"{path_text(folder)} cannot be read: {reason(error)}") from None
    return [n for n in names if not n.startswith(".") and n.lower() not in _SYSTEM_FILES]


def format_names(names: Sequence[str]) -> str:
    """Return at most twelve names for a message, or "nothing"."""
    others = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(safe_repr(name) for name in names[:12]) + others or "nothing"


def list_images(folder: Path, *, root: Path) -> list[Path]:
    """Return the sorted paths in a class's folder, without hidden files.

    Their types are not checked. Raises DataError if the folder is missing, a file, or a link out of
    *root*.
    """
    check_folder(folder, root=root)
    return [folder / name for name in list_names(folder)]


def is_class_name(name: object) -> bool:
    """Return True for a printable line without blanks at its ends."""
    return isinstance(name, str) and name == name.strip() != "" and name.isprintable()


def read_lines(path: Path, *, root: Path, limit: int = MAX_METADATA_BYTES) -> list[str]:
    """Read the lines of a UTF-8 file below *root*.

    Raises DataError if it is missing, empty, invalid, or has more than *limit* bytes.
    """
    try:
        text = decode_text(_read_bytes(path, root=root, limit=limit))
    except RecordError as error:
        raise DataError(f"{path_text(path)} {error}") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if lines == [""]:
        raise DataError(f"{path_text(path)} is empty; unpack the dataset again")
    return lines


def read_image_list(
    file: Path, *, root: Path, base: Path, num_classes: int
) -> list[tuple[Path, int]]:
    """Read path, joined to *base*, and label of lines like ``labeled_images/1/bus/1.jpg 2``.

    Raises DataError for any other line.
    """
    images = []
    for number, line in enumerate(read_lines(file, root=root), start=1):
        stored, _, label = line.rpartition(" ")  # a path may contain spaces, a label does not
        if not _LABEL.fullmatch(label) or int(label) >= num_classes:
            raise DataError(
                f"{path_text(file)} line {number} is {safe_repr(line)}; expected a path, a space, "
                f"and a label from 0 to {num_classes - 1}"
            )
        path = join_stored_path(stored, base=base, below=IMAGE_FOLDER, list_file=file)
        images.append((path, int(label)))
    return images


def read_class_names(path: Path, *, root: Path) -> tuple[str, ...]:
    """Read a class list, a name per line. Raises DataError unless sorted."""
    lines = read_lines(path, root=root, limit=MAX_CLASS_LIST_BYTES)
    for number, (before, name) in enumerate(pairwise(["", *lines]), start=1):
        if not is_class_name(name):
            raise DataError(
                f"{path_text(path)} line {number} is {safe_repr(name)}; expected a class name and "
                "nothing else on each line"
            )
        if before >= name:
            raise DataError(
                f"{path_text(path)} line {number}: {safe_repr(name)} after {safe_repr(before)}; "
                "expected names sorted and each once, because the line number is the label"
            )
    return tuple(lines)


def read_json_object(path: Path, *, root: Path) -> dict[str, Any]:
    """Read a JSON object. Raises DataError if it is empty."""
    return require_object(_read_json(path, root=root), source=path_text(path))


def read_json_strings(path: Path, *, root: Path) -> list[str]:
    """Read a JSON list of strings. Raises DataError if it is empty."""
    strings: list[str] = _read_json(path, Annotated[list[str], Meta(min_length=1)], root=root)
    return strings


def require_object(value: object, *, source: str) -> dict[str, Any]:
    """Return a non-empty JSON object, or raise DataError."""
    if not isinstance(value, dict):
        raise DataError(f"{source} contains {safe_repr(value)}; expected a JSON object")
    if not value:
        raise DataError(f"{source} contains an empty object; unpack the dataset again")
    return value


def join_stored_path(stored: object, *, base: Path, below: str | None, list_file: Path) -> Path:
    """Join a path from a file to *base*. Raises DataError if outside.

    It must stay in ``base/below``. The path need not exist. below: None for *base* itself.
    list_file: file that names the path, for the message.
    """
    if isinstance(stored, str) and stored.isprintable() and "\\" not in stored:
        # A folder is checked once, not for each of its images: there may be 100,000.
        folder, _, name = stored.rpartition("/")
        parent = _join_folder(folder, base, below)
        if name not in ("", ".", "..") and parent is not None:
            return parent / name
    starts = "" if below is None else f"starts with {below}/ and "
    raise DataError(
        f"{path_text(list_file)} names the path {safe_repr(stored)}; expected a relative path that "
        f"{starts}contains no '..'"
    )


@lru_cache(maxsize=4096)
def _join_folder(stored: str, base: Path, below: str | None) -> Path | None:
    """Join a stored relative path to *base*, None if outside ``base/below``."""
    path = PurePosixPath(stored)
    parts = path.parts
    if path.is_absolute() or ".." in parts or (below is not None and parts[:1] != (below,)):
        return None
    return base.joinpath(*parts)


def check_folder(folder: Path, *, root: Path) -> None:
    """Raise DataError unless a folder exists, below *root* without links."""
    try:
        real = folder.resolve(strict=True)
    except FileNotFoundError:
        raise DataError(
            f"{path_text(folder)} is missing; unpack the complete dataset again"
        ) from None
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path_text(folder)} cannot be read: {reason(error)}") from None
    if not real.is_relative_to(root):
        raise _build_link_error(folder, root)
    if not real.is_dir():
        raise DataError(f"{path_text(folder)} is not a folder; unpack the dataset again")


def _read_json(path: Path, target_type: Any = Any, *, root: Path) -> Any:
    """Read a JSON file below *root* as a type, else DataError."""
    content = _read_bytes(path, root=root, limit=MAX_METADATA_BYTES)
    try:
        return convert(parse_json(content, MAX_METADATA_BYTES), target_type)
    except RecordError as error:
        raise DataError(f"{path_text(path)} {error}; unpack the dataset again") from None


def check_file(path: Path, *, root: Path, limit: int) -> None:
    """Raise DataError unless a plain file has at most *limit* bytes."""
    check_folder(path.parent, root=root)
    size = stat_file(path, root=root).st_size
    if size > limit:
        raise DataError(f"{path_text(path)} has {size} bytes; expected {limit} at most")


def check_unpacked_size(path: Path, limit: int) -> None:
    """Raise DataError if a zip file unpacks to over *limit* bytes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > limit:
            raise DataError(
                f"{path_text(path)} unpacks to {unpacked} bytes; expected {limit} at most"
            )


def _read_bytes(path: Path, *, root: Path, limit: int) -> bytes:
    """Read a plain file below *root* of at most *limit* bytes."""
    check_file(path, root=root, limit=limit)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
