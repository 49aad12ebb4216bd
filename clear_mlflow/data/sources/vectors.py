"""Feature vectors: the numbers of a table (CSV, Parquet), or arrays (.npz, .safetensors)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH, MAX_VECTORS_BYTES
from clear_mlflow.data.files import (
    check_unpacked_size,
    format_names,
    path_text,
)
from clear_mlflow.data.images import NONE, ImageIndex, round_column
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    build_column_index,
    select_columns,
)
from clear_mlflow.data.sources.table import (
    convert_errors,
    find_file,
    find_first_row,
    read_csv,
    read_parquet,
)

if TYPE_CHECKING:
    from pandas import Categorical, Series

    # The columns by role, and the vectors.
    _Content: TypeAlias = tuple[dict[str, Categorical], NDArray[Any]]

NEEDS_FOLDER = True
HAS_TIMES = True

_ARRAY = "vectors"  # in a file of arrays
_MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Arguments of vectors.

    Args:
        table: path of the file in the stream's folder; auto: the folder is the file itself, or
            contains one .csv, .parquet, .npz or .safetensors.
        columns: columns of the numbers, separated by colons; or one column of lists, or an array
            of (rows, width). auto: all other columns; in a file of arrays, ``vectors``.
        text: column of texts that scikit-learn's HashingVectorizer converts to vectors, instead of
            numbers; none: there are numbers.
        width: width of the vector of a text.
        fill: number that replaces missing ones; none: a missing number is an error.
        standardise: ``first``, ``past`` or ``none``; see :class:`ImageIndex`.
        may_repeat: True if rows may be equal; see :class:`ImageIndex`.
    """

    table: str = "auto"
    columns: str = "auto"
    text: str = NONE
    width: int = 1024
    fill: str = NONE
    standardise: str = "first"
    may_repeat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            is_number = self.fill == NONE or np.isfinite(float(self.fill))
        except ValueError:
            is_number = False
        if not is_number:
            raise ConfigError(f"dataset_args has fill={safe_repr(self.fill)}; expected a number")
        if not 1 <= self.width <= MAX_FEATURES_WIDTH:
            raise ConfigError(
                f"dataset_args has width={self.width}; expected 1 to {MAX_FEATURES_WIDTH}"
            )


def read_index(
    root: Path, arguments: Arguments, *, cache_dir: Path, borders: str = NONE
) -> ImageIndex:
    """Read a file with one vector per row as a stream.

    Missing numbers become the argument *fill*, if it is set.
    """
    file = find_file(root, arguments.table, tuple(_READERS), limit=MAX_VECTORS_BYTES)
    with convert_errors(file):
        columns, vectors = _READERS[file.suffix.lower()](file, arguments, borders)
    if arguments.fill != NONE:
        vectors[np.isnan(vectors)] = float(arguments.fill)
    return build_column_index(
        vectors,
        columns,
        arguments,
        borders,
        root=file.parent,
        layout=f"vectors ({file.suffix[1:].lower()})",
        source_name=path_text(file),
        first_row=find_first_row(file),
        standardise=arguments.standardise,
        may_repeat=arguments.may_repeat,
    )


def _read_csv(file: Path, arguments: Arguments, borders: str) -> _Content:
    columns, frame = read_csv(file, arguments, borders)
    names = _select_number_columns(list(frame.columns), arguments, file)
    if arguments.text != NONE:
        texts = list(frame[names[0]])
        return columns, _hash_texts(texts, arguments.width, path_text(file), first_row=2)
    vectors = np.empty((len(frame), len(names)), np.float32)
    for i, name in enumerate(names):
        try:
            numbers = _parse_numbers(frame[name])
        except ValueError as error:
            raise DataError(
                f"{path_text(file)} has a text in column {safe_repr(name)} ({error}); expected "
                "numbers: pass dataset_args=columns=A:B with the columns of numbers"
            ) from None
        vectors[:, i] = round_column(numbers, safe_repr(name), path_text(file), frame[name])
    return columns, vectors


def _parse_numbers(column: Series) -> NDArray[np.float64]:
    """Convert texts as ``float`` does. Missing numbers become NaN."""
    texts: NDArray[np.object_] = column.to_numpy(object)
    try:
        return texts.astype(np.float64)
    except ValueError:  # perhaps only missing numbers
        return np.where(column.isin(_MISSING), "nan", texts).astype(np.float64)


def _read_parquet(file: Path, arguments: Arguments, borders: str) -> _Content:
    from pyarrow import compute, parquet, types

    columns = read_parquet(file, arguments, borders)
    with parquet.ParquetFile(file) as opened:
        schema = opened.schema_arrow
        names = _select_number_columns(schema.names, arguments, file)
        if arguments.text != NONE:
            column = opened.read(columns=names)[names[0]]
            texts = column.cast("string").fill_null("").to_pylist()
            return columns, _hash_texts(texts, arguments.width, path_text(file), first_row=1)
        for name in names:
            dtype = schema.field(name).type
            if types.is_temporal(dtype) or types.is_binary(dtype):  # numpy would convert these
                raise DataError(
                    f"{path_text(file)} has {dtype} in column {safe_repr(name)}; expected numbers: "
                    "pass dataset_args=columns=A:B with the columns of numbers"
                )
        if len(names) == 1 and types.is_nested(schema.field(names[0]).type):
            parts = []
            for i in range(opened.metadata.num_row_groups):
                lists = opened.read_row_group(i, columns=names)[names[0]].combine_chunks()
                if len(compute.list_value_length(lists).unique()) > 1 or lists.null_count:
                    raise ValueError(f"column {names[0]} has lists of several lengths")
                parts.append(np.asarray(lists.flatten()).reshape(len(lists), -1))
            return columns, np.concatenate(parts)
        vectors = np.empty((opened.metadata.num_rows, len(names)), np.float32)
        for i, name in enumerate(names):
            column = opened.read(columns=[name])[name]
            numbers = column.to_pandas().to_numpy(np.float64, na_value=np.nan)
            vectors[:, i] = round_column(numbers, safe_repr(name), path_text(file), column)
        return columns, vectors


def _read_arrays(file: Path, arguments: Arguments, borders: str) -> _Content:
    import pandas as pd
    from safetensors.numpy import load_file

    if arguments.text != NONE:
        raise ConfigError(
            f"dataset_args has text={safe_repr(arguments.text)}, and {path_text(file)} contains "
            "arrays; expected a CSV or Parquet file with that column, or no text"
        )
    arrays: Mapping[str, Any]
    if file.suffix.lower() == ".npz":
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not an archive; expected one that numpy.savez wrote")
        check_unpacked_size(file, MAX_VECTORS_BYTES)
        arrays = np.load(file, allow_pickle=False)
    else:
        arrays = load_file(file)
    name = _ARRAY if arguments.columns == "auto" else arguments.columns
    roles = select_columns(arguments, borders, list(arrays), path_text(file), columns=name)
    try:
        by_role = {role: np.asarray(arrays[name]) for role, name in roles.items()}
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise ValueError(
            "an array contains Python objects; expected numbers or texts: save it with .astype(str)"
        ) from None
    vectors = by_role.pop("columns")
    if (
        vectors.ndim != 2
        or vectors.dtype.kind not in "fiub"
        or any(column.shape != vectors.shape[:1] for column in by_role.values())
    ):
        raise ValueError(
            f"{name} is {vectors.dtype} of shape {vectors.shape}, not (rows, width), or another "
            "array has another number of rows"
        )
    columns = {role: pd.Categorical(column.astype(str)) for role, column in by_role.items()}
    return columns, vectors


def _hash_texts(
    texts: Sequence[str], width: int, source_name: str, *, first_row: int
) -> NDArray[np.float32]:
    """Return (N, width), normalised word counts by hash, of texts."""
    from sklearn.feature_extraction.text import HashingVectorizer

    empty = next((row for row, text in enumerate(texts, first_row) if not text), None)
    if empty is not None:
        raise DataError(f"{source_name} row {empty} has no text; expected one in every row")
    vectors = HashingVectorizer(n_features=width, dtype=np.float32).transform(texts)
    return np.asarray(vectors.toarray())


def _select_number_columns(all_names: Sequence[str], arguments: Arguments, file: Path) -> list[str]:
    """Return the columns of numbers, or of the text, in order."""
    others = {arguments.label, arguments.time, arguments.bucket, arguments.split}
    # pandas writes the index as a further column.
    names = [n for n in all_names if n and n not in others and not n.startswith("__index_level_")]
    if arguments.columns != "auto":
        names = arguments.columns.split(":")
    if arguments.text != NONE:
        names = [arguments.text]
    if not names or set(names) - set(all_names) or len(set(names)) < len(names):
        raise DataError(
            f"{path_text(file)} has the columns {format_names(all_names)}; expected columns of "
            "numbers: pass dataset_args=columns=A:B, each of them once, or text=COLUMN"
        )
    return names


_READERS = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".npz": _read_arrays,
    ".safetensors": _read_arrays,
}
