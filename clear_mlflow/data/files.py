"""Reading what others wrote: sizes bounded before reading, no path followed out of its folder."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from msgspec import Meta

from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    MAX_CLASS_LIST_BYTES,
    MAX_METADATA_BYTES,
    convert,
    decode_text,
    json_value,
)
from clear_mlflow.data.problems import Report, reported, stop

# What an image is called by, where no list names it; of formats that the decoder reads.
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm"),
)

# What CLEAR's layouts call what they have in common.
IMAGE_FOLDER = "labeled_images"  # with <bucket>/<class>/<id>.jpg
CLASS_LIST = "class_names.txt"
METADATA = "labeled_metadata.json"
METADATA_FOLDER = "labeled_metadata"
TRAINING_FOLDER = "training_folder"  # of the older layout
FILE_LISTS = "filelists"  # in it: lists of images for each bucket, the first of all of them
ALL_IMAGES = "all.txt"

# What operating systems leave in folders that people looked at.
_SYSTEM_FILE = re.compile(r"(eh)?thumbs\.db|desktop\.ini|\.ds_store|\._.+", re.IGNORECASE)
_BUCKET_KEY = re.compile("[0-9]{1,9}")
_LABEL = re.compile("[0-9]{1,9}")  # not isdigit, which takes superscripts


def path_text(path: Path) -> str:
    """A path as part of a one-line message: whole, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))


def reason(error: BaseException) -> str:
    """Why something failed, as part of a one-line message."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def is_folder(path: Path) -> bool:
    """Whether a folder is there; ``False`` too where one may not look."""
    try:
        return path.is_dir()
    except OSError:
        return False


def regular_file(path: Path, *, root: Path) -> os.stat_result:
    """What the disk says of a plain file in a folder below *root*; links are followed inside it."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            if not path.resolve(strict=True).is_relative_to(root):
                raise _leads_out(path, root)
            status = path.stat()
    except FileNotFoundError:
        raise DataError(f"{path_text(path)} is missing; unpack the dataset again, whole") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path_text(path)} is not a plain file; unpack the dataset again")
    return status


def _leads_out(path: Path, root: Path) -> DataError:
    return DataError(
        f"{path_text(path)} is a link that leads out of {path_text(root)}; put what it leads to "
        "there itself"
    )


def resolve_root(root: Path) -> Path:
    """The data root as an absolute path: a stream outlives a change of the working directory."""
    try:
        return root.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"data root {path_text(root)} cannot be read: {reason(error)}") from None


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in a folder, without hidden ones and system files."""
    try:
        names = sorted(e.name for e in folder.iterdir() if not e.name.startswith("."))
    except OSError as error:
        raise DataError(f"{path_text(folder)} cannot be read: {reason(error)}") from None
    return [name for name in names if not _SYSTEM_FILE.fullmatch(name)]


def note_system_files(images: Iterable[Path]) -> tuple[str, ...]:
    """Return a warning about the system files next to images, if there are some."""
    files = (file for folder in {image.parent for image in images} for file in folder.iterdir())
    skipped = sorted(file for file in files if _SYSTEM_FILE.fullmatch(file.name))
    return tuple(
        f"{len(skipped)} system files were skipped, for example {path_text(first)}"
        for first in skipped[:1]
    )


def names_of(names: Sequence[str]) -> str:
    """Names for a message."""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(safe_repr(name) for name in names[:12]) + more or "nothing"


def images_in(
    folder: Path,
    *,
    root: Path,
    endings: tuple[str, ...] = IMAGE_ENDINGS,
    report: Report = stop,
) -> Iterator[Path]:
    """The files in the folder of a class, images by their names, of which there are some."""
    names: list[str] = []
    with reported(report, "structure", folder):
        resolve_folder(folder, root=root)
        names = names_in(folder)
        if not names:
            error = DataError(f"{path_text(folder)} is empty; expected images, or no such folder")
            report("empty-class", folder, error)
    for name in names:
        if name.lower().endswith(endings):
            yield folder / name
        else:
            error = DataError(
                f"{path_text(folder / name)} is no image by its name; expected files that end in "
                f"{', '.join(endings)} and nothing else there"
            )
            report("not-an-image", folder / name, error)


def is_class_name(name: str) -> bool:
    """Whether a text can be a class name: a printable line without blanks at its ends."""
    return bool(name) and name == name.strip() and name.isprintable()


def in_stream_order(keys: Iterable[str], *, named_in: Path) -> list[str]:
    """Bucket keys in the numeric order that is the stream's."""
    listed = list(keys)
    for key in listed:
        if not _BUCKET_KEY.fullmatch(key):
            raise DataError(
                f"{path_text(named_in)} has a bucket {safe_repr(key)}; expected whole numbers such "
                "as '1' or '10', for their order is the stream's"
            )
    listed.sort(key=int)
    for before, key in pairwise(listed):
        if int(before) == int(key):
            raise DataError(
                f"{path_text(named_in)} has buckets {safe_repr(before)} and {safe_repr(key)}, "
                "which are one number; expected each bucket once"
            )
    return listed


def check_place(
    folder: Path,
    *,
    base: Path,
    key: str,
    class_name: str,
    class_names: frozenset[str] | None = None,
    named_in: Path,
) -> None:
    """Make sure that images' folder contradicts neither the bucket nor the class of their list."""
    _, bucket_folder, class_folder, *_ = (*folder.relative_to(base).parts, "", "")
    is_key = _BUCKET_KEY.fullmatch(bucket_folder)
    if int(bucket_folder) != int(key) if is_key else class_names is None:
        where = f"bucket {key}"
    elif class_folder != class_name and (class_names is None or class_folder in class_names):
        where = f"class {safe_repr(class_name)}"
    else:
        return
    raise DataError(
        f"{path_text(named_in)} lists images of {path_text(folder)} under {where}, which the "
        "folder's name contradicts; the list was mixed up: unpack the dataset again"
    )


def read_lines(path: Path, *, root: Path, limit: int = MAX_METADATA_BYTES) -> list[str]:
    """The lines of a text file; a final newline may or may not be there."""
    try:
        text = decode_text(_read_bytes(path, root=root, limit=limit))
    except RecordError as error:
        raise DataError(f"{path_text(path)} {error}") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if lines == [""]:
        raise DataError(f"{path_text(path)} is empty; unpack the dataset again")
    return lines


def list_entry(
    line: str, number: int, *, base: Path, num_classes: int, named_in: Path
) -> tuple[Path, int]:
    """Path, joined to *base*, and label of a line (from 1) as ``labeled_images/1/bus/1.jpg 2``."""
    stored, _, label = line.rpartition(" ")  # a path may hold spaces, a label does not
    if not _LABEL.fullmatch(label) or int(label) >= num_classes:
        raise DataError(
            f"{path_text(named_in)} line {number} is {safe_repr(line)}; expected a path, a space, "
            f"and a label from 0 to {num_classes - 1}"
        )
    return stored_path(stored, base=base, below=IMAGE_FOLDER, named_in=named_in), int(label)


def read_class_names(path: Path, *, root: Path) -> tuple[str, ...]:
    """Read a class list: one name a line, sorted; a final newline may or may not be there."""
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
                "expected names sorted and without doubles, for the line number is the label"
            )
    return tuple(lines)


def read_json_object(path: Path, *, root: Path) -> dict[str, Any]:
    """Read a JSON object, and let nothing in it pass in silence."""
    return expect_object(_read_json(path, root=root), what=path_text(path))


def read_json_texts(path: Path, *, root: Path) -> list[str]:
    """Read a JSON list of texts, at least one."""
    texts: list[str] = _read_json(path, Annotated[list[str], Meta(min_length=1)], root=root)
    return texts


def expect_object(value: object, *, what: str) -> dict[str, Any]:
    """The value, if it is a JSON object that is not empty."""
    if not isinstance(value, dict):
        raise DataError(f"{what} holds {safe_repr(value)}; expected a JSON object")
    if not value:
        raise DataError(f"{what} holds an empty object; unpack the dataset again")
    return value


def stored_path(stored: object, *, base: Path, below: str | None, named_in: Path) -> Path:
    """A path that a file names, joined to *base*, if by its text it stays in ``base/below``."""
    if isinstance(stored, str) and stored.isprintable() and "\\" not in stored:
        # A folder is looked at once, not for each of its images: of those there are 100,000.
        folder, _, name = stored.rpartition("/")
        place = _folder_below(folder, base, below)
        if name not in ("", ".", "..") and place is not None:
            return place / name
    starts = "" if below is None else f"starts with {below}/ and "
    raise DataError(
        f"{path_text(named_in)} names the path {safe_repr(stored)}; expected a relative path that "
        f"{starts}has no '..'"
    )


@lru_cache(maxsize=4096)
def _folder_below(stored: str, base: Path, below: str | None) -> Path | None:
    """A folder that a file names, joined to *base*; None where it is neither *below* nor in it."""
    path = PurePosixPath(stored)
    parts = path.parts
    if path.is_absolute() or ".." in parts or (below is not None and parts[:1] != (below,)):
        return None
    return base.joinpath(*parts)


def resolve_folder(folder: Path, *, root: Path) -> None:
    """Make sure that a folder lies below *root* when its links are followed."""
    try:
        real = folder.resolve(strict=True)
    except FileNotFoundError:
        raise DataError(
            f"{path_text(folder)} is missing; unpack the dataset again, whole"
        ) from None
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path_text(folder)} cannot be read: {reason(error)}") from None
    if not real.is_relative_to(root):
        raise _leads_out(folder, root)
    if not real.is_dir():
        raise DataError(f"{path_text(folder)} is not a folder; unpack the dataset again")


def _read_json(path: Path, form: Any = Any, *, root: Path) -> Any:
    content = _read_bytes(path, root=root, limit=MAX_METADATA_BYTES)
    try:
        return convert(json_value(content, MAX_METADATA_BYTES), form)
    except RecordError as error:
        raise DataError(f"{path_text(path)} {error}; unpack the dataset again") from None


def expect_file(path: Path, *, root: Path, limit: int) -> None:
    """Make sure that a plain file lies below *root*, of no more bytes than it may have."""
    resolve_folder(path.parent, root=root)
    size = regular_file(path, root=root).st_size
    if size > limit:
        raise DataError(
            f"{path_text(path)} has {size} bytes; expected {limit} at most, so it is not what its "
            "name says"
        )


def expect_unpacked(path: Path, limit: int) -> None:
    """Refuse a zip file that claims to hold more: one of some kilobytes may hold so many zeros."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > limit:
            raise DataError(
                f"{path_text(path)} unpacks to {unpacked} bytes; expected {limit} at most, so it "
                "is not what its name says"
            )


def _read_bytes(path: Path, *, root: Path, limit: int) -> bytes:
    expect_file(path, root=root, limit=limit)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
