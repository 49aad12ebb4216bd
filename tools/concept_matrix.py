"""Draws the matrix of docs/concepts.md: ``python tools/generate.py`` writes the picture.

Drawn twice, side by side: which cells CLEAR's metrics average, and which ones Renate's compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from clear_mlflow import AccuracyMatrix

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "matrix-4x4.svg"

# Made up, so that each metric can be followed with a pencil.
MATRIX = AccuracyMatrix(
    [
        [0.90, 0.80, 0.70, 0.60],
        [0.85, 0.92, 0.80, 0.70],
        [0.75, 0.85, 0.94, 0.80],
        [0.60, 0.75, 0.85, 0.96],
    ],
    initial=[0.25, 0.25, 0.25, 0.25],
)

CELL, TOP, LEFT, SECOND = 58, 96, 92, 452
WIDTH, HEIGHT = 740, 442

# The picture brings its own ground, so that it can be read on any page.
_STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 15px; } .small { font-size: 12.5px; fill: #57606a; }
  .mid { text-anchor: middle; } .end { text-anchor: end; }
  .ground { fill: #ffffff; stroke: #d0d7de; }
  .plain { fill: #f3f4f6; } .past { fill: #cfe3fb; } .diagonal { fill: #ffd98a; }
  .next { fill: #b5e3c2; } .future { fill: #e0f4e5; } .last { fill: #e3d3f9; }
  .ring { fill: none; stroke: #8250df; stroke-width: 2.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9da7b1; }
    .ground { fill: #161b22; stroke: #30363d; }
    .plain { fill: #262c34; } .past { fill: #1f4470; } .diagonal { fill: #7a5600; }
    .next { fill: #1c6236; } .future { fill: #1d3b28; } .last { fill: #4b3179; }
    .ring { stroke: #b78cf7; }
  }
"""


def picture() -> str:
    """The whole SVG."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img">',
            "<title>A 4 x 4 accuracy matrix: the cells of CLEAR's and of Renate's metrics</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
            *_matrix(LEFT, "CLEAR averages regions", _of_clear),
            *_matrix(SECOND, "Renate compares cells", _of_renate),
            *_legend(
                LEFT,
                (("diagonal", "in-domain"), ("next", "next-domain")),
                (("past", "backward transfer"), ("future", "forward transfer, with next")),
            ),
            *_legend(
                SECOND,
                (("last", "average accuracy"), ("diagonal", "just trained")),
                (("ring", "forward transfer: ring \N{MINUS SIGN} initial"),),
            ),
            "</svg>\n",
        )
    )


def _of_clear(i: int, j: int) -> str:
    if i == j:
        return "diagonal"
    if j == i + 1:
        return "next"
    return "past" if j < i else "future"


def _of_renate(i: int, j: int) -> str:
    if i == 3:
        return "last"
    return "diagonal" if i == j else "plain"


def _matrix(left: int, title: str, kind: Callable[[int, int], str]) -> Iterator[str]:
    yield f'<text class="title" x="{left}" y="34">{title}</text>'
    yield f'<text class="small" x="{left}" y="{TOP - 30}">tested on bucket</text>'
    for j in range(4):
        yield _text(left + CELL * j + CELL / 2, TOP - 9, str(j + 1), "mid")
    for row, values in enumerate((MATRIX.initial, *MATRIX.values)):
        y = TOP + CELL * row
        name = "initial" if row == 0 else f"after {row}"
        yield _text(left - 10, y + CELL / 2 + 5, name, "end")
        for j, value in enumerate(values):
            x = left + CELL * j
            cell = "plain" if row == 0 else kind(row - 1, j)
            yield (
                f'<rect class="{cell}" x="{x + 1.5}" y="{y + 1.5}" width="{CELL - 3}" '
                f'height="{CELL - 3}" rx="3"/>'
            )
            if kind is _of_renate and j == row and row > 0:
                yield (
                    f'<rect class="ring" x="{x + 4}" y="{y + 4}" width="{CELL - 8}" '
                    f'height="{CELL - 8}" rx="3"/>'
                )
            yield _text(x + CELL / 2, y + CELL / 2 + 5, f"{value:.2f}", "mid")


def _legend(left: int, *lines: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for line, entries in enumerate(lines):
        y = TOP + CELL * 5 + 14 + 22 * line
        for position, (kind, text) in enumerate(entries):
            x = left - 60 + 156 * position
            yield f'<rect class="{kind}" x="{x}" y="{y}" width="13" height="13" rx="2"/>'
            yield _text(x + 20, y + 11, text, "small")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>'
