"""Results of other programs, read as accuracy matrices; one module per format.

A new format is a new module here with a ``FORMATS``; nothing else changes. Nothing that is read is
ever executed, and whatever is wrong with a file ends in a ClearError of one line.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clear_mlflow.core.errors import ConfigError, DataError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_LOG_BYTES, read_bytes
from clear_mlflow.importers._base import Format, Imported, Reading, Source, as_rows, finish
from clear_mlflow.importers._row_files import RowPattern, matrix_of_rows

__all__ = [
    "FORMATS",
    "Format",
    "Imported",
    "Reading",
    "RowPattern",
    "Source",
    "as_rows",
    "load",
    "matrix_of_rows",
    "passed_over",
    "read_runs",
    "recognise",
]

FORMATS: dict[str, Format] = {
    kind.name: kind
    for kind in sorted(
        (
            kind
            for module in pkgutil.iter_modules(__path__)
            if not module.name.startswith("_")
            for kind in importlib.import_module(f"{__name__}.{module.name}").FORMATS
        ),
        key=lambda kind: (kind.is_general, kind.name),
    )
}


def load(path: Path) -> Source:
    """Read a file's bytes, once it is sure that they are not too many."""
    try:
        if not path.is_file():
            raise DataError(f"{safe_repr(path.name)} is no file; expected a file of results")
        return Source(path.name, read_bytes(path, MAX_LOG_BYTES))
    except OSError as error:
        raise DataError(f"{safe_repr(path.name)} cannot be read: {error.strerror}") from error
    except RecordError as error:
        raise DataError(f"{safe_repr(path.name)} {error}; no results") from error


def recognise(source: Source) -> Format | None:
    """The format of a file, by its name and its first bytes; None where no format is like that."""
    return next((kind for kind in FORMATS.values() if kind.recognises(source)), None)


def read_runs(
    source: Source, *, kind: str = "auto", reading: Reading | None = None
) -> tuple[Imported, ...]:
    """The runs that a file holds; ``kind`` is a name of :data:`FORMATS`, or ``auto``."""
    if kind != "auto" and kind not in FORMATS:
        raise ConfigError(f"format is {safe_repr(kind)}; expected auto or {', '.join(FORMATS)}")
    found = recognise(source) if kind == "auto" else FORMATS[kind]
    name = safe_repr(source.name, 120)
    if found is None:
        raise RecordError(
            f"{name} is of no format that is read; choose one of {', '.join(FORMATS)}, or see "
            "docs/import.md"
        )
    try:
        said = reading or Reading()
        source = replace(source, reading=said)
        runs = tuple(finish(source, found, parsed, said) for parsed in found.parse(source))
        if not runs:
            raise RecordError("holds no run")
        return runs
    except RecordError as error:
        raise RecordError(f"{name} (read as {found.name}): {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def passed_over(names: Sequence[str]) -> dict[str, str]:
    """Return the files of a folder that are not to be imported, each with the reason."""
    reasons: dict[str, str] = {}
    for file_format in FORMATS.values():
        reasons |= file_format.passes_over(names)
    return reasons
