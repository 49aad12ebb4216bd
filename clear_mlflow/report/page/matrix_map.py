"""An accuracy matrix as a table of coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.text import ending, printable
from clear_mlflow.report.cell_scale import CellScale

_LONGEST_KEY = 8
# The most rows and columns that a person can distinguish on a page; of more, so many are shown,
# spread evenly.
MOST_SHOWN = 100


def spread_positions(count: int) -> list[int]:
    """Positions that are shown out of so many, the first and the last among them."""
    if count <= MOST_SHOWN:
        return list(range(count))
    return [round(i * (count - 1) / (MOST_SHOWN - 1)) for i in range(MOST_SHOWN)]


def matrix_map(
    grid: NDArray[np.float64],
    buckets: Sequence[str],
    *,
    rows: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    seeds: NDArray[np.int64] | None = None,
    members: int = 1,
    scale: CellScale | None = None,
) -> dict[str, Any]:
    """Columns and rows as the macro ``heat`` draws them; no row of an initialisation without cells.

    Args:
        grid: (T + 1, T); row 0 is the initialisation; NaN = not measured.
        buckets: keys of the T buckets.
        rows: of the grid, which are shown; all when not given.
        columns: likewise.
        seeds: (T + 1, T), runs that measured each cell; all members when not given.
        members: runs that the grid is the mean of.
        scale: of its cells; that of accuracies when not given.
    """
    scale = scale or CellScale()
    across = range(len(buckets)) if columns is None else columns
    return {
        "columns": key_columns([buckets[j] for j in across]),
        "rows": [
            {
                "first": i == 0,
                "label": row_label(i, buckets),
                "cells": [
                    _cell(
                        float(grid[i, j]),
                        "d" if i == j + 1 else "",
                        members if seeds is None else int(seeds[i, j]),
                        members,
                        scale,
                    )
                    for j in across
                ],
            }
            for i in (range(len(grid)) if rows is None else rows)
            if i > 0 or not np.isnan(grid[i]).all()
        ],
    }


def key_columns(buckets: Sequence[str]) -> list[dict[str, str]]:
    """Heads of columns: the key as there is room for it, and in full."""
    return [{"short": short_key(key), "full": printable(key)} for key in buckets]


def row_label(i: int, buckets: Sequence[str]) -> str:
    """What a row was trained through."""
    return "initial" if i == 0 else f"after {short_key(buckets[i - 1])}"


def short_key(key: str) -> str:
    """A bucket's key, or its end."""
    return ending(key, _LONGEST_KEY)


def _cell(
    value: float, diagonal: str, seeds: int, members: int, scale: CellScale
) -> dict[str, str]:
    if math.isnan(value):
        return {"style": "x", "text": "", "title": ""}
    few = "few" if seeds < members else ""
    return {
        "style": " ".join(
            filter(None, [f"v{round(100 * float(scale.shade(value)))}", diagonal, few])
        ),
        "text": scale.score.cell(value),
        "title": f"mean of {seeds} of {members} seeds" if few else "",
    }
