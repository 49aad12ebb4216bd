"""A run as a part of another page, such as a notebook: its matrix, its metrics, its links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clear_mlflow.core.matrix import AccuracyMatrix, whole_grid
from clear_mlflow.core.text import one_line
from clear_mlflow.metrics import MetricResult
from clear_mlflow.report.cell_scale import scale_over
from clear_mlflow.report.page import rendered_part
from clear_mlflow.report.page.matrix_map import matrix_map

_FRAGMENT = "clear_mlflow.report.page/fragment"


def run_html(
    title: str,
    matrix: AccuracyMatrix | None,
    metrics: Iterable[MetricResult] = (),
    links: Sequence[str] = (),
) -> str:
    """A run that has ended: its evidence, its metrics, lines of which addresses become links."""
    return rendered_part(
        _FRAGMENT,
        title=one_line(title, 160),
        progress=None,
        map=None if matrix is None else _coloured(matrix),
        metrics=list(metrics),
        links=[_link(line) for line in links],
    )


def progress_html(text: str, done: float, total: float, matrix: AccuracyMatrix | None) -> str:
    """A run in training: what is being done, how much of a total above 0, the evidence so far."""
    return rendered_part(
        _FRAGMENT,
        title="",
        progress={"text": one_line(text, 160), "done": f"{done:g}", "total": f"{total:g}"},
        map=None if matrix is None else _coloured(matrix),
        metrics=[],
        links=[],
    )


def _coloured(matrix: AccuracyMatrix) -> dict[str, Any]:
    """The map of what was measured so far, and what its cells are."""
    grid = whole_grid(matrix)
    scale = scale_over(matrix.score, [grid])
    grid = grid[: matrix.num_rows + 1]
    about = f"{matrix.score.caption}; row: trained through, column: tested on."
    return {**matrix_map(grid, matrix.buckets, scale=scale, in_cells=True), "about": about}


def _link(line: str) -> dict[str, str]:
    name, _, rest = line.partition(" ")
    address = rest.strip()
    if address.startswith(("http://", "https://")) and " " not in address:
        return {"name": name, "address": address}
    return {"name": one_line(line, 400), "address": ""}
