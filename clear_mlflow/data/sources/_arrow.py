"""Arrow's columns as texts: what a Parquet file and a Hugging Face dataset hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.sources._columns import Column

if TYPE_CHECKING:
    import pyarrow as pa


def check_type(kind: pa.DataType, name: str, role: str, named_in: str) -> None:
    """Refuse a column whose type is none that its role takes."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_time = types.is_timestamp(kind) or types.is_date(kind)
    if (
        is_text
        or (is_time and role in ("time", "bucket"))
        or (types.is_integer(kind) and role in ("label", "time", "bucket"))
    ):
        return
    why = ""
    if role == "label" and types.is_floating(kind):
        why = ": regression is not done here"
    elif role == "label" and types.is_nested(kind):
        why = ": one class for each image, several at once are not learned here"
    raise DataError(
        f"{named_in} has {shown(str(kind))[1:-1]} in column {shown(name)}; expected "
        f"{_EXPECTED[role]}{why}"
    )


def text_column(column: pa.ChunkedArray, role: str, named_in: str, first_row: int) -> Column:
    """A column as texts, of which each distinct one is there once."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute, types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if column.null_count:
        row = int(compute.index(column.is_null(), True).as_py()) + first_row
        raise DataError(f"{named_in} row {row} has no {role}; expected one in every row")
    if types.is_timestamp(kind):
        column = column.cast(pa.timestamp("s"), safe=False).cast(pa.string())
    elif not (types.is_string(kind) or types.is_large_string(kind)):
        column = column.cast(pa.string())
    if not types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    texts = array.dictionary.to_pylist()
    rows = array.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    used, rows = np.unique(rows, return_inverse=True)
    return Column([_text(texts[i]) for i in used.tolist()], rows)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a dictionary holds no text")
    return value


_EXPECTED: Mapping[str, str] = {
    "path": "texts",
    "label": "texts or whole numbers",
    "time": "times, years, or texts",
    "bucket": "texts, whole numbers or times",
    "split": "texts, train or test",
}
