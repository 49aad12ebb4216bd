"""Which class is taken for which, as a picture.

A line for each true class, whose cells are shares of its test images and add up to 100 %. Colours
run from 0 to 100 % by the square root, so that a class that is taken for another now and then is
seen, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.text import one_line, shortened
from clear_mlflow.report.canvas import (
    FAINT,
    blank_sheet,
    draw_grid,
    draw_scale,
    drawable,
    ink_on,
    png,
    text_width,
    write,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All lengths are inches, counted from the picture's top left corner.
_CELL = 0.5  # of many classes less, but so that each one's name can be read
_LEAST_CELL = 0.135
_SMALLEST, _WIDEST = 2.5, 14.0  # all cells together; of more than a hundred classes, not all names
_RIGHT, _BOTTOM, _TITLE, _MARGIN = 0.9, 0.25, 0.5, 0.15
_AXIS = 0.3  # for what an axis is called
_READABLE = 0.33  # a smaller cell shows its colour only
_LONGEST_NAME = 1.8
_TICKS = {0.0: "0", 0.1: "1", 0.2: "4", 0.5: "25", math.sqrt(0.5): "50", 1.0: "100 %"}


def confusion_figure(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> Figure:
    """Draw how often each true class, from top to bottom, got each predicted class.

    A class without test images is hatched.

    Args:
        counts: (classes, classes); test images of each true class (row) by predicted class.
        class_names: of each class; any texts; what is too long is cut in the middle.
        title: any text; one line of it is shown.
    """
    size = len(class_names)
    side = min(max(_CELL * size, _SMALLEST), max(7.5, min(_LEAST_CELL * size, _WIDEST)))
    cell = side / size
    # Names are written side by side in cells that are narrower than a line is high.
    points = min(9.0, 72 * 0.8 * max(cell, _LEAST_CELL))
    every = math.ceil(points / 72 / 0.8 / cell - 1e-9)
    names = [_fitting(name, points) for name in class_names]
    room = 0.16 + max(text_width(name, points) for name in names)
    left, top = _MARGIN + _AXIS + room, _TITLE + _AXIS + room
    width, height = left + side + _RIGHT, top + side + _BOTTOM
    figure, sheet = blank_sheet(width, height)

    totals = counts.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
    line = 0.8 if cell >= _READABLE else 0.2  # which hides none of a small cell
    colours = draw_grid(sheet, np.sqrt(shares), (left, top), (cell, cell), line=line)
    if cell >= _READABLE:
        _draw_shares(sheet, shares, colours, (left, top), cell)
    for i in range(0, size, every):
        middle = (i + 0.5) * cell
        write(sheet, (left - 0.08, top + middle), names[i], points, ha="right")
        write(sheet, (left + middle, top - 0.08), names[i], points, va="bottom", rotation=90)
    draw_scale(sheet, left + side + 0.2, top, side, _TICKS)
    across, down = (left + side / 2, _TITLE + _AXIS / 2), (_MARGIN, top + side / 2)
    write(sheet, across, "predicted as, in % of the true class's images", 9.5, colour=FAINT)
    write(sheet, down, "true class", 9.5, colour=FAINT, rotation=90)
    heading = shortened(title, int((width - 0.3) / 0.11))
    write(sheet, (_MARGIN, 0.27), drawable(heading), 11, ha="left", weight="bold")
    return figure


def confusion_png(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> bytes:
    """The picture as a PNG file; the same content gives the same bytes."""
    return png(confusion_figure(counts, class_names, title))


def _draw_shares(
    sheet: Axes,
    shares: NDArray[np.float64],
    colours: NDArray[np.float64],
    corner: tuple[float, float],
    cell: float,
) -> None:
    left, top = corner
    for i, j in np.argwhere(np.nan_to_num(shares) > 0):
        percent = 100 * shares[i, j]
        number = "<1" if percent < 0.5 else f"{percent:.0f}"
        middle = (left + (j + 0.5) * cell, top + (i + 0.5) * cell)
        write(sheet, middle, number, 8.5, colour=ink_on(colours[i, j]))


def _fitting(name: str, points: float) -> str:
    """A class's name, cut where it is longer than there is room for: names begin and end alike."""
    for longest in range(48, 8, -4):
        text = drawable(one_line(name, longest))
        if text_width(text, points) <= _LONGEST_NAME:
            return text
    return text
