"""The comparison page's matrices, and the difference of any two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.page.wording import group_name, p_value_text, seed_text, short
from clear_mlflow.core.score import ACCURACY, Score, significant
from clear_mlflow.report.cell_scale import CellScale, scale_over
from clear_mlflow.report.page.matrix_map import key_columns, matrix_map, row_label, short_key

# Cells of single runs' matrices: about 40 bytes each, twice.
_MOST_CELLS = 12_000
_STEPS = (2, 5, 10, 20, 30, 50, 100)  # ends of the scale of differences, percentage points
_DIGITS = 6  # of the numbers that the script subtracts; shown with three


def matrices(comparison: Comparison) -> dict[str, Any]:
    """The matrices of groups, and of single runs where they fit."""
    subjects = comparison.subjects
    scales = matrix_scales(comparison)
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
                scale=scales[group.setting],
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
                **matrix_map(
                    subject.grid,
                    subject.record.matrix.buckets,
                    scale=scales[group.setting],
                ),
            }
            for group in comparison.groups
            for subject in group.members
        ]
    ends = scales[0].ends
    if len(scales) > 1 and not comparison.score.is_accuracy:
        about += " The matrices of each test set have colours of their own."
        ends = ("worst", "best")
    return {
        "score": comparison.score,
        "ends": ends,
        "matrices_about": " ".join(filter(None, [about.strip(), scales[0].about])),
        "maps": maps,
        "run_maps": run_maps,
    }


def matrix_scales(comparison: Comparison) -> list[CellScale]:
    """The colours of the matrices of each setting: those of runs and of groups are the same."""
    return [
        scale_over(
            comparison.score,
            [
                subject.grid
                for group in comparison.groups
                if group.setting == setting
                for subject in group.members
            ],
        )
        for setting in range(len(comparison.settings))
    ]


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
        "items": [
            {"setting": item.setting, "cells": _rounded(item.grid, comparison.score)}
            for item in items
        ],
        "keys": [[short_key(key) for key in setting.buckets] for setting in comparison.settings],
        "marks": {f"{a}-{b}": _rounded(p, ACCURACY) for (a, b), p in comparison.cells.items()},
        "unlike": [f"{a}-{b}" for a, b in sorted(comparison.unlike)],
        "scales": list(_STEPS),
        "alpha": alpha,
        "score": {
            "accuracy": comparison.score.is_accuracy,
            "higher": comparison.score.higher_is_better,
            "unit": _unit(comparison.score),
        },
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
    score = comparison.score
    scale = scale_of(change, score)
    p_values = comparison.cells.get((a, b))
    low, high = ("B", "A") if score.higher_is_better else ("A", "B")
    about = (
        f"A − B in {_unit(score)}; colours from −{scale:g} ({low} is better) to +{scale:g} ({high} "
        "is better)."
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
                    "style": f"w{math.floor(100 * gain_shade(value, scale, score) + 0.5)}{mark}",
                    "text": change_text(float(value), score),
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


def _unit(score: Score) -> str:
    return "percentage points" if score.is_accuracy else score.name


def _rounded(grid: NDArray[np.float64], score: Score) -> list[list[float | None]]:
    def cell(value: float) -> float | None:
        if math.isnan(value):
            return None
        return round(value, _DIGITS) if score.is_accuracy else float(f"{value:.{_DIGITS + 1}g}")

    return [[cell(value) for value in row] for row in grid.tolist()]


def scale_of(change: NDArray[np.float64], score: Score) -> float:
    """Where the colours of a difference of two grids end, in percentage points of accuracies.

    Untrained models may differ by far more than trained ones, in another score: beyond the end.
    """
    if not score.is_accuracy and not np.isnan(change[1:]).all():
        change = change[1:]
    largest = float(np.nanmax(np.abs(change), initial=0.0))
    if score.is_accuracy:
        return next((step for step in _STEPS if 100 * largest <= step + 1e-9), _STEPS[-1])
    if largest == 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    return next(power * m for m in (1, 2, 5, 10) if largest <= power * m * (1 + 1e-9))


def gain_shade(change: ArrayLike, scale: float, score: Score) -> NDArray[np.float64]:
    """Where A - B lies between B is better (0) and A is better (1)."""
    unit = 100 if score.is_accuracy else 1
    sign = 1 if score.higher_is_better else -1
    return np.clip(0.5 + sign * unit * np.asarray(change) / (2 * scale), 0.0, 1.0)


def change_text(change: float, score: Score) -> str:
    """A difference of two cells with its sign: of accuracies, in percentage points."""
    if not score.is_accuracy:
        return f"{'+' if change > 0 else ''}{significant(change, 3)}"
    text = f"{100 * change:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
