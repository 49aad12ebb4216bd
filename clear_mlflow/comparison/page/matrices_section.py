"""The mean matrices of a comparison's groups."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.wording import format_count, name_group
from clear_mlflow.report.colours import CellScale, build_cell_scale
from clear_mlflow.report.page.matrix_map import build_matrix_map

_MAX_CELLS = 12_000  # about 40 bytes each; a page stays below two megabytes


def build_matrices(comparison: Comparison) -> dict[str, Any]:
    """Return the template's variables for the mean matrices of groups."""
    scales, keys = matrix_scales(comparison), [s.buckets for s in comparison.conditions]
    averaged = [group for group in comparison.groups if len(group.members) > 1]
    sentences = ["Cells are means over seeds."] if averaged else []
    if any(bool((group.seeds_per_cell % len(group.members)).any()) for group in averaged):
        sentences.append(
            "A dotted underline marks cells that some seeds did not measure; the mean is over the "
            "others."
        )
    num_cells = accumulate(group.grid.size for group in comparison.groups)
    num_maps = max(1, sum(total <= _MAX_CELLS for total in num_cells))
    maps = [
        {
            "title": name_group(comparison, group),
            "detail": f"mean of {format_count(len(group.members), 'run')}"
            if len(group.members) > 1
            else "one run",
            **build_matrix_map(
                group.grid,
                keys[group.conditions],
                seeds=group.seeds_per_cell,
                num_members=len(group.members),
                scale=scales[group.conditions],
            ),
        }
        for group in comparison.groups[:num_maps]
    ]
    if len(maps) < len(comparison.groups):
        sentences.append(f"The first {len(maps)} groups of the leaderboard are shown.")
    ends = scales[0].ends
    if len(scales) > 1 and not comparison.score.is_accuracy:
        sentences.append("Each test set has its own colour scale.")
        ends = ("worst", "best")
    return {
        "score": comparison.score,
        "ends": ends,
        "matrices_note": " ".join(filter(None, [*sentences, scales[0].note])),
        "maps": maps,
    }


def matrix_scales(comparison: Comparison) -> list[CellScale]:
    """Return the colour scale of each set of test conditions, the same for runs and for groups."""
    grids: list[list[NDArray[np.float64]]] = [[] for _ in comparison.conditions]
    for group in comparison.groups:
        grids[group.conditions] += [run.grid for run in group.members]
    return [build_cell_scale(comparison.score, comparable_grids) for comparable_grids in grids]
