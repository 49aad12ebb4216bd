"""The accuracy matrix: what a run measured, and what it did not.

Where a run measured another score than accuracy, its matrix is of that: see :mod:`.score`.

Row *i* is measured after training through bucket *i*, on the test sets of all buckets. "Not
measured" is NaN, and never 0: a run that stopped early, or was not tested somewhere, has a smaller
matrix and not a worse one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.score import ACCURACY, MAX_SCORE, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import (
    MAX_BUCKETS,
    MAX_COUNT,
    MAX_KEY_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    convert,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

PROTOCOLS = ("iid", "streaming")
# What a run is measured on: test images, or some of its training images held out to choose by.
TEST, VALIDATION = "test", "validation"
SPLITS = (TEST, VALIDATION)


def check_protocol(protocol: str) -> None:
    """Refuse a protocol that there is not."""
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"protocol is {safe_repr(protocol)}; expected one of {', '.join(PROTOCOLS)}"
        )


def measured_split(split: str) -> str:
    """What a run is measured on, by the ``split`` that divides its images.

    >>> measured_split("auto"), measured_split("3"), measured_split("validation:3")
    ('test', 'test', 'validation')
    """
    return VALIDATION if split.partition(":")[0] == VALIDATION else TEST


def validated_split(split: str) -> str:
    """The split whose training images a validation divides; any other split itself.

    >>> validated_split("validation"), validated_split("validation:3"), validated_split("3")
    ('auto', '3', '3')
    """
    first, _, number = split.partition(":")
    return (number or "auto") if first == VALIDATION else split


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**62)]


class RowCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a row cost; None is not known, and never 0.

    FLOPs, images, bytes and parameters are the same on every machine, seconds and memory of
    *device* alone.

    Args:
        training_flops: of convolutions, matrix products and attention, forward and backward; a
            multiplication and an addition are two.
        test_flops: of the row's test, and of tests inside its bucket.
        images: of the bucket, that steps trained on; an image counts in every epoch.
        replayed_images: of other buckets, likewise.
        stored_bytes: what the strategy keeps once the bucket is done.
        trainable_parameters: of the model, as the bucket was trained.
        seconds: that training took.
        device_seconds: seconds of all GPUs together, else of the processors.
        test_seconds: that tests took.
        peak_bytes: the most memory of the first process's GPU, else of that process so far.
        device: the GPU's or the processor's name.
    """

    training_flops: _Count | None = None
    test_flops: _Count | None = None
    images: _Count | None = None
    replayed_images: _Count | None = None
    stored_bytes: _Count | None = None
    trainable_parameters: _Count | None = None
    seconds: _Seconds | None = None
    device_seconds: _Seconds | None = None
    test_seconds: _Seconds | None = None
    peak_bytes: _Count | None = None
    device: Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)] | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that are known."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def row_cost(given: RowCost | Mapping[str, object] | None) -> RowCost | None:
    """What a loop said that a row cost, checked; RecordError, or ConfigError of a name unknown."""
    if given is None:
        return None
    if not isinstance(given, (RowCost, Mapping)):
        raise RecordError(
            f"cost is {safe_repr(given)}; expected a dictionary, as {{'seconds': 1.5}}"
        )
    known = given.as_json() if isinstance(given, RowCost) else given
    fields = {name: _plain_number(value) for name, value in known.items()}
    if unknown := sorted(map(str, fields.keys() - set(RowCost.__struct_fields__))):
        raise ConfigError(
            f"cost names {safe_repr(unknown[0])}; expected some of "
            f"{', '.join(RowCost.__struct_fields__)}"
        )
    found: RowCost = convert(fields, RowCost, "cost")
    return found


def _plain_number(value: object) -> object:
    """A number of NumPy or a tensor as Python's, and a whole float as an integer."""
    if getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class AccuracyRow:
    """One test of all buckets, after training through ``row`` of them.

    A row holds counts. One that was imported from a program that kept no counts, or that is of
    another score than accuracy, holds values in their place: ``correct`` is then None, and a bucket
    that was not tested is NaN.

    Args:
        row: buckets trained so far; 0 is the initialisation, before any training.
        buckets: keys of all buckets, in stream order.
        correct: test images classified correctly, per bucket; None where only values are known.
        num_instances: test images, per bucket; at least 1 each. None where they are not known.
        values: the score, per bucket: accuracies as fractions, others as they are; NaN = not
            measured; only without ``correct``.
        score: what was measured.
        cost: of the training since the row before; no part of what makes two rows equal.

    Raises:
        RecordError: the numbers do not fit each other.

    >>> row = AccuracyRow(row=1, buckets=("1", "2"), correct=(9, 6), num_instances=(10, 10))
    >>> row.cells, row.trained_through
    ((0.9, 0.6), '1')
    >>> AccuracyRow.from_values(1, ("1", "2"), (0.9, float("nan"))).cells
    (0.9, nan)
    """

    row: int
    buckets: tuple[str, ...]
    correct: tuple[int, ...] | None
    num_instances: tuple[int, ...] | None
    values: tuple[float, ...] | None = None
    score: Score = ACCURACY
    cost: RowCost | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        buckets = _checked_buckets(self.buckets)
        object.__setattr__(self, "buckets", buckets)
        if not 0 <= convert(self.row, int, "row") <= len(buckets):
            raise RecordError(
                f"row is {safe_repr(self.row)}; expected the buckets trained so far, 0 for the "
                f"initialisation, and there are only {len(buckets)} buckets"
            )
        if self.values is None:
            if not self.score.is_accuracy:
                raise RecordError(f"no values arrived; a score of {self.score.name} has no counts")
            totals = self._counts("num_instances", [MAX_COUNT] * len(buckets), least=1)
            self._counts("correct", totals)
            return
        if self.correct is not None:
            raise RecordError("correct and values arrived both; accuracy follows from correct")
        if self.num_instances is not None:
            self._counts("num_instances", [MAX_COUNT] * len(buckets), least=1)
        object.__setattr__(self, "values", self._checked_values())

    def _counts(self, name: str, most: Sequence[int], least: int = 0) -> tuple[int, ...]:
        """A field of counts, kept as a tuple; each is ``least`` to ``most`` of its bucket."""
        counts: tuple[int, ...] = convert(getattr(self, name), tuple[int, ...], name)
        if len(counts) != len(self.buckets):
            raise RecordError(
                f"{name} has {len(counts)} entries for {len(self.buckets)} buckets; expected one "
                "per bucket"
            )
        for key, count, largest in zip(self.buckets, counts, most, strict=True):
            if not least <= count <= largest:
                limit = "2**53" if name == "num_instances" else f"its num_instances, {largest}"
                raise RecordError(
                    f"{name} of bucket {key!r} is {safe_repr(count)}; expected {least} to {limit}"
                )
        object.__setattr__(self, name, counts)
        return counts

    def _checked_values(self) -> tuple[float, ...]:
        score = self.score
        if not isinstance(self.values, (tuple, list)) or len(self.values) != len(self.buckets):
            kind = "fraction" if score.is_accuracy else "number"
            raise RecordError(
                f"{score.name} is {safe_repr(self.values)}; expected one {kind} for each of the "
                f"{len(self.buckets)} buckets"
            )
        cells = tuple(
            score.check(value, f"{score.name} of bucket {key!r}")
            for key, value in zip(self.buckets, self.values, strict=True)
        )
        if all(value != value for value in cells):
            raise RecordError(
                f"{score.name} holds no measured bucket; leave out a row that was not tested"
            )
        return cells

    @classmethod
    def from_values(
        cls,
        row: int,
        buckets: Sequence[str],
        values: Sequence[float],
        num_instances: Sequence[int] | None = None,
        score: Score = ACCURACY,
    ) -> AccuracyRow:
        """A row of accuracies whose counts are not known, or of another score; NaN = not measured.

        Raises:
            RecordError: the numbers do not fit each other.
        """
        counts = None if num_instances is None else tuple(num_instances)
        return cls(row, tuple(buckets), None, counts, tuple(values), score)

    @cached_property
    def cells(self) -> tuple[float, ...]:
        """The score on each bucket, an accuracy as a fraction; NaN = not measured."""
        if self.correct is None or self.num_instances is None:
            return self.values or ()
        return tuple(c / n for c, n in zip(self.correct, self.num_instances, strict=True))

    @property
    def trained_through(self) -> str | None:
        """Key of the last bucket trained on; None for the initialisation."""
        return None if self.row == 0 else self.buckets[self.row - 1]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class AccuracyMatrix:
    """Test accuracies: ``values[i, j]`` is bucket *j* after training through bucket *i*.

    Partial matrices are normal. The stored form is canonical: rows at the end that have no measured
    cell and no cost are dropped, so a run that stopped after k buckets has k rows and all T
    columns. An ``initial`` without a measured cell becomes None.

    Args:
        values: (k, T) with k <= T, fractions, or another score; NaN = not measured. Copied, and
            read-only.
        initial: (T,), likewise, of the untrained model; None = not measured.
        num_instances: (T,), test images per bucket; None = not known.
        buckets: keys of the T buckets in stream order; "1" to "T" when not given.
        score: what the cells are.
        costs: (k,), of each row; empty, or None = not known.

    Raises:
        RecordError: a value is infinite, or an accuracy outside [0, 1], or the shapes do not fit.

    >>> matrix = AccuracyMatrix([[0.9, 0.6], [float("nan"), float("nan")]])
    >>> matrix
    AccuracyMatrix(1 of 2 buckets trained)
    >>> matrix.is_complete
    False
    """

    values: NDArray[np.float64]  # (k, T), fractions; NaN = not measured; read-only
    initial: NDArray[np.float64] | None  # (T,), fractions; the untrained model; read-only
    num_instances: NDArray[np.int64] | None  # (T,), test images per bucket; read-only
    buckets: tuple[str, ...]  # (T,), keys in stream order
    score: Score  # what the cells are
    costs: tuple[RowCost | None, ...]  # (k,), what each row cost; None = not known

    def __init__(
        self,
        values: ArrayLike,
        initial: ArrayLike | None = None,
        num_instances: ArrayLike | None = None,
        buckets: Sequence[str] | None = None,
        score: Score = ACCURACY,
        costs: Sequence[RowCost | None] = (),
    ) -> None:
        cells = _checked_cells("values", values, score)
        if cells.ndim != 2 or cells.shape[1] == 0 or cells.shape[0] > cells.shape[1]:
            raise RecordError(
                f"an accuracy matrix of shape {cells.shape} arrived; expected (k, T): a row per "
                "bucket trained, a column per bucket tested on, k <= T, T >= 1"
            )
        width = cells.shape[1]
        measured = np.flatnonzero(~np.isnan(cells).all(axis=1))
        first = None if initial is None else _checked_cells("initial", initial, score)
        if first is not None and first.shape != (width,):
            raise RecordError(
                f"initial has shape {first.shape}; expected ({width},), one value per bucket"
            )
        keys = buckets if buckets is not None else [str(j + 1) for j in range(width)]
        if len(keys) != width:
            raise RecordError(f"{len(keys)} bucket keys arrived for {width} columns")
        costly = [i + 1 for i, cost in enumerate(costs[: len(cells)]) if cost is not None]
        num_rows = max(measured[-1] + 1 if measured.size else 0, *costly, 0)
        self._set(
            values=cells[:num_rows],
            initial=None if first is None or np.isnan(first).all() else first,
            num_instances=None if num_instances is None else _counts(num_instances, width),
            buckets=_checked_buckets(keys),
            score=score,
            costs=(*costs, *[None] * num_rows)[:num_rows],
        )

    @classmethod
    def from_rows(cls, rows: Iterable[AccuracyRow]) -> AccuracyMatrix:
        """Assemble rows, in any order; row 0 becomes ``initial``, a missing row stays NaN.

        Raises:
            RecordError: there is no row, two rows have the same number, or they disagree about
                the buckets, their test images or the score.
        """
        found: dict[int, AccuracyRow] = {}
        for row in rows:
            if row.row in found:
                raise RecordError(f"row {row.row} arrived twice; expected each row once")
            found[row.row] = row
        if not found:
            raise RecordError("no row arrived; an accuracy matrix needs at least one")
        first = found[min(found)]
        for row in found.values():
            for name in ("buckets", "num_instances", "score"):
                one, other = getattr(first, name), getattr(row, name)
                if one != other:
                    raise RecordError(
                        f"rows {first.row} and {row.row} contradict each other: {name} is "
                        f"{safe_repr(one, 200)} and {safe_repr(other, 200)}; they are not of one "
                        "run"
                    )
        values = np.full((max(found), len(first.buckets)), np.nan)
        for number, row in found.items():
            if number > 0:
                values[number - 1] = row.cells
        return cls(
            values,
            initial=found[0].cells if 0 in found else None,
            num_instances=first.num_instances,
            buckets=first.buckets,
            score=first.score,
            costs=[found[i].cost if i in found else None for i in range(1, max(found) + 1)],
        )

    @property
    def num_rows(self) -> int:
        """k: the buckets trained on, up to the last row that was measured or has a cost."""
        return int(self.values.shape[0])

    @property
    def num_buckets(self) -> int:
        """T: the buckets of the whole stream."""
        return int(self.values.shape[1])

    @property
    def is_complete(self) -> bool:
        """Whether every bucket was trained on and every cell measured."""
        return self.num_rows == self.num_buckets and not bool(np.isnan(self.values).any())

    def after(self, k: int) -> AccuracyMatrix:
        """The matrix of the run cut off after k buckets: its first k rows, all columns.

        It has exactly k rows, also where row k itself was not measured: what such a run would
        score is then not known, and its metrics are undefined.

        Raises:
            RecordError: there are fewer than k rows.
        """
        if not 0 <= k <= self.num_rows:
            raise RecordError(f"cannot cut a matrix of {self.num_rows} rows off after {k} buckets")
        return self._with(values=self.values[:k], costs=self.costs[:k])

    def masked(self, protocol: str) -> AccuracyMatrix:
        """The cells that are evidence under a protocol.

        ``iid`` tests on held-out images: every cell counts. ``streaming`` tests on a bucket's own
        training images, so the cells with j <= i score what the model has trained on: they become
        NaN. All rows stay, the last one too, which a complete matrix then has no cell left in.

        Raises:
            ConfigError: the protocol is unknown.
        """
        check_protocol(protocol)
        if protocol == "iid":
            return self
        trained_on = np.tri(*self.values.shape, dtype=np.bool_)
        return self._with(values=np.where(trained_on, np.nan, self.values))

    @property
    def oriented(self) -> AccuracyMatrix:
        """The same cells such that more is better: negated where lower is better."""
        if self.score.higher_is_better:
            return self
        initial = None if self.initial is None else -self.initial
        return self._with(values=-self.values, initial=initial, score=Score(self.score.name))

    def equals(self, other: AccuracyMatrix) -> bool:
        """Whether both hold the same cells, counts and keys; NaN equals NaN."""
        return (
            self.buckets == other.buckets
            and self.score == other.score
            and np.array_equal(self.values, other.values, equal_nan=True)
            and _same(self.initial, other.initial)
            and _same(self.num_instances, other.num_instances)
        )

    def __repr__(self) -> str:
        known = [name for name in ("initial", "num_instances") if getattr(self, name) is not None]
        trained = f"{self.num_rows} of {self.num_buckets} buckets trained"
        if not self.score.is_accuracy:
            known.append(f"{self.score.name}, {self.score.better} is better")
        return f"AccuracyMatrix({', '.join([trained, *known])})"

    def __str__(self) -> str:
        text: str = drawn("terminal_tables", "matrix_text")(self)
        return text

    def to_frame(self, *, wide: bool = False) -> DataFrame:
        """The matrix in pandas: a line for each cell, or *wide*, as it is printed.

        Columns are ``row`` (0 is the untrained model), ``trained_through``, ``tested_on`` and the
        score's name; wide, ``initial`` and keys are the index, keys the columns. NaN where nothing
        was measured.
        """
        from pandas import DataFrame

        rows = list(named_rows(self))
        if wide:
            cells = [values for *_, values in rows]
            return DataFrame(cells, index=[name for _, name, _ in rows], columns=[*self.buckets])
        lines = [
            (i + 1, name, key, value)
            for i, name, values in rows
            for key, value in zip(self.buckets, values.tolist(), strict=True)
        ]
        return DataFrame(lines, columns=["row", "trained_through", "tested_on", self.score.name])

    def to_dict(self) -> dict[str, Any]:
        """The matrix as JSON has it: fractions, or another score, in full; None = not measured."""

        def cells(row: NDArray[np.float64]) -> list[float | None]:
            return [None if value != value else value for value in row.tolist()]

        counts, score = self.num_instances, self.score
        found: dict[str, Any] = {
            "buckets": list(self.buckets),
            "num_instances": None if counts is None else counts.tolist(),
            "initial": None if self.initial is None else cells(self.initial),
            "values": [cells(row) for row in self.values],
        }
        if not score.is_accuracy:
            found["score"] = {"name": score.name, "lower_is_better": not score.higher_is_better}
        return found

    def plot(self, title: str = "", *, width: float | None = None) -> Figure:
        """The matrix as a figure of matplotlib: ``matrix.plot().savefig("matrix.pdf")``.

        Args:
            title: above it; a paper's caption makes it superfluous.
            width: in inches; half an inch a bucket and two beside them when not given. Texts
                have 8 to 9.5 points at any width.

        Raises:
            ConfigError: the width is below 2.7 inches.
        """
        found: Figure = drawn("pictures", "heatmap_figure")(self, title or None, width=width)
        return found

    def _repr_html_(self) -> str:
        found: str = drawn("page.fragment", "run_html")("", self)
        return found

    def _with(self, **changed: object) -> AccuracyMatrix:
        """The same run with other parts; unlike construction, this drops no row."""
        derived = object.__new__(AccuracyMatrix)
        derived._set(**{**vars(self), **changed})
        return derived

    def _set(self, **parts: object) -> None:
        for name, part in parts.items():
            if isinstance(part, np.ndarray):
                part.setflags(write=False)
            object.__setattr__(self, name, part)


def drawn(module: str, name: str) -> Any:
    """A function of a module of ``report``, loaded when it is used."""
    # Pictures are made of matrices, one floor above: named here, as pandas names matplotlib.
    return getattr(import_module(f"clear_mlflow.report.{module}"), name)


def whole_grid(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """(T + 1, T): the initialisation row, then a row per bucket; NaN = not measured."""
    grid = np.full((matrix.num_buckets + 1, matrix.num_buckets), np.nan)
    if matrix.initial is not None:
        grid[0] = matrix.initial
    grid[1 : matrix.num_rows + 1] = matrix.values
    return grid


def row_positions(labels: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Return the position of each labelled row: its bucket's, or by its number.

    Labels that are neither buckets nor numbers keep their order. Raises RecordError if a label
    occurs twice, or the labels only in part name buckets or follow each other.
    """
    numbers, key_positions = label_numbers(labels), {key: j for j, key in enumerate(keys)}
    positions = [key_positions.get(label, -1) for label in labels]
    # With buckets from 0, rows from 1 may count the buckets trained so far.
    may_count = numbers and min(numbers) == 1 and keys[0] == "0"
    if len(set(labels)) == len(labels):
        if -1 not in positions and not may_count:
            return positions
        if numbers and -1 in positions and max(numbers) - min(numbers) < len(numbers):
            return [number - min(numbers) for number in numbers]
        if not numbers and {*positions} <= {-1}:
            return [*range(len(labels))]
    raise RecordError(
        f"has rows labelled {safe_repr(list(labels))} and the buckets {safe_repr(list(keys))}, "
        "which do not show after which bucket each row was tested"
    )


def label_numbers(labels: Sequence[str]) -> list[int]:
    """Return the numbers in which labels differ, or an empty list if they differ otherwise."""
    matches = [re.fullmatch(r"([^0-9]*)([0-9]{1,9})", label) for label in labels]
    prefixes = {match and match[1] for match in matches}
    return [int(match[2]) for match in matches if match] if len(prefixes) == 1 else []


def named_rows(matrix: AccuracyMatrix) -> Iterator[tuple[int, str, NDArray[np.float64]]]:
    """The measured rows from the top: position (-1 = initial), what was trained through, cells."""
    if matrix.initial is not None:
        yield -1, "initial", matrix.initial
    for i, values in enumerate(matrix.values):
        yield i, matrix.buckets[i], values


def _checked_buckets(keys: object) -> tuple[str, ...]:
    found: tuple[str, ...] = convert(keys, tuple[str, ...], "buckets")
    if not 1 <= len(found) <= MAX_BUCKETS:
        raise RecordError(f"buckets holds {len(found)} keys; expected 1 to {MAX_BUCKETS}")
    for key in found:
        # What cannot be printed looks like another key in a table, and may steer a terminal.
        if not key.isprintable() or not 1 <= len(key) <= MAX_KEY_CHARACTERS:
            raise RecordError(
                f"a bucket key is {safe_repr(key)}; expected a text of 1 to {MAX_KEY_CHARACTERS} "
                "printable characters"
            )
    if len(set(found)) != len(found):
        twice = next(key for key in found if found.count(key) > 1)
        raise RecordError(f"bucket key {safe_repr(twice)} is given twice; expected distinct keys")
    return found


def _checked_cells(name: str, values: ArrayLike, score: Score) -> NDArray[np.float64]:
    what = "an accuracy matrix" if score.is_accuracy else f"a matrix of {score.name}"
    expected = "fractions" if score.is_accuracy else "finite numbers"
    try:
        cells = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(
            f"{name} of {what} is no rectangle of numbers; expected {expected}, NaN where nothing "
            "was measured"
        ) from error
    inside = (cells >= 0) & (cells <= 1) if score.is_accuracy else np.abs(cells) <= MAX_SCORE
    wrong = cells[~(np.isnan(cells) | inside)]
    if wrong.size:
        if score.is_accuracy:
            expected += " from 0 to 1 (not percent)"
        raise RecordError(
            f"{name} of {what} holds {float(wrong[0])}; expected {expected}, NaN where nothing was "
            "measured"
        )
    return cells


def _counts(num_instances: ArrayLike, width: int) -> NDArray[np.int64]:
    try:
        counts = np.array(num_instances)
        if (
            counts.dtype.kind in "iu"
            and counts.shape == (width,)
            and 1 <= counts.min() <= counts.max() <= MAX_COUNT
        ):
            return counts.astype(np.int64)
    except ValueError:
        pass  # no plain list
    raise RecordError(
        f"num_instances of an accuracy matrix must be {width} integers of at least 1 and at most "
        f"2**53, one per bucket; arrived as {safe_repr(num_instances)}"
    )


def _same(one: NDArray[np.generic] | None, other: NDArray[np.generic] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
