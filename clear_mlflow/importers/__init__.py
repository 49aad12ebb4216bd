"""Results of other programs, read as accuracy matrices; one module per format.

A new format is a new module here with a subclass of ``Format``; nothing else changes. Nothing in a
file is ever executed, and each problem of a file ends in a ClearError of one line.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clear_mlflow.core.errors import ConfigError, DataError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_LOG_BYTES, check_size, read_bytes
from clear_mlflow.importers._base import Format, ReadOptions, ResultFile
from clear_mlflow.importers._normalise import ImportedRun, OrientationError, convert_run
from clear_mlflow.importers._rounding import WITHIN_CELLS, find_cell_error, match_number
from clear_mlflow.importers._row_files import RowPattern, combine_rows, parse_row
from clear_mlflow.importers.plain_text import describe_unreadable_cell

__all__ = [
    "FORMATS",
    "WITHIN_CELLS",
    "Format",
    "ImportedRun",
    "OrientationError",
    "ReadOptions",
    "ResultFile",
    "RowPattern",
    "combine_rows",
    "detect_format",
    "find_cell_error",
    "find_skipped_files",
    "load_file",
    "match_number",
    "parse_row",
    "parse_runs",
]


def _load_formats() -> dict[str, Format]:
    """Import the formats of this package by name, general ones last."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    formats = [subclass() for subclass in Format.__subclasses__()]
    formats.sort(key=lambda file_format: (file_format.is_general, file_format.name))
    return {file_format.name: file_format for file_format in formats}


FORMATS = _load_formats()


def load_file(path: Path, options: ReadOptions | None = None) -> ResultFile:
    """Read a result file into memory, without parsing it.

    options: how to read it later; None for the defaults. Raises DataError if the path is not a
    file, or the file is larger than 64 MiB or cannot be read.
    """
    try:
        if not path.is_file():
            raise DataError(f"{safe_repr(path.name)} is not a file; expected a file of results")
        return ResultFile(path.name, read_bytes(path, MAX_LOG_BYTES), options or ReadOptions())
    except OSError as error:
        raise DataError(f"{safe_repr(path.name)} cannot be read: {error.strerror}") from error
    except RecordError as error:
        raise DataError(f"{safe_repr(path.name)} {error}; no results") from error


def detect_format(file: ResultFile) -> Format | None:
    """Return the stated or first matching format, or None.

    Formats that many programs write (CSV, NumPy, JSON) are tried last. With the option ``rows``,
    every file is a log, and with ``table``, a table.
    """
    if stated := _get_stated_format(file.options)[1]:
        return FORMATS[stated]
    return next((candidate for candidate in FORMATS.values() if candidate.matches(file)), None)


def _get_stated_format(options: ReadOptions) -> tuple[str, str]:
    """Return an option and the format it implies, "", or raise ConfigError."""
    if options.rows is not None and options.table:
        raise ConfigError(
            f"rows is {safe_repr(options.rows)}, but table states a table; leave one out",
            parameter="rows",
        )
    if options.table:
        return "table", "long-table"
    return ("", "") if options.rows is None else ("rows", "log-rows")


def parse_runs(file: ResultFile, format_name: str = "auto") -> tuple[ImportedRun, ...]:
    """Parse a result file, and return matrix and metadata of each run.

    format_name: a key of :data:`FORMATS`, or "auto" to detect it. Raises RecordError if the file
    is invalid, ambiguous, without a run or in an unknown format, and ConfigError if *format_name*
    does not exist or the file's options contradict the format.
    """
    if format_name != "auto" and format_name not in FORMATS:
        raise ConfigError(
            f"format is {safe_repr(format_name)}; expected auto or {', '.join(FORMATS)}",
            parameter="format",
        )
    parameter, stated = _get_stated_format(file.options)
    if stated and format_name not in ("auto", stated):
        raise ConfigError(
            f"{parameter} is {safe_repr(getattr(file.options, parameter))}, but format is "
            f"{format_name}; leave {parameter} out",
            parameter=parameter,
        )
    file_format = detect_format(file) if format_name == "auto" else FORMATS[format_name]
    name = safe_repr(file.name, 120)
    if file_format is None:
        if not file.head.strip():
            raise RecordError(f"{name} is empty; expected a file of results")
        with suppress(RecordError):  # not a text
            name += f" contains {describe_unreadable_cell(file)}, and"
        raise RecordError(
            f"{name} is in an unknown format; choose one of {', '.join(FORMATS)}, or see "
            "docs/import.md"
        )
    try:
        check_size(file.content, file_format.max_bytes)
        runs = tuple(convert_run(file, file_format, parsed) for parsed in file_format.parse(file))
        if not runs:
            raise RecordError("contains no run")
        return runs
    except RecordError as error:
        raise type(error)(f"{name} (read as {file_format.name}): {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}", parameter=error.parameter) from error


def find_skipped_files(names: Sequence[str]) -> dict[str, str]:
    """Return files of a folder that need not be read, with reasons.

    Only names are compared: an earlier state of another file, or a table next to the matrix.

    names: names of all files in the folder.
    """
    reasons: dict[str, str] = {}
    for file_format in FORMATS.values():
        reasons |= file_format.find_skipped(names)
    return reasons
