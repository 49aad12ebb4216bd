"""What an importer builds on: the file that it reads, the run that it yields, and helpers.

Each function that reads a file's content raises RecordError if the content is invalid.
"""

from __future__ import annotations

import io
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS

NAN: Final = math.nan
# As papers print it: 91.2 +- 0.3, or with a sign of Unicode or LaTeX, also as an index.
DEVIATION: Final = re.compile(
    r"(?<=[0-9%])\s*(?:\$?[_^]\{)?\s*(?:\+/?-|±|\$?\\pm\$?)\s*[0-9]*\.?[0-9]+(?:\}\$?)?"
)
DECIMAL_COMMA: Final = re.compile(r"[-+]?[0-9]+,[0-9]+([eE][-+]?[0-9]{1,5})?")
_MAX_EXPRESSION = 500
_NOT_MEASURED = frozenset(["", "nan", "na", "n/a", "none", "null", "-", "--", "---", "–", "—"])
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,5})?")
# Not a line of a log, such as "[INFO] test" or "[2026-01-31 12:00:00] test".
_NUMERIC = r"[-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|nan|NaN|inf|Infinity)"
_JSON_START = re.compile(
    rf"\{{|\[\s*(?:[\[{{\"]|\]\s*$|(?:{_NUMERIC}|null|true|false)\s*(?:,|\]\s*$|$))"
)
_ARRAY_START = re.compile(rf"\s*\[\s*(?:\[\s*)?{_NUMERIC}\s+[-+.0-9ni]")
_Floats = Annotated[list[float | None], msgspec.Meta(max_length=MAX_BUCKETS)]
_Rows = Annotated[list[_Floats], msgspec.Meta(max_length=MAX_BUCKETS + 1)]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the user states about files. "auto": the file proves it."""

    scale: str = "auto"  # "fraction" or "percent"
    initial: str = "auto"  # "first-row": the first row is the untrained model
    future: str = "auto"  # "tested" or "not-tested": what zeros above the diagonal mean
    orientation: str = "auto"  # "rows": a row is one test after training; "columns": a column is
    columns: tuple[str, ...] = ()  # columns that are buckets, by name or by number from 1
    row_labels: str = "auto"  # "use": the first column orders the rows; "ignore": skip it
    num_instances: tuple[int, ...] | None = None  # test images per bucket, or one number for all
    buckets: tuple[str, ...] | None = None
    score: Score = ACCURACY  # what the numbers are, if the file does not define it
    same_data_as: AccuracyMatrix | None = None  # matrix of a run tested on the same data
    rows: str | None = None  # expression whose group is a row, in the lines of a log
    table: bool = False  # a table with a line per value or step, whose roles columns has
    row_metric: str | None = None  # expression whose group is the bucket, for names of metrics

    def __post_init__(self) -> None:
        examples = {"rows": "accuracies: \\[(.*)\\]", "row_metric": "test/acc_(\\d+)"}
        for name, example in examples.items():
            expression = getattr(self, name)
            try:
                is_valid = expression is None or (
                    len(expression) <= _MAX_EXPRESSION and re.compile(expression).groups == 1
                )
            except (re.error, RecursionError, OverflowError):
                is_valid = False
            if not is_valid:
                raise ConfigError(
                    f"{name} is {safe_repr(expression)}; expected a regular expression with one "
                    f"group, such as '{example}'",
                    parameter=name,
                )
        if self.row_metric is not None and not self.table:
            raise ConfigError(
                f"row_metric is {safe_repr(self.row_metric)}, which is read in tables of metrics; "
                "pass table=true and columns=... as well",
                parameter="row_metric",
            )

    @property
    def bucket_names(self) -> list[str]:
        """Bucket names from the user or from ``same_data_as``, or an empty list."""
        other = self.same_data_as
        return [*(self.buckets or (() if other is None else other.buckets))]


@dataclass(frozen=True)
class ResultFile:
    """A result file: name without folder, bytes, and options to read it."""

    name: str
    content: bytes  # at most untrusted.MAX_LOG_BYTES
    options: ReadOptions = field(default_factory=ReadOptions)

    @cached_property
    def head(self) -> str:
        """The first 4096 bytes as text, invalid ones replaced."""
        return self.content[:4096].decode("utf-8", "replace").removeprefix("\ufeff")

    def iter_lines(self, max_lines: int = untrusted.MAX_LINES) -> Iterator[str]:
        """Yield the lines that are not blank, without line ends.

        Raises RecordError if there are more than *max_lines*, or if the file is not UTF-8.
        """
        lines = (line for line in io.StringIO(untrusted.decode_text(self.content)) if line.strip())
        for number, line in enumerate(lines, start=1):
            if number > max_lines:
                raise RecordError(f"contains more than {max_lines} lines")
            yield line.rstrip("\r\n")

    @cached_property
    def json(self) -> Any:
        """The content as a JSON document. ``NaN`` is read as NaN.

        Raises RecordError if it is not JSON, or exceeds the limits of size, depth and lists.
        """
        if self.content.count(b"[") + self.content.count(b"{") > untrusted.MAX_JSON_LISTS:
            raise RecordError(f"contains more than {untrusted.MAX_JSON_LISTS} lists and objects")
        return untrusted.parse_json(self.content, untrusted.MAX_RESULTS_BYTES, nan=True)

    @cached_property
    def looks_like_json(self) -> bool:
        """Whether the file begins with [ or {, like JSON.

        Arrays as NumPy prints them do not count.
        """
        return bool(_JSON_START.match(self.head.lstrip())) and not self.is_printed_array

    @cached_property
    def is_printed_array(self) -> bool:
        """Whether the file begins with a printed array of NumPy or torch.

        It has brackets without commas, or ``tensor(`` or ``array(`` before them, after up to twenty
        lines of text.
        """
        if re.match(r"(?:[^\[\n]*\n){0,20}[^\[\n]*\b(?:tensor|array)\(\s*\[\s*\[", self.head):
            return True
        array = re.match(r"(?:[^\[\n]*\n){0,20}\s*(?=\[\s*\[)", self.head)
        start = array.end() if array else 0
        return bool(_ARRAY_START.match(self.head[start:]))


AVERAGE: Final = "average accuracy"
LINE_AVERAGE: Final = "average of a line"  # in a column of the table
FORGETTING: Final = "forgetting"
WEIGHTED: Final = "accuracy over all images"
MEAN_WEIGHTED: Final = "mean accuracy over all images"  # over the tests so far
EARLIER: Final = "accuracy on earlier tasks"  # mean of all cells below the diagonal


@dataclass(frozen=True)
class PrintedNumber:
    """A number next to a matrix, by which the matrix is checked."""

    name: str  # one of the names above
    value: float
    step: int  # number of buckets trained
    precision: float = 0.005  # half a unit of its last digit
    weights: Sequence[float] = ()  # of the buckets in an average over all images; () = unknown

    @classmethod
    def parse(cls, name: str, digits: str, step: int) -> PrintedNumber:
        """Return the number, whose precision follows from its decimals: 0.005 for "61.25".

        name, step: fields of the result. Raises RecordError if *digits* is not a cell, see
        :func:`parse_cell`.
        """
        value = parse_cell(digits)
        mantissa, _, exponent = digits.lower().partition("e")  # as in 5e-05
        decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
        decimals = min(max(decimals, 0), 7)  # later digits come from 64-bit floats
        return cls(name, value, step, 0.5 * 10**-decimals)


@dataclass(frozen=True)
class ParsedRun:
    """One run as its file contains it: not checked or converted."""

    rows: Sequence[Sequence[float]]  # a row per bucket trained; NaN = not measured
    initial: Sequence[float] | None = None  # row of the untrained model, if the format marks it
    num_instances: Any = None  # test images per bucket; checked later
    buckets: Any = None  # bucket names; checked later
    labels: Sequence[str] | None = None  # one per row, if they order the rows
    # As in ReadOptions, if the file proves it. "named": rows, unless empty cells prove columns.
    orientation: str = "auto"
    order: str = ""  # on what the order of the stream relies, if the file does not prove it
    metadata: Mapping[str, str] = field(default_factory=dict)  # strategy, dataset, model, seed
    label: str = ""  # name of the run within its file; empty if it is the only one
    score: Score = ACCURACY  # what the numbers are, if the file defines it
    printed: Sequence[PrintedNumber] = ()  # averages in the file


class Format(ABC):
    """Base class of file formats. Each subclass detects and parses one."""

    name: str  # value of --format
    scale: str | None = None  # "fraction" or "percent", if the program that writes it defines it
    marks_initial = False  # True if the format itself marks the row of the untrained model
    is_general = False  # True if many programs write it; tried after the others
    is_log = False  # True if orientation="rows" states that a log without its end is a run
    max_bytes = untrusted.MAX_RESULTS_BYTES  # larger files are not parsed

    @abstractmethod
    def matches(self, file: ResultFile) -> bool:
        """Return True if a file's name and content look like this format."""

    @abstractmethod
    def parse(self, file: ResultFile) -> Iterable[ParsedRun]:
        """Yield the runs of a file. Raises RecordError if it is invalid."""

    def find_skipped(self, names: Sequence[str]) -> dict[str, str]:
        """Return files of a folder that need not be read, with reasons.

        By default, there are none. names: names of all files in the folder.
        """
        return {}


def build_rows(cells: Mapping[tuple[int, int], float]) -> list[list[float]]:
    """Build rows from cells by (row, column), NaN in the gaps.

    Both count from 0.

    cells: at least one.
    """
    height = 1 + max(row for row, _ in cells)
    width = 1 + max(column for _, column in cells)
    return [[cells.get((i, j), NAN) for j in range(width)] for i in range(height)]


def is_cell(text: str) -> bool:
    """Return True for a number, an empty cell, or words like "n/a"."""
    return text.lower() in _NOT_MEASURED or is_number(text)


def is_number(text: str) -> bool:
    """Return True for a finite decimal number, with an exponent or not."""
    return bool(_NUMBER.fullmatch(text))


def parse_cell(text: str) -> float:
    """Convert a cell to a number, NaN if empty or like "n/a".

    Raises RecordError if it is anything else.
    """
    if text.lower() in _NOT_MEASURED:
        return NAN
    if not is_number(text):
        raise RecordError(f"contains {safe_repr(text)}; expected a number, or nothing")
    return float(text)


def check_end(file: ResultFile, is_complete: bool, missing_part: str) -> None:
    """Raise RecordError if a log is incomplete, unless the user passed orientation="rows".

    missing_part: what an incomplete log lacks, for the message.
    """
    if not is_complete and file.options.orientation != "rows":
        raise RecordError(
            f"lacks {missing_part}: the run stopped early, or the file is truncated. Pass "
            'orientation="rows" to import the tests that it contains'
        )


def is_count(cells: Sequence[str]) -> bool:
    """Return True for the cells 0, 1, 2 or 1, 2, 3."""
    return list(cells) in ([str(start + j) for j in range(len(cells))] for start in (0, 1))


def check_not_numbered(
    table: Sequence[Sequence[str]], *, has_names: bool = False, has_labels: bool = False
) -> None:
    """Raise RecordError if the first row or column is a count.

    They are names or labels then, and not accuracies of 0 %, 1 % and 2 %. has_names, has_labels:
    True if the names, or labels, are known and no longer in the table.
    """
    lines = {
        "row": ([] if has_names else table[0], 'names: pass buckets="..."'),
        "column": (
            [] if has_labels else [row[0] for row in table if row],
            'labels: pass row_labels="use" or "ignore"',
        ),
    }
    has_accuracies = any(is_number(c) and c not in ("0", "1") for row in table for c in row)
    for line, (cells, advice) in lines.items():
        numbers = [cell for cell in cells if is_number(cell)]
        if min(len(numbers), len(table)) > 1 and has_accuracies and is_count(numbers):
            raise RecordError(
                f"begins with a {line} {safe_repr(' '.join(numbers))}, which looks like {advice}, "
                f"or remove the {line}"
            )


def check_columns(columns: Sequence[str], names: Sequence[str]) -> None:
    """Raise ConfigError if a table lacks a column. names: the table's columns."""
    if missing := [name for name in columns if name not in names]:
        raise ConfigError(
            f"columns is {safe_repr(','.join(columns))}, but the file lacks the column "
            f"{safe_repr(missing[0])}; choose from {safe_repr(','.join(names))}",
            parameter="columns",
        )


def suggest_buckets(names: Sequence[str]) -> str:
    """Return advice to pass buckets=NAMES, to end an error message."""
    return f"if the first line names the buckets, pass buckets={safe_repr(','.join(names))}"


def to_floats(values: object, name: str) -> list[float]:
    """Convert a JSON list to floats, null to NaN, or raise RecordError.

    The list has at most ``MAX_BUCKETS`` numbers. name: of the list, in errors.
    """
    return [NAN if cell is None else cell for cell in untrusted.convert(values, _Floats, name)]


def to_rows(values: object, name: str) -> list[list[float]]:
    """Convert a JSON matrix to floats, null to NaN, or raise RecordError.

    The rows may differ in length. name: of the list, in errors.
    """
    rows = untrusted.convert(values, _Rows, name)
    return [[NAN if cell is None else cell for cell in row] for row in rows]


def parse_index(digits: str, name: str, largest: int = MAX_BUCKETS) -> int:
    """Convert a string of digits to an integer, or raise RecordError.

    name: what the integer is, for example "a task".
    """
    number = digits.lstrip("0") or "0"
    is_decimal = digits.isascii() and digits.isdecimal()
    if not is_decimal or len(number) > 6 or int(number) > largest:
        raise RecordError(
            f"{name} is {safe_repr(digits)}; expected a number, and at most {MAX_BUCKETS} buckets "
            "are read"
        )
    return int(number)
