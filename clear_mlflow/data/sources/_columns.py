"""Images as rows of columns: what a table or a set of records says becomes a listing.

Every column is a pandas.Categorical of texts, each distinct one once: a table of a million rows has
a few hundred distinct labels, times and splits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.data.sources._entries import (
    NONE,
    TRAIN,
    Entry,
    OrderedArguments,
    listing_of,
)
from clear_mlflow.data.sources._times import MONTH, QUARTER, YEAR, Time, parse_time, period
from clear_mlflow.data.splits import Listing

if TYPE_CHECKING:
    from pandas import Categorical

_PERIODS: Final = {"year": YEAR, "quarter": QUARTER, "month": MONTH}
_LEVELS: Final = ("no quarter", "no month", "no day")
_EXPECTED_BUCKETS = (
    "expected none, year, quarter, month, equal:N, or edges as edges:2004:2007-07:2010"
)
_SEPARATORS = "|;,"
_Place: TypeAlias = Callable[[int], str]  # a row, from 0, as messages name it


@dataclass(frozen=True)
class ColumnArguments(OrderedArguments):
    """Which columns say what, and how times become buckets.

    Args:
        label: column of the class names, texts or whole numbers.
        time: column of the times, from a year to a moment; used where *buckets* says how.
        bucket: column of the buckets' names; used where *buckets* is none.
        split: column of train and test; where there is none, nothing is for testing.
        buckets: ``none``: the column *bucket*; ``year``, ``quarter`` or ``month`` of the time;
            ``equal:N``: N buckets of about as many images each, in the order of time;
            ``edges:2004:2007-07:2010``: from each edge to the next.
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
        kind, _, rest = self.buckets.partition(":")
        if kind == "equal" and rest.isascii() and rest.isdecimal() and len(rest) < 9:
            if 1 <= int(rest) <= MAX_BUCKETS:
                return
        elif kind == "edges" and (edges := [parse_time(text) for text in rest.split(":")]):
            begins = [edge.begin for edge in edges if edge is not None]
            if len(begins) == len(edges) > 1 and begins == sorted(set(begins)):
                return
        raise ConfigError(
            f"dataset_args has buckets={shown(self.buckets)}; {_EXPECTED_BUCKETS}, ascending"
        )


def wanted_columns(arguments: ColumnArguments, known: Sequence[str], named_in: str) -> list[str]:
    """The columns that are to be read, of those that there are; the images' own not among them."""
    of_buckets = arguments.buckets == NONE
    when = arguments.bucket if of_buckets else arguments.time
    needed = [
        (when, "bucket", " of buckets", ", or time=COLUMN with buckets=year")
        if of_buckets
        else (when, "time", "", ""),
        (arguments.label, "label", "", ""),
    ]
    if arguments.split != ColumnArguments.split:
        needed.append((arguments.split, "split", "", ", or leave it out"))
    for name, argument, of_what, advice in needed:
        if name not in known:
            raise DataError(
                f"{named_in} has no column {shown(name)}{of_what}; its columns are "
                f"{names_of(known)}: pass dataset_args={argument}=COLUMN{advice}"
            )
    return [arguments.label, when, *([arguments.split] if arguments.split in known else [])]


def listing_of_columns(
    paths: Sequence[Path],
    columns: Mapping[str, Categorical],
    arguments: ColumnArguments,
    *,
    root: Path,
    layout: str,
    named_in: str,
    first_row: int,
) -> Listing:
    """The listing of images, *paths* row by row below *root*, that the wanted columns describe.

    *named_in* and *first_row*, the number that people give to the first row, are for messages.
    """

    def place(row: int) -> str:
        return f"{named_in} row {row + first_row}"

    labels = columns[arguments.label]
    _check_labels(labels, place)
    is_test = _tests(columns.get(arguments.split), len(paths), place, arguments.split)
    warnings: list[str] = []
    times = None
    if arguments.buckets == NONE:
        keys, of_rows = columns[arguments.bucket].categories, columns[arguments.bucket].codes
        if (row := _first(columns[arguments.bucket], lambda text: not text)) is not None:
            raise DataError(f"{place(row)} has no bucket; expected a name")
    else:
        parsed = _parsed(columns[arguments.time], place)
        keys, of_times = _bucketed(parsed, columns[arguments.time], arguments, place, named_in)
        of_rows = of_times[columns[arguments.time].codes]
        if outside := int((of_rows < 0).sum()):
            warnings.append(
                f"left out: {outside} images whose times lie outside of {arguments.buckets}"
            )
        if arguments.buckets.startswith("equal:"):
            begins = np.array([time.begin for time in parsed], "datetime64[s]")
            begins = begins[columns[arguments.time].codes]
            times = {key: _median_date(begins[of_rows == i]) for i, key in enumerate(keys)}
    _refuse_twice(paths, labels, place)
    names, keys = list(labels.categories), list(keys)
    entries = (
        Entry(path, names[label], keys[bucket], TEST if test else TRAIN)
        for path, label, bucket, test in zip(
            paths, labels.codes.tolist(), of_rows.tolist(), is_test.tolist(), strict=True
        )
        if bucket >= 0
    )
    return listing_of(
        entries,
        root=root,
        layout=layout,
        named_in=named_in,
        order=arguments.buckets_in_order or _given_order(arguments),
        warnings=warnings,
        times=times,
    )


def _first(column: Categorical, is_wrong: Callable[[str], bool]) -> int | None:
    """The first row, from 0, whose text is wrong."""
    wrong = np.array([is_wrong(text) for text in column.categories], dtype=bool)
    rows = np.flatnonzero(wrong[column.codes])
    return int(rows[0]) if len(rows) else None


def _median_date(times: NDArray[np.datetime64]) -> str:
    return str(np.sort(times)[len(times) // 2])[:10]


def names_of(columns: Sequence[str]) -> str:
    """The names of columns for a message."""
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return ", ".join(shown(name) for name in columns[:12]) + more


def _check_labels(labels: Categorical, place: _Place) -> None:
    """Refuse what is no class for each image: nothing, measurements, several at once."""
    if (row := _first(labels, lambda text: not text)) is not None:
        raise DataError(f"{place(row)} has no label; expected a class name")
    known = set(labels.categories)
    # Among names, 737 may be one, and so may 12e4; 3.25 is a measurement there, too.
    has_no_names = all(_is_number(text) for text in known)

    def is_fraction(text: str) -> bool:
        return _is_number(text) and not _is_whole(text) and (has_no_names or "." in text)

    def is_several(text: str) -> bool:
        return (text[0] == "[" and text[-1] == "]") or any(
            len(parts := text.split(separator)) > 1 and known.issuperset(p.strip() for p in parts)
            for separator in _SEPARATORS
        )

    if (row := _first(labels, is_fraction)) is not None:
        raise DataError(
            f"{place(row)} has label {shown(labels[row])}; expected class names or whole numbers: "
            "regression is not done here"
        )
    if (row := _first(labels, is_several)) is not None:
        raise DataError(
            f"{place(row)} has label {shown(labels[row])}; expected one class for each image: "
            "several at once are not learned here"
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal()


def _tests(split: Categorical | None, num_rows: int, place: _Place, name: str) -> NDArray[np.bool_]:
    """Which rows are for testing."""
    if split is None:
        return np.zeros(num_rows, dtype=bool)
    if (row := _first(split, lambda text: text not in (TRAIN, TEST))) is not None:
        raise DataError(
            f"{place(row)} has {shown(split[row])} as {shown(name)}; expected {TRAIN} or {TEST} "
            "(validation images are held out of the training images: split=validation)"
        )
    tests: NDArray[np.bool_] = np.array([text == TEST for text in split.categories], dtype=bool)
    return tests[np.asarray(split.codes, dtype=np.int64)]


def _parsed(times: Categorical, place: _Place) -> list[Time]:
    """The time that each distinct text is."""
    if (row := _first(times, lambda text: parse_time(text) is None)) is not None:
        raise DataError(
            f"{place(row)} has time {shown(times[row])}; expected a year, a date or a moment as "
            "2004, 2004-05, 2004-05-17 or 2004-05-17T08:30:00Z"
        )
    return [time for text in times.categories if (time := parse_time(text)) is not None]


def _bucketed(
    parsed: Sequence[Time],
    times: Categorical,
    arguments: ColumnArguments,
    place: _Place,
    named_in: str,
) -> tuple[Sequence[str], NDArray[np.int64]]:
    """The names of buckets, and of each distinct time the number of its own; -1 for none."""
    if arguments.buckets in _PERIODS:
        level = _PERIODS[arguments.buckets]
        _refuse_vague(parsed, level, times, place, arguments.buckets)
        keys, of_times = np.unique([period(time, level) for time in parsed], return_inverse=True)
        return keys.tolist(), of_times
    kind, _, rest = arguments.buckets.partition(":")
    if kind == "equal":
        return _of_equal_counts(parsed, times, int(rest), named_in)
    edges = [edge for text in rest.split(":") if (edge := parse_time(text)) is not None]
    _refuse_vague(parsed, max(edge.exact_to for edge in edges), times, place, "these edges")
    begins = [edge.begin for edge in edges]
    of_times = np.array([bisect_right(begins, time.begin) - 1 for time in parsed], dtype=np.int64)
    of_times[of_times == len(edges) - 1] = -1  # at the last edge or behind it
    return _given_order(arguments), of_times


def _given_order(arguments: ColumnArguments) -> tuple[str, ...]:
    """The buckets between edges are called by their first edge; all of them need images."""
    kind, _, rest = arguments.buckets.partition(":")
    return tuple(rest.split(":")[:-1]) if kind == "edges" else ()


def _refuse_vague(
    parsed: Sequence[Time], level: int, times: Categorical, place: _Place, wanted: str
) -> None:
    vague = np.array([time.exact_to < level for time in parsed], dtype=bool)[times.codes]
    if vague.any():
        row = int(np.flatnonzero(vague)[0])
        lacks = _LEVELS[parsed[times.codes[row]].exact_to]
        raise DataError(
            f"{place(row)} has time {shown(times[row])}, which says {lacks}; expected times that "
            f"are exact enough for {wanted}"
        )


def _of_equal_counts(
    parsed: Sequence[Time], times: Categorical, number: int, named_in: str
) -> tuple[list[str], NDArray[np.int64]]:
    """Buckets of about as many images each; images of one time stay in one bucket."""
    begins = np.array([time.begin for time in parsed], "datetime64[s]")
    _, of_times = np.unique(begins, return_inverse=True)
    counts = np.bincount(of_times[times.codes])
    # Where the middle of a time's images lies among all: as many before it as behind.
    middle = np.cumsum(counts) - (counts + 1) // 2
    bucket = middle * number // max(1, int(counts.sum()))
    if len(found := np.unique(bucket)) < number:
        raise DataError(
            f"{named_in} gives {len(found)} buckets of about as many images each, for many have "
            f"one time; expected {number}: pass fewer, or buckets=year"
        )
    return [str(i + 1) for i in range(number)], bucket[of_times]


def _refuse_twice(paths: Sequence[Path], labels: Categorical, place: _Place) -> None:
    seen: dict[str, int] = {}
    for row, path in enumerate(paths):
        before = seen.setdefault(str(path), row)
        if before != row:
            one, other = labels[before], labels[row]
            why = (
                f"as {shown(other)} after {shown(one)}: expected one class for each image, several "
                "at once are not learned here"
                if one != other
                else "of the same class: expected each image once"
            )
            raise DataError(f"{place(row)} lists {shown(path.name)} again, {why}")
