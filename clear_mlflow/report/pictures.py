"""The pictures of a run for MLflow's panels and for notebooks: its matrix, and its confusion.

Drawn by matplotlib on one bare sheet, in inches from its top left corner. No global state of
matplotlib is touched, and nothing that a user's matplotlibrc sets is followed: any thread may draw,
and the same content gives the same bytes. Pictures of different runs are made to lie side by side:
the same number of buckets gives the same size and the same place for every cell.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.matrix import AccuracyMatrix, whole_grid
from clear_mlflow.core.text import ending, one_line, shortened
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.colours import SCALE, is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
_INK, _FAINT = "#1a1a1a", "#6b6b6b"
_UNMEASURED, _HATCH = "#f0f0f0", "#cfcfcf"
_FONT = "DejaVu Sans"  # comes with matplotlib: the same text everywhere
# Of every text: as it is, without formulas or LaTeX, whatever a user's matplotlibrc sets.
_PLAIN: dict[str, Any] = {"fontfamily": _FONT, "parse_math": False, "usetex": False}

_CELL = 0.5  # of large matrices less, so that the picture stays on a screen
_READABLE = 0.33  # a smaller cell shows its colour only
# Around the cells of an accuracy matrix, and all of them together.
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.0, 0.9, 1.0, 0.25
_SMALLEST, _WIDEST = 1.7, 7.5
_GAP = 0.12  # between the initialisation row and the matrix
_CHARACTER = 0.085  # about the width of one in a bucket key
_TICKS = {0.0: "0", 0.25: "25", 0.5: "50", 0.75: "75", 1.0: "100 %"}
# Of a confusion: a name can be read beside each cell, but for more than a hundred classes.
_LEAST_CELL, _SMALLEST_CONFUSION, _WIDEST_CONFUSION = 0.135, 2.5, 14.0
_TITLE, _MARGIN, _AXIS, _LONGEST_NAME = 0.5, 0.15, 0.3, 1.8
_ROOT_TICKS = {0.0: "0", 0.1: "1", 0.2: "4", 0.5: "25", math.sqrt(0.5): "50", 1.0: "100 %"}


def heatmap_figure(matrix: AccuracyMatrix, title: str, scale: CellScale | None = None) -> Figure:
    """The matrix: trained through from top to bottom, tested on from left to right.

    Cells that were not measured are hatched; the scale is the matrix's own when not given.
    """
    scale = scale or scale_over(matrix.score, [whole_grid(matrix)])
    grid, size = whole_grid(matrix), matrix.num_buckets
    side = min(max(_CELL * size, _SMALLEST), _WIDEST)
    cell = side / size
    initial_height = min(cell, _CELL)
    body = _TOP + initial_height + _GAP
    width, height = _LEFT + side + _RIGHT, body + side + _BOTTOM

    figure, sheet = _blank_sheet(width, height)
    for values, top, cell_height in ((grid[:1], _TOP, initial_height), (grid[1:], body, cell)):
        texts = [[scale.score.cell(value) for value in row] for row in values]
        _draw_grid(
            sheet,
            scale.shade(values),
            (_LEFT, top),
            (cell, cell_height),
            texts,
            min(8.5, 17.5 * cell),
        )
    _outline_diagonal(sheet, scale.shade(np.diag(grid[1:])), body, cell)
    _write_keys(sheet, matrix.buckets, body, cell)
    ticks = _TICKS
    if not matrix.score.is_accuracy:
        # A column of one value has one colour, in the middle.
        shares = (0.0, 0.5, 1.0) if scale.best != scale.worst else (0.5,)
        ticks = {share: scale.text_at(share) for share in shares}
        _write(sheet, (0.15, 0.46), _drawable(matrix.score.label), 8, colour=_FAINT, ha="left")
    _draw_scale(sheet, _LEFT + side + 0.2, body, side, ticks)
    _write(sheet, (_LEFT + side / 2, 0.62), "tested on bucket", 9.5, colour=_FAINT)
    _write(
        sheet, (0.17, body + side / 2), "trained through bucket", 9.5, colour=_FAINT, rotation=90
    )
    _write(sheet, (_LEFT - 0.08, _TOP + initial_height / 2), "initial", 9, ha="right")
    _write_title(sheet, title, width)
    return figure


def heatmap_png(matrix: AccuracyMatrix, title: str, scale: CellScale | None = None) -> bytes:
    """The picture as a PNG file."""
    return png(heatmap_figure(matrix, title, scale))


def heatmap_array(matrix: AccuracyMatrix, title: str) -> NDArray[np.uint8]:
    """The picture as pixels: (height, width, 3), red, green, blue."""
    canvas: Any = heatmap_figure(matrix, title).canvas
    canvas.draw()
    colours: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
    return colours


def confusion_figure(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> Figure:
    """How often each true class, from top to bottom, got each predicted class.

    *counts* are (classes, classes); colours go by the square root, so that rare mistakes are seen.
    """
    size = len(class_names)
    widest = max(7.5, min(_LEAST_CELL * size, _WIDEST_CONFUSION))
    side = min(max(_CELL * size, _SMALLEST_CONFUSION), widest)
    cell = side / size
    # Names are written side by side in cells that are narrower than a line is high.
    points = min(9.0, 72 * 0.8 * max(cell, _LEAST_CELL))
    every = math.ceil(points / 72 / 0.8 / cell - 1e-9)
    names = [_fitting(name, points) for name in class_names]
    room = 0.16 + max(_text_width(name, points) for name in names)
    left, top = _MARGIN + _AXIS + room, _TITLE + _AXIS + room
    width, height = left + side + _RIGHT, top + side + _BOTTOM
    figure, sheet = _blank_sheet(width, height)

    totals = counts.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
    texts = [
        ["" if not s > 0 else "<1" if s < 0.005 else f"{100 * s:.0f}" for s in row]
        for row in shares
    ]
    line = 0.8 if cell >= _READABLE else 0.2  # which hides none of a small cell
    _draw_grid(sheet, np.sqrt(shares), (left, top), (cell, cell), texts, 8.5, line=line)
    for i in range(0, size, every):
        middle = (i + 0.5) * cell
        _write(sheet, (left - 0.08, top + middle), names[i], points, ha="right")
        _write(sheet, (left + middle, top - 0.08), names[i], points, va="bottom", rotation=90)
    _draw_scale(sheet, left + side + 0.2, top, side, _ROOT_TICKS)
    across = (left + side / 2, _TITLE + _AXIS / 2)
    _write(sheet, across, "predicted as, in % of the true class's images", 9.5, colour=_FAINT)
    _write(sheet, (_MARGIN, top + side / 2), "true class", 9.5, colour=_FAINT, rotation=90)
    _write_title(sheet, title, width)
    return figure


def confusion_png(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> bytes:
    """The picture as a PNG file."""
    return png(confusion_figure(counts, class_names, title))


def png(figure: Figure) -> bytes:
    """A picture as a PNG file."""
    content = io.BytesIO()
    # Asked of the canvas, not of savefig, which would follow a user's matplotlibrc. The name of the
    # drawing software is left out: its version would change the bytes.
    canvas: Any = figure.canvas
    canvas.print_png(content, metadata={"Software": None})
    return content.getvalue()


def png_array(content: bytes) -> NDArray[np.uint8]:
    """The pixels of a PNG file, (height, width, 3): a hundredth of the time of drawing it again."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def load_drawing() -> None:
    """Load what drawing needs: modules, the font, the formats of pictures.

    A process that draws later does not depend on what becomes of installed packages meanwhile.
    """
    from PIL import Image

    png_array(heatmap_png(AccuracyMatrix([[0.5]]), "0"))
    Image.init()  # MLflow keeps pictures as WebP


def _blank_sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """A white figure, in inches, with a canvas of its own, and the sheet that fills it."""
    # Imported late: matplotlib takes longer to load than a whole run takes to score.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    # Instead of an Axes per part: ticks and spines take half the time.
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.set_axis_off()
    sheet.set_xlim(0, width)
    sheet.set_ylim(height, 0)
    return figure, sheet


def _draw_grid(
    sheet: Axes,
    shades: NDArray[np.float64],
    corner: tuple[float, float],
    cell: tuple[float, float],
    texts: Sequence[Sequence[str]],
    points: float,
    *,
    line: float = 0.8,
) -> None:
    """A coloured cell for each value, with its text where there is room, white lines between.

    *shades* are (rows, columns), from 0 to 1; NaN: none, hatched.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    (rows, columns), (left, top), (width, height) = shades.shape, corner, cell
    right, bottom = left + columns * width, top + rows * height
    unmeasured = np.isnan(shades)
    colours = SCALE.at(np.nan_to_num(shades))
    if unmeasured.any():
        # One hatched ground, seen through the cells that have no value.
        colours[unmeasured, 3] = 0
        ground = Rectangle((left, top), right - left, bottom - top, facecolor=_UNMEASURED)
        ground.set(edgecolor=_HATCH, hatch="////", linewidth=0, zorder=-1)
        sheet.add_patch(ground)
    _show(sheet, colours, (left, right, bottom, top))
    across = [[(left, y), (right, y)] for y in top + height * np.arange(1, rows)]
    down = [[(x, top), (x, bottom)] for x in left + width * np.arange(1, columns)]
    sheet.add_collection(
        LineCollection([*across, *down], colors="white", linewidths=line), autolim=False
    )
    if width < _READABLE:
        return
    for i, j in np.argwhere(~unmeasured):
        if texts[i][j]:
            middle = (left + (j + 0.5) * width, top + (i + 0.5) * height)
            _write(sheet, middle, texts[i][j], points, colour=_ink_on(colours[i, j]))


def _draw_scale(
    sheet: Axes, left: float, top: float, height: float, ticks: Mapping[float, str]
) -> None:
    """The ramp of colours beside a grid; ticks are values from 0 to 1 and the texts beside them."""
    ramp = SCALE.at(np.linspace(1, 0, 256))[:, np.newaxis]
    _show(sheet, ramp, (left, left + 0.13, top + height, top))
    for value, text in ticks.items():
        # The ends are moved inwards, to be in line with the ends of the ramp.
        at = min(max(height * (1 - value), 0.06), height - 0.06)
        _write(sheet, (left + 0.19, top + at), text, 8, colour=_FAINT, ha="left")


def _show(
    sheet: Axes, colours: NDArray[np.float64], extent: tuple[float, float, float, float]
) -> None:
    """Coloured rectangles; the extent is left, right, bottom, top."""
    sheet.imshow(colours, extent=extent, aspect="auto", interpolation="nearest", origin="upper")


def _outline_diagonal(sheet: Axes, shades: NDArray[np.float64], top: float, cell: float) -> None:
    from matplotlib.patches import Rectangle

    for i, shade in enumerate(shades):
        # Just inside its cell, so that neighbours do not cover each other's outline.
        corner = _LEFT + (i + 0.03) * cell, top + (i + 0.03) * cell
        outline = Rectangle(corner, 0.94 * cell, 0.94 * cell, fill=False, linewidth=1.5, zorder=2.5)
        outline.set_edgecolor(_HATCH if np.isnan(shade) else _ink_on(SCALE.at(shade)))
        sheet.add_patch(outline)


def _write_keys(sheet: Axes, buckets: tuple[str, ...], body: float, cell: float) -> None:
    """Bucket keys on both sides; of many buckets, only as many as have room."""
    above = [_drawable(ending(key, 5)) for key in buckets]
    every = math.ceil((max(map(len, above)) * _CHARACTER + 0.08) / cell)
    for j in range(0, len(buckets), every):
        _write(sheet, (_LEFT + (j + 0.5) * cell, _TOP - 0.12), above[j], 9)
    every = math.ceil(0.16 / cell)
    for i in range(0, len(buckets), every):
        key = _drawable(ending(buckets[i], 8))
        _write(sheet, (_LEFT - 0.08, body + (i + 0.5) * cell), key, 9, ha="right")


def _write_title(sheet: Axes, title: str, width: float) -> None:
    line = shortened(title, int((width - 0.3) / 0.11))
    _write(sheet, (0.15, 0.27), _drawable(line), 11, ha="left", weight="bold")


def _write(
    sheet: Axes,
    at: tuple[float, float],
    text: str,
    size: float,
    *,
    colour: str = _INK,
    ha: str = "center",
    va: str = "",
    weight: str = "normal",
    rotation: float = 0,
) -> None:
    """Write a text; *at*: its anchor, inches from the left and from the top; *size*: points."""
    sheet.text(
        *at,
        text,
        fontsize=size,
        fontweight=weight,
        color=colour,
        ha=ha,
        va=va or ("center_baseline" if rotation == 0 else "center"),
        rotation=rotation,
        **_PLAIN,
    )


def _ink_on(colour: NDArray[np.float64]) -> str:
    """What can be read on a colour."""
    return "white" if is_dark(colour) else _INK


def _fitting(name: str, points: float) -> str:
    """A class's name, cut where it is longer than there is room for: names begin and end alike."""
    for longest in range(48, 8, -4):
        text = _drawable(one_line(name, longest))
        if _text_width(text, points) <= _LONGEST_NAME:
            return text
    return text


def _drawable(text: str) -> str:
    """The text with a box for what the font does not have, which matplotlib would warn about."""
    font = _font()
    return "".join(c if font.get_char_index(ord(c)) else "□" for c in text)


def _text_width(text: str, size: float) -> float:
    """How wide a text of that many points is drawn, in inches."""
    font = _font()
    font.set_size(size, 72)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / 72


def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family=_FONT)))
