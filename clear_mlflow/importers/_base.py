"""What every format is made of: the file as it arrived, what was read of it, and its bounds.

Whatever is wrong with a file raises a RecordError; what a person says of it wrongly, a ConfigError.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow, row_positions
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS

NAN: Final = math.nan
_HEAD = 4096  # bytes that are looked at to recognise the format
_Cells: TypeAlias = "NDArray[np.float64]"
_Numbers = Annotated[list[float | None], msgspec.Meta(max_length=MAX_BUCKETS)]


@dataclass(frozen=True)
class Source:
    """A file of results, as it arrived: its name without folder, and all its bytes."""

    name: str
    content: bytes  # at most untrusted.MAX_LOG_BYTES
    reading: Reading = field(default_factory=lambda: Reading())

    @cached_property
    def head(self) -> str:
        """The beginning of the file, to recognise its format; what is no UTF-8 is replaced."""
        return self.content[:_HEAD].decode("utf-8", "replace").removeprefix("\ufeff")

    def lines(self, most: int) -> Iterator[str]:
        """The lines that are not empty, without what ends them; at most ``most``."""
        count = 0
        for line in io.StringIO(untrusted.decoded(self.content)):
            if line.strip():
                count += 1
                if count > most:
                    raise RecordError(f"holds more than {most} lines")
                yield line.rstrip("\r\n")

    @cached_property
    def json(self) -> Any:
        """The file as a JSON document; NaN, as Python writes it, counts as null does."""
        self.bounded(untrusted.MAX_RESULTS_BYTES)
        if self.content.count(b"[") + self.content.count(b"{") > untrusted.MAX_JSON_LISTS:
            raise RecordError(f"holds more than {untrusted.MAX_JSON_LISTS} lists and objects")
        return untrusted.json_value(self.content, untrusted.MAX_RESULTS_BYTES, nan=True)

    @cached_property
    def looks_like_json(self) -> bool:
        """Whether it begins as a JSON list or object does."""
        return self.head.lstrip()[:1] in ("[", "{") and not self.is_printed_array

    @cached_property
    def is_printed_array(self) -> bool:
        """Return True if it begins as NumPy prints an array: brackets, no commas."""
        return bool(re.match(r"\s*\[\s*(\[\s*)?[-+.\w]+\s+[-+.\w]", self.head))

    def bounded(self, largest: int) -> None:
        """Refuse a file that is too large to be what it is read as."""
        untrusted.bounded(self.content, largest)


@dataclass(frozen=True)
class Parsed:
    """One run's matrix as a file contains it, accuracies in the file's own scale."""

    rows: Sequence[Sequence[float]]  # (k, T), a row per bucket trained through; NaN = not measured
    initial: Sequence[float] | None = None  # (T,), the untrained model, where the format knows it
    num_instances: Any = None  # (T,), test images per bucket; what a file holds is checked later
    buckets: Any = None  # (T,), keys, likewise
    labels: Sequence[str] | None = None  # one per row, if they order the rows
    orientation: str = "auto"  # as in Reading, if the file proves it
    facts: Mapping[str, str] = field(default_factory=dict)  # strategy, dataset, model, seed
    label: str = ""  # which of several runs in the file this is
    part: bytes | None = None  # the bytes of the file that are this run; None = the whole file
    score: Score = ACCURACY  # what the cells are, where the file says so
    hint: str = ""  # what to do about a cell that is too large for an accuracy


@dataclass(frozen=True, kw_only=True)
class Format:
    """A kind of file that results are read from."""

    name: str  # as the command line takes it
    title: str  # for people
    recognises: Callable[[Source], bool]  # by the file's name and its first bytes
    parse: Callable[[Source], Iterable[Parsed]]
    scale: str | None = None  # fraction or percent, where the format itself says so
    has_initial: bool = False  # the format itself marks the untrained model's row
    is_general: bool = False  # many programs write it: tried after those of one program
    # From the names of a folder's files: those without a matrix, and the reason.
    passes_over: Callable[[Sequence[str]], Mapping[str, str]] = lambda _names: {}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a person says of files that do not say it themselves."""

    scale: str = "auto"  # "fraction" or "percent"
    initial: str = "auto"  # "first-row": the first row is the untrained model
    future: str = "auto"  # "tested" or "not-tested": what zeros above the diagonal mean
    orientation: str = "auto"  # "rows": a row is one test after training; "columns": a column is
    columns: tuple[str, ...] = ()  # names of the columns that are buckets, or numbers from 1
    row_labels: str = "auto"  # of the first column: "use": it orders the rows; "ignore"
    num_instances: tuple[int, ...] | None = None  # one for each bucket, or one for all
    buckets: tuple[str, ...] | None = None
    score: Score = ACCURACY  # what the cells are, where a file does not say it
    same_data_as: AccuracyMatrix | None = None  # of a run that was tested on the same data

    @property
    def stated_buckets(self) -> list[str]:
        """The names of buckets that a person stated."""
        other = self.same_data_as
        return [*(self.buckets or (() if other is None else other.buckets))]


@dataclass(frozen=True)
class Imported:
    """One run, read from a file."""

    matrix: AccuracyMatrix
    facts: Mapping[str, str]  # "strategy", "dataset", "model", "seed" where the file names them
    label: str  # which of several runs in the file it is; empty where there is only one
    digest: str  # of the bytes that it was read from: "sha256:..."


def finish(source: Source, kind: Format, parsed: Parsed, reading: Reading) -> Imported:
    """A run as it is kept: fractions, or another score; NaN where nothing was measured."""
    rows, initial, labels, keys = list(parsed.rows), parsed.initial, parsed.labels, parsed.buckets
    if _is_transposed(kind, parsed, reading):
        rows = _rectangle(None, rows)[1:].T.tolist()
        labels, keys = (keys, labels) if labels is not None else (None, keys)
    if labels is not None:
        rows = _order_rows(rows, labels, keys)
    if reading.initial == "first-row":
        if kind.has_initial or initial is not None:
            raise ConfigError(
                f"initial is 'first-row', but the format {kind.name} itself marks which row is the "
                "untrained model's; leave initial out"
            )
        initial, rows = (rows[0], rows[1:]) if rows else (None, rows)
    cells = _rectangle(initial, rows)
    score = _score(kind, parsed, reading)
    if score.is_accuracy:
        cells = _fractions(cells, kind, reading, parsed.hint)
    values, first = cells[1:], cells[0]
    if values.shape[0] > values.shape[1]:
        raise RecordError(
            f"has {values.shape[0]} rows for {values.shape[1]} buckets; expected a row per bucket "
            "trained and a column per bucket tested on. If the first row is the untrained model's, "
            'pass initial="first-row"; if a column is one test after training, '
            'orientation="columns"'
        )
    counts, keys = reading.num_instances or parsed.num_instances, reading.buckets or keys
    if isinstance(counts, (tuple, list)) and len(counts) == 1:
        counts = [*counts] * values.shape[1]
    if (other := reading.same_data_as) is not None:
        keys, counts = keys or other.buckets, other.num_instances if counts is None else counts
    matrix = AccuracyMatrix(_future(values, kind, reading), first, counts, keys, score)
    if other is not None and not (
        matrix.buckets == other.buckets
        and np.array_equal(np.array(matrix.num_instances), np.array(other.num_instances))
    ):
        raise ConfigError(
            f"same_data_as names a run on the buckets {safe_repr(other.buckets)} with "
            f"{safe_repr(other.num_instances)} test images, but other ones arrived"
        )
    if matrix.num_rows == 0 and matrix.initial is None:
        raise RecordError(f"holds no {score.name} that was measured")
    if matrix.num_instances is not None and score.is_accuracy:
        _check_counts(cells, matrix.num_instances)
    part = source.content if parsed.part is None else parsed.part
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    return Imported(matrix, dict(parsed.facts), parsed.label, digest)


def as_rows(matrix: AccuracyMatrix) -> tuple[AccuracyRow, ...]:
    """The rows of a matrix without counts of right answers, but those without a measured cell."""
    counts = None if matrix.num_instances is None else matrix.num_instances.tolist()
    numbered = [(i + 1, cells) for i, cells in enumerate(matrix.values)]
    if matrix.initial is not None:
        numbered.insert(0, (0, matrix.initial))
    return tuple(
        AccuracyRow.from_values(row, matrix.buckets, cells.tolist(), counts, matrix.score)
        for row, cells in numbered
        if not np.isnan(cells).all()
    )


def numbers(values: object, what: str) -> list[float]:
    """A list of a JSON document as floats, at most ``MAX_BUCKETS``; null is NaN."""
    found = untrusted.convert(values, _Numbers, what)
    return [NAN if value is None else value for value in found]


def rows_of(values: object, what: str) -> list[list[float]]:
    """A list of lists of a JSON document as rows of floats."""
    rows = untrusted.convert(
        values, Annotated[list, msgspec.Meta(max_length=MAX_BUCKETS + 1)], what
    )
    return [numbers(row, f"a row of {what}") for row in rows]


def grid(cells: Mapping[tuple[int, int], float]) -> list[list[float]]:
    """Cells by (row, column), both from 0, as rows of one width; NaN where none is."""
    if not cells:
        raise RecordError("holds no accuracy per bucket")
    height = max(i for i, _ in cells) + 1
    width = max(height, *(j + 1 for _, j in cells))
    if width > MAX_BUCKETS:
        raise RecordError(f"has {width} buckets; at most {MAX_BUCKETS} are read")
    rows = [[NAN] * width for _ in range(height)]
    for (i, j), value in cells.items():
        rows[i][j] = value
    return rows


def whole(text: str, what: str, most: int = MAX_BUCKETS) -> int:
    """The digits of a text, zeros before them too, as an integer that may number a bucket."""
    digits = text.lstrip("0") or "0"
    if len(digits) > 6 or int(digits) > most:
        raise RecordError(f"{what} is {safe_repr(text)}; at most {MAX_BUCKETS} buckets are read")
    return int(digits)


def _rectangle(initial: Sequence[float] | None, rows: Sequence[Sequence[float]]) -> _Cells:
    """Rows as an array; of a triangle, whose row i has i cells, the rest is NaN: the future."""
    lengths = [len(row) for row in rows]
    width = max(lengths, default=0) if initial is None else len(initial)
    if not 1 <= max(width, *lengths, 0) <= MAX_BUCKETS or len(rows) > MAX_BUCKETS:
        raise RecordError(
            f"holds {len(rows)} rows of up to {width} numbers; expected 1 to {MAX_BUCKETS}"
        )
    if any(length not in (width, i + 1) for i, length in enumerate(lengths)):
        raise RecordError(
            f"holds rows of {safe_repr(lengths)} numbers; expected a number for each of {width} "
            "buckets in every row, or one more in each row than in the row before"
        )
    cells = np.full((len(rows) + 1, width), NAN)
    for i, row in enumerate([initial or [], *rows]):
        cells[i, : len(row)] = row
    return cells


def _is_transposed(file_format: Format, parsed: Parsed, reading: Reading) -> bool:
    """Return True if a column of the file is one test after training."""
    is_free = file_format.is_general and parsed.initial is None
    if reading.orientation != "auto" and not is_free:
        raise ConfigError(
            f"orientation is {reading.orientation!r}, but {file_format.title} itself marks the "
            "rows; leave orientation out"
        )
    orientation = parsed.orientation if reading.orientation == "auto" else reading.orientation
    rows = parsed.rows
    if orientation != "auto" or not is_free or {*map(len, rows)} != {len(rows)}:
        return orientation == "columns"
    cells = np.nan_to_num(np.array(rows))
    has_diagonal, has_future = np.diagonal(cells).all(), np.triu(cells, 1).any()
    is_proven = bool(has_diagonal and has_future and not np.tril(cells, -1).any())
    if is_proven and len(rows) == 2 and rows[1][0] == 0:
        raise RecordError(
            'contains 0 below the diagonal: pass orientation="columns" if a column is one test '
            'after training, or orientation="rows" if a row is'
        )
    return is_proven


def _order_rows(
    rows: Sequence[Sequence[float]], labels: Sequence[str], keys: Sequence[str] | None
) -> list[Sequence[float]]:
    """Return the rows in the order of their labels, with NaN for missing rows."""
    width = max(map(len, rows), default=0)
    try:
        positions = row_positions(labels, keys or [str(j + 1) for j in range(width)])
    except RecordError as error:
        raise RecordError(f"{error}; pass row_labels=ignore if the rows are in order") from error
    by_position = dict(zip(positions, rows, strict=True))
    return [by_position.get(i, [NAN] * width) for i in range(max(positions, default=-1) + 1)]


def _check_counts(cells: _Cells, num_instances: NDArray[np.int64]) -> None:
    """Refuse an accuracy that, to its last digit, no number of right images gives."""
    off = np.abs(np.round(cells * num_instances) / num_instances - cells)
    whole = np.isnan(cells) | (off <= 1e-6)
    for digits in range(1, 6):
        whole |= (np.abs(np.round(cells, digits) - cells) < 1e-12) & (off <= 0.5 * 10**-digits)
    if not whole.all():
        row, column = np.argwhere(~whole)[0]
        raise RecordError(
            f"holds {cells[row, column]:g}, which no number of {num_instances[column]} test images "
            "gives; leave num_instances out, for means over runs too"
        )


def _score(kind: Format, parsed: Parsed, reading: Reading) -> Score:
    """What the cells are: as the file says, else as a person does."""
    said, found = reading.score, parsed.score
    if not said.is_accuracy and said != found:
        if not kind.is_general or not found.is_accuracy:
            holds = "accuracies" if found.is_accuracy else f"{found.name}, {found.better} is better"
            raise ConfigError(
                f"score is {said.name!r}, but {kind.title} holds {holds}; leave score out"
            )
        found = said
    if not found.is_accuracy and reading.scale != "auto":
        raise ConfigError(
            f"scale is {reading.scale!r}, which is of accuracies, but the score is {found.name}; "
            "leave scale out"
        )
    return found


def _fractions(cells: _Cells, kind: Format, reading: Reading, hint: str) -> _Cells:
    scale = kind.scale or reading.scale
    if reading.scale not in ("auto", scale):
        raise ConfigError(
            f"scale is {reading.scale!r}, but {kind.title} holds accuracies as {kind.scale}; "
            "leave scale out"
        )
    measured = cells[~np.isnan(cells)]
    largest = float(measured.max(initial=0))
    if (least := float(measured.min(initial=0))) < 0:
        raise RecordError(f"holds {least}; an accuracy is never below 0")
    if scale == "percent":
        if largest > 100:
            advice = hint or "expected accuracies in percent, 0 to 100"
            raise RecordError(f"holds {largest}, which is no percentage: {advice}")
        if kind.scale is None and 0 < largest <= 1:
            raise RecordError(f'holds no accuracy above {largest} %; scale="percent" seems wrong')
        return np.divide(cells, 100)
    if largest > 1:
        advice = (
            'if they are percent, pass scale="percent"' if scale == "auto" else "expected 0 to 1"
        )
        raise RecordError(f"holds {largest}, which is no fraction: {hint or advice}")
    return cells


def _future(values: _Cells, kind: Format, reading: Reading) -> _Cells:
    """The matrix, NaN where zeros above the diagonal mean "not tested"."""
    future = ~np.tri(*values.shape, dtype=np.bool_)
    cells = values[future]
    cells = cells[~np.isnan(cells)]
    if kind.is_general and reading.future == "auto" and cells.size and not cells.any():
        raise RecordError(
            'contains 0 for every future bucket: pass future="not-tested" if future buckets '
            'were not tested, or future="tested" if the accuracy there is 0'
        )
    if reading.future != "not-tested":
        return values
    if cells.any():
        raise RecordError(
            "holds accuracies above the diagonal other than 0; future=not-tested cannot be true"
        )
    found: _Cells = np.where(future, NAN, values)
    # Who begins with a matrix of zeros has rows of zeros at the end of a run that stopped.
    trained = np.flatnonzero(np.nan_to_num(found).any(axis=1))
    return found[: trained[-1] + 1 if trained.size else 0]
