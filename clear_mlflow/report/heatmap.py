"""The accuracy matrix as a picture.

Pictures of different runs are made to lie side by side: the same number of buckets gives the same
size and the same place for every cell, and the colours of accuracies always run from 0 to 100 %.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.matrix import AccuracyMatrix, whole_grid
from clear_mlflow.core.text import ending, shortened
from clear_mlflow.report.canvas import (
    FAINT,
    HATCH,
    blank_sheet,
    draw_grid,
    draw_scale,
    drawable,
    ink_on,
    png,
    write,
)
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.colours import SCALE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All lengths are inches, counted from the picture's top left corner.
_CELL = 0.5  # of large matrices less, so that the picture stays on a screen
_SMALLEST, _WIDEST = 1.7, 7.5  # all cells together
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.0, 0.9, 1.0, 0.25  # around the cells
_GAP = 0.12  # between the initialisation row and the matrix
_READABLE = 0.33  # a smaller cell shows its colour only
_CHARACTER = 0.085  # about the width of one in a bucket key
_TICKS = {0.0: "0", 0.25: "25", 0.5: "50", 0.75: "75", 1.0: "100 %"}


def heatmap_figure(matrix: AccuracyMatrix, title: str, scale: CellScale | None = None) -> Figure:
    """Draw the matrix: trained through from top to bottom, tested on from left to right.

    The initialisation row is drawn apart on top, the diagonal is outlined, and cells that were not
    measured are hatched. No global state of matplotlib is touched: any thread may draw.

    Args:
        matrix: (k, T); rows beyond k are drawn as not measured.
        title: any text; one line of it is shown.
        scale: of its colours; the matrix's own when not given.
    """
    scale = scale or scale_over(matrix.score, [whole_grid(matrix)])
    size = matrix.num_buckets
    side = min(max(_CELL * size, _SMALLEST), _WIDEST)
    cell = side / size
    initial_height = min(cell, _CELL)
    body = _TOP + initial_height + _GAP
    width, height = _LEFT + side + _RIGHT, body + side + _BOTTOM

    figure, sheet = blank_sheet(width, height)
    values = np.full((size, size), np.nan)
    values[: matrix.num_rows] = matrix.values
    initial = np.full((1, size), np.nan) if matrix.initial is None else matrix.initial[np.newaxis]
    _draw_cells(sheet, scale, initial, _TOP, cell, initial_height)
    _draw_cells(sheet, scale, values, body, cell, cell)
    _outline_diagonal(sheet, scale.shade(np.diag(values)), body, cell)
    _draw_keys(sheet, matrix.buckets, body, cell)
    draw_scale(sheet, _LEFT + side + 0.2, body, side, _ticks(scale))

    if not matrix.score.is_accuracy:
        write(sheet, (0.15, 0.46), drawable(matrix.score.label), 8, colour=FAINT, ha="left")
    across, down = (_LEFT + side / 2, 0.62), (0.17, body + side / 2)
    write(sheet, across, "tested on bucket", 9.5, colour=FAINT)
    write(sheet, down, "trained through bucket", 9.5, colour=FAINT, rotation=90)
    write(sheet, (_LEFT - 0.08, _TOP + initial_height / 2), "initial", 9, ha="right")
    line = shortened(title, int((width - 0.3) / 0.11))
    write(sheet, (0.15, 0.27), drawable(line), 11, ha="left", weight="bold")
    return figure


def heatmap_png(matrix: AccuracyMatrix, title: str, scale: CellScale | None = None) -> bytes:
    """The picture as a PNG file; the same matrix and title give the same bytes."""
    return png(heatmap_figure(matrix, title, scale))


def heatmap_array(matrix: AccuracyMatrix, title: str) -> NDArray[np.uint8]:
    """The picture as pixels: (height, width, 3), red, green, blue."""
    canvas: Any = heatmap_figure(matrix, title).canvas
    canvas.draw()
    colours: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
    return colours


def _ticks(scale: CellScale) -> dict[float, str]:
    if scale.score.is_accuracy:
        return _TICKS
    # A column of one value has one colour, in the middle.
    shares = (0.0, 0.5, 1.0) if scale.best != scale.worst else (0.5,)
    return {share: scale.text_at(share) for share in shares}


def _draw_cells(
    sheet: Axes,
    scale: CellScale,
    values: NDArray[np.float64],
    top: float,
    cell: float,
    cell_height: float,
) -> None:
    colours = draw_grid(sheet, scale.shade(values), (_LEFT, top), (cell, cell_height))
    if cell < _READABLE:
        return
    for i, j in np.argwhere(~np.isnan(values)):
        middle = (_LEFT + (j + 0.5) * cell, top + (i + 0.5) * cell_height)
        number = scale.score.cell(values[i, j])
        write(sheet, middle, number, min(8.5, 17.5 * cell), colour=ink_on(colours[i, j]))


def _outline_diagonal(sheet: Axes, diagonal: NDArray[np.float64], top: float, cell: float) -> None:
    from matplotlib.collections import PolyCollection

    # Just inside its cells, so that neighbours do not cover each other's outline.
    square = np.array([[0.03, 0.03], [0.97, 0.03], [0.97, 0.97], [0.03, 0.97]]) * cell
    squares = [square + np.array([_LEFT, top]) + i * cell for i in range(len(diagonal))]
    inks = [HATCH if np.isnan(value) else ink_on(SCALE.at(value)) for value in diagonal]
    sheet.add_collection(
        PolyCollection(
            squares,
            facecolors="none",
            edgecolors=inks,
            linewidths=1.5,
            joinstyle="miter",
            zorder=2.5,
        ),
        autolim=False,
    )


def _draw_keys(sheet: Axes, buckets: tuple[str, ...], body: float, cell: float) -> None:
    """Bucket keys on both sides; of many buckets, only as many as have room."""
    above = [drawable(ending(key, 5)) for key in buckets]
    every = math.ceil((max(map(len, above)) * _CHARACTER + 0.08) / cell)
    for j in range(0, len(buckets), every):
        write(sheet, (_LEFT + (j + 0.5) * cell, _TOP - 0.12), above[j], 9)
    every = math.ceil(0.16 / cell)
    for i in range(0, len(buckets), every):
        key = drawable(ending(buckets[i], 8))
        write(sheet, (_LEFT - 0.08, body + (i + 0.5) * cell), key, 9, ha="right")
