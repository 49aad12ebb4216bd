"""A table of images, CSV: a row for each, with its path, class, time and split."""

from __future__ import annotations

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_TABLE_BYTES, MAX_TABLE_COLUMNS, MAX_TABLE_ROWS
from clear_mlflow.data.files import (
    expect_file,
    is_folder,
    names_in,
    path_text,
    reason,
    resolve_root,
    stored_path,
)
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    listing_of_columns,
    wanted_columns,
)
from clear_mlflow.data.sources._entries import AUTO
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    from pandas import Categorical

NEEDS_FOLDER = True

_ENDING = ".csv"
_LONGEST_HEADER = 2**20


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Where the table is, which of its columns hold paths, and what every set of columns has.

    Args:
        table: path of the table in the stream's folder; auto: the only .csv there.
        path: column of the images' paths, relative to the folder.
    """

    table: str = AUTO
    path: str = "path"


def listing(root: Path, arguments: Arguments, *, cache_dir: Path) -> Listing:
    """List the images that a table names."""
    if root.suffix.lower() == _ENDING and not is_folder(root):
        raise DataError(
            f"data root {path_text(root)} is a table; pass the folder that its paths are relative "
            "to, and dataset_args=table=NAME"
        )
    real_root = resolve_root(root)
    file = _find(real_root, arguments.table)
    try:
        columns = _read(file, arguments)
    except (csv.Error, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path_text(file)} cannot be read: {reason(error)[:300]}") from None
    paths = columns.pop(arguments.path)
    by_text = [stored_path(t, base=real_root, below=None, named_in=file) for t in paths.categories]
    found = listing_of_columns(
        [by_text[i] for i in paths.codes.tolist()],
        columns,
        arguments,
        root=real_root,
        layout="table",
        named_in=path_text(file),
        first_row=2,
    )
    return dataclasses.replace(found, source=path_text(file))


def _find(root: Path, table: str) -> Path:
    if table == AUTO:
        found = [name for name in names_in(root) if name.lower().endswith(_ENDING)]
        if len(found) != 1:
            there = ", ".join(shown(name) for name in found[:8]) or "none"
            raise DataError(
                f"{path_text(root)} has {len(found)} tables ({there}); expected one that ends in "
                f"{_ENDING}, or pass dataset_args=table=NAME"
            )
        table = found[0]
    file = stored_path(table, base=root, below=None, named_in=root)
    if file.suffix.lower() != _ENDING:
        raise DataError(
            f"{path_text(file)} is no table by its name; expected one that ends in {_ENDING}"
        )
    expect_file(file, root=root, limit=MAX_TABLE_BYTES)
    return file


def _read(file: Path, arguments: Arguments) -> dict[str, Categorical]:
    """The columns that are needed."""
    import pandas as pd

    named_in = path_text(file)
    with file.open(encoding="utf-8-sig", newline="") as text:
        header = text.readline(_LONGEST_HEADER)
    if not header.endswith("\n"):
        raise DataError(
            f"{named_in} has no rows, or no line of column names before them; expected such a "
            "line, as path,label,time"
        )
    known = next(csv.reader([header]), [])
    if len(known) > MAX_TABLE_COLUMNS or len(set(known)) < len(known):
        raise DataError(
            f"{named_in} has {len(known)} columns, {len(set(known))} of different names; expected "
            f"at most {MAX_TABLE_COLUMNS}, each of a name of its own"
        )
    wanted = wanted_columns(arguments, known, named_in, path=arguments.path)
    # Texts as they are: NA, None and 007 are names.
    found = pd.read_csv(
        file,
        dtype=str,
        keep_default_na=False,
        encoding="utf-8-sig",
        nrows=MAX_TABLE_ROWS + 1,
    )
    if not isinstance(found.index, pd.RangeIndex):  # pandas then takes the first column for names
        raise ValueError("its rows have more columns than its first line names")
    if not 0 < len(found) <= MAX_TABLE_ROWS:
        number = f"over {MAX_TABLE_ROWS}" if len(found) else "no"
        raise DataError(
            f"{named_in} has {number} rows; expected one for each image, at most {MAX_TABLE_ROWS}"
        )
    return {name: found[name].fillna("").astype("category").array for name in wanted}
