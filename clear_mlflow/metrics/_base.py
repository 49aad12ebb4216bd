"""What every metric is made of: its declaration, and means that refuse unmeasured cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of an accuracy matrix, under the name that it is logged as.

    Args:
        name: family and metric, as ``clear/in_domain_accuracy``.
        function: raises UndefinedMetricError where the metric has no value.
        higher_is_better: which of two values a researcher wants.
        version: raised when the definition changes, so that stored values are known as old.
    """

    name: str
    function: Callable[[AccuracyMatrix], float]
    higher_is_better: bool = True
    version: int = 1


def need_trained(matrix: AccuracyMatrix, least: int, what: str) -> None:
    """Refuse a run that has trained on fewer than ``least`` buckets.

    Raises:
        UndefinedMetricError: with ``what`` is needed, and of how much.
    """
    if matrix.num_rows < least:
        raise UndefinedMetricError(f"needs {what}: k >= {least} (trained on {matrix.num_rows})")


def need_future(matrix: AccuracyMatrix) -> None:
    """Refuse a run that has no bucket yet, or a stream that has no second one.

    Raises:
        UndefinedMetricError: with what is needed.
    """
    need_trained(matrix, 1, "a trained bucket")
    if matrix.num_buckets < 2:
        raise UndefinedMetricError("needs a future bucket: T >= 2")


def measured(cells: NDArray[np.float64], name: Callable[[int], str]) -> NDArray[np.float64]:
    """The same cells, once it is sure that each of them was measured.

    A mean over what happens to be there would be a different quantity under the same name.

    Args:
        cells: (n,), fractions; NaN = not measured.
        name: what the cell at a position is called.

    Raises:
        UndefinedMetricError: a cell is NaN; the first such one is named.
    """
    gaps = np.isnan(cells)
    if gaps.any():
        raise UndefinedMetricError(f"{name(int(gaps.argmax()))} was not measured")
    return cells


def cells_where(matrix: AccuracyMatrix, where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The chosen cells of a matrix, row by row.

    Args:
        matrix: (k, T).
        where: (k, T), or the (k, n) for its first n columns.

    Raises:
        UndefinedMetricError: one of them was not measured.
    """

    def name(position: int) -> str:
        i, j = np.argwhere(where)[position]
        return f"R[{i}, {j}]"

    return measured(matrix.values[:, : where.shape[1]][where], name)


def change_on_past(matrix: AccuracyMatrix) -> float:
    """Mean of R[i, j] - R[j, j] over j < i: BWT over the whole lower triangle.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.
    """
    need_trained(matrix, 2, "a past bucket")
    k = matrix.num_rows
    past = cells_where(matrix, np.tri(k, k - 1, -1, dtype=np.bool_))
    new = cells_where(matrix, np.eye(k, k - 1, dtype=np.bool_))
    # Bucket j is in the past of k - 1 - j rows.
    return float((past.sum() - (new * np.arange(k - 1, 0, -1)).sum()) / len(past))
