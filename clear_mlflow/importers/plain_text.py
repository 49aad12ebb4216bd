"""A plain matrix as text: CSV, TSV, what numpy.savetxt writes, and our own matrix.csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import label_numbers
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LINES, MAX_RESULTS_BYTES
from clear_mlflow.importers._base import NAN, Format, Parsed, Reading, Source

_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,5})?")
_MOST_CELLS = 4 * MAX_BUCKETS + 1  # in a line: some programs set several metrics side by side
_INITIAL = ("initial", "init")  # labels of the untrained model's row
# What stands above a column of labels; any other text there is a bucket's name.
_CORNERS = ("", "trained_through", "trained", "task", "bucket")
_TRAINED, _TESTED = re.compile("train|after", re.I), re.compile("test|eval", re.I)
# Columns that are never buckets.
_NO_BUCKET = re.compile(
    r"(epochs?|steps?|seeds?|loss|avg|average|means?|median|std|stdev|sd)([_ -]?acc(uracy)?)?", re.I
)
_NOT_MEASURED = frozenset(["", "nan", "na", "n/a", "none", "null", "-", "–"])


def cells_of(line: str) -> list[str]:
    """A line's cells: separated by commas, semicolons, tabs, or else by spaces."""
    for separator in ("\t", ";", ","):
        if separator in line:
            if line.count(separator) > _MOST_CELLS:
                raise RecordError(f"holds a line of more than {_MOST_CELLS} cells")
            try:
                cells = next(csv.reader([line], delimiter=separator, strict=True))
            except (csv.Error, StopIteration) as error:
                raise RecordError(f"holds a line that is no CSV: {safe_repr(line)}") from error
            return [cell.strip() for cell in cells]
    return line.split(maxsplit=_MOST_CELLS)


def table_of(source: Source) -> list[list[str]]:
    """Return the cells of every line without remarks, or of an array that NumPy printed."""
    table = []
    if source.is_printed_array:
        rows = re.findall(r"\[([^\[\]]*)\]", untrusted.decoded(source.content))
        if any("..." in row for row in rows) or len(rows) > MAX_BUCKETS + 1:
            raise RecordError(
                f"is a printed array with '...' or more than {MAX_BUCKETS} rows; save it with "
                "numpy.savetxt"
            )
        return [row.split(maxsplit=_MOST_CELLS) for row in rows]
    for line in source.lines(MAX_LINES):
        if not line.lstrip().startswith("#"):
            table.append(cells_of(line))
            # A row per bucket, one of the untrained model, and one of names.
            if len(table) > MAX_BUCKETS + 2:
                raise RecordError(f"holds more than {MAX_BUCKETS} rows")
    return table


def is_cell(text: str) -> bool:
    """Whether a text is an accuracy, or says that there is none."""
    return text.lower() in _NOT_MEASURED or bool(_NUMBER.fullmatch(text))


def to_cell(text: str) -> float:
    """An accuracy; NaN where the text says that nothing was measured."""
    if text.lower() in _NOT_MEASURED:
        return NAN
    if not _NUMBER.fullmatch(text):
        raise RecordError(f"holds {safe_repr(text)}; expected a number, or nothing")
    return float(text)


def _recognises(source: Source) -> bool:
    if source.looks_like_json or "\x00" in source.head:
        return False
    lines = [line for line in source.head.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    # A header may come first; a row of names before the numbers, too. Prose has no such line.
    return source.is_printed_array or any(_is_row(line) for line in lines[:3])


def _is_row(line: str) -> bool:
    try:
        cells = cells_of(line)
    except RecordError:
        return False
    measured = [cell for cell in cells if _NUMBER.fullmatch(cell) or cell.lower() == "nan"]
    return bool(measured) and all(map(is_cell, cells[1:]))


def _parse(source: Source) -> list[Parsed]:
    """Rows of numbers; a first line and a first column of other texts are names."""
    source.bounded(MAX_RESULTS_BYTES)
    table, reading = table_of(source), source.reading
    if not table:
        raise RecordError("holds no row of numbers")
    first = table[0] if table[0][0] else table[0][1:]
    hint = _to_name(first) if all(c.isdecimal() and float(c) > 100 for c in first) else ""
    names = table.pop(0) if _is_header(table, reading.stated_buckets) else None
    column = [row[0] for row in table if row]
    labels, corner = None, ""
    if (
        reading.row_labels != "auto"
        or not any(map(is_cell, column))
        or column[0].lower() in _INITIAL
        or (names and (_is_corner(names[0]) or column == names[1 : len(column) + 1]))
    ):
        labels, table = [label.removeprefix("'") for label in column], [row[1:] for row in table]
        if names and len(names) > max(map(len, table), default=0):
            corner, *names = names
    if names is not None:
        names = [name.removeprefix("'") for name in names]
    if names is not None or reading.columns:
        positions = _bucket_columns(names, max(map(len, table), default=0), reading)
        names = names and [names[j] for j in positions]
        table = [[row[j] for j in positions if j < len(row)] for row in table]
    initial, rows = None, [[to_cell(cell) for cell in row] for row in table]
    if labels is not None and (at := {label.lower() for label in labels} & {*_INITIAL}):
        position = [label.lower() for label in labels].index(min(at))
        initial = rows.pop(position)
        labels.pop(position)
    is_stated = reading.columns or names in (None, labels, reading.stated_buckets)
    numbers = [] if is_stated else label_numbers(names or ())
    if numbers != sorted(numbers):
        raise RecordError(
            f"names its columns {safe_repr(names)}, out of order; pass columns=... in the order of "
            "the stream"
        )
    return [
        Parsed(
            rows=rows,
            initial=initial,
            buckets=names and tuple(names),
            labels=None if reading.row_labels == "ignore" else labels,
            orientation=_orientation(corner, names or ()),
            hint=hint,
        )
    ]


def _is_corner(name: str) -> bool:
    """Return True if a name is the title of row labels, and not of a bucket."""
    is_axis = bool(_TRAINED.search(name) or _TESTED.search(name))
    return name.lower() in _CORNERS or (is_axis and not re.search("[0-9]", name))


def _orientation(corner: str, names: Sequence[str]) -> str:
    """Return what the names prove: a row is one test ("rows"), a column is, or "auto"."""
    are_tested, are_trained = (
        bool(names) and all(map(pattern.search, names)) for pattern in (_TESTED, _TRAINED)
    )
    if _TRAINED.search(corner) or are_tested:
        return "rows"
    return "columns" if _TESTED.search(corner) or are_trained else "auto"


def _bucket_columns(names: Sequence[str] | None, width: int, reading: Reading) -> list[int]:
    """Return the positions of the columns that are buckets.

    Raises ConfigError if a stated column is missing, RecordError if a column may be no bucket.
    """
    all_names = [str(j + 1) for j in range(width)] if names is None else [*names]
    if missing := [name for name in reading.columns if name not in all_names]:
        raise ConfigError(
            f"columns names {safe_repr(missing[0])}, but the columns are "
            f"{safe_repr(','.join(all_names))}"
        )
    if reading.columns or all_names == reading.stated_buckets:
        return [all_names.index(name) for name in reading.columns or all_names]
    buckets = [name for name in all_names if not _NO_BUCKET.fullmatch(name)]
    without_number = [name for name in buckets if not re.search("[0-9]", name)]
    if 0 < len(without_number) < len(buckets):
        raise RecordError(
            f"has the column {safe_repr(without_number[0])} next to numbered ones; pass "
            "columns=... with the names of the columns that are buckets"
        )
    return [j for j, name in enumerate(all_names) if name in buckets]


def _is_header(table: Sequence[Sequence[str]], stated: Sequence[str]) -> bool:
    """Whether the first line names the buckets; one of names and numbers is refused."""
    first, *rest = table[0]
    if stated and list(stated) in ([first, *rest], rest):
        return True
    texts = [not is_cell(cell) for cell in rest] or [not is_cell(first)]
    if all(texts):
        return not _NUMBER.fullmatch(first)
    if any(texts):
        raise RecordError(
            f"begins with {safe_repr(','.join(table[0]))}, which is no line of numbers, and none "
            "of names: expected one or the other"
        )
    if first and first.lower() in _CORNERS and not _counts(rest) and all(map(str.isdecimal, rest)):
        raise RecordError(f"begins with {safe_repr(','.join(table[0]))}: {_to_name(rest)}")
    if _is_corner(first):
        return all(map(str.isdecimal, rest)) and _counts(sorted(rest, key=int))
    # 0, 1, 2 or 1, 2, 3 above a square.
    return len(rest) >= 1 and len(table) == len(rest) + 2 and _counts([first, *rest])


def _to_name(cells: Sequence[str]) -> str:
    """How to say that numbers in the first line are no cells: years, for example."""
    return f"if the first line names the buckets, say buckets={safe_repr(','.join(cells))}"


def _counts(cells: Sequence[str]) -> bool:
    """Whether cells are 0, 1, 2 ... or 1, 2, 3 ..."""
    return list(cells) in ([str(start + j) for j in range(len(cells))] for start in (0, 1))


FORMATS = [
    Format(
        name="text",
        title="a plain text matrix",
        recognises=_recognises,
        parse=_parse,
        is_general=True,
    )
]
