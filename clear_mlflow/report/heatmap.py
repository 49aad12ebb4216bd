"""The accuracy matrix as a picture.

Pictures of different runs are made to lie side by side: the same number of buckets gives the same
size and the same place for every cell, and the colours always run from 0 to 100 %.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.matrix import AccuracyMatrix
from clear_mlflow.report.rows import ending, printable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All lengths are inches, counted from the picture's top left corner.
_DPI = 120
_CELL = 0.5  # of large matrices less, so that the picture stays on a screen
_SMALLEST, _WIDEST = 1.7, 7.5  # all cells together
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.0, 0.9, 1.0, 0.25  # around the cells
_GAP = 0.12  # between the initialisation row and the matrix
_READABLE = 0.33  # a smaller cell shows its colour only
_CHARACTER = 0.085  # about the width of one in a bucket key

_INK, _FAINT = "#1a1a1a", "#6b6b6b"
_UNMEASURED, _HATCH = "#f0f0f0", "#cfcfcf"
_FONT = "DejaVu Sans"  # comes with matplotlib: the same text everywhere
_COLOURS = "viridis"  # even in lightness, and readable with any colour vision


def heatmap_figure(matrix: AccuracyMatrix, title: str) -> Figure:
    """Draw the matrix: trained through from top to bottom, tested on from left to right.

    The initialisation row stands apart on top, the diagonal is outlined, and cells that were not
    measured are hatched. No global state of matplotlib is touched: any thread may draw.

    Args:
        matrix: (k, T); rows beyond k are drawn as not measured.
        title: any text; one line of it is shown.
    """
    # Imported late: matplotlib takes longer to load than a whole run takes to score.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = matrix.num_buckets
    side = min(max(_CELL * size, _SMALLEST), _WIDEST)
    cell = side / size
    initial_height = min(cell, _CELL)
    body = _TOP + initial_height + _GAP
    width, height = _LEFT + side + _RIGHT, body + side + _BOTTOM

    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    # One bare sheet in inches instead of an Axes per part: ticks and spines take half the time.
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.set_axis_off()

    values = np.full((size, size), np.nan)
    values[: matrix.num_rows] = matrix.values
    initial = np.full((1, size), np.nan) if matrix.initial is None else matrix.initial[np.newaxis]
    _draw_cells(sheet, initial, _TOP, cell, initial_height)
    _draw_cells(sheet, values, body, cell, cell)
    _outline_diagonal(sheet, np.diag(values), body, cell)
    _draw_keys(sheet, matrix.buckets, body, cell)
    _draw_scale(sheet, _LEFT + side + 0.2, body, side)

    across, down = (_LEFT + side / 2, 0.62), (0.17, body + side / 2)
    _write(sheet, across, "tested on bucket", 9.5, colour=_FAINT)
    _write(sheet, down, "trained through bucket", 9.5, colour=_FAINT, rotation=90)
    _write(sheet, (_LEFT - 0.08, _TOP + initial_height / 2), "initial", 9, ha="right")
    line = shortened(printable(title), int((width - 0.3) / 0.11))
    _write(sheet, (0.15, 0.27), drawable(line), 11, ha="left", weight="bold")
    sheet.set_xlim(0, width)
    sheet.set_ylim(height, 0)
    return figure


def heatmap_png(matrix: AccuracyMatrix, title: str) -> bytes:
    """The picture as a PNG file; the same matrix and title give the same bytes."""
    content = io.BytesIO()
    # Asked of the canvas, not of savefig, which would follow a user's matplotlibrc. The name of the
    # drawing software is left out: its version would change the bytes.
    canvas: Any = heatmap_figure(matrix, title).canvas
    canvas.print_png(content, metadata={"Software": None})
    return content.getvalue()


def png_array(content: bytes) -> NDArray[np.uint8]:
    """The pixels of :func:`heatmap_png`, as :func:`heatmap_array` gives them.

    Reading the file takes a hundredth of the time that drawing it again would.
    """
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def heatmap_array(matrix: AccuracyMatrix, title: str) -> NDArray[np.uint8]:
    """The picture as pixels: (height, width, 3), red, green, blue."""
    canvas: Any = heatmap_figure(matrix, title).canvas
    canvas.draw()
    colours: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
    return colours


def _draw_cells(
    sheet: Axes, values: NDArray[np.float64], top: float, cell: float, cell_height: float
) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    rows, columns = values.shape
    right, bottom = _LEFT + columns * cell, top + rows * cell_height
    unmeasured = np.isnan(values)
    colours = _colours(np.nan_to_num(values))
    if unmeasured.any():
        # One hatched ground, seen through the cells that have no value.
        colours[unmeasured, 3] = 0
        ground = Rectangle((_LEFT, top), right - _LEFT, bottom - top, facecolor=_UNMEASURED)
        ground.set(edgecolor=_HATCH, hatch="////", linewidth=0, zorder=-1)
        sheet.add_patch(ground)
    sheet.imshow(
        colours,
        extent=(_LEFT, right, bottom, top),
        aspect="auto",
        interpolation="nearest",
        origin="upper",
    )
    across = [[(_LEFT, y), (right, y)] for y in top + cell_height * np.arange(1, rows)]
    down = [[(x, top), (x, bottom)] for x in _LEFT + cell * np.arange(1, columns)]
    sheet.add_collection(
        LineCollection([*across, *down], colors="white", linewidths=0.8), autolim=False
    )
    if cell < _READABLE:
        return
    for i, j in np.argwhere(~unmeasured):
        middle = (_LEFT + (j + 0.5) * cell, top + (i + 0.5) * cell_height)
        number = f"{100 * values[i, j]:.1f}"
        _write(sheet, middle, number, min(8.5, 17.5 * cell), colour=ink_on(colours[i, j]))


def _outline_diagonal(sheet: Axes, diagonal: NDArray[np.float64], top: float, cell: float) -> None:
    from matplotlib.collections import PolyCollection

    # Just inside its cells, so that neighbours do not cover each other's outline.
    square = np.array([[0.03, 0.03], [0.97, 0.03], [0.97, 0.97], [0.03, 0.97]]) * cell
    squares = [square + np.array([_LEFT, top]) + i * cell for i in range(len(diagonal))]
    inks = [_HATCH if np.isnan(value) else ink_on(_colours(value)) for value in diagonal]
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


def _colours(values: ArrayLike) -> NDArray[np.float64]:
    """Red, green, blue and opacity of fractions, always on the scale from 0 to 1."""
    from matplotlib import colormaps

    return np.asarray(colormaps[_COLOURS](values), dtype=np.float64)


def ink_on(colour: NDArray[np.float64]) -> str:
    """What can be read on a colour."""
    return "white" if float(colour[:3] @ (0.299, 0.587, 0.114)) < 0.5 else _INK


def _draw_keys(sheet: Axes, buckets: tuple[str, ...], body: float, cell: float) -> None:
    """Bucket keys on both sides; of many buckets, only as many as have room."""
    above = [drawable(ending(key, 5)) for key in buckets]
    every = math.ceil((max(map(len, above)) * _CHARACTER + 0.08) / cell)
    for j in range(0, len(buckets), every):
        _write(sheet, (_LEFT + (j + 0.5) * cell, _TOP - 0.12), above[j], 9)
    every = math.ceil(0.16 / cell)
    for i in range(0, len(buckets), every):
        key = drawable(ending(buckets[i], 8))
        _write(sheet, (_LEFT - 0.08, body + (i + 0.5) * cell), key, 9, ha="right")


def _draw_scale(sheet: Axes, left: float, top: float, height: float) -> None:
    ramp = _colours(np.linspace(1, 0, 256))[:, np.newaxis]
    extent = (left, left + 0.13, top + height, top)
    sheet.imshow(ramp, extent=extent, aspect="auto", interpolation="nearest", origin="upper")
    for share in (0, 25, 50, 75, 100):
        # The ends are moved inwards, to be in line with the ends of the ramp.
        at = min(max(height * (1 - share / 100), 0.06), height - 0.06)
        text = f"{share} %" if share == 100 else str(share)
        _write(sheet, (left + 0.19, top + at), text, 8, colour=_FAINT, ha="left")


def _write(
    sheet: Axes,
    at: tuple[float, float],
    text: str,
    size: float,
    *,
    colour: str = _INK,
    ha: str = "center",
    weight: str = "normal",
    rotation: float = 0,
) -> None:
    """Text as it stands: no formulas, no LaTeX, whatever a user's matplotlibrc says."""
    sheet.text(
        *at,
        text,
        fontfamily=_FONT,
        fontsize=size,
        fontweight=weight,
        color=colour,
        ha=ha,
        va="center_baseline" if rotation == 0 else "center",
        rotation=rotation,
        parse_math=False,
        usetex=False,
    )


def drawable(text: str) -> str:
    """The text with a box for what the font does not have, which matplotlib would warn about."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family=_FONT)))
    return "".join(c if font.get_char_index(ord(c)) else "□" for c in text)
