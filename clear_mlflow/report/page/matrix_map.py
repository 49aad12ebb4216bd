"""An accuracy matrix, and the classes of its test images, as tables of coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.core.text import NOT_MEASURED, format_percent, printable, truncate_start
from clear_mlflow.report.colours import CellScale, get_css_colours

_MAX_KEY = 8  # characters
# The most rows, columns and lines that a person can distinguish, evenly spaced out of more: the
# size of a page grows with the number of buckets, not with its square.
MAX_SHOWN = 100
_MAX_CLASSES = 40  # in a map of classes over time
_MIN_CHANGE = 0.05  # of a class's share of a bucket, for such a map to be shown


def sample_evenly(count: int) -> list[int]:
    """Return at most MAX_SHOWN indices, evenly spaced, with first and last."""
    if count <= MAX_SHOWN:
        return list(range(count))
    return [round(i * (count - 1) / (MAX_SHOWN - 1)) for i in range(MAX_SHOWN)]


def choose_rows(grid: NDArray[np.float64]) -> list[int]:
    """Return at most MAX_SHOWN evenly spaced rows of a (T + 1, T) grid.

    Row 0, the untrained model, is left out if it was not measured.
    """
    return [i for i in sample_evenly(len(grid)) if i > 0 or not np.isnan(grid[i]).all()]


def build_matrix_map(
    grid: NDArray[np.float64],
    buckets: Sequence[str],
    *,
    scale: CellScale,
    seeds: NDArray[np.int64] | None = None,
    num_members: int = 1,
    inline_style: bool = False,
) -> dict[str, Any]:
    """Return what the template ``heat`` draws of a (T + 1, T) grid.

    At most MAX_SHOWN rows and columns are drawn, evenly spaced.

    seeds: (T + 1, T), how many of *num_members* runs measured each cell. inline_style: repeat the
    style in every cell, for a page without a style sheet.
    """
    columns = sample_evenly(len(buckets))
    rows = []
    for i in choose_rows(grid):
        cells = []
        for j in columns:
            note = ""
            if seeds is not None and seeds[i, j] != num_members:
                note = f"mean of {seeds[i, j]} of {num_members} seeds"
            cells.append(_build_cell(float(grid[i, j]), scale, i == j + 1, note, inline_style))
        label = "initial" if i == 0 else f"after {shorten_key(buckets[i - 1])}"
        rows.append({"is_initial": i == 0, "label": label, "cells": cells})
    css = "border-collapse:separate;border-spacing:1px;font-size:11px" if inline_style else ""
    return {"columns": _build_heads(buckets, columns), "rows": rows, "css": css}


def build_class_map(images: EvaluationSet) -> dict[str, Any] | None:
    """Return a map of the share of each class in each bucket.

    Returns None if all shares change by less than 5 percentage points. Of over _MAX_CLASSES
    classes, those that change most are shown.
    """
    counts = images.class_counts
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    change = np.ptp(shares, axis=0)
    if change.max() < _MIN_CHANGE:
        return None
    columns = sample_evenly(len(images.buckets))
    rows = []
    for c in np.sort(np.argsort(-change, kind="stable")[:_MAX_CLASSES]).tolist():
        cells = [
            {
                "style": f"v{round(100 * shares[j, c])}" if counts[j, c] else "x",
                "text": f"{counts[j, c]:,}",
                "title": f"{format_percent(shares[j, c])} % of the bucket's images",
                "css": "",
            }
            for j in columns
        ]
        label = truncate_start(printable(images.class_names[c]), 24)
        rows.append({"is_initial": False, "label": label, "cells": cells})
    return {"columns": _build_heads(images.buckets, columns), "rows": rows, "css": ""}


def _build_heads(buckets: Sequence[str], columns: Sequence[int]) -> list[dict[str, str]]:
    return [{"short": shorten_key(buckets[j]), "full": printable(buckets[j])} for j in columns]


def shorten_key(key: str) -> str:
    """Cut a bucket's key to its last 8 characters, where keys differ."""
    return truncate_start(key, _MAX_KEY)


_CELL_CSS = "text-align:center;padding:3px 5px;font-variant-numeric:tabular-nums;"


def _build_cell(
    value: float, scale: CellScale, is_diagonal: bool, note: str, inline_style: bool
) -> dict[str, str]:
    """Return a cell's text, classes, tooltip (*note*) and, if asked, inline colours."""
    if math.isnan(value):
        css = f"{_CELL_CSS}background:#eee;color:#888" if inline_style else ""
        return {"style": "x", "text": NOT_MEASURED if inline_style else "", "title": "", "css": css}
    shade = float(scale.shade(value))
    css = ""
    if inline_style:
        background, text_colour = get_css_colours(shade)
        edge = f";box-shadow:inset 0 0 0 1.5px {text_colour}" if is_diagonal else ""
        css = f"{_CELL_CSS}background:{background};color:{text_colour}{edge}"
    style = [f"v{round(100 * shade)}", "d" if is_diagonal else "", "partial" if note else ""]
    return {
        "style": " ".join(filter(None, style)),
        "text": scale.score.format_cell(value),
        "title": note,
        "css": css,
    }
