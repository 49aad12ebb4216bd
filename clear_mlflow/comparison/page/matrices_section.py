"""The comparison page's matrices, and the difference of any two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.page.wording import group_name, p_value_text, seed_text, short
from clear_mlflow.report.page.matrix_map import key_columns, matrix_map, row_label, short_key

# Cells of single runs' matrices: about 40 bytes each, twice.
_MOST_CELLS = 12_000
_STEPS = (2, 5, 10, 20, 30, 50, 100)  # ends of the scale of differences, percentage points
_DIGITS = 6  # of the fractions that the script subtracts; shown with three


def matrices(comparison: Comparison) -> dict[str, Any]:
    """The matrices of groups, and of single runs where they fit."""
    subjects = comparison.subjects
    cells = sum(subject.grid.size for subject in subjects)
    several = [group for group in comparison.groups if len(group.members) > 1]
    about = "Means over seeds." if several else ""
    if any(bool((group.seeds_per_cell % len(group.members)).any()) for group in several):
        about += " Dotted underline: not all seeds measured this cell; the mean is over the others."
    maps = [
        {
            "title": group_name(comparison, group),
            "detail": f"mean of {len(group.members)} runs" if len(group.members) > 1 else "one run",
            **matrix_map(
                group.grid,
                group.members[0].record.matrix.buckets,
                seeds=group.seeds_per_cell,
                members=len(group.members),
            ),
        }
        for group in _few(comparison)
    ]
    if len(maps) < len(comparison.groups):
        about += f" The first {len(maps)} groups of the leaderboard."
    run_maps = []
    if several and cells <= _MOST_CELLS:
        run_maps = [
            {
                "title": short(subject.name),
                "detail": seed_text(subject.record.seed),
                **matrix_map(subject.grid, subject.record.matrix.buckets),
            }
            for subject in subjects
        ]
    return {"matrices_about": about.strip(), "maps": maps, "run_maps": run_maps}


def _few(comparison: Comparison) -> list[Group]:
    """As many groups as their matrices fit on a page of two megabytes."""
    found: list[Group] = []
    cells = 0
    for group in comparison.groups:
        cells += group.grid.size
        if found and cells > _MOST_CELLS:
            break
        found.append(group)
    return found


@dataclass(frozen=True)
class _Item:
    """What may be chosen as A or B."""

    name: str
    setting: int
    grid: NDArray[np.float64]
    is_run: bool


def _items(comparison: Comparison) -> list[_Item]:
    items = [
        _Item(group_name(comparison, group), group.setting, group.grid, False)
        for group in comparison.groups
    ]
    if any(len(group.members) > 1 for group in comparison.groups):
        items += [
            _Item(
                f"{short(run.name, 60)} ({short(run.run_id[:8])})",
                group.setting,
                run.grid,
                True,
            )
            for group in comparison.groups
            for run in group.members
        ]
    total = 0
    kept: list[_Item] = []
    for item in items:
        total += item.grid.size
        if kept and total > 2 * _MOST_CELLS:
            break
        kept.append(item)
    return kept


def differences(comparison: Comparison) -> dict[str, Any]:
    """What may be subtracted from what, and the first difference."""
    items = _items(comparison)
    alpha = round(1 - comparison.level, 6)
    data: dict[str, Any] = {
        "items": [{"setting": item.setting, "cells": _rounded(item.grid)} for item in items],
        "keys": [[short_key(key) for key in setting.buckets] for setting in comparison.settings],
        "marks": {f"{a}-{b}": _rounded(p) for (a, b), p in comparison.cells.items()},
        "unlike": [f"{a}-{b}" for a, b in sorted(comparison.unlike)],
        "scales": list(_STEPS),
        "alpha": alpha,
    }
    first = _first_pair(comparison, items)
    starts = next((i for i, item in enumerate(items) if item.is_run), len(items))
    return {
        "data": data,
        "choices": [{"name": item.name, "runs_begin": i == starts} for i, item in enumerate(items)],
        "choices_have_runs": starts < len(items),
        "first_difference": None
        if first is None
        else _difference(comparison, items, *first, alpha),
    }


def _first_pair(comparison: Comparison, items: Sequence[_Item]) -> tuple[int, int] | None:
    for a, one in enumerate(items):
        for b in range(a + 1, len(items)):
            if one.setting == items[b].setting and (a, b) not in comparison.unlike:
                return a, b
    return None


def _difference(
    comparison: Comparison, items: Sequence[_Item], a: int, b: int, alpha: float
) -> dict[str, Any]:
    """The table that is there without a script; the script draws the same for every other pair."""
    buckets = comparison.settings[items[a].setting].buckets
    change = items[a].grid - items[b].grid
    scale = scale_of(change)
    p_values = comparison.cells.get((a, b))
    about = (
        f"A − B in percentage points; colours from −{scale} (B is better) to +{scale} (A is "
        "better)."
    )
    rows = []
    for i, row in enumerate(change):
        if np.isnan(row).all():
            continue
        cells = []
        for j, value in enumerate(row):
            if math.isnan(value):
                cells.append({"style": "x", "text": "", "title": ""})
                continue
            p_value = math.nan if p_values is None else float(p_values[i, j])
            mark = " s" if p_value < alpha else ""
            cells.append(
                {
                    "style": f"w{50 + math.floor(50 * 100 * value / scale + 0.5)}{mark}",
                    "text": points_text(float(value)),
                    "title": "" if math.isnan(p_value) else f"adjusted p = {p_value_text(p_value)}",
                }
            )
        rows.append({"first": i == 0, "label": row_label(i, buckets), "cells": cells})
    return {
        "a": a,
        "b": b,
        "a_name": items[a].name,
        "b_name": items[b].name,
        "pair": f"{a}-{b}",
        "about": about,
        "columns": key_columns(buckets),
        "rows": rows,
    }


def _rounded(grid: NDArray[np.float64]) -> list[list[float | None]]:
    return [
        [None if math.isnan(value) else round(value, _DIGITS) for value in row]
        for row in grid.tolist()
    ]


def scale_of(change: NDArray[np.float64]) -> int:
    """Where the colours of a difference of two grids end, in percentage points."""
    largest = 100 * float(np.nanmax(np.abs(change), initial=0.0))
    return next((step for step in _STEPS if largest <= step + 1e-9), _STEPS[-1])


def points_text(fraction: float) -> str:
    """A difference of two fractions in percentage points, with its sign."""
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
