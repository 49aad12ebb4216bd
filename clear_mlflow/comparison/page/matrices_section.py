"""The comparison page's matrices, and what its script subtracts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page.wording import group_name, many, short
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.page.matrix_map import matrix_map, short_key

# Cells of matrices on a page of two megabytes: about 40 bytes each, and twice as many to subtract.
_MOST_CELLS = 12_000
_DIGITS = 6  # of the numbers that the script subtracts; shown with three


def matrices(comparison: Comparison) -> dict[str, Any]:
    """The mean matrices of groups."""
    scales, keys = matrix_scales(comparison), [s.buckets for s in comparison.settings]
    several = [group for group in comparison.groups if len(group.members) > 1]
    about = "Means over seeds." if several else ""
    if any(bool((group.seeds_per_cell % len(group.members)).any()) for group in several):
        about += " Dotted underline: not all seeds measured this cell; the mean is over the others."
    shown = comparison.groups[: _fitting([g.grid for g in comparison.groups], _MOST_CELLS)]
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


def differences(comparison: Comparison) -> dict[str, Any]:
    """What the script subtracts: the choices for A and B, and which of them are chosen first."""
    items = [*_items(comparison)]
    items = items[: _fitting([grid for _, _, grid in items], 2 * _MOST_CELLS)]
    num_groups = min(len(comparison.groups), len(items))
    choices = [
        {"name": name, "runs_begin": i == num_groups} for i, (name, _, _) in enumerate(items)
    ]
    comparable = (
        {"a": a, "b": b}
        for a in range(len(items))
        for b in range(a + 1, len(items))
        if items[a][1] == items[b][1] and (a, b) not in comparison.unlike
    )
    score = comparison.score
    return {
        "data": {
            "items": [
                {"setting": setting, "cells": _rounded(grid, score)} for _, setting, grid in items
            ],
            "keys": [[short_key(key) for key in s.buckets] for s in comparison.settings],
            "marks": {f"{a}-{b}": _rounded(p, ACCURACY) for (a, b), p in comparison.cells.items()},
            "unlike": [f"{a}-{b}" for a, b in sorted(comparison.unlike)],
            "alpha": round(1 - comparison.level, 6),
            "score": {
                "accuracy": score.is_accuracy,
                "higher": score.higher_is_better,
                "unit": "percentage points" if score.is_accuracy else score.name,
            },
        },
        "choices": choices,
        "choices_have_runs": num_groups < len(items),
        "first_difference": next(comparable, None),
    }


def _items(comparison: Comparison) -> Iterator[tuple[str, int, NDArray[np.float64]]]:
    """What may be chosen as A or B: name, setting and cells; groups first, then single runs."""
    for group in comparison.groups:
        yield group_name(comparison, group), group.setting, group.grid
    if any(len(group.members) > 1 for group in comparison.groups):
        for group in comparison.groups:
            for run in group.members:
                name = f"{short(run.name, 60)} ({short(run.run_id[:8])})"
                yield name, group.setting, run.grid


def _fitting(grids: Sequence[NDArray[np.float64]], most: int) -> int:
    """How many of the first grids have so many cells together; one at least."""
    return max(1, sum(total <= most for total in accumulate(grid.size for grid in grids)))


def _rounded(grid: NDArray[np.float64], score: Score) -> list[list[float | None]]:
    def cell(value: float) -> float | None:
        if math.isnan(value):
            return None
        return round(value, _DIGITS) if score.is_accuracy else float(f"{value:.{_DIGITS + 1}g}")

    return [[cell(value) for value in row] for row in grid.tolist()]
