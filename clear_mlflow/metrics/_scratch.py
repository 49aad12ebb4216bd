"""A run's rows next to training from scratch: the input of ``against_scratch``, and horizons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError

# A drop, and what it consists of: what a comparison prints of this family.
DROP_PARTS = tuple(f"against_scratch/{name}" for name in ("drop", "lead", "harder", "not_adapted"))


@dataclass(frozen=True, eq=False)
class ScratchMatrix:
    """A run's rows, and accuracies of models trained from scratch.

    Higher is better.

    Args:
        values: (k, T), R[i, j]; NaN = not measured.
        scratch: (T,), o[j]; NaN = not measured.
    """

    values: NDArray[np.float64]
    scratch: NDArray[np.float64]

    def average(self, differences: NDArray[np.float64], *, past: bool) -> float:
        """Return the mean of differences over past or future buckets, all measured.

        differences: (k, T) or (k, 1). Raises UndefinedMetricError if there are none, or if one is
        NaN.
        """
        is_past = np.tril(np.ones(self.values.shape, dtype=np.bool_), -1)
        is_future = np.triu(np.ones(self.values.shape, dtype=np.bool_), 1)
        cells = np.broadcast_to(differences, self.values.shape)[is_past if past else is_future]
        return average_cells(cells, "a past bucket" if past else "a future bucket")

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """(k, 1), R[i, i]."""
        return self.values.diagonal()[:, np.newaxis]

    @property
    def scratch_column(self) -> NDArray[np.float64]:
        """(k, 1), o[i]."""
        return self.scratch[: len(self.values), np.newaxis]


def average_cells(cells: NDArray[np.float64], requirement: str) -> float:
    """Return the mean of cells. Raises UndefinedMetricError if one is missing."""
    if not cells.size:
        raise UndefinedMetricError(f"needs {requirement}")
    if np.isnan(cells).any():
        raise UndefinedMetricError("a cell, or training from scratch on a bucket, is not measured")
    return float(cells.mean())


def find_horizons(matrix: ScratchMatrix, tolerance: float = 0.0) -> list[tuple[int, bool] | None]:
    """Return for each row how many buckets ahead it matches from-scratch training.

    The horizon of row i is the largest h with R[i, i + g] >= o[i + g] - *tolerance* for all
    g <= h. It is returned with whether h is a lower bound: the end of what was measured was
    reached. None: the model is behind on bucket i itself, or that was not measured.

    >>> scratch = np.array([0.9, 0.8, 0.8])
    >>> rows = np.array([[0.9, 0.8, 0.5], [0.2, 0.8, 0.9], [0.1, 0.1, 0.7]])
    >>> find_horizons(ScratchMatrix(rows, scratch))
    [(1, False), (1, True), None]
    """
    horizons: list[tuple[int, bool] | None] = []
    for i, row in enumerate(matrix.values):
        gap = matrix.scratch[i:] - row[i:]
        # Equal fractions may differ by rounding. NaN keeps up with nothing.
        keeps_up = gap <= tolerance + 1e-12
        reached = len(gap) if keeps_up.all() else int(keeps_up.argmin())
        is_bound = reached == len(gap) or bool(np.isnan(gap[reached]))
        horizons.append((reached - 1, is_bound) if reached else None)
    return horizons


def convert_to_days(
    horizons: Sequence[tuple[int, bool] | None], dates: Sequence[date]
) -> list[tuple[int, bool] | None]:
    """Convert horizons of rows from buckets to days, by the dates of the buckets.

    >>> dates = [date(2004, 1, 1), date(2004, 7, 1), date(2005, 1, 1)]
    >>> convert_to_days([(1, False), (1, True), None], dates)
    [(182, False), (184, True), None]
    """
    return [
        horizon and ((dates[i + horizon[0]] - dates[i]).days, horizon[1])
        for i, horizon in enumerate(horizons)
    ]


def format_median_horizon(horizons: Sequence[tuple[int, bool] | None]) -> str:
    """Return the median of horizons, for example ``2`` or ``at least 2``.

    A row that is behind on its own bucket counts as less than 0.

    >>> format_median_horizon([(0, False), (3, True), (2, False)])
    '2'
    >>> format_median_horizon([(1, True), (2, True)])
    'at least 1'
    >>> format_median_horizon([None, None, (1, False)])
    'none'
    """
    ordered = sorted(horizon or (-1, False) for horizon in horizons)
    middle = (len(ordered) - 1) // 2
    median = ordered[middle][0]
    # A lower bound at or below the median may belong above it.
    is_bound = any(is_bound for _, is_bound in ordered[: middle + 1])
    if median < 0:
        return "none"
    return f"at least {median}" if is_bound else str(median)
