"""Orientation of a matrix, proven by its shape or by averages printed next to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.importers._base import (
    EARLIER,
    FORGETTING,
    LINE_AVERAGE,
    MEAN_WEIGHTED,
    WEIGHTED,
    PrintedNumber,
)

_Cells: TypeAlias = "NDArray[np.float64]"


class OrientationError(RecordError):
    """Nothing proves whether a row or a column is one test after training."""


def find_orientation(
    cells: _Cells, printed: Sequence[PrintedNumber], marked_orientation: str
) -> tuple[str, str]:
    """Return "rows" or "columns" for a matrix, and a line that reports the proof.

    cells: NaN or 0 where nothing was measured. printed: averages from the same file.
    marked_orientation: the one that names or the format prove, or "auto". Raises RecordError if
    the averages contradict it, and OrientationError if nothing proves it, with the results of both.
    """
    is_square = cells.shape[0] == cells.shape[1] > 1
    if marked_orientation != "auto" or not is_square:
        proven = "columns" if marked_orientation == "columns" else "rows"
        matrices = {proven: cells.T if proven == "columns" else cells}
    else:
        proven = _find_orientation_by_shape(cells)
        matrices = {"rows": cells, "columns": cells.T}
    fitting = [name for name, matrix in matrices.items() if _matches_printed(matrix, printed)]
    last_numbers = {number.name: number for number in printed}.values()
    numbers = ", ".join(f"{number.name} {number.value:g}" for number in last_numbers)
    results = "; ".join(
        f"{name} as training: {_describe_averages(m)}" for name, m in matrices.items()
    )
    if not fitting or proven not in (*fitting, ""):
        raise RecordError(
            f"prints {numbers}, but its matrix has other averages after one of its tests "
            f"({results}): it is truncated, damaged or transposed. For a plain matrix next to "
            'other averages, pass orientation="rows" or orientation="columns"'
        )
    if not proven and len(fitting) > 1:
        raise OrientationError(
            f"does not prove whether a row or a column is one test after training: {results}; pass "
            'orientation="rows" or orientation="columns"'
        )
    orientation = proven or fitting[0]
    return orientation, f"{orientation} as training: fits {numbers}" if printed else ""


def _find_orientation_by_shape(cells: _Cells) -> str:
    """Return the orientation that empty cells or zeros prove, "" if none does.

    A symmetric matrix is "rows". Raises RecordError for a 2 x 2 matrix with a single 0 below the
    diagonal, which may be an accuracy.
    """
    filled = np.nan_to_num(cells)
    has_past, has_future = np.tril(filled, -1).any(), np.triu(filled, 1).any()
    if has_past and has_future and not np.array_equal(filled, filled.T):
        return ""
    if has_past or not has_future or not np.diagonal(filled).all():
        return "rows"
    if len(cells) == 2 and cells[1, 0] == 0:
        raise RecordError(
            'contains 0 below the diagonal: pass orientation="columns" if a column is one test '
            'after training, or orientation="rows" if a row is'
        )
    return "columns"


def _matches_printed(cells: _Cells, printed: Sequence[PrintedNumber]) -> bool:
    """Return True if usual definitions result in all printed numbers, as they are rounded.

    cells: a row per test. A log may print percent next to fractions, or the other way round.
    """
    # The cells are rounded, too, and 32-bit floats differ in the seventh digit.
    return any(
        all(
            any(
                abs(value * unit - number.value) <= 2.02 * number.precision + 2e-7
                for value in _compute_candidates(cells, number, printed)
            )
            for number in printed
        )
        for unit in (1.0, 100.0, 0.01)
    )


def _compute_candidates(
    cells: _Cells, number: PrintedNumber, printed: Sequence[PrintedNumber]
) -> Sequence[np.floating]:
    """Compute the values that a printed number should have by each of its usual definitions.

    cells: accuracies, a row per test. number: its name and step choose the definitions. printed:
    all numbers that the file prints, of which some definitions need others.
    """
    step, last = number.step, number.step - 1
    if not 0 < step <= min(cells.shape):
        return []
    row = np.nan_to_num(cells[last, :step])
    if number.name == WEIGHTED:  # any weights are possible
        return [np.clip(number.value, row.min(), row.max())]
    if number.name == MEAN_WEIGHTED:
        totals = {n.step: n.value for n in printed if n.name == WEIGHTED and n.step <= step}
        return [np.mean([*totals.values()])]
    tested = np.nan_to_num(cells[:step, :step])
    if number.name == EARLIER:
        return [np.tril(tested, -1).sum() / (step * last / 2)] if last else []
    if number.name == FORGETTING:
        past = tested[:last, :last]
        best, own = past.max(axis=0, initial=0), np.diagonal(past)
        drops = [np.maximum(best, row[:last]) - row[:last], best - row[:last], own - row[:last]]
        # LibContinual leaves out the task before the last, but divides by the number of all.
        return [drop.sum() / max(last, 1) for drop in (*drops, drops[2][:-1])]
    if number.name == LINE_AVERAGE:
        # The mean of a complete line fits in both orientations, and so it proves neither.
        lines = [line[~np.isnan(line)] for line in (cells[last], cells[:, last])]
        return [row.mean(), *(line.mean() for line in lines if line.size)]
    sums = np.tril(tested).sum(axis=1)
    averages = sums / np.arange(1, step + 1)
    return [averages[-1], averages.mean(), sums.sum() / (step * (step + 1) / 2)]


def _describe_averages(cells: _Cells) -> str:
    """Return final average accuracy and forgetting as a text. cells: a row per test."""
    filled, last = np.nan_to_num(cells), len(cells) - 1
    forgetting = filled[:, :last].max(axis=0) - filled[last, :last]
    average = filled[last, : last + 1].mean()
    return f"average {average:.3g}" + (f", forgetting {forgetting.mean():.3g}" if last else "")
