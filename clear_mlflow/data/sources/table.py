"""A table of images, CSV or Parquet: a row for each, with its path, class, time and split."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_TABLE_BYTES, MAX_TABLE_COLUMNS, MAX_TABLE_ROWS
from clear_mlflow.data.files import (
    expect_file,
    is_folder,
    names_in,
    names_of,
    path_text,
    reason,
    resolve_root,
    stored_path,
)
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    listing_of_columns,
    text_column,
    wanted_columns,
)
from clear_mlflow.data.sources._entries import AUTO
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    import pandas as pd
    from pandas import Categorical

NEEDS_FOLDER = True

_ENDINGS = (".csv", ".parquet")
_CSV, _PARQUET = _ENDINGS


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Where the table is, which of its columns hold paths, and what every set of columns has.

    Args:
        table: path of the table in the stream's folder; auto: the folder is the table itself, or
            has one .csv or .parquet.
        path: column of the images' paths, relative to the folder.
    """

    table: str = AUTO
    path: str = "path"


def listing(root: Path, arguments: Arguments, *, cache_dir: Path) -> Listing:
    """List the images that a table names."""
    file = find_file(root, arguments.table, _ENDINGS, limit=MAX_TABLE_BYTES)
    real_root = resolve_root(root if is_folder(root) else root.parent)
    columns, first_row = _read(file, arguments)
    paths = columns.pop(arguments.path)
    by_text = [stored_path(t, base=real_root, below=None, named_in=file) for t in paths.categories]
    found = listing_of_columns(
        [by_text[i] for i in paths.codes.tolist()],
        columns,
        arguments,
        root=real_root,
        layout=f"table ({file.suffix[1:].lower()})",
        named_in=path_text(file),
        first_row=first_row,
    )
    return dataclasses.replace(found, source=path_text(file))


def find_file(root: Path, table: str, endings: tuple[str, ...], *, limit: int) -> Path:
    """The file that a stream is read from: the data root itself, or one in it."""
    if root.suffix.lower() in endings and not is_folder(root) and table == AUTO:
        root, table = root.parent, root.name
    root = resolve_root(root)
    if table == AUTO:
        found = [name for name in names_in(root) if name.lower().endswith(endings)]
        if len(found) != 1:
            raise DataError(
                f"{path_text(root)} has {len(found)} tables ({names_of(found)}); expected one that "
                f"ends in {' or '.join(endings)}, or pass dataset_args=table=NAME"
            )
        table = found[0]
    file = stored_path(table, base=root, below=None, named_in=root)
    if file.suffix.lower() not in endings:
        raise DataError(
            f"{path_text(file)} is no table by its name; expected one that ends in "
            f"{' or '.join(endings)}"
        )
    expect_file(file, root=root, limit=limit)
    return file


def _read(file: Path, arguments: Arguments) -> tuple[dict[str, Categorical], int]:
    """The columns that are needed, and the number of the first row as people count."""
    with one_line_of(file):
        if file.suffix.lower() == _CSV:
            roles, texts = read_csv(file, arguments, path=arguments.path)
            return {name: texts[name].astype("category").array for name in roles}, 2
        return read_parquet(file, arguments, path=arguments.path), 1


@contextmanager
def one_line_of(file: Path) -> Iterator[None]:
    """What a damaged or hostile file can make of it; none of these ran anything of the file's."""
    import pyarrow as pa
    from safetensors import SafetensorError

    # TypeError: of types that numpy lacks, as bfloat16, or that are no texts.
    damaged = (pa.ArrowException, SafetensorError, zipfile.BadZipFile, LookupError, TypeError)
    try:
        yield
    except (*damaged, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path_text(file)} cannot be read: {reason(error)[:300]}") from None


def _check_rows(number: int, file: Path) -> None:
    if not 0 < number <= MAX_TABLE_ROWS:
        raise DataError(
            f"{path_text(file)} has {number or 'no'} rows; expected one for each image or vector, "
            f"at most {MAX_TABLE_ROWS}"
        )


def read_csv(
    file: Path, arguments: ColumnArguments, **others: str
) -> tuple[dict[str, str], pd.DataFrame]:
    """The columns that are needed, each with what it is, and all columns as texts."""
    import pandas as pd

    # Texts as they are, names of columns, too: NA, None and 007 are names.
    found = pd.read_csv(
        file,
        dtype=str,
        keep_default_na=False,
        header=None,
        encoding="utf-8-sig",
        nrows=MAX_TABLE_ROWS + 2,
    ).fillna("")
    found.columns = pd.Index(found.iloc[0])
    _check_rows(len(found) - 1, file)
    return _roles(list(found.columns), arguments, file, **others), found.iloc[1:]


def read_parquet(file: Path, arguments: ColumnArguments, **others: str) -> dict[str, Categorical]:
    """The columns that are needed, as texts."""
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        about, schema = opened.metadata, opened.schema_arrow
        roles = _roles(schema.names, arguments, file, **others)
        rows = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    _check_rows(sum(rows) if all(number >= 0 for number in rows) else -1, file)
    # As dictionaries: a long text that a million rows have stays one text.
    flat = [name for name in roles if not pa.types.is_nested(schema.field(name).type)]
    with parquet.ParquetFile(file, read_dictionary=flat) as opened:
        groups, taken = [], 0
        for i in range(len(rows)):
            groups.append(opened.read_row_group(i, columns=list(roles)))
            taken += groups[-1].nbytes
            if taken > MAX_TABLE_BYTES:
                raise DataError(
                    f"{path_text(file)} has columns that take over {MAX_TABLE_BYTES} bytes when "
                    "they are unpacked; expected at most so many"
                )
    table = pa.concat_tables(groups)
    table.validate(full=True)  # UTF-8, and numbers that a damaged file makes too large
    return {
        name: text_column(table[name], role, path_text(file), 1) for name, role in roles.items()
    }


def _roles(
    known: Sequence[str], arguments: ColumnArguments, file: Path, **others: str
) -> dict[str, str]:
    """The columns to read, and what each is."""
    named_in = path_text(file)
    if len(known) > MAX_TABLE_COLUMNS or len(set(known)) < len(known):
        raise DataError(
            f"{named_in} has {len(known)} columns, {len(set(known))} of different names; expected "
            f"at most {MAX_TABLE_COLUMNS}, each of a name of its own"
        )
    return wanted_columns(arguments, known, named_in, **others)
