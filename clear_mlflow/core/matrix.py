"""The accuracy matrix: what a run measured, and what it did not.

If a run measured a score other than accuracy, its matrix contains that score: see :mod:`.score`.

Row *i* is measured after training through bucket *i*, on the test sets of all buckets. "Not
measured" is NaN, and never 0: a run that stopped early, or was not tested somewhere, has a smaller
matrix and not a worse one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.score import ACCURACY, MAX_SCORE, RowCost, Score
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import (
    MAX_BUCKETS,
    MAX_COUNT,
    MAX_KEY_CHARACTERS,
    convert,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

PROTOCOLS = ("iid", "streaming")
# The images that a run is measured on: test images, or training images held out to choose by.
TEST, VALIDATION = "test", "validation"
SPLITS = (TEST, VALIDATION)


def check_protocol(protocol: str) -> None:
    """Raise ConfigError if a protocol does not exist."""
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"protocol is {safe_repr(protocol)}; expected one of {', '.join(PROTOCOLS)}"
        )


def get_measured_split(split: str) -> str:
    """Return ``test`` or ``validation``, the images that a split measures.

    >>> get_measured_split("auto"), get_measured_split("3"), get_measured_split("validation:3")
    ('test', 'test', 'validation')
    """
    return VALIDATION if split.partition(":")[0] == VALIDATION else TEST


def get_divided_split(split: str) -> str:
    """Return the split that a validation split divides, ``auto`` by default.

    Any other split is returned unchanged.

    >>> get_divided_split("validation"), get_divided_split("validation:3"), get_divided_split("3")
    ('auto', '3', '3')
    """
    name, _, number = split.partition(":")
    return (number or "auto") if name == VALIDATION else split


class AccuracyRow(msgspec.Struct, frozen=True, dict=True, eq=False):
    """Result of one test of all buckets, after training ``row`` of them.

    A row contains counts. If it was imported from a program that kept no counts, or if its score is
    not accuracy, it contains values instead: ``correct`` is then None, and a bucket that was not
    tested is NaN.

    Args:
        row: number of buckets trained so far; 0 is the initialisation, before any training.
        buckets: keys of all buckets, in stream order.
        correct: test images classified correctly, per bucket, or None if only values are known.
        num_instances: test images, per bucket; at least 1 each. None if they are not known.
        values: score on each bucket, only without ``correct``: accuracies as fractions, other
            scores as they are; NaN = not measured.
        score: score that was measured.
        cost: cost of the training since the previous row; equal rows may differ in it.

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
    cost: RowCost | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "buckets", _convert_buckets(self.buckets))
        width = len(self.buckets)
        if not 0 <= convert(self.row, int, "row") <= width:
            raise RecordError(
                f"row is {safe_repr(self.row)}; expected the buckets trained so far, 0 for the "
                f"initialisation, and there are only {width} buckets"
            )
        if self.values is not None and self.correct is not None:
            raise RecordError("got both correct and values; accuracy follows from correct")
        if self.values is None and not self.score.is_accuracy:
            raise RecordError(
                f"values of {self.score.name} are missing; only accuracies have counts"
            )
        if self.values is None or self.num_instances is not None:
            self._convert_counts("num_instances", [MAX_COUNT] * width, minimum=1)
        if self.values is None:
            self._convert_counts("correct", self.num_instances or (), minimum=0)
        else:
            force_setattr(self, "values", self._convert_values(self.values))

    def _convert_counts(self, name: str, maxima: Sequence[int], minimum: int) -> None:
        """Replace a field of counts by a valid tuple, or raise RecordError."""
        counts: tuple[int, ...] = convert(getattr(self, name), tuple[int, ...], name)
        if len(counts) != len(self.buckets):
            raise RecordError(
                f"{name} has {format_count(len(counts), 'entry', 'entries')} for "
                f"{format_count(len(self.buckets), 'bucket')}; expected one per bucket"
            )
        for key, count, maximum in zip(self.buckets, counts, maxima, strict=True):
            if not minimum <= count <= maximum:
                limit = "2**53" if name == "num_instances" else f"its num_instances, {maximum}"
                raise RecordError(
                    f"{name} of bucket {key!r} is {safe_repr(count)}; expected {minimum} to {limit}"
                )
        force_setattr(self, name, counts)

    def _convert_values(self, values: object) -> tuple[float, ...]:
        """Convert a list to floats, not all NaN, or raise RecordError."""
        score = self.score
        if not isinstance(values, (tuple, list)) or len(values) != len(self.buckets):
            expected = "fraction" if score.is_accuracy else "number"
            raise RecordError(
                f"{score.name} is {safe_repr(values)}; expected one {expected} for each of the "
                f"{format_count(len(self.buckets), 'bucket')}"
            )
        cells = tuple(
            score.convert_value(value, f"{score.name} of bucket {key!r}")
            for key, value in zip(self.buckets, values, strict=True)
        )
        if all(map(math.isnan, cells)):
            raise RecordError(
                f"{score.name} was not measured on any bucket; leave out a row that was not tested"
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
        """Build a row of scores without counts. NaN means not measured.

        Raises:
            RecordError: the numbers do not fit each other.
        """
        counts = None if num_instances is None else tuple(num_instances)
        return cls(row, tuple(buckets), None, counts, tuple(values), score)

    def __eq__(self, other: object) -> bool:
        fields = self.__struct_fields__[:-1]  # all but the cost
        return isinstance(other, AccuracyRow) and all(
            getattr(self, name) == getattr(other, name) for name in fields
        )

    def __ne__(self, other: object) -> bool:  # a struct's own would compare identities
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def cells(self) -> tuple[float, ...]:
        """The score on each bucket, accuracies as fractions. NaN means not measured."""
        if self.correct is None or self.num_instances is None:
            return self.values or ()
        return tuple(c / n for c, n in zip(self.correct, self.num_instances, strict=True))

    def reorder(self, buckets: tuple[str, ...]) -> AccuracyRow:
        """Return the row with untrained buckets reordered, unchanged if others differ.

        Returns it unchanged if *buckets* has other names, or another order of the trained ones.
        """
        is_same_order = buckets[: self.row] == self.buckets[: self.row]
        if buckets == self.buckets or not is_same_order or set(buckets) != set(self.buckets):
            return self
        indices = [self.buckets.index(key) for key in buckets]
        columns = {
            name: tuple(values[j] for j in indices)
            for name in ("correct", "num_instances", "values")
            if (values := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(self, buckets=buckets, **columns)

    @property
    def trained_through(self) -> str | None:
        """Key of the last bucket trained on, or None for the initialisation."""
        return None if self.row == 0 else self.buckets[self.row - 1]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class AccuracyMatrix:
    """Test accuracies: ``values[i, j]`` is bucket *j* after training through bucket *i*.

    Partial matrices are normal. The stored form is canonical: rows at the end that have no measured
    cell and no cost are dropped, so a run that stopped after k buckets has k rows and all T
    columns. An ``initial`` without a measured cell becomes None.

    Args:
        values: (k, T) with k <= T, fractions, or another score; NaN = not measured. They are
            copied, and read-only.
        initial: (T,), the same for the untrained model, or None if it was not measured.
        num_instances: (T,), test images per bucket, or None if they are not known.
        buckets: keys of the T buckets in stream order; by default "1" to "T".
        score: score that the cells contain.
        costs: (k,), cost of each row, or None if it is not known; empty if no cost is known.

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
    score: Score  # score that the cells contain
    costs: tuple[RowCost | None, ...]  # (k,), cost of each row; None = not known

    def __init__(
        self,
        values: ArrayLike,
        initial: ArrayLike | None = None,
        num_instances: ArrayLike | None = None,
        buckets: Sequence[str] | None = None,
        score: Score = ACCURACY,
        costs: Sequence[RowCost | None] = (),
    ) -> None:
        if not isinstance(score, Score):
            raise RecordError(
                f"score is {safe_repr(score)}; expected a Score such as Score('rmse', "
                "higher_is_better=False)"
            )
        cells = _convert_cells("values", values, score)
        if cells.ndim != 2 or cells.shape[1] == 0 or cells.shape[0] > cells.shape[1]:
            raise RecordError(
                f"got an accuracy matrix of shape {cells.shape}; expected (k, T): a row per "
                "bucket trained, a column per bucket tested on, k <= T, T >= 1"
            )
        width = cells.shape[1]
        measured = np.flatnonzero(~np.isnan(cells).all(axis=1))
        untrained = None if initial is None else _convert_cells("initial", initial, score)
        if untrained is not None and untrained.shape != (width,):
            raise RecordError(
                f"initial has shape {untrained.shape}; expected ({width},), one value per bucket"
            )
        keys = _convert_buckets([str(j + 1) for j in range(width)] if buckets is None else buckets)
        if len(keys) != width:
            count = format_count(len(keys), "bucket key")
            raise RecordError(f"got {count} for {format_count(width, 'column')}")
        costly = [i + 1 for i, cost in enumerate(costs[: len(cells)]) if cost is not None]
        num_rows = max(measured[-1] + 1 if measured.size else 0, *costly, 0)
        self._set_attributes(
            values=cells[:num_rows],
            initial=None if untrained is None or np.isnan(untrained).all() else untrained,
            num_instances=None
            if num_instances is None
            else _convert_num_instances(num_instances, width),
            buckets=keys,
            score=score,
            costs=(*costs, *[None] * num_rows)[:num_rows],
        )

    @classmethod
    def from_rows(cls, rows: Iterable[AccuracyRow]) -> AccuracyMatrix:
        """Combine rows, in any order, into a matrix. Row 0 becomes ``initial``.

        A missing row is NaN. The last row decides the order of buckets that were not yet trained in
        earlier rows.

        Raises:
            RecordError: no row was passed, two rows have the same number, or they disagree about
                the buckets, their test images or the score.
        """
        by_number: dict[int, AccuracyRow] = {}
        for row in rows:
            if row.row in by_number:
                raise RecordError(f"row {row.row} was passed twice; expected each row once")
            by_number[row.row] = row
        if not by_number:
            raise RecordError("no row was passed; an accuracy matrix needs at least one")
        last = max(by_number)
        by_number = {i: row.reorder(by_number[last].buckets) for i, row in by_number.items()}
        first = by_number[min(by_number)]
        for row in by_number.values():
            for name in ("buckets", "num_instances", "score"):
                expected, value = getattr(first, name), getattr(row, name)
                if value != expected:
                    raise RecordError(
                        f"rows {first.row} and {row.row} contradict each other: {name} is "
                        f"{safe_repr(expected, 200)} and {safe_repr(value, 200)}; they do not "
                        "belong to one run"
                    )
        values = np.full((last, len(first.buckets)), np.nan)
        for number in by_number.keys() - {0}:
            values[number - 1] = by_number[number].cells
        return cls(
            values,
            initial=by_number[0].cells if 0 in by_number else None,
            num_instances=first.num_instances,
            buckets=first.buckets,
            score=first.score,
            costs=[by_number[i].cost if i in by_number else None for i in range(1, last + 1)],
        )

    @property
    def num_rows(self) -> int:
        """Number of buckets trained on, k, up to the last measured row."""
        return int(self.values.shape[-2])

    @property
    def num_buckets(self) -> int:
        """Number of buckets of the complete stream, T."""
        return int(self.values.shape[-1])

    @property
    def is_complete(self) -> bool:
        """Whether every bucket was trained on and every cell measured."""
        return self.num_rows == self.num_buckets and not bool(np.isnan(self.values).any())

    def after(self, k: int) -> AccuracyMatrix:
        """Return the first k rows: the matrix of a shorter run.

        It has exactly k rows, even if row k itself was not measured: the score of such a run is
        then not known, and its metrics are undefined.

        Raises:
            RecordError: there are fewer than k rows.
        """
        if not 0 <= k <= self.num_rows:
            rows, buckets = format_count(self.num_rows, "row"), format_count(k, "bucket")
            raise RecordError(f"cannot cut a matrix of {rows} off after {buckets}")
        return self._replace(values=self.values[..., :k, :], costs=self.costs[:k])

    def mask(self, protocol: str) -> AccuracyMatrix:
        """Return the matrix with NaN in cells that a protocol excludes.

        ``iid`` tests on held-out images: every cell counts. ``streaming`` tests on a bucket's own
        training images, so the cells with j <= i score what the model has trained on: they become
        NaN. All rows are kept, even the last row of a complete matrix, whose cells are all NaN.

        Raises:
            ConfigError: the protocol is unknown.
        """
        check_protocol(protocol)
        if protocol == "iid":
            return self
        trained_on = np.tri(self.num_rows, self.num_buckets, dtype=np.bool_)
        return self._replace(values=np.where(trained_on, np.nan, self.values))

    @property
    def oriented(self) -> AccuracyMatrix:
        """The matrix in which higher is better: negated if lower is better."""
        if self.score.higher_is_better:
            return self
        initial = None if self.initial is None else -self.initial
        return self._replace(values=-self.values, initial=initial, score=Score(self.score.name))

    def equals(self, other: AccuracyMatrix) -> bool:
        """Return True if cells, image counts, keys and score are equal.

        NaN equals NaN. Costs are not compared.
        """
        return (
            self.buckets == other.buckets
            and self.score == other.score
            and np.array_equal(self.values, other.values, equal_nan=True)
            and _are_equal(self.initial, other.initial)
            and _are_equal(self.num_instances, other.num_instances)
        )

    def __repr__(self) -> str:
        parts = [f"{self.num_rows} of {format_count(self.num_buckets, 'bucket')} trained"]
        parts += [name for name in ("initial", "num_instances") if getattr(self, name) is not None]
        if not self.score.is_accuracy:
            parts.append(f"{self.score.name}, {self.score.better} is better")
        return f"AccuracyMatrix({', '.join(parts)})"

    def __str__(self) -> str:
        text: str = load_renderer("terminal_tables", "format_matrix")(self)
        return text

    def to_frame(self, *, wide: bool = False) -> DataFrame:
        """Return a pandas frame with a line per cell, or *wide*.

        Columns are ``row`` (0 is the untrained model), ``trained_through``, ``tested_on`` and the
        score's name; wide, ``initial`` and keys are the index, keys the columns. NaN = not
        measured.
        """
        from pandas import DataFrame

        rows = list(iter_measured_rows(self))
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
        """Return the matrix as JSON values. None means not measured.

        Accuracies are fractions. Keys are ``buckets``, ``num_instances``, ``initial``, ``values``,
        and ``score`` if it is not accuracy. Costs are left out.
        """
        counts, score = self.num_instances, self.score
        initial = None if self.initial is None else self.initial[None]
        document: dict[str, Any] = {
            "buckets": list(self.buckets),
            "num_instances": None if counts is None else counts.tolist(),
            "initial": None if initial is None else _nan_to_none(initial)[0],
            "values": _nan_to_none(self.values),
        }
        if not score.is_accuracy:
            document["score"] = {"name": score.name, "lower_is_better": not score.higher_is_better}
        return document

    def plot(self, title: str = "", *, width: float | None = None) -> Figure:
        """Return the matrix as a matplotlib figure: ``matrix.plot().savefig("matrix.pdf")``.

        Args:
            title: heading of the figure; a paper's caption makes it superfluous.
            width: width in inches; by default half an inch a bucket and two more. Texts have 8 to
                9.5 points at any width.

        Raises:
            ConfigError: the width is below 2.7 inches.
        """
        render = load_renderer("pictures", "draw_heatmap")
        figure: Figure = render(self, title or None, width=width)
        return figure

    def _repr_html_(self) -> str:
        html: str = load_renderer("page.run_page", "render_run_html")("", self)
        return html

    def _replace(self, **changed: object) -> AccuracyMatrix:
        """Return a copy with other attributes, without checks."""
        derived = object.__new__(AccuracyMatrix)
        derived._set_attributes(**{**vars(self), **changed})
        return derived

    def _set_attributes(self, **parts: object) -> None:
        """Set attributes of this frozen object, arrays as read-only."""
        for name, part in parts.items():
            if isinstance(part, np.ndarray):
                part.setflags(write=False)
            object.__setattr__(self, name, part)


def load_renderer(module: str, name: str) -> Any:
    """Import ``clear_mlflow.report.MODULE``, and return its function of this name."""
    # core must not import report, which renders matrices.
    return getattr(import_module(f"clear_mlflow.report.{module}"), name)


def stack_all_rows(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return (T + 1, T): initialisation, then rows. NaN means not measured."""
    grid = np.full((matrix.num_buckets + 1, matrix.num_buckets), np.nan)
    if matrix.initial is not None:
        grid[0] = matrix.initial
    grid[1 : matrix.num_rows + 1] = matrix.values
    return grid


def stack_cells(matrix: AccuracyMatrix, cells: NDArray[np.float64]) -> AccuracyMatrix:
    """Return n matrices as one object with (n, k, T) values.

    They share everything but their cells with *matrix*, also which cells were not measured. Only
    metrics may use the object. cells: (n, T + 1, T), the untrained model first; only the rows of
    *matrix* are used.
    """
    initial = None if matrix.initial is None else cells[:, 0]
    return matrix._replace(values=cells[:, 1 : matrix.num_rows + 1], initial=initial)


def iter_stack(stack: AccuracyMatrix) -> Iterator[AccuracyMatrix]:
    """Yield each matrix of :func:`stack_cells`."""
    for i, values in enumerate(stack.values):
        initial = None if stack.initial is None else stack.initial[i]
        yield stack._replace(values=values, initial=initial)


def iter_measured_rows(matrix: AccuracyMatrix) -> Iterator[tuple[int, str, NDArray[np.float64]]]:
    """Yield index (-1 = initial), name and cells of measured rows."""
    if matrix.initial is not None:
        yield -1, "initial", matrix.initial
    for i, values in enumerate(matrix.values):
        yield i, matrix.buckets[i], values


def _convert_buckets(keys: object) -> tuple[str, ...]:
    keys = keys.tolist() if hasattr(keys, "tolist") else keys  # an array, or an index of pandas
    buckets: tuple[str, ...] = convert(keys, tuple[str, ...], "buckets")
    if not 1 <= len(buckets) <= MAX_BUCKETS:
        raise RecordError(
            f"buckets has {format_count(len(buckets), 'key')}; expected 1 to {MAX_BUCKETS}"
        )
    for key in buckets:
        # An unprintable character looks like another key in a table, and may control a terminal.
        if not key.isprintable() or not 1 <= len(key) <= MAX_KEY_CHARACTERS:
            raise RecordError(
                f"a bucket key is {safe_repr(key)}; expected a text of 1 to {MAX_KEY_CHARACTERS} "
                "printable characters"
            )
    if len(set(buckets)) != len(buckets):
        twice = next(key for key in buckets if buckets.count(key) > 1)
        raise RecordError(f"bucket key {safe_repr(twice)} occurs twice; expected distinct keys")
    return buckets


def _convert_cells(name: str, values: ArrayLike, score: Score) -> NDArray[np.float64]:
    """Copy valid scores to floats, or raise RecordError."""
    name += " of an accuracy matrix" if score.is_accuracy else f" of a matrix of {score.name}"
    numbers = "fractions from 0 to 1 (not percent)" if score.is_accuracy else "finite numbers"
    expected = f"expected {numbers}, NaN where nothing was measured"
    try:
        cells = np.ma.filled(np.ma.array(values, dtype=np.float64, copy=True), np.nan)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"{name} is not a rectangle of numbers; {expected}") from error
    least, most = (0, 1) if score.is_accuracy else (-MAX_SCORE, MAX_SCORE)
    wrong = cells[~(np.isnan(cells) | ((cells >= least) & (cells <= most)))]
    if wrong.size:
        raise RecordError(f"{name} contains {float(wrong[0])}; {expected}")
    return cells


def _convert_num_instances(num_instances: ArrayLike, width: int) -> NDArray[np.int64]:
    try:
        counts = np.array(num_instances)
        if (
            counts.dtype.kind in "iu"
            and counts.shape == (width,)
            and not np.ma.is_masked(num_instances)
            and 1 <= counts.min() <= counts.max() <= MAX_COUNT
        ):
            return counts.astype(np.int64)
    except ValueError:
        pass  # a ragged list
    raise RecordError(
        f"num_instances of an accuracy matrix must be {width} integers of at least 1 and at most "
        f"2**53, one per bucket; got {safe_repr(num_instances)}"
    )


def _are_equal(array: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    """Return True if both are None, or equal arrays. NaN equals NaN."""
    if array is None or other is None:
        return array is other
    return np.array_equal(array, other, equal_nan=array.dtype.kind == "f")


def _nan_to_none(rows: NDArray[np.float64]) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in row] for row in rows.tolist()]
