"""An accuracy matrix as a table of coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.core.text import NOT_MEASURED, ending, percent, printable
from clear_mlflow.report.cell_scale import CellScale
from clear_mlflow.report.colours import SCALE

_LONGEST_KEY = 8
# The most rows, columns and lines that a person can distinguish; of more, so many are shown, spread
# evenly: what a run has in charts grows with its buckets, not with their square.
MOST_SHOWN = 100
_MOST_CLASSES = 40  # in a map of classes over time
_LEAST_CHANGE = 0.05  # of a class's share of a bucket that makes such a map worth a look


def spread_positions(count: int) -> list[int]:
    """Positions that are shown out of so many, the first and the last among them."""
    if count <= MOST_SHOWN:
        return list(range(count))
    return [round(i * (count - 1) / (MOST_SHOWN - 1)) for i in range(MOST_SHOWN)]


def shown_rows(grid: NDArray[np.float64]) -> list[int]:
    """Rows of a (T + 1, T) grid that are shown: no initialisation without cells."""
    return [i for i in spread_positions(len(grid)) if i > 0 or not np.isnan(grid[i]).all()]


def matrix_map(
    grid: NDArray[np.float64],
    buckets: Sequence[str],
    *,
    scale: CellScale,
    seeds: NDArray[np.int64] | None = None,
    members: int = 1,
    in_cells: bool = False,
) -> dict[str, Any]:
    """A (T + 1, T) grid as ``heat`` draws it; *seeds*, (T + 1, T): runs that measured each cell."""
    columns = spread_positions(len(buckets))
    rows = [
        {
            "first": i == 0,
            "label": "initial" if i == 0 else f"after {short_key(buckets[i - 1])}",
            "cells": [
                _cell(
                    float(grid[i, j]),
                    scale,
                    is_diagonal=i == j + 1,
                    few=""
                    if seeds is None or seeds[i, j] == members
                    else f"mean of {seeds[i, j]} of {members} seeds",
                    in_cells=in_cells,
                )
                for j in columns
            ],
        }
        for i in shown_rows(grid)
    ]
    return {
        "columns": _heads(buckets, columns),
        "rows": rows,
        "css": _TABLE_CSS if in_cells else "",
    }


def classes_map(images: EvaluationSet) -> dict[str, Any] | None:
    """Test images of each class in each bucket, as shares; None where they stay equal."""
    counts = images.class_counts
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    change = np.ptp(shares, axis=0)
    if change.max() < _LEAST_CHANGE:
        return None
    chosen = np.sort(np.argsort(-change, kind="stable")[:_MOST_CLASSES]).tolist()
    columns = spread_positions(len(images.buckets))
    return {
        "columns": _heads(images.buckets, columns),
        "rows": [
            {
                "first": False,
                "label": ending(printable(images.class_names[c]), 24),
                "cells": [
                    {
                        "style": f"v{round(100 * shares[j, c])}" if counts[j, c] else "x",
                        "text": f"{counts[j, c]:,}",
                        "title": f"{percent(shares[j, c])} % of the bucket's",
                        "css": "",
                    }
                    for j in columns
                ],
            }
            for c in chosen
        ],
        "css": "",
    }


def _heads(buckets: Sequence[str], columns: Sequence[int]) -> list[dict[str, str]]:
    return [{"short": short_key(buckets[j]), "full": printable(buckets[j])} for j in columns]


def short_key(key: str) -> str:
    """A bucket's key, or its end."""
    return ending(key, _LONGEST_KEY)


_TABLE_CSS = "border-collapse:separate;border-spacing:1px;font-size:11px"
_CELL_CSS = "text-align:center;padding:3px 5px;font-variant-numeric:tabular-nums;"


def _cell(
    value: float, scale: CellScale, *, is_diagonal: bool, few: str, in_cells: bool
) -> dict[str, str]:
    if math.isnan(value):
        css = f"{_CELL_CSS}background:#eee;color:#888" if in_cells else ""
        return {"style": "x", "text": NOT_MEASURED if in_cells else "", "title": "", "css": css}
    shade = float(scale.shade(value))
    css = ""
    if in_cells:
        background, ink = SCALE.hex_and_ink(shade)
        edge = f";box-shadow:inset 0 0 0 1.5px {ink}" if is_diagonal else ""
        css = f"{_CELL_CSS}background:{background};color:{ink}{edge}"
    style = [f"v{round(100 * shade)}", "d" if is_diagonal else "", "few" if few else ""]
    return {
        "style": " ".join(filter(None, style)),
        "text": scale.score.cell(value),
        "title": few,
        "css": css,
    }
