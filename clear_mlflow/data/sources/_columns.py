"""Build an index from columns of labels, times, buckets and splits, with a row for each image.

Every column is a pandas.Categorical, which stores each distinct value once: a table of a million
rows has a few hundred distinct labels, times and splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_TABLE_COLUMNS
from clear_mlflow.data.borders import divide_times
from clear_mlflow.data.files import format_names
from clear_mlflow.data.images import (
    NONE,
    TRAIN,
    Entry,
    ImageIndex,
    OrderedArguments,
    build_index,
)
from clear_mlflow.data.times import parse_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import Categorical


@dataclass(frozen=True)
class ColumnArguments(OrderedArguments):
    """Names of columns, and how times become buckets.

    Args:
        label: column of the class names, texts or integers.
        time: column of the times, from a year to a second; read if ``borders`` is not none.
        bucket: column of the buckets' names; read if ``borders`` is none.
        split: column of train and test; without it, no row is a test row.
    """

    label: str = "label"
    time: str = "time"
    bucket: str = "bucket"
    split: str = "split"


def select_columns(
    arguments: ColumnArguments, borders: str, names: Sequence[str], source_name: str, **content: str
) -> dict[str, str]:
    """Return the column to read for each role, such as label.

    borders: none, to read buckets, or else how times are divided. content: columns of further
    roles. Raises DataError if a column is missing, or has two roles.
    """
    if len(names) > MAX_TABLE_COLUMNS or len(set(names)) < len(names):
        raise DataError(
            f"{source_name} has {len(names)} columns, {len(set(names))} of different names; "
            f"expected at most {MAX_TABLE_COLUMNS}, each with a different name"
        )
    columns = {**content, "label": arguments.label}
    columns |= {"bucket": arguments.bucket} if borders == NONE else {"time": arguments.time}
    if arguments.split in names or arguments.split != ColumnArguments.split:
        columns["split"] = arguments.split
    advice = {"bucket": ", or time=COLUMN with borders=year", "split": ", or leave it out"}
    for role, name in columns.items():
        if name not in names:
            raise DataError(
                f"{source_name} contains no column {safe_repr(name)}"
                f"{' of buckets' if role == 'bucket' else ''}; its columns are "
                f"{format_names(names)}: pass dataset_args={role}=COLUMN{advice.get(role, '')}"
            )
    if len(set(columns.values())) < len(columns):
        raise DataError(
            f"{source_name}: dataset_args name one column for two things, of "
            f"{format_names(list(columns.values()))}; expected a column for each"
        )
    return columns


def convert_column(
    column: pa.ChunkedArray, role: str, source_name: str, first_row: int
) -> Categorical:
    """Convert an Arrow column to texts. Raises DataError for lists and gaps.

    role, source_name, first_row: for messages; the last is the number of the first row.
    """
    import pyarrow as pa
    from pyarrow import compute, types

    if column.null_count:
        row = int(compute.index(column.is_null(), True).as_py()) + first_row
        raise DataError(f"{source_name} row {row} has no {role}; expected one in every row")
    dtype = column.type
    if types.is_nested(dtype):
        raise DataError(f"{source_name} has {dtype} as {role}; several labels are not supported")
    if types.is_dictionary(dtype) and not types.is_string(dtype.value_type):
        column, dtype = column.cast(dtype.value_type), dtype.value_type
    if types.is_timestamp(dtype):
        # A cast rounds towards 1970: before it, the last half second of a year would be the next.
        column = compute.floor_temporal(column, unit="second").cast(pa.timestamp("s"))
    # A dictionary is not decoded: a long text in a million rows stays one text.
    if not types.is_dictionary(dtype):
        column = column.cast(pa.string()).dictionary_encode()
    return column.unify_dictionaries().to_pandas().cat.remove_unused_categories().array


def build_column_index(
    paths: Sequence[Path] | NDArray[Any],
    columns: Mapping[str, Categorical],
    arguments: ColumnArguments,
    borders: str,
    *,
    root: Path,
    layout: str,
    source_name: str,
    first_row: int,
    **fields: Any,
) -> ImageIndex:
    """Build the index of images or vectors from a table's columns.

    Images have a path below *root* in each row.

    columns: ``label``, ``bucket`` or ``time``, and perhaps ``split``, a value for each row. layout:
    storage format, for people. source_name, first_row: name of the table and number of its first
    row, for messages. fields: others of the index; ``source`` is the source_name by default.
    Raises DataError for the first row that is invalid.
    """

    def check(role: str, is_valid: Callable[[str], bool], message: str) -> None:
        """Raise DataError for the first invalid value, which replaces ``{}`` in *message*."""
        column = columns[role]
        invalid = np.array([not is_valid(value) for value in column.categories], dtype=bool)
        for row in np.flatnonzero(invalid[column.codes])[:1].tolist():
            problem = message.replace("{}", safe_repr(column[row]), 1)
            raise DataError(f"{source_name} row {row + first_row} has {problem}")

    check("label", bool, "no label; expected a class name")
    check(
        "label",
        lambda value: not _is_measurement(value),
        "label {}; expected class names or integers: regression is not supported",
    )
    if "split" in columns:
        check(
            "split",
            lambda value: value in (TRAIN, TEST),
            f"{{}} as {safe_repr(arguments.split)}; expected {TRAIN} or {TEST} (validation images "
            "are held out of the training images: split=validation)",
        )
    if borders == NONE:
        check("bucket", bool, "no bucket; expected a name")
        buckets, dates = columns["bucket"], None
    else:
        check(
            "time",
            lambda value: parse_time(value) is not None,
            "time {}; expected a year, a date or a moment like 2004, 2004-05, 2004-05-17 or "
            "2004-05-17T08:30:00Z",
        )
        column = columns["time"]

        def describe(category: int) -> str:
            row = int(np.flatnonzero(column.codes == category)[0])
            return f"{source_name} row {row + first_row} has time {safe_repr(column[row])}"

        keys, indices, dates = divide_times(
            [time for value in column.categories if (time := parse_time(value)) is not None],
            np.bincount(column.codes, minlength=len(column.categories)),
            borders,
            source_name=source_name,
            describe=describe,
        )
        buckets = np.array(keys, dtype=object)[indices[column.codes]]
    vectors = paths if isinstance(paths, np.ndarray) else None
    splits = columns.get("split", [TRAIN] * len(paths))
    times = columns.get("time", [""] * len(paths))
    contents = paths if vectors is None else range(len(vectors))
    rows = zip(contents, columns["label"], buckets, splits, times, strict=True)
    index = build_index(
        map(Entry._make, rows),
        root=root,
        layout=layout,
        source_name=source_name,
        order=arguments.bucket_order,
        times=dates,
        vectors=vectors,
        first_row=first_row,
    )
    return replace(index, **{"source": source_name, **fields})


def _is_measurement(value: str) -> bool:
    """Return True if a label is a decimal number like 0.5."""
    try:
        return "." in value and math.isfinite(float(value))
    except ValueError:
        return False
