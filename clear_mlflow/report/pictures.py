"""The picture of a run's matrix, for MLflow's panels and for notebooks.

Drawn by matplotlib on one bare sheet, in inches from its top left corner. No global state of
matplotlib is touched, but by `pdf`, and nothing that a user's matplotlibrc sets is followed: any
thread may draw, and the same content gives the same bytes. Pictures of different runs are made to
lie side by side: the same buckets give the same size and the same place for every cell.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix, whole_grid
from clear_mlflow.core.text import ending, safe_repr, truncate
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.colours import SCALE, is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
_INK, _FAINT = "#1a1a1a", "#6b6b6b"
_UNMEASURED, _HATCH = "#f0f0f0", "#cfcfcf"
FONT = "DejaVu Sans"  # comes with matplotlib: the same text everywhere

_CELL = 0.5  # of large matrices less, so that the picture stays on a screen
_READABLE = 0.33  # a smaller cell shows its colour only
_TINY = 0.07  # a smaller one has no line around it
_SMALLEST, _WIDEST = 1.7, 7.5
_NARROWEST = 2.7  # a whole figure, with its keys and the scale of colours
_GAP = 0.12  # between the initialisation row and the matrix
_BOTTOM = 0.25  # below the cells
_LONGEST_KEY = 20  # characters
_TICKS = {0.0: "0", 0.25: "25", 0.5: "50", 0.75: "75", 1.0: "100 %"}


def heatmap_figure(
    matrix: AccuracyMatrix,
    title: str | None,
    scale: CellScale | None = None,
    *,
    width: float | None = None,
) -> Figure:
    """The matrix, trained through downwards, tested on rightwards; hatched: not measured."""
    scale = scale or scale_over(matrix.score, [whole_grid(matrix)])
    grid, size = whole_grid(matrix), matrix.num_buckets
    ticks = _TICKS
    if not matrix.score.is_accuracy:
        # A column of one value has one colour, in the middle.
        shares = (0.0, 0.5, 1.0) if scale.best != scale.worst else (0.5,)
        ticks = {share: scale.text_at(share) for share in shares}
    if width is not None:
        check_width(width, _NARROWEST)
    keys = fitted(matrix.buckets, 9, math.inf if width is None else width / 4, _LONGEST_KEY)
    longest = max(text_width(key, 9) for key in keys)
    left = 0.4 + max(longest, text_width("initial", 9))
    right = 0.47 + max(text_width(text, 8) for text in ticks.values())
    side = min(max(_CELL * size, _SMALLEST), _WIDEST) if width is None else width - left - right
    width = left + side + right
    cell = side / size
    # Of many buckets, only as many keys as have room; above the columns upright if that shows more,
    # but for numbers, of which a reader misses none.
    step, across = math.ceil(0.16 / cell), math.ceil((longest + 0.06) / cell)
    is_upright = across > step and longest > 0.3
    head = 0.0 if title is None else 0.3
    top = head + 0.56 + (longest if is_upright else 0.14)
    initial_height = min(cell, _CELL)
    body = top + initial_height + _GAP
    figure, sheet = _blank_sheet(width, body + side + _BOTTOM)

    _draw_grid(sheet, grid[:1], scale, (left, top), (cell, initial_height))
    _draw_grid(sheet, grid[1:], scale, (left, body), (cell, cell))
    _outline_diagonal(sheet, scale.shade(np.diag(grid[1:])), (left, body), cell)
    above: dict[str, Any] = {"va": "bottom", "rotation": 90 if is_upright else 0}
    for j in range(0, size, step if is_upright else across):
        _write(sheet, left + (j + 0.5) * cell, top - 0.05, keys[j], 9, **above)
    for i in range(0, size, step):
        _write(sheet, left - 0.08, body + (i + 0.5) * cell, keys[i], 9, ha="right")
    _write(sheet, left - 0.08, top + initial_height / 2, "initial", 9, ha="right")

    if not matrix.score.is_accuracy:
        _write(sheet, 0.15, head + 0.16, matrix.score.label, 8, color=_FAINT, ha="left")
    ramp = left + side + 0.2
    colours = SCALE.at(np.linspace(1, 0, 256))[:, np.newaxis]
    extent = (ramp, ramp + 0.13, body + side, body)
    sheet.imshow(colours, extent=extent, aspect="auto", interpolation="nearest", origin="upper")
    for value, text in ticks.items():
        # The ends are moved inwards, to be in line with the ends of the ramp.
        at = min(max(side * (1 - value), 0.06), side - 0.06)
        _write(sheet, ramp + 0.19, body + at, text, 8, color=_FAINT, ha="left")

    _write(sheet, left + side / 2, head + 0.32, "tested on bucket", 9.5, color=_FAINT)
    through = {"color": _FAINT, "rotation": 90, "va": "center"}
    middle = min((top + body + side) / 2, body + side + _BOTTOM - 0.85)
    _write(sheet, 0.17, middle, "trained through bucket", 9.5, **through)
    if title is not None:
        text = truncate(title, int((width - 0.3) / 0.11))
        _write(sheet, 0.15, 0.27, text, 11, ha="left", fontweight="bold")
    return figure


def heatmap_png(matrix: AccuracyMatrix, title: str, scale: CellScale | None = None) -> bytes:
    """The picture as a PNG file."""
    return png(heatmap_figure(matrix, title, scale))


def png(figure: Figure) -> bytes:
    """A picture as a PNG file."""
    content = io.BytesIO()
    # Asked of the canvas, not of savefig, which would follow a user's matplotlibrc. The name of the
    # drawing software is left out: its version would change the bytes.
    canvas: Any = figure.canvas
    canvas.print_png(content, metadata={"Software": None})
    return content.getvalue()


def png_array(content: bytes) -> NDArray[np.uint8]:
    """The pixels of a PNG file, (height, width, 3)."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def load_drawing() -> None:
    """Load all that drawing needs, before installed packages may change."""
    from PIL import Image

    png_array(heatmap_png(AccuracyMatrix([[0.5]]), "0"))
    Image.init()  # MLflow keeps pictures as WebP


def pdf(figures: Iterable[Figure]) -> bytes:
    """Pictures as pages of a PDF file, each made at its turn, under matplotlib's own settings."""
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.backends.backend_pdf import FigureCanvasPdf, PdfPages

    content = io.BytesIO()
    undated = {"Creator": None, "Producer": None, "CreationDate": None}
    with rc_context():
        rcdefaults()
        rcParams["pdf.fonttype"] = 42
        # One file, because a font takes longer to embed than a figure to draw.
        with PdfPages(content, metadata=undated) as pages:
            for figure in figures:
                canvas: Any = FigureCanvasPdf(figure)
                canvas.print_pdf(pages)
    return content.getvalue()


def check_width(width: float, smallest: float) -> None:
    """ConfigError for a width that the figure cannot have."""
    if not smallest <= width < math.inf:
        raise ConfigError(
            f"width is {safe_repr(width)}; expected at least {smallest} inches, for example 3.3"
        )


def blank_figure(width: float, height: float) -> Figure:
    """A white figure, in inches, that a notebook shows; saved texts are texts, in Type 42 fonts."""
    # Imported late: matplotlib takes longer to load than a whole run takes to score.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class PaperFigure(Figure):
        def savefig(self, fname: Any, **how: Any) -> None:
            with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}):
                super().savefig(fname, **how)

        def _repr_png_(self) -> bytes:  # without pyplot, which would touch a user's own pictures
            return png(self)

    figure = PaperFigure(figsize=(width, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _blank_sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure, in inches, and the sheet that fills it."""
    figure = blank_figure(width, height)
    figure.set_layout_engine("none")
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.set_axis_off()
    sheet.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    return figure, sheet


def _draw_grid(
    sheet: Axes,
    values: NDArray[np.float64],
    scale: CellScale,
    corner: tuple[float, float],
    cell: tuple[float, float],
) -> None:
    """A coloured cell for each value, white lines between, with its text where there is room."""
    from matplotlib.patches import Rectangle

    (rows, columns), (left, top), (width, height) = values.shape, corner, cell
    # One hatched ground, seen through the cells that have no value.
    ground = Rectangle(corner, columns * width, rows * height, facecolor=_UNMEASURED)
    sheet.add_patch(ground).set(edgecolor=_HATCH, hatch="////", linewidth=0, zorder=-1)
    shades = scale.shade(values)
    colours = SCALE.at(np.nan_to_num(shades))
    colours[np.isnan(shades), 3] = 0
    edges = left + width * np.arange(columns + 1), top + height * np.arange(rows + 1)
    # Without lines, cells are drawn to their own edges: some viewers show a gap between them.
    line = _between(width)
    sheet.pcolormesh(*edges, colours, edgecolors="white" if line else "face", linewidth=line or 0.1)
    for i, j in np.argwhere(~np.isnan(shades)) if width >= _READABLE else ():
        x, y = left + (j + 0.5) * width, top + (i + 0.5) * height
        text, ink = scale.score.cell(values[i, j]), _ink_on(colours[i, j])
        _write(sheet, x, y, text, min(8.5, 17.5 * width), color=ink)


def _between(cell: float) -> float:
    """The white line between cells, in points; none between the smallest."""
    return 0.0 if cell < _TINY else min(0.8, 3.6 * cell)


def _outline_diagonal(
    sheet: Axes, shades: NDArray[np.float64], corner: tuple[float, float], cell: float
) -> None:
    from matplotlib.patches import Rectangle

    if cell < _TINY:
        return
    thick = min(1.5, 6 * cell)
    # Within its cell, whose colour is seen on both sides: a white one is no gap between cells.
    inset = (_between(cell) / 2 + 1.5 * thick) / 72
    for i, shade in enumerate(shades):
        place = corner[0] + i * cell + inset, corner[1] + i * cell + inset
        inside = cell - 2 * inset
        outline = Rectangle(place, inside, inside, fill=False, linewidth=thick, zorder=2.5)
        outline.set_edgecolor(_HATCH if np.isnan(shade) else _ink_on(SCALE.at(shade)))
        sheet.add_patch(outline)


def _write(sheet: Axes, x: float, y: float, text: str, size: float, **how: Any) -> None:
    """Write a text of a size in points, as it is: without formulas, LaTeX or warnings."""
    how = {"color": _INK, "ha": "center", "va": "center_baseline", "fontweight": "normal", **how}
    how |= {"fontfamily": FONT, "parse_math": False, "usetex": False}
    sheet.text(x, y, plain_text(text), fontsize=size, **how)


def fitted(texts: Sequence[str], size: float, room: float, most: int) -> list[str]:
    """Texts that fit *room* inches, at a size in points; what distinguishes them least is cut.

    >>> fitted(["old", "camera 1 of the north", "camera 2 of the north"], 9, room=2, most=12)
    ['old', 'camera 1 of…', 'camera 2 of…']
    >>> fitted(["the north's camera 1", "the north's camera 2"], 9, room=2, most=12)
    ["…'s camera 1", "…'s camera 2"]
    """
    columns = enumerate(zip(*texts, strict=False))
    shared = next((i for i, letters in columns if len({*letters}) > 1), 0)
    middles = [ending(text, len(text) - shared + 1) for text in texts]
    found: list[str] = []
    for limit in range(most, 4, -1):
        ways = (
            [truncate(text, limit) for text in texts],
            [ending(text, limit) for text in texts],
            [truncate(text, limit) for text in middles],
        )
        found = [plain_text(text) for text in max(ways, key=lambda way: len({*way}))]
        if max(text_width(text, size) for text in found) <= room:
            break
    return found


def text_width(text: str, size: float) -> float:
    """In inches, of a text of a size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, style="normal", weight="normal", size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72


def plain_text(text: str) -> str:
    """A text with a box for what the font does not have, which matplotlib would warn about."""
    return "".join(c if ord(c) in _characters() else "□" for c in text)


@lru_cache(maxsize=1)
def _characters() -> frozenset[int]:
    """What the font has."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def _ink_on(colour: NDArray[np.float64]) -> str:
    """What can be read on a colour."""
    return "white" if is_dark(colour) else _INK
