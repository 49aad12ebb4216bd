"""Orientation of a plain matrix, proven by its shape or by averages printed next to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.importers._base import PrintedNumber

_Cells: TypeAlias = "NDArray[np.float64]"
_UNITS = (1.0, 100.0, 0.01)  # a log may print percent next to fractions, or the other way round


def find_orientation(
    cells: _Cells, printed: Sequence[PrintedNumber], named: str = "auto"
) -> tuple[str, str]:
    """Return "rows" or "columns" for a plain matrix, and a line that reports the proof.

    cells: NaN or 0 where nothing was measured. printed: averages from the same file. named: the
    orientation that names in the file prove. Raises RecordError if the averages contradict it, or
    if nothing proves it; the message shows what both would result in.
    """
    is_square = len(set(cells.shape)) == 1 and len(cells) > 1
    if named == "auto":
        named = _find_orientation_by_shape(cells) if is_square else "rows"
    matrices = {"rows": cells, "columns": cells.T} if is_square else {"rows": cells}
    fitting = [name for name, matrix in matrices.items() if _find_unit(matrix, printed)]
    if printed and not (fitting and named in (*fitting, "")):
        numbers = ", ".join(f"{number.name} {number.value:g}" for number in printed[:3])
        raise RecordError(
            f"prints {numbers}, which its matrix does not fit: {_describe_both(cells)}. The file "
            'is truncated or damaged, or these are other averages; then pass orientation="rows" '
            'or orientation="columns"'
        )
    if named or len(fitting) == 1:
        orientation = named or fitting[0]
        numbers = ", ".join(f"{number.name} {number.value:g}" for number in printed[-3:])
        return orientation, f"{orientation} as training: fits {numbers}" if printed else ""
    raise RecordError(
        f"does not prove whether a row or a column is one test after training: "
        f'{_describe_both(cells)}; pass orientation="rows" or orientation="columns"'
    )


def _find_orientation_by_shape(cells: _Cells) -> str:
    """Return the orientation that empty cells or zeros prove, "" if none does.

    A symmetric matrix is "rows". Raises RecordError for a 2 x 2 matrix with a single 0 below the
    diagonal, which may be an accuracy.
    """
    filled = np.nan_to_num(cells)
    has_past, has_future = np.tril(filled, -1).any(), np.triu(filled, 1).any()
    if not has_future or np.array_equal(filled, filled.T):
        return "rows"
    if has_past or not np.diagonal(filled).all():
        return "" if has_past else "rows"
    if len(cells) == 2 and cells[1, 0] == 0:
        raise RecordError(
            'contains 0 below the diagonal: pass orientation="columns" if a column is one test '
            'after training, or orientation="rows" if a row is'
        )
    return "columns"


def _find_unit(cells: _Cells, printed: Sequence[PrintedNumber]) -> float | None:
    """Return the factor with which printed numbers fit a matrix with a row per test, or None."""
    for unit in _UNITS:
        if printed and all(_fits(cells * unit, number) for number in printed):
            return unit
    return None


def _fits(cells: _Cells, printed: PrintedNumber) -> bool:
    """Return True if a usual definition of a printed number has its value, as it is rounded."""
    last = len(cells) - 1 if printed.step is None else printed.step - 1
    filled = np.nan_to_num(cells)
    if printed.name == "forgetting":
        if not 1 <= last < filled.shape[1]:
            return False
        past, final = filled[:, :last], filled[last, :last]
        best_accuracies = (past.max(axis=0), past[:last].max(axis=0), np.diagonal(filled)[:last])
        values = [float(np.mean(best - final)) for best in best_accuracies]
    elif printed.step is not None:
        # The mean of all cells in a line is no proof, but no contradiction either.
        columns = cells[:, last : last + 1].ravel()
        lines = [line[~np.isnan(line)] for line in (cells[last], columns)]
        values = [filled[last, : last + 1].mean(), *(line.mean() for line in lines if line.size)]
    else:
        averages = [filled[i, : i + 1].mean() for i in range(last + 1)]
        values = [
            averages[-1],
            float(np.mean(averages)),
            filled[np.tri(*filled.shape, dtype=np.bool_)].mean(),
        ]
    return any(abs(value - printed.value) <= printed.precision * 1.02 + 2e-7 for value in values)


def _describe_both(cells: _Cells) -> str:
    """Return the final average and forgetting of a matrix in both orientations, as a text."""
    texts = []
    for name, matrix in (("rows", cells), ("columns", cells.T)):
        filled, past = np.nan_to_num(matrix), len(matrix) - 1
        forgetting = filled[:past, :past].max(axis=0, initial=0) - filled[past, :past]
        average = f"average {filled[past].mean():.3g}"
        forgotten = f", forgetting {forgetting.mean():.3g}" if forgetting.size else ""
        texts.append(f"{name} as training: {average}{forgotten}")
    return "; ".join(texts)
