"""A matrix as plain text: CSV, TSV, numpy.savetxt, a printed NumPy array, our own matrix.csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence

from clear_mlflow.core import untrusted
from clear_mlflow.core.dataset import parse_label_numbers
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.importers._base import (
    AVERAGE,
    DECIMAL_COMMA,
    DEVIATION,
    FORGETTING,
    LINE_AVERAGE,
    Format,
    ParsedRun,
    PrintedNumber,
    ReadOptions,
    ResultFile,
    check_columns,
    check_end,
    check_not_numbered,
    is_cell,
    is_count,
    is_number,
    parse_cell,
    suggest_buckets,
)

_MAX_CELLS = 4 * MAX_BUCKETS + 1  # per line: some programs write several metrics in it
_INITIAL_LABELS = ("initial", "init")
# Titles of a column of row labels; any other name there is a bucket.
_LABEL_TITLES = ("", "trained_through", "trained", "task", "bucket")
_TRAINED, _TESTED = re.compile("train|after", re.I), re.compile("test|eval", re.I)
# Columns that are never buckets.
_NEVER_BUCKETS = re.compile(
    r"(epochs?|steps?|seeds?|loss|avg|average|means?|median|std|stdev|sd)([_ -]?acc(uracy)?)?", re.I
)
_AVERAGE_COLUMN = re.compile(r"(avg|average|mean)([_ -]?acc(uracy)?)?", re.I)
_PRINTED_AVERAGE = re.compile(
    r"[# *]*(?:(?:final |overall )?(?:average|avg|mean)[ _-]acc(?:uracy)?|(forgetting))"
    r"(?: \((?:CNN|NME)\))? ?[:=] ?([0-9]{1,20}(?:\.[0-9]{1,20})?) ?%?",
    re.I,
)
# A comment, Excel's sep=;, the line below the names in Markdown, and commands around rows in LaTeX.
_REMARK = re.compile(
    r"\s*[#%]|sep=.$|[\s|:-]{0,9}(?:---|-:|:-)[\s|:-]*$"
    r"|\s*\\(?:[hc]line|(?:c?mid|top|bottom)rule|begin|end)\b"
)
_EMPHASIS = re.compile(r"\*\*|\$|\\(?:textbf|mathbf|underline|textit)\{([^{}]*)\}")
_LEADING_NUMBER = re.compile(r"[-+]?\.?[0-9]")
# Before the name of a bucket, as in CLArena's test_on_task_1.
_TESTED_ON = re.compile(r"(test|eval)[a-z]*_on_(task_(?=[0-9]))?", re.I)


class PlainText(Format):
    """Text with a matrix of numbers, with or without names."""

    name = "text"
    is_general = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if a row of numbers begins the text.

        One of the first three lines without comments must be one.

        A printed NumPy array is such a text, JSON is not.
        """
        if file.looks_like_json or "\x00" in file.head:
            return False
        lines = [ln for ln in file.head.splitlines() if ln.strip() and not _is_remark(ln)]
        return file.is_printed_array or any(_looks_numeric(line) for line in lines[:3])

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        Raises RecordError if the table can be read in several ways, and names the option that
        decides, or if it contains no number; ConfigError if a column of the options is missing.
        """
        table, options = parse_table(file), file.options
        while table and all(len(row) > 1 and not row[-1] for row in table):
            table = [row[:-1] for row in table]  # a separator at the end of each line
        if not table:
            raise RecordError("contains no row of numbers")
        names = table.pop(0) if _has_column_names(table, options.bucket_names) else None
        printed: list[PrintedNumber] = []
        labels, corner = None, ""
        if _has_labels(table, names, options):
            labels, table = [_unescape(row[0]) for row in table], [row[1:] for row in table]
            if names and len(names) > max(map(len, table), default=0):
                corner, *names = names
            if wrong := [name for name in labels if is_cell(name) and not is_number(name)]:
                row = labels.index(wrong[0]) + 1
                raise RecordError(f"labels row {row} {safe_repr(wrong[0])}; expected a bucket")
        if names is not None or options.columns:
            names = names and [_unescape(name) for name in names]
            width = max(map(len, table), default=0)
            if names and len(names) < width:
                raise RecordError(f"names {len(names)} columns, but has a line of {width} cells")
            columns = _choose_columns(names, width, options)
            printed = _parse_average_column(names or (), table)
            names = names and [names[j] for j in columns]
            table = [[row[j] for j in columns if j < len(row)] for row in table]
        printed += _find_printed_averages(file, len(table))
        if unreadable := [cell for row in table for cell in row if not is_cell(cell)]:
            location = describe_unreadable_cell(file, unreadable[0])
            raise RecordError(f"contains {location}; expected a number, or nothing")
        check_not_numbered(table, has_names=names is not None, has_labels=labels is not None)
        initial, rows = None, [[parse_cell(cell) for cell in row] for row in table]
        for index, label in enumerate(labels or ()):
            if labels and label.lower() in _INITIAL_LABELS:
                initial = rows.pop(index)
                labels.pop(index)
                break
        if corner == "after_training_task":  # CLArena's acc.csv has a column per line
            check_end(file, len(rows) == len(names or ()), f"the lines of {len(names or ())} tasks")
        is_ordered = options.columns or names in (None, labels, options.bucket_names)
        numbers = [] if is_ordered else parse_label_numbers(names or ())
        if numbers != sorted(numbers):
            raise RecordError(
                f"names its columns {safe_repr(names)}, out of order; pass columns=... in the "
                "order of the stream"
            )
        yield ParsedRun(
            rows=rows,
            initial=initial,
            buckets=names and tuple(_TESTED_ON.sub("", name) for name in names),
            labels=None if options.row_labels == "ignore" else labels,
            orientation="rows"
            if options.columns
            else _get_orientation_from_words(corner, names, labels),
            printed=printed,
        )


def describe_unreadable_cell(file: ResultFile, unreadable: str = "") -> str:
    """Return "'x' in line 3, cell 2" for a cell without number.

    unreadable: the cell, which may be a name of a column as well; "" for the first one in a line
    with a number, of which the first cell may be a label.
    """
    location = "no line of numbers"
    brackets = "[]() " if file.is_printed_array else None
    lines = [_expose_separators(ln) for ln in untrusted.decode_text(file.content).split("\n")]
    separator = _find_separator([line for line in lines if not _is_remark(line)])
    for number, line in enumerate(lines, start=1):
        try:
            cells = [cell.strip(brackets) for cell in _split_line(line, separator)]
        except RecordError:
            continue
        is_searched = not unreadable and any(map(_LEADING_NUMBER.match, cells))
        for index, cell in enumerate(cells, start=1):
            is_label = index == 1 and not _LEADING_NUMBER.match(cell)
            if cell == unreadable or (is_searched and not is_label and not is_cell(cell)):
                location = f"{safe_repr(cell)} in line {number}, cell {index}"
                if is_searched:
                    return location
    return location


def parse_table(file: ResultFile) -> list[list[str]]:
    """Split a text into lines of cells, without blank lines and remarks.

    Remarks are lines that begin with # or %, print an average, or are Excel's "sep=;". A NumPy
    array as ``print`` writes it is read, too. Raises RecordError if there are more lines or cells
    than a matrix can have, or a line is not valid CSV.
    """
    if file.is_printed_array:
        text = untrusted.decode_text(file.content)
        text = text[max(text.find("[["), 0) :]
        if "[[" in text[2:]:
            raise RecordError("contains several printed matrices; import a file with one")
        rows = re.findall(r"\[([^\[\]]*)\]", text.partition("]]")[0] + "]")
        if any("..." in row for row in rows) or len(rows) > MAX_BUCKETS + 1:
            raise RecordError(
                f"is a printed array with '...' or more than {MAX_BUCKETS} rows; save it with "
                "numpy.savetxt"
            )
        rows = [row.replace(",", " ") for row in rows]
        return [row.split(maxsplit=_MAX_CELLS) for row in rows if row.strip()]
    lines = []
    for line in file.iter_lines():
        if not _is_remark(line):
            lines.append(_expose_separators(line))
            # A row per bucket, a row of the untrained model, and a row of names.
            if len(lines) > MAX_BUCKETS + 2:
                raise RecordError(f"contains more than {MAX_BUCKETS} rows")
    separator = _find_separator(lines)
    return [_split_line(line, separator) for line in lines]


def _is_remark(line: str) -> bool:
    """Return True for comments, printed averages, and lines that divide tables."""
    return bool(_REMARK.match(line) or _PRINTED_AVERAGE.fullmatch(line[:200]))


def _expose_separators(line: str) -> str:
    """Convert a row of Markdown or LaTeX to tabs, and remove deviations."""
    row = line.strip()
    if len(row) > 1 and row[0] == row[-1] == "|":
        line = _EMPHASIS.sub(r"\1", row[1:-1]).replace("|", "\t")
    elif (end := row.find(r"\\")) > 0:
        line = _EMPHASIS.sub(r"\1", row[:end]).replace("&", "\t")
    return DEVIATION.sub("", line)


def _find_separator(lines: Sequence[str]) -> str | None:
    """Return the first of tab, semicolon and comma that occurs, or None.

    A line of one cell lacks a separator, but may contain a decimal comma.
    """
    return next((mark for mark in "\t;," if any(mark in line for line in lines)), None)


def _split_line(line: str, separator: str | None) -> list[str]:
    """Split a line, None at spaces, and turn decimal commas into points."""
    if separator is None:
        return line.split(maxsplit=_MAX_CELLS)
    if line.count(separator) > _MAX_CELLS:
        raise RecordError(f"contains a line of more than {_MAX_CELLS} cells")
    try:
        cells = next(csv.reader([line], delimiter=separator, strict=True))
    except (csv.Error, StopIteration) as error:
        raise RecordError(f"contains a line that is not CSV: {safe_repr(line)}") from error
    cells = [cell.strip() for cell in cells]
    # Excel in most of Europe writes 0,75;0,5.
    is_number_with_comma = separator != "," and any(map(DECIMAL_COMMA.fullmatch, cells))
    if is_number_with_comma and not any(is_number(c) and "." in c for c in cells):
        return [c.replace(",", ".") if DECIMAL_COMMA.fullmatch(c) else c for c in cells]
    return cells


def _unescape(name: str) -> str:
    """Remove the apostrophe that our CSV puts before possible formulas."""
    return name.removeprefix("'")


def _looks_numeric(line: str) -> bool:
    """Return True for a line of numbers, perhaps after a text."""
    line = _expose_separators(line)
    try:
        cells = _split_line(line, _find_separator([line]))
    except RecordError:
        return False
    has_number = any(is_number(cell) or cell.lower() == "nan" for cell in cells)
    return has_number and all(map(is_cell, cells[1:]))


def _is_label_title(name: str) -> bool:
    """Return True if a column's name is one of row labels."""
    names_axis = bool(_TRAINED.search(name) or _TESTED.search(name))
    return name.lower() in _LABEL_TITLES or (names_axis and not re.search("[0-9]", name))


def _has_labels(
    table: Sequence[Sequence[str]], names: Sequence[str] | None, options: ReadOptions
) -> bool:
    """Return True if the first column has row labels.

    names: None without a header.
    """
    column = [row[0] for row in table]
    is_wide = names is not None and len(names) == max(map(len, table), default=0)
    return bool(
        options.row_labels != "auto"
        or not any(map(is_cell, column))
        or column[0].lower() in _INITIAL_LABELS
        or (names and (_is_label_title(names[0]) or {*column} <= {*names[is_wide:]}))
    )


def _has_column_names(table: Sequence[Sequence[str]], bucket_names: list[str]) -> bool:
    """Return True if the first line names columns, or raise if unclear."""
    first, *rest = table[0]
    if bucket_names and bucket_names in (table[0], rest):
        return True
    are_names = [not is_cell(cell) for cell in rest or [first]]
    if all(are_names):
        return not is_number(first)
    if _repeats_labels(table):
        return True
    line = safe_repr(",".join(table[0]))
    if any(are_names):
        raise RecordError(
            f"begins with {line}, which is neither a line of numbers nor a line of names"
        )
    are_numbers = all(map(str.isdecimal, rest))
    if first and first.lower() in _LABEL_TITLES and are_numbers and not is_count(rest):
        raise RecordError(f"begins with {line}: {suggest_buckets(rest)}")
    if _is_label_title(first):
        return are_numbers and is_count(sorted(rest, key=lambda cell: (len(cell), cell)))
    # 0, 1, 2 or 1, 2, 3 above a square.
    return len(rest) >= 1 and len(table) == len(rest) + 2 and is_count(table[0])


def _repeats_labels(table: Sequence[Sequence[str]]) -> bool:
    """Return True if the row labels' numbers are in the first line."""
    keys, labels = table[0], [row[0] for row in table[1:]]
    if len(keys) == max(map(len, table)):
        keys = [] if re.search("[0-9]", keys[0]) else keys[1:]
    numbers = {str(number) for number in parse_label_numbers(labels)}
    if not numbers or not numbers <= {*keys} or not all(map(str.isdecimal, keys)):
        return False
    return not any(map(is_cell, labels)) or min(map(int, keys)) > 100


def _get_orientation_from_words(
    corner: str, names: Sequence[str] | None, labels: Sequence[str] | None
) -> str:
    """Return "rows", "columns" or "auto" by words in header and labels.

    It is "rows" if each row has the accuracies after one training, "columns" if each column has
    them, and "auto" without a word such as "train", "after", "test" or "eval".

    corner: name of the column of row labels. names: names of the other columns, None without a
    header. labels: labels of the rows, None if there are none.
    """
    names_trained, names_tested, labels_trained, labels_tested = (
        bool(texts) and all(map(pattern.search, texts))
        for texts in (names or (), labels or ())
        for pattern in (_TRAINED, _TESTED)
    )
    if _TRAINED.search(corner) or names_tested or labels_trained:
        return "rows"
    return "columns" if _TESTED.search(corner) or names_trained or labels_tested else "auto"


def _find_printed_averages(file: ResultFile, step: int) -> list[PrintedNumber]:
    """Return averages printed next to the matrix. step: buckets trained by then."""
    return [
        PrintedNumber.parse(FORGETTING if match[1] else AVERAGE, match[2], step)
        for line in file.iter_lines()
        if (match := _PRINTED_AVERAGE.fullmatch(line[-200:].rpartition("=> ")[2]))
    ]


def _parse_average_column(
    names: Sequence[str], table: Sequence[Sequence[str]]
) -> list[PrintedNumber]:
    """Return the numbers of the first column like "avg", by step."""
    column = next((j for j, name in enumerate(names) if _AVERAGE_COLUMN.fullmatch(name)), None)
    return [
        PrintedNumber.parse(LINE_AVERAGE, row[column], step)
        for step, row in enumerate(table, start=1)
        if column is not None and column < len(row) and is_number(row[column])
    ]


def _choose_columns(names: Sequence[str] | None, width: int, options: ReadOptions) -> list[int]:
    """Return the indices of columns that are buckets.

    names: None without a header.
    """
    all_names = [str(j + 1) for j in range(width)] if names is None else [*names]
    check_columns(options.columns, all_names)
    if options.columns or all_names == options.bucket_names:
        return [all_names.index(name) for name in options.columns or all_names]
    buckets = [name for name in all_names if not _NEVER_BUCKETS.fullmatch(name)]
    without_number = [name for name in buckets if not re.search("[0-9]", name)]
    if 0 < len(without_number) < len(buckets):
        raise RecordError(
            f"has the column {safe_repr(without_number[0])} next to numbered ones; pass "
            "columns=... with the names of the columns that are buckets"
        )
    return [j for j, name in enumerate(all_names) if name in buckets]
