"""The comparison page's matrices."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.wording import group_name, many
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.page.matrix_map import matrix_map

# Cells of matrices on a page of two megabytes: about 40 bytes each.
_MOST_CELLS = 12_000


def matrices(comparison: Comparison) -> dict[str, Any]:
    """The mean matrices of groups."""
    scales, keys = matrix_scales(comparison), [s.buckets for s in comparison.settings]
    several = [group for group in comparison.groups if len(group.members) > 1]
    about = "Means over seeds." if several else ""
    if any(bool((group.seeds_per_cell % len(group.members)).any()) for group in several):
        about += " Dotted underline: not all seeds measured this cell; the mean is over the others."
    cells = accumulate(group.grid.size for group in comparison.groups)
    shown = comparison.groups[: max(1, sum(total <= _MOST_CELLS for total in cells))]
    maps = [
        {
            "title": group_name(comparison, group),
            "detail": f"mean of {many(len(group.members), 'run')}"
            if group in several
            else "one run",
            **matrix_map(
                group.grid,
                keys[group.setting],
                seeds=group.seeds_per_cell,
                members=len(group.members),
                scale=scales[group.setting],
            ),
        }
        for group in shown
    ]
    if len(maps) < len(comparison.groups):
        about += f" The first {len(maps)} groups of the leaderboard."
    ends = scales[0].ends
    if len(scales) > 1 and not comparison.score.is_accuracy:
        about += " The matrices of each test set have colours of their own."
        ends = ("worst", "best")
    return {
        "score": comparison.score,
        "ends": ends,
        "matrices_about": " ".join(filter(None, [about.strip(), scales[0].about])),
        "maps": maps,
    }


def matrix_scales(comparison: Comparison) -> list[CellScale]:
    """The colours of the matrices of each setting: those of runs and of groups are the same."""
    grids: list[list[NDArray[np.float64]]] = [[] for _ in comparison.settings]
    for group in comparison.groups:
        grids[group.setting] += [run.grid for run in group.members]
    return [scale_over(comparison.score, found) for found in grids]
