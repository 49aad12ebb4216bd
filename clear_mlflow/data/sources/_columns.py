"""Images as rows of columns: what a table or a set of records says becomes a listing.

Every column arrives as texts, each distinct one once, with a number for each row that says which it
is: a table of a million rows has a few hundred distinct labels, times and splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

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


@dataclass(frozen=True, eq=False)
class Column:
    """One column: each distinct text once, and which of them each row has."""

    texts: Sequence[str]
    rows: NDArray[np.int64]

    def where(self, wrong: Sequence[bool]) -> int:
        """The first row, from 0, whose text is wrong."""
        return int(np.flatnonzero(np.asarray(wrong, dtype=bool)[self.rows])[0])


def wanted_columns(arguments: ColumnArguments, known: Sequence[str], named_in: str) -> list[str]:
    """The columns that are to be read, of those that there are; the images' own not among them."""
    if arguments.buckets == NONE and arguments.bucket not in known:
        raise DataError(
            f"{named_in} has no column {shown(arguments.bucket)} of buckets; its columns are "
            f"{names_of(known)}: pass dataset_args=bucket=COLUMN, or time=COLUMN with buckets=year"
        )
    when = arguments.bucket if arguments.buckets == NONE else arguments.time
    for name, argument in ((arguments.label, "label"), (when, "time")):
        if name not in known:
            raise DataError(
                f"{named_in} has no column {shown(name)}; its columns are {names_of(known)}: pass "
                f"dataset_args={argument}=COLUMN"
            )
    if arguments.split not in known and arguments.split != ColumnArguments.split:
        raise DataError(
            f"{named_in} has no column {shown(arguments.split)}; its columns are "
            f"{names_of(known)}: pass dataset_args=split=COLUMN, or leave it out"
        )
    return [arguments.label, when, *([arguments.split] if arguments.split in known else [])]


def listing_of_columns(
    paths: Sequence[Path],
    columns: Mapping[str, Column],
    arguments: ColumnArguments,
    *,
    root: Path,
    layout: str,
    named_in: str,
    first_row: int,
) -> Listing:
    """The listing of the images that rows of columns describe."""

    def place(row: int) -> str:
        return f"{named_in} row {row + first_row}"

    labels = columns[arguments.label]
    _check_labels(labels, place)
    is_test = _tests(columns.get(arguments.split), len(paths), place, arguments.split)
    if arguments.buckets == NONE:
        buckets, warnings, times = columns[arguments.bucket], list[str](), None
        empty = [not text for text in buckets.texts]
        if any(empty):
            raise DataError(f"{place(buckets.where(empty))} has no bucket; expected a name")
    else:
        buckets, warnings = _bucketed(columns[arguments.time], arguments, place, named_in)
        times = (
            _medians(buckets, columns[arguments.time]) if "equal:" in arguments.buckets else None
        )
    _refuse_twice(paths, labels, place)
    entries = (
        Entry(path, labels.texts[label], buckets.texts[bucket], TEST if test else TRAIN)
        for path, label, bucket, test in zip(
            paths, labels.rows.tolist(), buckets.rows.tolist(), is_test.tolist(), strict=True
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


def _medians(buckets: Column, times: Column) -> dict[str, str]:
    """The date in the middle of each bucket's images."""
    begins = np.array([parse_time(text).begin for text in times.texts], "datetime64[s]")  # type: ignore[union-attr]
    of_rows = begins[times.rows]
    return {
        key: str(np.sort(of_rows[buckets.rows == i])[(buckets.rows == i).sum() // 2])[:10]
        for i, key in enumerate(buckets.texts)
    }


def names_of(columns: Sequence[str]) -> str:
    """The names of columns for a message."""
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return ", ".join(shown(name) for name in columns[:12]) + more


def _check_labels(labels: Column, place: _Place) -> None:
    """Refuse what is no class for each image: nothing, measurements, several at once."""
    empty = [not text for text in labels.texts]
    if any(empty):
        raise DataError(f"{place(labels.where(empty))} has no label; expected a class name")
    numbers = [_is_number(text) for text in labels.texts]
    # Among names, 737 may be one, and so may 12e4; 3.25 is a measurement there, too.
    has_no_names = all(numbers)
    fractions = [
        is_number and not _is_whole(text) and (has_no_names or "." in text)
        for is_number, text in zip(numbers, labels.texts, strict=True)
    ]
    if any(fractions):
        row = labels.where(fractions)
        raise DataError(
            f"{place(row)} has label {shown(labels.texts[labels.rows[row]])}; expected class "
            "names or whole numbers: regression is not done here"
        )
    known = set(labels.texts)
    several = [
        (text[0] == "[" and text[-1] == "]")
        or any(
            len(parts := text.split(separator)) > 1 and known.issuperset(p.strip() for p in parts)
            for separator in _SEPARATORS
        )
        for text in labels.texts
    ]
    if any(several):
        row = labels.where(several)
        raise DataError(
            f"{place(row)} has label {shown(labels.texts[labels.rows[row]])}; expected one class "
            "for each image: several at once are not learned here"
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal()


def _tests(split: Column | None, num_rows: int, place: _Place, name: str) -> NDArray[np.bool_]:
    """Which rows are for testing."""
    if split is None:
        return np.zeros(num_rows, dtype=bool)
    odd = [text not in (TRAIN, TEST) for text in split.texts]
    if any(odd):
        row = split.where(odd)
        raise DataError(
            f"{place(row)} has {shown(split.texts[split.rows[row]])} as {shown(name)}; expected "
            f"{TRAIN} or {TEST} (validation images are held out of the training images: "
            "split=validation)"
        )
    return np.array([text == TEST for text in split.texts], dtype=bool)[split.rows]


def _bucketed(
    times: Column, arguments: ColumnArguments, place: _Place, named_in: str
) -> tuple[Column, list[str]]:
    """The bucket of each row by its time, -1 for none; and what is left out."""
    parsed = [parse_time(text) for text in times.texts]
    wrong = [time is None for time in parsed]
    if any(wrong):
        row = times.where(wrong)
        raise DataError(
            f"{place(row)} has time {shown(times.texts[times.rows[row]])}; expected a year, a date "
            "or a moment as 2004, 2004-05, 2004-05-17 or 2004-05-17T08:30:00Z"
        )
    known = [time for time in parsed if time is not None]
    if arguments.buckets in _PERIODS:
        level = _PERIODS[arguments.buckets]
        _refuse_vague(known, level, times, place, arguments.buckets)
        names = [period(time, level) for time in known]
        keys = sorted(set(names))
        number = {key: i for i, key in enumerate(keys)}
        of_text = np.array([number[name] for name in names], dtype=np.int64)
        return Column(keys, of_text[times.rows]), []
    kind, _, rest = arguments.buckets.partition(":")
    if kind == "equal":
        return _of_equal_counts(known, times, int(rest), named_in), []
    edges = [edge for text in rest.split(":") if (edge := parse_time(text)) is not None]
    _refuse_vague(known, max(edge.exact_to for edge in edges), times, place, "these edges")
    begins = [edge.begin for edge in edges]
    of_text = np.array(
        [sum(begin <= time.begin for begin in begins) - 1 for time in known], dtype=np.int64
    )
    of_text[of_text == len(edges) - 1] = -1  # at the last edge or behind it
    buckets = Column(_given_order(arguments), of_text[times.rows])
    outside = int((buckets.rows < 0).sum())
    told = f"left out: {outside} images whose times lie outside of {arguments.buckets}"
    return buckets, [told] if outside else []


def _given_order(arguments: ColumnArguments) -> tuple[str, ...]:
    """The buckets between edges are called by their first edge; all of them need images."""
    kind, _, rest = arguments.buckets.partition(":")
    return tuple(rest.split(":")[:-1]) if kind == "edges" else ()


def _refuse_vague(
    times: Sequence[Time], level: int, column: Column, place: _Place, wanted: str
) -> None:
    vague = [time.exact_to < level for time in times]
    if any(vague):
        row = column.where(vague)
        text = column.texts[column.rows[row]]
        raise DataError(
            f"{place(row)} has time {shown(text)}, which says "
            f"{_LEVELS[times[column.rows[row]].exact_to]}; expected times that are exact enough "
            f"for {wanted}"
        )


def _of_equal_counts(times: Sequence[Time], column: Column, number: int, named_in: str) -> Column:
    """Buckets of about as many images each; images of one time stay in one bucket."""
    begins = sorted({time.begin for time in times})
    index = {begin: i for i, begin in enumerate(begins)}
    of_text = np.array([index[time.begin] for time in times], dtype=np.int64)
    counts = np.bincount(of_text[column.rows], minlength=len(begins))
    # Where the middle of a time's images lies among all: as many before it as behind.
    middle = np.cumsum(counts) - (counts + 1) // 2
    bucket = middle * number // max(1, int(counts.sum()))
    if len(found := np.unique(bucket)) < number:
        raise DataError(
            f"{named_in} gives {len(found)} buckets of about as many images each, for many have "
            f"one time; expected {number}: pass fewer, or buckets=year"
        )
    keys = [str(i + 1) for i in range(number)]
    return Column(keys, bucket[of_text][column.rows])


def _refuse_twice(paths: Sequence[Path], labels: Column, place: _Place) -> None:
    seen: dict[str, int] = {}
    for row, path in enumerate(paths):
        before = seen.setdefault(str(path), row)
        if before != row:
            one, other = (labels.texts[labels.rows[r]] for r in (before, row))
            why = (
                f"as {shown(other)} after {shown(one)}: expected one class for each image, several "
                "at once are not learned here"
                if one != other
                else "of the same class: expected each image once"
            )
            raise DataError(f"{place(row)} lists {shown(path.name)} again, {why}")
