"""Where a cell lies between the worst and the best: what its colour is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.core.score import ACCURACY, Score


@dataclass(frozen=True)
class CellScale:
    """From the darkest colour to the brightest, which is always the better end."""

    score: Score = ACCURACY
    worst: float = 0.0
    best: float = 1.0

    def shade(self, cells: ArrayLike) -> NDArray[np.float64]:
        """From 0, as the worst or beyond it, to 1; NaN stays NaN."""
        found = np.asarray(cells, dtype=np.float64)
        if self.best == self.worst:
            return np.where(np.isnan(found), np.nan, 0.5)
        return np.clip((found - self.worst) / (self.best - self.worst), 0.0, 1.0)

    def text_at(self, share: float) -> str:
        """The value at a share of the way from the worst to the best."""
        return self.score.cell(self.worst + share * (self.best - self.worst))

    @property
    def ends(self) -> tuple[str, str]:
        """The texts of both ends, with their unit."""
        return f"{self.text_at(0)}{self.score.unit}", f"{self.text_at(1)}{self.score.unit}"

    @property
    def about(self) -> str:
        """A sentence on the colours, where they are not the usual ones."""
        if self.score.is_accuracy:
            return ""
        return f"Brighter is better: {self.score.better}."


def scale_over(score: Score, grids: list[NDArray[np.float64]]) -> CellScale:
    """The scale of (T + 1, T) matrices that are drawn together; row 0 counts where it is alone."""
    if score.is_accuracy:
        return CellScale()
    trained = np.concatenate([grid[1:].ravel() for grid in grids] or [np.empty(0)])
    if np.isnan(trained).all():
        trained = np.concatenate([grid.ravel() for grid in grids] or [np.empty(0)])
    if np.isnan(trained).all():
        return CellScale(score, 0.0, 0.0)
    low, high = float(np.nanmin(trained)), float(np.nanmax(trained))
    return CellScale(score, *((low, high) if score.higher_is_better else (high, low)))
