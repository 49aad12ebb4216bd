"""Arrow's columns as texts: what a Parquet file and a Hugging Face dataset hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import Categorical


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


def text_column(column: pa.ChunkedArray, role: str, named_in: str, first_row: int) -> Categorical:
    """A column as texts, of which each distinct one is there once."""
    import pyarrow as pa
    from pyarrow import compute, types

    if column.null_count:
        row = int(compute.index(column.is_null(), True).as_py()) + first_row
        raise DataError(f"{named_in} row {row} has no {role}; expected one in every row")
    kind = column.type
    if types.is_dictionary(kind) and not types.is_string(kind.value_type):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_timestamp(kind):
        column = column.cast(pa.timestamp("s"), safe=False)
    # Not decoded: a long text that a million rows have stays one text.
    if not types.is_dictionary(kind):
        column = column.cast(pa.string()).dictionary_encode()
    return column.unify_dictionaries().to_pandas().cat.remove_unused_categories().array


_EXPECTED: Mapping[str, str] = {
    "path": "texts",
    "label": "texts or whole numbers",
    "time": "times, years, or texts",
    "bucket": "texts, whole numbers or times",
    "split": "texts, train or test",
}
