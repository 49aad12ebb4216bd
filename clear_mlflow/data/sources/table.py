"""A table of images, CSV or Parquet: one row for each, with its path, class, time and split."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_TABLE_BYTES, MAX_TABLE_ROWS
from clear_mlflow.data import files
from clear_mlflow.data.files import format_names, path_text, reason
from clear_mlflow.data.images import NONE, ImageIndex
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    build_column_index,
    convert_column,
    select_columns,
)

if TYPE_CHECKING:
    import pandas as pd
    from pandas import Categorical

NEEDS_FOLDER = True
HAS_TIMES = True

_ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Arguments of a table of images.

    Args:
        table: path of the table in the stream's folder; auto: the folder is the table itself, or
            contains one .csv or .parquet.
        path: column of the images' paths, relative to the folder.
    """

    table: str = "auto"
    path: str = "path"


def read_index(
    root: Path, arguments: Arguments, *, cache_dir: Path, borders: str = NONE
) -> ImageIndex:
    """Read the images that a table lists."""
    file = find_file(root, arguments.table, _ENDINGS, limit=MAX_TABLE_BYTES)
    real_root = files.resolve_root(root if files.is_folder(root) else root.parent)
    with convert_errors(file):
        if file.suffix.lower() == ".csv":
            columns, _ = read_csv(file, arguments, borders, path=arguments.path)
        else:
            columns = read_parquet(file, arguments, borders, path=arguments.path)
    names = columns["path"]
    paths = [
        files.join_stored_path(name, base=real_root, below=None, list_file=file)
        for name in names.categories
    ]
    return build_column_index(
        [paths[i] for i in names.codes.tolist()],
        columns,
        arguments,
        borders,
        root=real_root,
        layout=f"table ({file.suffix[1:].lower()})",
        source_name=path_text(file),
        first_row=find_first_row(file),
    )


def find_first_row(file: Path) -> int:
    """Return the first row's number. A CSV file's header is 1."""
    return 2 if file.suffix.lower() == ".csv" else 1


def find_file(root: Path, table: str, endings: tuple[str, ...], *, limit: int) -> Path:
    """Return a stream's file: the data root, or a file there.

    table: path of the file in the folder, or ``auto`` for the only file with one of *endings*.
    Raises DataError if it is missing, has another ending or more than *limit* bytes, or there are
    several.
    """
    if root.suffix.lower() in endings and not files.is_folder(root) and table == "auto":
        root, table = root.parent, root.name
    root = files.resolve_root(root)
    if table == "auto":
        names = [name for name in files.list_names(root) if name.lower().endswith(endings)]
        if len(names) != 1:
            raise DataError(
                f"{path_text(root)} has {len(names)} tables ({format_names(names)}); expected one "
                f"that ends in {' or '.join(endings)}, or pass dataset_args=table=NAME"
            )
        table = names[0]
    file = files.join_stored_path(table, base=root, below=None, list_file=root)
    if file.suffix.lower() not in endings:
        raise DataError(
            f"{path_text(file)} is not a table; expected a file that ends in {' or '.join(endings)}"
        )
    files.check_file(file, root=root, limit=limit)
    return file


@contextmanager
def convert_errors(file: Path) -> Iterator[None]:
    """Convert errors of reading a damaged or hostile file to DataErrors."""
    import pyarrow as pa
    from safetensors import SafetensorError

    # TypeError: for types that numpy lacks, such as bfloat16, or that are not texts.
    damaged = (pa.ArrowException, SafetensorError, zipfile.BadZipFile, LookupError, TypeError)
    try:
        yield
    except (*damaged, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path_text(file)} cannot be read: {reason(error)[:300]}") from None


def _check_num_rows(number: int, file: Path) -> None:
    if not 0 < number <= MAX_TABLE_ROWS:
        raise DataError(
            f"{path_text(file)} has {number or 'no'} rows; expected one for each image or vector, "
            f"at most {MAX_TABLE_ROWS}"
        )


def read_csv(
    file: Path, arguments: ColumnArguments, borders: str, **content: str
) -> tuple[dict[str, Categorical], pd.DataFrame]:
    """Return required columns by role, and all columns as texts.

    content: columns of further roles, such as ``path``. Raises DataError if a column or all rows
    are missing.
    """
    import pandas as pd

    # No value is converted, not even in the header: NA, None and 007 may be names.
    frame = pd.read_csv(
        file,
        dtype=str,
        keep_default_na=False,
        header=None,
        encoding="utf-8-sig",
        nrows=MAX_TABLE_ROWS + 2,
    ).fillna("")
    frame.columns = pd.Index(frame.iloc[0])
    _check_num_rows(len(frame) - 1, file)
    roles = select_columns(arguments, borders, list(frame.columns), path_text(file), **content)
    frame = frame.iloc[1:]
    return {role: frame[name].astype("category").array for role, name in roles.items()}, frame


def read_parquet(
    file: Path, arguments: ColumnArguments, borders: str, **content: str
) -> dict[str, Categorical]:
    """Return a file's required columns by role: label, bucket, time, split.

    content: columns of further roles, such as ``path``. Raises DataError if a column is missing, or
    the table is empty or too large.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        metadata, schema = opened.metadata, opened.schema_arrow
        roles = select_columns(arguments, borders, schema.names, path_text(file), **content)
        num_rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    _check_num_rows(sum(num_rows) if all(number >= 0 for number in num_rows) else -1, file)
    # As dictionaries: a long text in a million rows stays one text.
    flat = [name for name in roles.values() if not pa.types.is_nested(schema.field(name).type)]
    with parquet.ParquetFile(file, read_dictionary=flat) as opened:
        groups, num_bytes = [], 0
        for i in range(len(num_rows)):
            groups.append(opened.read_row_group(i, columns=list(roles.values())))
            num_bytes += groups[-1].nbytes
            if num_bytes > MAX_TABLE_BYTES:
                raise DataError(
                    f"{path_text(file)} has columns that take over {MAX_TABLE_BYTES} bytes when "
                    "they are unpacked; expected at most so many"
                )
    table = pa.concat_tables(groups)
    table.validate(full=True)  # UTF-8, and numbers that a damaged file makes too large
    return {
        role: convert_column(table[name], role, path_text(file), 1) for role, name in roles.items()
    }
