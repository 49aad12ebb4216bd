"""What every format is made of: the file as it arrived, what was read of it, and its bounds."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_BUCKETS

NAN: Final = math.nan
_HEAD = 4096  # bytes that are looked at to recognise the format


@dataclass(frozen=True)
class Source:
    """A file of results, as it arrived; nothing about it is trusted.

    Args:
        name: the file's name, without its folder.
        content: all its bytes, at most ``untrusted.MAX_LOG_BYTES``.
    """

    name: str
    content: bytes

    @cached_property
    def head(self) -> str:
        """The beginning of the file, to recognise its format; what is no UTF-8 is replaced."""
        return self.content[:_HEAD].decode("utf-8", "replace").removeprefix("\ufeff")

    @cached_property
    def text(self) -> str:
        """The whole file as text.

        Raises:
            RecordError: it is not UTF-8.
        """
        return untrusted.decoded(self.content)

    def lines(self, most: int) -> Iterator[str]:
        """The lines that are not empty, one after the other, without what ends them.

        Raises:
            RecordError: it is not UTF-8, or there are more than ``most`` of them.
        """
        count = 0
        for line in io.StringIO(self.text):
            if line.strip():
                count += 1
                if count > most:
                    raise RecordError(f"holds more than {most} lines")
                yield line.rstrip("\r\n")

    @cached_property
    def json(self) -> Any:
        """The file as a JSON document; NaN, as Python writes it, counts as null does.

        Raises:
            RecordError: it is no JSON, or nested too deeply.
        """
        self.bounded(untrusted.MAX_RESULTS_BYTES)
        if self.content.count(b"[") + self.content.count(b"{") > untrusted.MAX_JSON_LISTS:
            raise RecordError(f"holds more than {untrusted.MAX_JSON_LISTS} lists and objects")
        return untrusted.json_value(self.content, untrusted.MAX_RESULTS_BYTES, nan=True)

    @cached_property
    def looks_like_json(self) -> bool:
        """Whether it begins as a JSON list or object does."""
        return self.head.lstrip()[:1] in ("[", "{")

    def bounded(self, largest: int) -> None:
        """Refuse a file that is too large to be what it is read as.

        Raises:
            RecordError: it is.
        """
        untrusted.bounded(self.content, largest)


@dataclass(frozen=True)
class Parsed:
    """One run's matrix as a file contains it, accuracies in the file's own scale.

    Args:
        rows: (k, T), a row per bucket trained through; NaN = not measured.
        initial: (T,), the untrained model, where the format knows that row.
        num_instances: (T,), test images per bucket, where the file contains them.
        buckets: (T,), keys, where the file names them.
        facts: what else the file says: ``strategy``, ``dataset``, ``model``, ``seed``.
        label: which of several runs in the file this is; empty where there is only one.
        part: the bytes of the file that are this run; None = the whole file.
        score: what the cells are, where the file says so.
    """

    rows: Sequence[Sequence[float]]
    initial: Sequence[float] | None = None
    num_instances: Sequence[int] | None = None
    buckets: Sequence[str] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    part: bytes | None = None
    score: Score = ACCURACY


@dataclass(frozen=True, kw_only=True)
class Format:
    """A kind of file that results are read from.

    Args:
        name: as the command line takes it.
        title: what it is, for people.
        recognises: whether a file is of this format, by its name and its first bytes alone.
        parse: gives the runs in a file; raises RecordError alone.
        scale: ``fraction`` or ``percent`` where the format itself says so; None = any.
        zeros_are_untested: whether zeros above the diagonal mean that nothing was tested there.
        has_initial: whether the format itself says which row is the untrained model's.
        is_general: a format that many programs write; it is tried after those of one program.
        passes_over: why a file of this program, found in a folder, is no matrix to import. It is
            given the file's name and the names of all files in the folder; None = it is one.
    """

    name: str
    title: str
    recognises: Callable[[Source], bool]
    parse: Callable[[Source], Iterable[Parsed]]
    scale: str | None = None
    zeros_are_untested: bool = False
    has_initial: bool = False
    is_general: bool = False
    passes_over: Callable[[str, Sequence[str]], str | None] = lambda _name, _siblings: None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a person says of files that do not say it themselves."""

    scale: str = "auto"  # "fraction" or "percent"
    initial: str = "auto"  # "first-row": the first row is the untrained model
    future: str = "auto"  # "tested" or "not-tested": what zeros above the diagonal mean
    num_instances: tuple[int, ...] | None = None  # one for each bucket, or one for all
    buckets: tuple[str, ...] | None = None
    score: Score = ACCURACY  # what the cells are, where a file does not say it


@dataclass(frozen=True)
class Imported:
    """One run, read from a file."""

    matrix: AccuracyMatrix
    facts: Mapping[str, str]  # "strategy", "dataset", "model", "seed" where the file names them
    label: str  # which of several runs in the file it is; empty where there is only one
    digest: str  # of the bytes that it was read from: "sha256:..."


def finish(source: Source, kind: Format, parsed: Parsed, reading: Reading) -> Imported:
    """A run as it is kept: fractions, or another score; NaN where nothing was measured.

    Raises:
        RecordError: the numbers are no accuracy matrix, or what they mean is not known.
        ConfigError: what a person says contradicts what the format itself says.
    """
    rows, initial = list(parsed.rows), parsed.initial
    if reading.initial == "first-row":
        if kind.has_initial or initial is not None:
            raise ConfigError(
                f"initial is 'first-row', but the format {kind.name} itself marks which row is the "
                "untrained model's; leave initial out"
            )
        initial, rows = (rows[0], rows[1:]) if rows else (None, rows)
    cells = _rectangle(rows, initial)
    score = _score(kind, parsed, reading)
    if score.is_accuracy:
        cells = _fractions(cells, kind, reading)
    values, first = (cells[1:], cells[0]) if initial is not None else (cells, None)
    if values.shape[0] > values.shape[1]:
        raise RecordError(
            f"has {values.shape[0]} rows for {values.shape[1]} buckets; expected a row per bucket "
            "trained and a column per bucket tested on. If the first row is the untrained model's, "
            "say initial=first-row"
        )
    counts = reading.num_instances or parsed.num_instances
    if counts is not None and len(counts) == 1:
        counts = tuple(counts) * values.shape[1]
    matrix = AccuracyMatrix(
        _future(values, kind, reading), first, counts, reading.buckets or parsed.buckets, score
    )
    if matrix.num_rows == 0 and matrix.initial is None:
        raise RecordError(f"holds no {score.name} that was measured")
    part = source.content if parsed.part is None else parsed.part
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    return Imported(matrix, dict(parsed.facts), parsed.label, digest)


def as_rows(matrix: AccuracyMatrix) -> tuple[AccuracyRow, ...]:
    """The rows of a matrix whose counts of right answers are not known, as a run stores them.

    A row without a measured cell is left out.
    """
    counts = None if matrix.num_instances is None else matrix.num_instances.tolist()
    numbered = [(i + 1, cells) for i, cells in enumerate(matrix.values)]
    if matrix.initial is not None:
        numbered.insert(0, (0, matrix.initial))
    return tuple(
        AccuracyRow.from_values(row, matrix.buckets, cells.tolist(), counts, matrix.score)
        for row, cells in numbered
        if not np.isnan(cells).all()
    )


def number(value: object, what: str) -> float:
    """A value of a document as a float; null is NaN.

    Raises:
        RecordError: it is no number.
    """
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecordError(f"{what} is {shown(value)}; expected a number")
    try:
        return float(value)
    except OverflowError as error:
        raise RecordError(f"{what} is a number too large to read") from error


def numbers(values: object, what: str) -> list[float]:
    """A list of a document as floats.

    Raises:
        RecordError: it is no list of numbers, or longer than a row can be.
    """
    if not isinstance(values, list):
        raise RecordError(f"{what} is {shown(values)}; expected a list of numbers")
    if len(values) > MAX_BUCKETS:
        raise RecordError(f"{what} has {len(values)} entries; at most {MAX_BUCKETS} are read")
    return [number(value, what) for value in values]


def grid(cells: Mapping[tuple[int, int], float], width: int = 0) -> list[list[float]]:
    """Cells that were found one by one, as rows; what was not found is NaN.

    Args:
        cells: (row, column), both counted from 0, to value.
        width: columns that there are at least.

    Raises:
        RecordError: there are none, or more than a matrix can have.
    """
    if not cells:
        raise RecordError("holds no accuracy per bucket")
    height = max(i for i, _ in cells) + 1
    width = max(width, height, *(j + 1 for _, j in cells))
    if width > MAX_BUCKETS:
        raise RecordError(f"has {width} buckets; at most {MAX_BUCKETS} are read")
    rows = [[NAN] * width for _ in range(height)]
    for (i, j), value in cells.items():
        rows[i][j] = value
    return rows


def whole(text: str, what: str) -> int:
    """The digits of a text as an integer that may number a bucket.

    Raises:
        RecordError: it is larger than any bucket's number.
    """
    if len(text) > 6 or int(text) > MAX_BUCKETS:
        raise RecordError(f"{what} is {shown(text)}; at most {MAX_BUCKETS} buckets are read")
    return int(text)


def _rectangle(
    rows: Sequence[Sequence[float]], initial: Sequence[float] | None
) -> NDArray[np.float64]:
    """All rows as an array, the initial one first. Shorter rows end in NaN: the future."""
    found = [*([initial] if initial is not None else []), *rows]
    if not found:
        raise RecordError("holds no row of accuracies")
    width = max(len(row) for row in found)
    if not 1 <= width <= MAX_BUCKETS or len(found) > MAX_BUCKETS + 1:
        raise RecordError(
            f"holds {len(found)} rows of up to {width} numbers; expected 1 to {MAX_BUCKETS}"
        )
    cells = np.full((len(found), width), NAN)
    for i, row in enumerate(found):
        cells[i, : len(row)] = row
    return cells


def _score(kind: Format, parsed: Parsed, reading: Reading) -> Score:
    """What the cells are: as the file says, else as a person does.

    Raises:
        ConfigError: they contradict each other.
    """
    said, found = reading.score, parsed.score
    if said.is_accuracy or said == found:
        score = found
    elif not kind.is_general or not found.is_accuracy:
        holds = "accuracies" if found.is_accuracy else f"{found.name}, {found.better} is better"
        raise ConfigError(
            f"score is {said.name!r}, but {kind.title} holds {holds}; leave score out"
        )
    else:
        score = said
    if not score.is_accuracy and reading.scale != "auto":
        raise ConfigError(
            f"scale is {reading.scale!r}, which is of accuracies, but the score is {score.name}; "
            "leave scale out"
        )
    return score


def _fractions(cells: NDArray[np.float64], kind: Format, reading: Reading) -> NDArray[np.float64]:
    scale = reading.scale if kind.scale is None else kind.scale
    if reading.scale not in ("auto", scale):
        raise ConfigError(
            f"scale is {reading.scale!r}, but {kind.title} holds accuracies as {kind.scale}; "
            "leave scale out"
        )
    measured = cells[~np.isnan(cells)]
    largest = float(measured.max()) if measured.size else 0.0
    if measured.size and float(measured.min()) < 0:
        raise RecordError(f"holds {float(measured.min())}; an accuracy is never below 0")
    if scale == "percent":
        if largest > 100:
            raise RecordError(f"holds {largest}; expected accuracies in percent, 0 to 100")
        if kind.scale is None and 0 < largest <= 1:
            raise RecordError(f"holds no accuracy above {largest} %; scale=percent seems wrong")
        fractions: NDArray[np.float64] = cells / 100
        return fractions
    if largest > 1:
        advice = "if they are percent, say scale=percent" if scale == "auto" else "expected 0 to 1"
        raise RecordError(f"holds {largest}, which is no fraction: {advice}")
    return cells


def _future(values: NDArray[np.float64], kind: Format, reading: Reading) -> NDArray[np.float64]:
    """The cells of future buckets, NaN where zeros mean "not tested".

    Raises:
        RecordError: whether they were tested cannot be known.
    """
    rows, columns = np.triu_indices(values.shape[0], 1, values.shape[1])
    cells = values[rows, columns]
    cells = cells[~np.isnan(cells)]
    all_zero = bool(cells.size) and not cells.any()
    if kind.zeros_are_untested and reading.future != "auto":
        raise ConfigError(
            f"future is {reading.future!r}, but {kind.title} never tests the future; leave it out"
        )
    if kind.zeros_are_untested and cells.any():
        raise RecordError(
            f"holds accuracies above the diagonal, which {kind.title} never has; if every bucket "
            "was tested, import it as a plain matrix (format=text, json or numpy)"
        )
    if reading.future == "not-tested" and cells.any():
        raise RecordError(
            "holds accuracies above the diagonal other than 0; future=not-tested cannot be true"
        )
    if kind.is_general and reading.future == "auto" and all_zero:
        raise RecordError(
            "holds 0 in every cell above the diagonal: say future=not-tested if future buckets "
            "were not tested, or future=tested if the accuracy there is 0"
        )
    if not (kind.zeros_are_untested or reading.future == "not-tested"):
        return values
    found: NDArray[np.float64] = values.copy()
    found[rows, columns] = NAN
    if kind.zeros_are_untested:
        return found
    # Who begins with a matrix of zeros has rows of zeros at the end of a run that stopped.
    trained = np.flatnonzero(np.nan_to_num(found).any(axis=1))
    last = int(trained[-1]) + 1 if trained.size else 0
    kept: NDArray[np.float64] = found[:last]
    return kept
