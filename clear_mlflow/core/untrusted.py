"""The only reader of foreign files: rows, results to import, datasets, archives, weights.

Nothing that is read is trusted. Sizes are bounded before memory is taken, and anything wrong raises
a RecordError whose message continues the file's name: ``is larger than 1 MiB``. Files that this
program keeps for itself (journal, cache, tags) are protected by checksums and ownership, and only
their JSON is read here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr

# msgspec inspects a type at its first use; threads that see it half-inspected crash.
_CONVERTING = threading.RLock()  # a check of a struct may convert a field

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30

# Limits, in bytes if the name ends so. The comment before each names the largest known case.
# A row of a hundred buckets takes 3 kB; a configuration, a sweep or a manifest less.
MAX_ROW_BYTES: Final = _MIB
MAX_CONFIG_BYTES: Final = _MIB
MAX_MANIFEST_BYTES: Final = _MIB
MAX_CLASS_LIST_BYTES: Final = _MIB
MAX_TAG_BYTES: Final = 64 * _KIB
# A matrix of eight hundred buckets, in full digits; logs contain every epoch, too.
MAX_RESULTS_BYTES: Final = 16 * _MIB
MAX_LOG_BYTES: Final = 64 * _MIB
# CLEAR-100's largest metadata file is far below a tenth of it.
MAX_METADATA_BYTES: Final = 256 * _MIB
# A million lines of a path, a class and a time take 60 MB; packed columns count unpacked.
MAX_TABLE_BYTES: Final = 512 * _MIB
MAX_VECTORS_BYTES: Final = 16 * _GIB
MAX_TABLE_ROWS: Final = 5_000_000
# The probabilities of CLEAR-100's 55,000 test images (11 buckets of about 4,980) take 11 MB.
MAX_PREDICTIONS_BYTES: Final = _GIB
MAX_IMAGE_BYTES: Final = 256 * _MIB
# The largest of CLEAR-100's own features is near 2**27.
MAX_FEATURES_BYTES: Final = 2 * _GIB
# Numbers per image; CLEAR's own features have 2,048.
MAX_FEATURES_WIDTH: Final = 16_384
MAX_TABLE_COLUMNS: Final = MAX_FEATURES_WIDTH + 16  # numbers, and other columns
# The largest of torchvision's take 2.6 GB.
MAX_WEIGHTS_BYTES: Final = 8 * _GIB
# A vision transformer of 600 million weights, with Adam's two moments and EWC's two, takes 13 GB.
MAX_STATE_BYTES: Final = 64 * _GIB

# A small file may name more buckets or classes than their matrix has room for in memory.
MAX_BUCKETS: Final = 1000
MAX_KEY_CHARACTERS: Final = 100
MAX_CLASSES: Final = 2**16
MAX_CELLS_PER_CLASS: Final = 50_000_000  # rows by buckets by classes
# The largest integer that every JSON reader keeps, even one that uses doubles.
MAX_COUNT: Final = 2**53
MAX_TEXT_CHARACTERS: Final = 150  # of a dataset's name, for example
MAX_LINES: Final = 2_000_000  # of a log
MAX_LINE_CHARACTERS: Final = 4 * _MIB  # a run of a hundred tasks takes 300 kB in mammoth's log
MAX_RUNS: Final = 10_000  # in one file, or in a sweep
MAX_ARRAYS: Final = 100  # in a .npz file
MAX_ANYTIME_FILES: Final = 100_000  # tests inside buckets; a training makes a tenth at most
MAX_IMPORTED_FILES: Final = 10_000
MAX_JSON_LISTS: Final = 100_000  # an empty one takes thirty times the room of its text
MAX_JSON_LEVELS: Final = 32  # of nesting; a row has two

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def read_bytes(path: Path, largest: int) -> bytes:
    """Read a regular file of at most *largest* bytes, or raise RecordError."""
    with open(path, "rb", opener=_open_regular_file) as file:
        content = file.read(largest + 1)
    check_size(content, largest)
    return content


def hash_file(path: Path | str) -> str:
    """Read a regular file and return its SHA-256, or raise RecordError."""
    content = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=_open_regular_file) as file:
        while block := file.read(_MIB):
            content.update(block)
    return content.hexdigest()


def check_size(content: bytes, largest: int) -> None:
    """Raise RecordError if the content has more than *largest* bytes."""
    if len(content) > largest:
        raise RecordError(f"is larger than {format_size(largest)}")


def decode_text(content: bytes) -> str:
    """Decode UTF-8 without its byte order mark, or raise RecordError."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise RecordError(f"is not a UTF-8 text: {error.reason} at byte {error.start}") from error


def parse_json(content: bytes | str, largest: int, *, nan: bool = False) -> Any:
    """Parse JSON from text or UTF-8, or raise RecordError.

    Raises RecordError if it has more than *largest* bytes, is not JSON, is nested more than 32
    levels deep, or contains a field twice, an infinite number, or a character that is not Unicode.
    nan: True to allow ``NaN``, which Python writes; otherwise it raises RecordError, too.
    """
    if isinstance(content, bytes):
        check_size(content, largest)
        content = decode_text(content)
    # A character is a byte or more, so the first test avoids encoding a text that is far too long.
    elif len(content) > largest or len(content.encode("utf-8", "surrogatepass")) > largest:
        raise RecordError(f"is larger than {format_size(largest)}")
    try:
        document = json.loads(
            content,
            object_pairs_hook=_build_object,
            parse_constant=_parse_nan if nan else _reject_constant,
            parse_float=_parse_float,
        )
    except json.JSONDecodeError as error:
        raise RecordError(f"is not JSON: {error}; the file is damaged or cut off") from error
    except RecursionError as error:
        raise RecordError("is nested too deeply") from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise RecordError("contains a number too large to read") from error
    check_depth(document)
    if _SURROGATE.search(content):
        try:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise RecordError(
                f"contains {safe_repr(error.object[error.start])}, which is not a Unicode text"
            ) from error
    return document


def parse_json_object(content: bytes | str, largest: int) -> dict[str, Any]:
    """Parse a JSON object like :func:`parse_json`, or raise RecordError."""
    document = parse_json(content, largest)
    if not isinstance(document, dict):
        raise RecordError(f"is {safe_repr(document)}; expected a JSON object")
    return document


def parse_json_texts(content: bytes | str, largest: int) -> dict[str, str]:
    """Parse a JSON object whose values are all texts, or raise RecordError."""
    texts: dict[str, str] = convert(parse_json_object(content, largest), dict[str, str])
    return texts


def convert(document: object, target: Any, name: str = "") -> Any:
    """Convert a document to a type, or raise RecordError. Ignores unknown fields.

    Raises RecordError, whose message calls the document *name*.
    """
    try:
        with _CONVERTING:
            return msgspec.convert(document, target)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        name = f"{name}{path}".strip("`.")
        problem = problem.replace("Object missing required", "lacks the").replace("`", "'")
        problem = problem[0].lower() + problem[1:]
        raise RecordError(f"{name}: {problem}" if name else problem) from error


def format_document_name(source: str) -> str:
    """Return a file's name, as a repr if unprintable, empty or long."""
    return source if source.isprintable() and 0 < len(source) <= 200 else safe_repr(source)


def format_document(fields: Mapping[str, Any]) -> bytes:
    """Format fields as a JSON object with a line for each.

    Raises ValueError for NaN and infinity.
    """
    lines = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in fields.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def check_depth(document: object) -> None:
    """Raise RecordError if a document is nested more than 32 levels deep."""
    level = [document] if isinstance(document, (list, dict)) else []
    for _ in range(MAX_JSON_LEVELS):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (list, dict))
        ]
        if not level:
            return
    raise RecordError("is nested too deeply")


def format_size(size: int) -> str:
    """Format a limit such as ``1 MiB``.

    >>> format_size(MAX_ROW_BYTES), format_size(100)
    ('1 MiB', '100 bytes')
    """
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _open_regular_file(path: str, flags: int) -> int:
    """Open a regular file or folder without waiting, or raise RecordError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # for a folder, Python raises its own error
        os.close(descriptor)
        raise RecordError("is not a regular file")
    return descriptor


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise RecordError(f"has the field {safe_repr(twice)} twice; expected each once")
    return fields


def _reject_constant(text: str) -> NoReturn:
    raise RecordError(f"contains {text}, which is not a JSON number")


def _parse_nan(text: str) -> float:
    return math.nan if text == "NaN" else _reject_constant(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise RecordError(f"contains {safe_repr(text)}, a number too large to read")
    return value
