"""The accuracy matrix: what a run measured, and what it did not.

Where a run measured another score than accuracy, its matrix is of that: see :mod:`.score`.

Row *i* is measured after training through bucket *i*, on the test sets of all buckets. "Not
measured" is NaN, and never 0: a run that stopped early, or was not tested somewhere, has a smaller
matrix and not a worse one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.score import ACCURACY, MAX_SCORE, Score
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_COUNT, MAX_KEY_CHARACTERS

PROTOCOLS = ("iid", "streaming")
# What a run is measured on: test images, or some of its training images held out to choose by.
TEST, VALIDATION = "test", "validation"
SPLITS = (TEST, VALIDATION)


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

    def __post_init__(self) -> None:
        if not _is_whole(self.row) or self.row < 0:
            raise RecordError(
                f"row is {shown(self.row)}; expected the number of buckets trained so far, "
                "0 for the initialisation"
            )
        buckets = _checked_buckets(self.buckets)
        object.__setattr__(self, "buckets", buckets)
        if self.correct is not None and not self.score.is_accuracy:
            raise RecordError(
                f"correct arrived for a score of {self.score.name}; images classified correctly "
                "are of accuracy, pass values"
            )
        if self.values is not None and self.correct is not None:
            raise RecordError("correct and values arrived both; accuracy follows from correct")
        for name in ("correct", "num_instances"):
            counts = getattr(self, name)
            if counts is None and self.values is not None:
                continue
            if not isinstance(counts, (tuple, list)) or not all(_is_whole(n) for n in counts):
                raise RecordError(f"{name} is {shown(counts)}; expected one integer per bucket")
            if len(counts) != len(buckets):
                raise RecordError(
                    f"{name} has {len(counts)} entries for {len(buckets)} buckets; "
                    "expected one per bucket"
                )
            object.__setattr__(self, name, tuple(counts))
        if self.row > len(buckets):
            raise RecordError(
                f"row is {shown(self.row)}, but there are only {len(buckets)} buckets to train on"
            )
        for key, total in zip(buckets, self.num_instances or (), strict=False):
            if not 1 <= total <= MAX_COUNT:
                raise RecordError(
                    f"num_instances of bucket {key!r} is {shown(total)}; expected 1 to 2**53"
                )
        if self.correct is None or self.num_instances is None:
            cells = _checked_row_values(self.values, buckets, self.score)
            object.__setattr__(self, "values", cells)
            return
        for key, correct, total in zip(buckets, self.correct, self.num_instances, strict=True):
            if not 0 <= correct <= total:
                raise RecordError(
                    f"correct of bucket {key!r} is {shown(correct)}; expected 0 to its "
                    f"num_instances, {total}"
                )

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

    Partial matrices are normal. The stored form is canonical: rows at the end that hold no measured
    cell are dropped, so a run that stopped after k buckets has k rows and all T columns. An
    ``initial`` without a measured cell becomes None.

    Args:
        values: (k, T) with k <= T, fractions, or another score; NaN = not measured. Copied, and
            read-only.
        initial: (T,), likewise, of the untrained model; None = not measured.
        num_instances: (T,), test images per bucket; None = not known.
        buckets: keys of the T buckets in stream order; "1" to "T" when not given.
        score: what the cells are.

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

    def __init__(
        self,
        values: ArrayLike,
        initial: ArrayLike | None = None,
        num_instances: ArrayLike | None = None,
        buckets: Sequence[str] | None = None,
        score: Score = ACCURACY,
    ) -> None:
        cells = _checked_cells("values", values, score)
        if cells.ndim != 2 or cells.shape[1] == 0 or cells.shape[0] > cells.shape[1]:
            raise RecordError(
                f"an accuracy matrix of shape {cells.shape} arrived; expected (k, T): a row per "
                "bucket trained, a column per bucket tested on, k <= T, T >= 1"
            )
        width = cells.shape[1]
        measured = np.flatnonzero(~np.isnan(cells).all(axis=1))
        cells = cells[: measured[-1] + 1 if measured.size else 0]

        first = None if initial is None else _checked_cells("initial", initial, score)
        if first is not None and first.shape != (width,):
            raise RecordError(
                f"initial has shape {first.shape}; expected ({width},), one value per bucket"
            )
        if first is not None and np.isnan(first).all():
            first = None

        keys = tuple(str(j + 1) for j in range(width))
        if buckets is not None:
            keys = _checked_buckets(buckets)
        if len(keys) != width:
            raise RecordError(f"{len(keys)} bucket keys arrived for {width} columns")
        counts = None if num_instances is None else _counts(num_instances, width)
        self._set(cells, first, counts, keys, score)

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
                ours, others = getattr(row, name), getattr(first, name)
                # Rows of one run mostly share the tuple itself, which comparing would walk through.
                if ours is not others and ours != others:
                    raise RecordError(
                        f"rows {first.row} and {row.row} contradict each other: {name} is "
                        f"{shown(getattr(first, name))} and {shown(getattr(row, name))}; "
                        "they are not of one run"
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
        )

    @property
    def num_rows(self) -> int:
        """k: the buckets trained on, up to the last one that was tested after."""
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
        return self._keeping(self.values[:k])

    def masked(self, protocol: str) -> AccuracyMatrix:
        """The cells that are evidence under a protocol.

        ``iid`` tests on held-out images: every cell counts. ``streaming`` tests on a bucket's own
        training images, so the cells with j <= i score what the model has trained on: they become
        NaN. All rows stay, the last one too, which a complete matrix then has no cell left in.

        Raises:
            ConfigError: the protocol is unknown.
        """
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"protocol is {shown(protocol)}; expected one of {', '.join(PROTOCOLS)}"
            )
        if protocol == "iid":
            return self
        trained_on = np.tri(*self.values.shape, dtype=np.bool_)
        return self._keeping(np.where(trained_on, np.nan, self.values))

    @property
    def oriented(self) -> AccuracyMatrix:
        """The same cells such that more is better: negated where lower is better."""
        if self.score.higher_is_better:
            return self
        negated = object.__new__(AccuracyMatrix)
        initial = None if self.initial is None else -self.initial
        score = Score(self.score.name)
        negated._set(-self.values, initial, self.num_instances, self.buckets, score)
        return negated

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

    def _keeping(self, values: NDArray[np.float64]) -> AccuracyMatrix:
        """The same run with other cells; unlike construction, this drops no row."""
        derived = object.__new__(AccuracyMatrix)
        derived._set(values, self.initial, self.num_instances, self.buckets, self.score)
        return derived

    def _set(
        self,
        values: NDArray[np.float64],
        initial: NDArray[np.float64] | None,
        num_instances: NDArray[np.int64] | None,
        buckets: tuple[str, ...],
        score: Score,
    ) -> None:
        for array in (values, initial, num_instances):
            if array is not None:
                array.setflags(write=False)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "num_instances", num_instances)
        object.__setattr__(self, "buckets", buckets)
        object.__setattr__(self, "score", score)


def whole_grid(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """(T + 1, T): the initialisation row, then a row per bucket; NaN = not measured."""
    grid = np.full((matrix.num_buckets + 1, matrix.num_buckets), np.nan)
    if matrix.initial is not None:
        grid[0] = matrix.initial
    grid[1 : matrix.num_rows + 1] = matrix.values
    return grid


def named_rows(matrix: AccuracyMatrix) -> Iterator[tuple[int, str, NDArray[np.float64]]]:
    """The measured rows from the top: position (-1 = initial), what was trained through, cells."""
    if matrix.initial is not None:
        yield -1, "initial", matrix.initial
    for i, values in enumerate(matrix.values):
        yield i, matrix.buckets[i], values


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_row_values(
    values: object, buckets: tuple[str, ...], score: Score
) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list)) or len(values) != len(buckets):
        kind = "fraction" if score.is_accuracy else "number"
        raise RecordError(
            f"{score.name} is {shown(values)}; expected one {kind} for each of the "
            f"{len(buckets)} buckets"
        )
    cells = tuple(
        score.check(value, f"{score.name} of bucket {key!r}")
        for key, value in zip(buckets, values, strict=True)
    )
    if all(value != value for value in cells):
        raise RecordError(
            f"{score.name} holds no measured bucket; leave out a row that was not tested"
        )
    return cells


def _checked_buckets(keys: object) -> tuple[str, ...]:
    if not isinstance(keys, (tuple, list)) or not keys:
        raise RecordError(f"buckets is {shown(keys)}; expected the keys of one bucket or more")
    if len(keys) > MAX_BUCKETS:
        raise RecordError(f"buckets holds {len(keys)} keys; expected at most {MAX_BUCKETS}")
    seen = set()
    for key in keys:
        # What cannot be printed looks like another key in a table, and may steer a terminal.
        if (
            not isinstance(key, str)
            or not key.isprintable()
            or not 1 <= len(key) <= MAX_KEY_CHARACTERS
        ):
            raise RecordError(
                f"a bucket key is {shown(key)}; expected a text of 1 to {MAX_KEY_CHARACTERS} "
                "printable characters"
            )
        if key in seen:
            raise RecordError(f"bucket key {shown(key)} is given twice; expected distinct keys")
        seen.add(key)
    return tuple(keys)


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
    expected = f"num_instances of an accuracy matrix must be {width} integers of at least 1"
    try:
        counts = np.array(num_instances)
    except ValueError as error:
        raise RecordError(f"{expected}, one per bucket; arrived as no plain list") from error
    if counts.dtype.kind not in "iu" or counts.shape != (width,):
        raise RecordError(f"{expected}, one per bucket; arrived as {shown(num_instances)}")
    if not bool(((counts >= 1) & (counts <= MAX_COUNT)).all()):
        raise RecordError(f"{expected} and at most 2**53; arrived as {shown(num_instances)}")
    return counts.astype(np.int64)


def _same(one: NDArray[np.generic] | None, other: NDArray[np.generic] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
