"""Feature vectors: the numbers of a table (CSV, Parquet), or arrays (.npz, .safetensors)."""

from __future__ import annotations

import dataclasses
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH, MAX_VECTORS_BYTES
from clear_mlflow.data.files import expect_unpacked, names_of, path_text
from clear_mlflow.data.sources._columns import (
    ColumnArguments,
    listing_of_columns,
    wanted_columns,
)
from clear_mlflow.data.sources._entries import AUTO, NONE
from clear_mlflow.data.sources.table import find_file, one_line_of, read_csv, read_parquet
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    from pandas import Categorical

    # The other columns, the vectors, and warnings about them.
    _Read: TypeAlias = tuple[dict[str, Categorical], NDArray[np.float32], tuple[str, ...]]

NEEDS_FOLDER = True

_ARRAY = "vectors"  # in a file of arrays
_MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")


@dataclass(frozen=True)
class Arguments(ColumnArguments):
    """Where the vectors are, how they become a model's input, and what every set of columns has.

    Args:
        table: path of the file in the stream's folder; auto: the folder is the file itself, or has
            one .csv, .parquet, .npz or .safetensors.
        columns: of the numbers, with colons between; or one column of lists, or an array of
            (rows, width). auto: all columns that are nothing else; of arrays, ``vectors``.
        text: column of texts that become vectors by scikit-learn's HashingVectorizer, in the place
            of numbers; none: there are numbers.
        width: of the vector of a text.
        fill: the number in the place of a missing one; none: a missing one is an error.
        standardise: ``first``, ``past`` or ``none``: see ``Listing``.
        may_repeat: rows may be equal, also in training and test sets: see ``Listing``.
    """

    table: str = AUTO
    columns: str = AUTO
    text: str = NONE
    width: int = 1024
    fill: str = NONE
    standardise: str = "first"
    may_repeat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            filled = self.fill == NONE or np.isfinite(float(self.fill))
        except ValueError:
            filled = False
        if not filled:
            raise ConfigError(f"dataset_args has fill={safe_repr(self.fill)}; expected a number")
        if not 1 <= self.width <= MAX_FEATURES_WIDTH:
            raise ConfigError(
                f"dataset_args has width={self.width}; expected 1 to {MAX_FEATURES_WIDTH}"
            )


def listing(root: Path, arguments: Arguments, *, cache_dir: Path) -> Listing:
    """List the vectors of a file."""
    file = find_file(root, arguments.table, tuple(_READERS), limit=MAX_VECTORS_BYTES)
    first_row = 2 if file.suffix.lower() == ".csv" else 1
    with one_line_of(file):
        columns, vectors, warnings = _READERS[file.suffix.lower()](file, arguments)
    if arguments.fill != NONE:
        vectors[np.isnan(vectors)] = float(arguments.fill)
    found = listing_of_columns(
        vectors,
        columns,
        arguments,
        root=file.parent,
        layout=f"vectors ({file.suffix[1:].lower()})",
        named_in=path_text(file),
        first_row=first_row,
    )
    return dataclasses.replace(
        found,
        source=path_text(file),
        standardise=arguments.standardise,
        may_repeat=arguments.may_repeat,
        warnings=(*warnings, *found.warnings),
    )


def warn_collapsed(
    vectors: NDArray[np.float32], exact: Callable[[int], NDArray[Any]], names: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return a warning if distinct integers of a column become equal as 32-bit floats.

    Args:
        vectors: (rows, width).
        exact: returns the numbers of a column as they are stored.
        names: names of the columns; numbers from 1 if not given.
    """
    least, most = (f.reduce(vectors, axis=0, initial=0) for f in (np.fmin, np.fmax))
    collapsed = []
    for j in np.flatnonzero(np.maximum(most, -least) >= 2**24).tolist():
        with np.errstate(all="ignore"):  # infinite numbers are refused later
            distinct = np.unique(exact(j))
            integers = distinct[distinct % 1 == 0]
            if len(np.unique(integers.astype(np.float32))) < len(integers):
                collapsed.append(names[j] if names else str(j + 1))
    advice = "leave such columns out, or subtract an offset"
    text = f"distinct integers become equal as 32-bit floats in {names_of(collapsed)}; {advice}"
    return (text,) if collapsed else ()


def _of_csv(file: Path, arguments: Arguments) -> _Read:
    roles, texts = read_csv(file, arguments)
    columns = {name: texts[name].astype("category").array for name in roles}
    names = _number_columns(list(texts.columns), roles, arguments, file)
    if arguments.text != NONE:
        hashed = _hashed([*texts[names[0]]], arguments.width, path_text(file), first_row=2)
        return columns, hashed, ()
    vectors = np.empty((len(texts), len(names)), np.float32)
    for i, name in enumerate(names):
        column = texts[name].mask(texts[name].isin(_MISSING), "nan").to_numpy(object)
        try:
            with np.errstate(over="ignore"):
                vectors[:, i] = column.astype(np.float64)  # as exact as Python reads numbers
        except ValueError as error:
            raise DataError(
                f"{path_text(file)} has a text in column {safe_repr(name)} ({error}); expected "
                "numbers: pass dataset_args=columns=A:B with the columns that hold them"
            ) from None
    integer = re.compile("[+-]?[0-9]{1,19}")

    def exact(j: int) -> NDArray[Any]:
        return np.array([int(text) for text in texts[names[j]] if integer.fullmatch(text)], object)

    return columns, vectors, warn_collapsed(vectors, exact, names)


def _of_parquet(file: Path, arguments: Arguments) -> _Read:
    from pyarrow import compute, parquet, types

    columns = read_parquet(file, arguments)
    with parquet.ParquetFile(file) as opened:
        schema = opened.schema_arrow
        names = _number_columns(schema.names, columns, arguments, file)
        if arguments.text != NONE:
            column = opened.read(columns=names)[names[0]]
            texts = column.cast("string").fill_null("").to_pylist()
            return columns, _hashed(texts, arguments.width, path_text(file), first_row=1), ()
        for name in names:
            kind = schema.field(name).type
            if types.is_temporal(kind) or types.is_binary(kind):  # numpy makes numbers of these
                raise DataError(
                    f"{path_text(file)} has {kind} in column {safe_repr(name)}; expected numbers: "
                    "pass dataset_args=columns=A:B with the columns that hold them"
                )
        parts, is_list = [], len(names) == 1 and types.is_nested(schema.field(names[0]).type)
        for i in range(opened.metadata.num_row_groups):
            group = opened.read_row_group(i, columns=names)
            if is_list:
                lists = group[names[0]].combine_chunks()
                if len(compute.list_value_length(lists).unique()) > 1 or lists.null_count:
                    raise ValueError(f"column {names[0]} has lists of several lengths")
                part = np.asarray(lists.flatten()).reshape(len(lists), -1)
            else:
                part = np.empty((group.num_rows, len(names)), np.float32)
                for j, name in enumerate(names):
                    part[:, j] = group[name].to_pandas().to_numpy(np.float64, na_value=np.nan)
            parts.append(part)
        stored = np.concatenate(parts)
        vectors = stored.astype(np.float32, copy=False)
        if is_list:
            return columns, vectors, warn_collapsed(vectors, lambda j: stored[:, j])
        warnings = warn_collapsed(
            vectors, lambda j: opened.read([names[j]])[0].drop_null().to_numpy(), names
        )
        return columns, vectors, warnings


def _of_arrays(file: Path, arguments: Arguments) -> _Read:
    import pandas as pd
    from safetensors.numpy import load_file

    if arguments.text != NONE:
        raise ConfigError(
            f"dataset_args has text={safe_repr(arguments.text)}, and {path_text(file)} holds "
            "arrays; expected a CSV or Parquet file with that column, or no text"
        )
    arrays: Mapping[str, Any]
    if file.suffix.lower() == ".npz":
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no archive; expected one that numpy.savez wrote")
        expect_unpacked(file, MAX_VECTORS_BYTES)
        arrays = np.load(file, allow_pickle=False)
    else:
        arrays = load_file(file)
    name = _ARRAY if arguments.columns == AUTO else arguments.columns
    roles = wanted_columns(arguments, list(arrays), path_text(file), columns=name)
    try:
        vectors, *texts = (np.asarray(arrays[name]) for name in roles)
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise ValueError(
            "an array holds Python objects; expected numbers or texts: save it with .astype(str)"
        ) from None
    if (
        vectors.ndim != 2
        or vectors.dtype.kind not in "fiub"
        or any(text.shape != vectors.shape[:1] for text in texts)
    ):
        raise ValueError(
            f"{name} is {vectors.dtype} of shape {vectors.shape}, not (rows, width), or others are "
            "no columns of it"
        )
    columns = {
        role: pd.Categorical(text.astype(str))
        for role, text in zip([*roles][1:], texts, strict=True)
    }
    with np.errstate(over="ignore"):
        narrow = vectors.astype(np.float32, copy=False)
    return columns, narrow, warn_collapsed(narrow, lambda j: vectors[:, j])


def _hashed(
    texts: Sequence[str], width: int, named_in: str, *, first_row: int
) -> NDArray[np.float32]:
    """(N, width): counts of words, each at the place and with the sign of its hash, of length 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    empty = next((row for row, text in enumerate(texts, first_row) if not text), None)
    if empty is not None:
        raise DataError(f"{named_in} row {empty} has no text; expected one in every row")
    hashed = HashingVectorizer(n_features=width, dtype=np.float32).transform(texts)
    return np.asarray(hashed.toarray())


def _number_columns(
    known: Sequence[str], roles: Mapping[str, object], arguments: Arguments, file: Path
) -> list[str]:
    """The columns of the numbers, in the order in which they are named."""
    used = {arguments.label, arguments.time, arguments.bucket, arguments.split, *roles}
    # What pandas writes beside a table's own columns is no number of a row's.
    names = [n for n in known if n and n not in used and not n.startswith("__index_level_")]
    if arguments.columns != AUTO:
        names = arguments.columns.split(":")
    if arguments.text != NONE:
        names = [arguments.text]
    if not names or set(names) - set(known) or len(set(names)) < len(names):
        raise DataError(
            f"{path_text(file)} has the columns {names_of(known)}; expected columns of numbers: "
            "pass dataset_args=columns=A:B, each of them once, or text=COLUMN"
        )
    return names


_READERS = {
    ".csv": _of_csv,
    ".parquet": _of_parquet,
    ".npz": _of_arrays,
    ".safetensors": _of_arrays,
}
