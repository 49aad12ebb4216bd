"""The picture of a run's matrix, for MLflow's panels, notebooks and papers.

It is drawn with matplotlib on one axes that fills the figure, in inches from its top left corner.
No global state of matplotlib is changed, and no matplotlibrc is followed, so any thread may draw,
and the same content always has the same bytes. Pictures of runs with the same buckets have the same
size, with every cell in the same position.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix, stack_all_rows
from clear_mlflow.core.text import printable, safe_repr, truncate, truncate_apart
from clear_mlflow.report.colours import CellScale, build_cell_scale, get_colours, is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
_INK, _FAINT = "#1a1a1a", "#6b6b6b"
_UNMEASURED, _HATCH = "#f0f0f0", "#cfcfcf"
FONT = "DejaVu Sans"  # comes with matplotlib: the same text everywhere

# Sizes in inches.
_CELL = 0.5  # smaller in large matrices, so that the picture fits on a screen
_MIN_CELL_WITH_TEXT = 0.33
_MIN_CELL_WITH_LINES = 0.07
_MIN_SIDE, _MAX_SIDE = 1.7, 7.5  # of the matrix
_MIN_WIDTH = 2.7  # of a figure, with labels and colour scale
_GAP = 0.12  # between the initialisation row and the matrix
_BOTTOM = 0.25  # below the cells
_MAX_KEY = 20  # characters
_ACCURACY_TICKS = {0.0: "0", 0.25: "25", 0.5: "50", 0.75: "75", 1.0: "100 %"}


def draw_heatmap(
    matrix: AccuracyMatrix,
    title: str | None,
    scale: CellScale | None = None,
    *,
    width: float | None = None,
) -> Figure:
    """Draw a matrix: a row per bucket, hatched where not measured.

    Cells that were not measured are hatched. title: None for no title. scale: colours, or None for
    the scale of this matrix. width: in inches, or None for cells of 0.5 inches, which are smaller
    in a large matrix. Raises ConfigError if the width is below 2.7.
    """
    grid, size = stack_all_rows(matrix), matrix.num_buckets
    scale = scale or build_cell_scale(matrix.score, [grid])
    ticks = _ACCURACY_TICKS
    if not matrix.score.is_accuracy:
        # If all values are equal, they have the colour in the middle.
        shades = (0.0, 0.5, 1.0) if scale.best != scale.worst else (0.5,)
        ticks = {shade: scale.format_shade(shade) for shade in shades}
    if width is not None:
        check_width(width, _MIN_WIDTH)
    keys = fit_labels(matrix.buckets, 9, math.inf if width is None else width / 4, _MAX_KEY)
    key_width = max(measure_width(key, 9) for key in keys)
    x0 = 0.4 + max(key_width, measure_width("initial", 9))
    right = 0.47 + max(measure_width(label, 8) for label in ticks.values())
    side = min(max(_CELL * size, _MIN_SIDE), _MAX_SIDE) if width is None else width - x0 - right
    width = x0 + side + right
    cell = side / size
    # Only as many keys as have room. Those of columns are vertical if that shows more of them, but
    # not if they are short numbers, which a reader can interpolate.
    row_step, column_step = math.ceil(0.16 / cell), math.ceil((key_width + 0.06) / cell)
    is_vertical = column_step > row_step and key_width > 0.3
    head = 0.0 if title is None else 0.3
    top = head + 0.56 + (key_width if is_vertical else 0.14)
    initial_height = min(cell, _CELL)
    body = top + initial_height + _GAP
    figure, axes = _create_sheet(width, body + side + _BOTTOM)

    _draw_cells(axes, grid[:1], scale, (x0, top), (cell, initial_height))
    _draw_cells(axes, grid[1:], scale, (x0, body), (cell, cell))
    _outline_diagonal(axes, scale.shade(np.diag(grid[1:])), (x0, body), cell)
    style: dict[str, Any] = {"va": "bottom", "rotation": 90 if is_vertical else 0}
    for j in range(0, size, row_step if is_vertical else column_step):
        _write(axes, x0 + (j + 0.5) * cell, top - 0.05, keys[j], 9, **style)
    for i in range(0, size, row_step):
        _write(axes, x0 - 0.08, body + (i + 0.5) * cell, keys[i], 9, ha="right")
    _write(axes, x0 - 0.08, top + initial_height / 2, "initial", 9, ha="right")

    if not matrix.score.is_accuracy:
        _write(axes, 0.15, head + 0.16, matrix.score.label, 8, color=_FAINT, ha="left")
    ramp = x0 + side + 0.2
    colours = get_colours(np.linspace(1, 0, 256))[:, np.newaxis]
    extent = (ramp, ramp + 0.13, body + side, body)
    axes.imshow(colours, extent=extent, aspect="auto", interpolation="nearest", origin="upper")
    for shade, label in ticks.items():
        # The first and the last label are moved inwards, in line with the ends of the scale.
        y = body + min(max(side * (1 - shade), 0.06), side - 0.06)
        _write(axes, ramp + 0.19, y, label, 8, color=_FAINT, ha="left")

    _write(axes, x0 + side / 2, head + 0.32, "tested on bucket", 9.5, color=_FAINT)
    middle = min((top + body + side) / 2, body + side + _BOTTOM - 0.85)
    style = {"color": _FAINT, "rotation": 90, "va": "center"}
    _write(axes, 0.17, middle, "trained through bucket", 9.5, **style)
    if title is not None:
        title = truncate(title, int((width - 0.3) / 0.11))
        _write(axes, 0.15, 0.27, title, 11, ha="left", fontweight="bold")
    return figure


def draw_heatmap_png(matrix: AccuracyMatrix, title: str) -> bytes:
    """Return the picture of a matrix as a PNG file."""
    return encode_png(draw_heatmap(matrix, title))


def encode_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    content = io.BytesIO()
    # Not by savefig, which would follow a user's matplotlibrc, and without the name of the drawing
    # software, whose version would change the bytes.
    canvas: Any = figure.canvas
    canvas.print_png(content, metadata={"Software": None})
    return content.getvalue()


def decode_png(content: bytes) -> NDArray[np.uint8]:
    """Return the pixels of a PNG file, (height, width, 3)."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def load_drawing() -> None:
    """Draw a small picture, so that no module must be loaded later."""
    from PIL import Image

    decode_png(draw_heatmap_png(AccuracyMatrix([[0.5]]), "0"))
    Image.init()  # MLflow stores pictures as WebP


def check_width(width: float, minimum: float) -> None:
    """Raise ConfigError if a width, in inches, is too small or infinite."""
    if not minimum <= width < math.inf:
        raise ConfigError(
            f"width is {safe_repr(width)}; expected at least {minimum} inches, for example 3.3"
        )


def create_figure(width: float, height: float) -> Figure:
    """Return a white figure, in inches, whose saved text stays text."""
    # Imported late: matplotlib takes longer to load than a run takes to score.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class PaperFigure(Figure):
        def savefig(self, fname: Any, **options: Any) -> None:
            with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}):
                super().savefig(fname, **options)

        def _repr_png_(self) -> bytes:  # without pyplot, which would change a user's figures
            return encode_png(self)

    figure = PaperFigure(figsize=(width, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _create_sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """Create a figure without ticks, in inches from the top left."""
    figure = create_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    return figure, axes


def _draw_cells(
    axes: Axes,
    values: NDArray[np.float64],
    scale: CellScale,
    corner: tuple[float, float],
    cell: tuple[float, float],
) -> None:
    """Draw coloured cells with numbers, in inches, hatched if NaN."""
    from matplotlib.patches import Rectangle

    (rows, columns), (x0, top), (width, height) = values.shape, corner, cell
    # A hatched background is visible where a value is missing.
    background = Rectangle(corner, columns * width, rows * height, facecolor=_UNMEASURED)
    axes.add_patch(background).set(edgecolor=_HATCH, hatch="////", linewidth=0, zorder=-1)
    shades = scale.shade(values)
    colours = get_colours(np.nan_to_num(shades))
    colours[np.isnan(shades), 3] = 0
    edges = x0 + width * np.arange(columns + 1), top + height * np.arange(rows + 1)
    # Without lines, cells get edges in their colour, because some viewers show gaps otherwise.
    line = _get_line_width(width)
    axes.pcolormesh(*edges, colours, edgecolors="white" if line else "face", linewidth=line or 0.1)
    if width >= _MIN_CELL_WITH_TEXT:
        for i, j in np.argwhere(~np.isnan(shades)):
            x, y = x0 + (j + 0.5) * width, top + (i + 0.5) * height
            text, ink = scale.score.format_cell(values[i, j]), _choose_ink(colours[i, j])
            _write(axes, x, y, text, min(8.5, 17.5 * width), color=ink)


def _get_line_width(cell: float) -> float:
    """Return the points of lines between cells. cell: inches."""
    return 0.0 if cell < _MIN_CELL_WITH_LINES else min(0.8, 3.6 * cell)


def _outline_diagonal(
    axes: Axes, shades: NDArray[np.float64], corner: tuple[float, float], cell: float
) -> None:
    """Outline the diagonal in black or white. corner, cell: inches."""
    from matplotlib.patches import Rectangle

    if cell < _MIN_CELL_WITH_LINES:
        return
    width = min(1.5, 6 * cell)
    # Within the cell, so that a white outline does not look like a gap between cells.
    inset = (_get_line_width(cell) / 2 + 1.5 * width) / 72
    side = cell - 2 * inset
    for i, shade in enumerate(shades):
        position = corner[0] + i * cell + inset, corner[1] + i * cell + inset
        outline = Rectangle(position, side, side, fill=False, linewidth=width, zorder=2.5)
        outline.set_edgecolor(_HATCH if np.isnan(shade) else _choose_ink(get_colours(shade)))
        axes.add_patch(outline)


def _write(axes: Axes, x: float, y: float, text: str, size: float, **style: Any) -> None:
    """Write a text without formulas or LaTeX. size: points. style: matplotlib's options."""
    style = {
        "color": _INK,
        "ha": "center",
        "va": "center_baseline",
        "fontweight": "normal",
        **style,
    }
    style |= {"fontfamily": FONT, "parse_math": False, "usetex": False}
    axes.text(x, y, replace_missing_glyphs(text), fontsize=size, **style)


def fit_labels(texts: Sequence[str], size: float, width: float, limit: int) -> list[str]:
    """Shorten texts to *width* inches, and keep them distinct.

    No text has more than *limit* characters.

    Returns the shortest form if none fits. size: of the font, in points.
    """
    printed = [replace_missing_glyphs(printable(text)) for text in texts]
    labels: list[str] = []
    for length in range(limit, 4, -1):
        labels = truncate_apart(printed, length)
        if max(measure_width(label, size) for label in labels) <= width:
            break
    return labels


def measure_width(text: str, size: float) -> float:
    """Return a text's width in inches. size: points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, style="normal", weight="normal", size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72


def replace_missing_glyphs(text: str) -> str:
    """Replace characters that the font lacks by a box."""
    return "".join(c if ord(c) in _list_characters() else "□" for c in text)


@lru_cache(maxsize=1)
def _list_characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def _choose_ink(colour: NDArray[np.float64]) -> str:
    return "white" if is_dark(colour) else _INK
