"""What a report's pictures are drawn on: one bare sheet, in inches from its top left corner.

No global state of matplotlib is touched, and nothing that a user's matplotlibrc says is followed:
any thread may draw, and the same content gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.report.colours import SCALE, is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
INK, FAINT = "#1a1a1a", "#6b6b6b"
UNMEASURED, HATCH = "#f0f0f0", "#cfcfcf"
_FONT = "DejaVu Sans"  # comes with matplotlib: the same text everywhere
# Of every text: as it is, without formulas or LaTeX, whatever a user's matplotlibrc says.
PLAIN: dict[str, Any] = {"fontfamily": _FONT, "parse_math": False, "usetex": False}


def blank_figure(width: float, height: float) -> Figure:
    """A white figure, in inches, with a canvas of its own and no layout."""
    # Imported late: matplotlib takes longer to load than a whole run takes to score.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    return figure


def load_drawing() -> None:
    """Load what drawing needs: modules, the font, the formats of pictures.

    A process that draws later does not depend on what becomes of installed packages meanwhile.
    """
    from PIL import Image

    figure, sheet = blank_sheet(1, 1)
    draw_grid(sheet, np.array([[0.5, np.nan]]), (0, 0), (0.5, 1))
    sheet.text(0, 0, drawable("0"), **PLAIN)
    png_array(png(figure))
    Image.init()  # MLflow keeps pictures as WebP


def blank_sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure, in inches, with a canvas of its own, and the sheet that fills it."""
    figure = blank_figure(width, height)
    # Instead of an Axes per part: ticks and spines take half the time.
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.set_axis_off()
    sheet.set_xlim(0, width)
    sheet.set_ylim(height, 0)
    return figure, sheet


def png(figure: Figure) -> bytes:
    """The picture as a PNG file."""
    content = io.BytesIO()
    # Asked of the canvas, not of savefig, which would follow a user's matplotlibrc. The name of the
    # drawing software is left out: its version would change the bytes.
    canvas: Any = figure.canvas
    canvas.print_png(content, metadata={"Software": None})
    return content.getvalue()


def png_array(content: bytes) -> NDArray[np.uint8]:
    """The pixels of a PNG file: (height, width, 3), red, green, blue.

    Reading the file takes a hundredth of the time that drawing it again would.
    """
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def ink_on(colour: NDArray[np.float64]) -> str:
    """What can be read on a colour."""
    return "white" if is_dark(colour) else INK


def draw_grid(
    sheet: Axes,
    values: NDArray[np.float64],
    corner: tuple[float, float],
    cell: tuple[float, float],
    *,
    line: float = 0.8,
) -> NDArray[np.float64]:
    """A coloured cell for each value, hatched where there is none, with white lines between.

    Args:
        sheet: to draw on.
        values: (rows, columns); fractions, on the scale from 0 to 1; NaN: none.
        corner: the top left one, inches.
        cell: width and height of one, inches.
        line: how thick the white lines are, points.

    Returns:
        (rows, columns, 4): red, green, blue and opacity of each cell.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    rows, columns = values.shape
    (left, top), (width, height) = corner, cell
    right, bottom = left + columns * width, top + rows * height
    unmeasured = np.isnan(values)
    colours = SCALE.at(np.nan_to_num(values))
    if unmeasured.any():
        # One hatched ground, seen through the cells that have no value.
        colours[unmeasured, 3] = 0
        ground = Rectangle((left, top), right - left, bottom - top, facecolor=UNMEASURED)
        ground.set(edgecolor=HATCH, hatch="////", linewidth=0, zorder=-1)
        sheet.add_patch(ground)
    sheet.imshow(
        colours,
        extent=(left, right, bottom, top),
        aspect="auto",
        interpolation="nearest",
        origin="upper",
    )
    across = [[(left, y), (right, y)] for y in top + height * np.arange(1, rows)]
    down = [[(x, top), (x, bottom)] for x in left + width * np.arange(1, columns)]
    sheet.add_collection(
        LineCollection([*across, *down], colors="white", linewidths=line), autolim=False
    )
    return colours


def draw_scale(
    sheet: Axes, left: float, top: float, height: float, ticks: Mapping[float, str]
) -> None:
    """The ramp of colours beside a grid.

    Args:
        sheet: to draw on.
        left: where it begins, inches.
        top: likewise.
        height: of the ramp, inches.
        ticks: values on the scale from 0 to 1, and the texts beside them.
    """
    ramp = SCALE.at(np.linspace(1, 0, 256))[:, np.newaxis]
    extent = (left, left + 0.13, top + height, top)
    sheet.imshow(ramp, extent=extent, aspect="auto", interpolation="nearest", origin="upper")
    for value, text in ticks.items():
        # The ends are moved inwards, to be in line with the ends of the ramp.
        at = min(max(height * (1 - value), 0.06), height - 0.06)
        write(sheet, (left + 0.19, top + at), text, 8, colour=FAINT, ha="left")


def write(
    sheet: Axes,
    at: tuple[float, float],
    text: str,
    size: float,
    *,
    colour: str = INK,
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
        **PLAIN,
    )


def drawable(text: str) -> str:
    """The text with a box for what the font does not have, which matplotlib would warn about."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family=_FONT)))
    return "".join(c if font.get_char_index(ord(c)) else "□" for c in text)


def text_width(text: str, size: float) -> float:
    """How wide a text of that many points is drawn, in inches."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family=_FONT)))
    font.set_size(size, 72)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / 72
