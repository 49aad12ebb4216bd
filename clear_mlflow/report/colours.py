"""Colours of matrix cells and of groups of runs, the same in pictures and on pages.

The scale of cells is matplotlib's viridis, which is even in lightness and readable with any colour
vision. A few of its points are stored here, so that a page can be made without matplotlib.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.core.score import ACCURACY, Score

# Colours of groups of runs, on a light background. Readers who do not see red and green can tell
# them apart, as those on a dark background in page/frame.css.
GROUPS = (
    "#0b66c3", "#c96a00", "#2b1b33", "#718fad", "#8f2a78", "#a8895c", "#702a00", "#2a1fd0",
)  # fmt: skip


# Evenly spaced colours of cells, from the worst to the best.
_SCALE = (
    "440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151",
    "bddf26", "fde725",
)  # fmt: skip


def is_dark(colour: NDArray[np.float64]) -> bool:
    """Return True if white text is easier to read than black."""
    return float(colour[:3] @ (0.299, 0.587, 0.114)) < 0.5


def get_colours(shades: ArrayLike) -> NDArray[np.float64]:
    """Return red, green, blue and opacity, (..., 4), of shades in [0, 1]."""
    positions = np.asarray(shades, dtype=np.float64) * (len(_SCALE) - 1)
    colours = np.array([[int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)] for code in _SCALE])
    channels = [np.interp(positions, np.arange(len(_SCALE)), channel) for channel in colours.T]
    return np.stack([*channels, np.ones_like(positions)], axis=-1)


def get_css_colours(shade: float) -> tuple[str, str]:
    """Return the background of a shade in [0, 1] and its text colour."""
    colour = get_colours(shade)
    code = "".join(f"{round(255 * channel):02x}" for channel in colour[:3])
    return f"#{code}", "#fff" if is_dark(colour) else "#111"


def build_css() -> str:
    """Return style rules: .v0 to .v100 for cells, .scale for the scale."""
    stops = ",".join(f"#{code}" for code in _SCALE)
    rules = [f".ramp .scale{{background:linear-gradient(to right,{stops})}}"]
    for i in range(101):
        background, text = get_css_colours(i / 100)
        rules.append(f".v{i}{{background:{background};color:{text}}}")
    return "".join(rules)


@dataclass(frozen=True)
class CellScale:
    """The scale of matrix cells, from darkest (worst) to brightest (best)."""

    score: Score = ACCURACY
    worst: float = 0.0
    best: float = 1.0

    def shade(self, cells: ArrayLike) -> NDArray[np.float64]:
        """Return the brightness of cells, from 0 (worst) to 1 (best).

        Values outside the scale are clipped, NaN stays NaN, and a scale of one value results in
        0.5.
        """
        values = np.asarray(cells, dtype=np.float64)
        if self.best == self.worst:
            return np.where(np.isnan(values), np.nan, 0.5)
        return np.clip((values - self.worst) / (self.best - self.worst), 0.0, 1.0)

    def format_shade(self, shade: float) -> str:
        """Return the value that has a shade, as text."""
        return self.score.format_cell(self.worst + shade * (self.best - self.worst))

    @property
    def ends(self) -> tuple[str, str]:
        """The scale's worst and best value with their unit."""
        return (
            f"{self.format_shade(0)}{self.score.unit}",
            f"{self.format_shade(1)}{self.score.unit}",
        )

    @property
    def note(self) -> str:
        """A sentence on the colours of a score other than accuracy."""
        return "" if self.score.is_accuracy else f"Brighter is better: {self.score.better}."


def build_cell_scale(score: Score, grids: list[NDArray[np.float64]]) -> CellScale:
    """Return one scale for (T + 1, T) matrices that are drawn together.

    It is 0 to 1 for accuracies. For other scores, it is the range of all cells, of which the
    initialisation row counts only if no other row was measured. If no cell was measured, both ends
    are 0.
    """
    if score.is_accuracy:
        return CellScale()
    for first_row in (1, 0):
        cells = np.concatenate([grid[first_row:].ravel() for grid in grids] or [np.empty(0)])
        cells = cells[~np.isnan(cells)]
        if cells.size:
            low, high = float(cells.min()), float(cells.max())
            return CellScale(score, *((low, high) if score.higher_is_better else (high, low)))
    return CellScale(score, 0.0, 0.0)
