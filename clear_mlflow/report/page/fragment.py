"""A run as a part of another page, such as a notebook: its matrix, its metrics, its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import NOT_MEASURED, one_line
from clear_mlflow.metrics import METRICS, of_score
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.colours import SCALE, is_dark
from clear_mlflow.report.page import rendered_part
from clear_mlflow.report.page.matrix_map import matrix_map, spread_positions

_UNMEASURED = "background:#eee;color:#888"


def run_html(
    title: str,
    matrix: AccuracyMatrix,
    summary: Mapping[str, float],
    reasons: Mapping[str, str],
    links: Sequence[str] = (),
) -> str:
    """A run that has ended.

    Args:
        title: any text.
        matrix: its cells that are evidence.
        summary: metric name to value.
        reasons: metric name to why it has none.
        links: lines that say where to look at it; an address in them becomes a link.
    """
    score = matrix.score
    lower = {metric.name for metric in of_score(METRICS, score) if not metric.higher_is_better}
    metrics = [
        {
            "name": one_line(name, 80),
            "value": score.number(summary[name]) if name in summary else NOT_MEASURED,
            "about": ("lower is better" if name in lower else "")
            if name in summary
            else one_line(reasons[name], 200),
        }
        for name in dict.fromkeys([*summary, *reasons])
    ]
    return rendered_part(
        "clear_mlflow.report.page/fragment",
        title=one_line(title, 160),
        progress=None,
        map=_coloured(matrix),
        metrics=metrics,
        links=[_link(line) for line in links],
    )


def progress_html(
    text: str, done: float, total: float, matrix: AccuracyMatrix | None, links: Sequence[str] = ()
) -> str:
    """A run in training.

    Args:
        text: what is being done.
        done: how much of it, out of *total*.
        total: above 0.
        matrix: the cells so far that are evidence; None: none yet.
        links: as of :func:`run_html`.
    """
    return rendered_part(
        "clear_mlflow.report.page/fragment",
        title="",
        progress={"text": one_line(text, 160), "done": f"{done:g}", "total": f"{total:g}"},
        map=None if matrix is None else _coloured(matrix),
        metrics=[],
        links=[_link(line) for line in links],
    )


def _coloured(matrix: AccuracyMatrix) -> dict[str, Any]:
    initial = np.full(matrix.num_buckets, np.nan) if matrix.initial is None else matrix.initial
    grid = np.vstack([initial, matrix.values])
    scale = scale_over(matrix.score, [grid])
    rows, columns = spread_positions(len(grid)), spread_positions(matrix.num_buckets)
    found = matrix_map(grid, matrix.buckets, rows=rows, columns=columns, scale=scale)
    drawn = [i for i in rows if i > 0 or matrix.initial is not None]
    for i, row in zip(drawn, found["rows"], strict=True):
        for j, cell in zip(columns, row["cells"], strict=True):
            cell["style"] = _style(float(grid[i, j]), scale, outlined=i == j + 1)
            cell["text"] = cell["text"] or NOT_MEASURED
    found["about"] = f"{matrix.score.caption}; row: trained through, column: tested on."
    return found


def _style(value: float, scale: CellScale, *, outlined: bool) -> str:
    if np.isnan(value):
        return _UNMEASURED
    colour = SCALE.at(scale.shade(value))
    code = "".join(f"{round(255 * channel):02x}" for channel in colour[:3])
    ink = "#fff" if is_dark(colour) else "#111"
    edge = f";box-shadow:inset 0 0 0 1.5px {ink}" if outlined else ""
    return f"background:#{code};color:{ink}{edge}"


def _link(line: str) -> dict[str, str]:
    name, _, rest = line.partition(" ")
    address = rest.strip()
    if address.startswith(("http://", "https://")) and " " not in address:
        return {"name": name, "address": address}
    return {"name": one_line(line, 400), "address": ""}
