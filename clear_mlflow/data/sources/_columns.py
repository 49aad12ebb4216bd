"""Images as rows of columns: what a table or a set of records says becomes a listing.

Every column is a pandas.Categorical of texts, each distinct one once: a table of a million rows has
a few hundred distinct labels, times and splits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.data.files import names_of
from clear_mlflow.data.sources._entries import (
    NONE,
    TRAIN,
    Entry,
    OrderedArguments,
    listing_of,
)
from clear_mlflow.data.sources._times import HALF, MONTH, QUARTER, YEAR, Time, parse_time, period
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import Categorical

_PERIODS: Final = {"year": YEAR, "half": HALF, "quarter": QUARTER, "month": MONTH}
_EQUAL = re.compile("equal:([0-9]{1,8})")
_Place: TypeAlias = Callable[[int], str]  # a row, from 0, as messages name it


@dataclass(frozen=True)
class ColumnArguments(OrderedArguments):
    """Which columns say what, and how times become buckets.

    Args:
        label: column of the class names, texts or whole numbers.
        time: column of the times, from a year to a moment; used where *buckets* says how.
        bucket: column of the buckets' names; used where *buckets* is none.
        split: column of train and test; where there is none, nothing is for testing.
        buckets: ``none``: the column *bucket*; ``year``, ``half`` (a half-year), ``quarter`` or
            ``month`` of the time; ``equal:N``: N buckets of about as many images each, in the order
            of time.
    """

    label: str = "label"
    time: str = "time"
    bucket: str = "bucket"
    split: str = "split"
    buckets: str = NONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets in (NONE, *_PERIODS):
            return
        number = _EQUAL.fullmatch(self.buckets)
        if number is None or not 1 <= int(number[1]) <= MAX_BUCKETS:
            raise ConfigError(
                f"dataset_args has buckets={safe_repr(self.buckets)}; expected none, year, half, "
                f"quarter, month, or equal:N with N from 1 to {MAX_BUCKETS}"
            )


def wanted_columns(
    arguments: ColumnArguments, known: Sequence[str], named_in: str, **others: str
) -> dict[str, str]:
    """The columns to read, and what each is; *others*, of some sources, by their arguments."""
    needed = [(name, role, "", "") for role, name in others.items()]
    needed.append((arguments.label, "label", "", ""))
    if arguments.buckets == NONE:
        advice = ", or time=COLUMN with buckets=year"
        needed.append((arguments.bucket, "bucket", " of buckets", advice))
    else:
        needed.append((arguments.time, "time", "", ""))
    if arguments.split in known or arguments.split != ColumnArguments.split:
        needed.append((arguments.split, "split", "", ", or leave it out"))
    for name, role, of_what, advice in needed:
        if name not in known:
            raise DataError(
                f"{named_in} has no column {safe_repr(name)}{of_what}; its columns are "
                f"{names_of(known)}: pass dataset_args={role}=COLUMN{advice}"
            )
    roles = {name: role for name, role, *_ in needed}
    if len(roles) < len(needed):
        raise DataError(
            f"{named_in}: dataset_args name one column for two things, of {names_of(list(roles))}; "
            "expected a column for each"
        )
    return roles


def text_column(column: pa.ChunkedArray, role: str, named_in: str, first_row: int) -> Categorical:
    """A column as texts, of which each distinct one is there once."""
    import pyarrow as pa
    from pyarrow import compute, types

    if column.null_count:
        row = int(compute.index(column.is_null(), True).as_py()) + first_row
        raise DataError(f"{named_in} row {row} has no {role}; expected one in every row")
    kind = column.type
    if types.is_nested(kind):
        raise DataError(f"{named_in} has {kind} as {role}; several at once are not learned here")
    if types.is_dictionary(kind) and not types.is_string(kind.value_type):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_timestamp(kind):
        column = column.cast(pa.timestamp("s"), safe=False)
    # Not decoded: a long text that a million rows have stays one text.
    if not types.is_dictionary(kind):
        column = column.cast(pa.string()).dictionary_encode()
    return column.unify_dictionaries().to_pandas().cat.remove_unused_categories().array


def listing_of_columns(
    paths: Sequence[Path] | NDArray[np.float32],
    columns: Mapping[str, Categorical],
    arguments: ColumnArguments,
    *,
    root: Path,
    layout: str,
    named_in: str,
    first_row: int,
) -> Listing:
    """The listing of images, *paths* row by row below *root*, or of vectors, by their columns."""

    def place(row: int) -> str:
        return f"{named_in} row {row + first_row}"

    labels = columns[arguments.label]
    _refuse(labels, lambda text: not text, place, "no label; expected a class name")
    measured = "label {}; expected class names or whole numbers: regression is not done here"
    _refuse(labels, _is_measurement, place, measured)
    is_test = _tests(columns.get(arguments.split), len(paths), place, arguments.split)
    times = None
    if arguments.buckets == NONE:
        buckets = columns[arguments.bucket]
        _refuse(buckets, lambda text: not text, place, "no bucket; expected a name")
        keys, of_rows = list(buckets.categories), buckets.codes
    elif arguments.buckets in _PERIODS:
        keys, of_rows = _by_period(columns[arguments.time], arguments.buckets, place)
    else:
        number = int(arguments.buckets.partition(":")[2])
        keys, of_rows, times = _of_equal_counts(columns[arguments.time], number, place, named_in)
    vectors = paths if isinstance(paths, np.ndarray) else None
    if not isinstance(paths, np.ndarray):
        _refuse_twice(paths, place)
    names = list(labels.categories)
    entries = (
        Entry(path, names[label], keys[bucket], TEST if test else TRAIN)
        for path, label, bucket, test in zip(
            paths if vectors is None else range(len(vectors)),
            labels.codes.tolist(),
            of_rows.tolist(),
            is_test.tolist(),
            strict=True,
        )
    )
    return listing_of(
        entries,
        root=root,
        layout=layout,
        named_in=named_in,
        order=arguments.buckets_in_order,
        times=times,
        vectors=vectors,
        first_row=first_row,
    )


def _refuse(
    column: Categorical, is_wrong: Callable[[str], bool], place: _Place, message: str
) -> None:
    """Refuse a column where a text of it is wrong, of which ``{}`` in *message* is the first."""
    wrong = np.array([is_wrong(text) for text in column.categories], dtype=bool)
    rows = np.flatnonzero(wrong[column.codes])
    if len(rows):
        row = int(rows[0])
        raise DataError(f"{place(row)} has {message.replace('{}', safe_repr(column[row]), 1)}")


def _is_measurement(text: str) -> bool:
    try:
        return "." in text and math.isfinite(float(text))
    except ValueError:
        return False


def _tests(split: Categorical | None, num_rows: int, place: _Place, name: str) -> NDArray[np.bool_]:
    """Which rows are for testing."""
    if split is None:
        return np.zeros(num_rows, dtype=bool)
    message = (
        f"{{}} as {safe_repr(name)}; expected {TRAIN} or {TEST} (validation images are held out of "
        "the training images: split=validation)"
    )
    _refuse(split, lambda text: text not in (TRAIN, TEST), place, message)
    tests: NDArray[np.bool_] = np.array([text == TEST for text in split.categories], dtype=bool)
    return tests[np.asarray(split.codes, dtype=np.int64)]


def _parsed(times: Categorical, place: _Place) -> list[Time]:
    """The time that each distinct text is."""
    message = (
        "time {}; expected a year, a date or a moment as 2004, 2004-05, 2004-05-17 or "
        "2004-05-17T08:30:00Z"
    )
    _refuse(times, lambda text: parse_time(text) is None, place, message)
    return [time for text in times.categories if (time := parse_time(text)) is not None]


def _by_period(
    times: Categorical, wanted: str, place: _Place
) -> tuple[list[str], NDArray[np.int64]]:
    """The years, quarters or others that there are, and which of them each row is in."""
    parsed, level = _parsed(times, place), _PERIODS[wanted]
    vague = np.array([time.exact_to < level for time in parsed], dtype=bool)[times.codes]
    if vague.any():
        row = int(np.flatnonzero(vague)[0])
        raise DataError(
            f"{place(row)} has time {safe_repr(times[row])}, which says no {wanted}; expected "
            f"times that are exact enough for {wanted}"
        )
    keys, of_times = np.unique([period(time, level) for time in parsed], return_inverse=True)
    return keys.tolist(), of_times[times.codes]


def _of_equal_counts(
    times: Categorical, number: int, place: _Place, named_in: str
) -> tuple[list[str], NDArray[np.int64], dict[str, str]]:
    """Buckets of about as many images each; images of one time stay together. Keys, rows, dates."""
    begins = np.array([time.begin for time in _parsed(times, place)], "datetime64[s]")[times.codes]
    _, of_times, counts = np.unique(begins, return_inverse=True, return_counts=True)
    # Where the middle of a time's images lies among all: as many before it as behind.
    middle = np.cumsum(counts) - (counts + 1) // 2
    of_rows = (middle * number // len(begins))[of_times]
    if (found := len(np.unique(of_rows))) < number:
        raise DataError(
            f"{named_in} gives {found} buckets of about as many images each, for many have one "
            f"time; expected {number}: pass fewer, or buckets=year"
        )
    keys = [str(i + 1) for i in range(number)]
    in_order = [np.sort(begins[of_rows == i]) for i in range(number)]
    dates = {
        key: str(of_bucket[len(of_bucket) // 2])[:10]
        for key, of_bucket in zip(keys, in_order, strict=True)
    }
    return keys, of_rows, dates


def _refuse_twice(paths: Sequence[Path], place: _Place) -> None:
    seen: set[str] = set()
    for row, path in enumerate(paths):
        if str(path) in seen:
            raise DataError(
                f"{place(row)} lists {safe_repr(path.name)} again; expected each image once, under "
                "one class"
            )
        seen.add(str(path))
