"""Accuracy over time: what the rows of a matrix say of one bucket, of the past, of the future."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import Group
from clear_mlflow.report.page.line_chart import future_mean, past_mean
from clear_mlflow.statistics import SeedSummary, seed_summary

# The most groups whose curves a reader can distinguish in one chart.
MOST_CURVES = 8

# (T + 1, T) cells of one run, and buckets trained so far, to a value; NaN = not defined there.
_Cells = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A value after each number of trained buckets, over the seeds of a group."""

    group: int  # position in the comparison
    points: tuple[tuple[int, SeedSummary], ...]  # (buckets trained, value over the seeds)


@dataclass(frozen=True)
class CurveChart:
    """Curves of all groups in one picture."""

    title: str
    curves: tuple[Curve, ...]


def mean_charts(groups: list[tuple[int, Group]], level: float) -> list[CurveChart]:
    """Mean score on the buckets trained on so far, and on those still to come."""
    what = groups[0][1].members[0].record.matrix.score.name if groups else ""
    charts = [
        (f"Mean {what} on the buckets trained on so far", past_mean),
        (f"Mean {what} on the buckets still to come", future_mean),
    ]
    return _charts(charts, groups, level)


def bucket_charts(groups: list[tuple[int, Group]], level: float) -> list[CurveChart]:
    """The score on each bucket, from before it was trained on to the end."""
    if not groups:
        return []
    keys = groups[0][1].members[0].record.matrix.buckets
    charts = [(f"Bucket {key}", partial(_cell, j)) for j, key in enumerate(keys)]
    return _charts(charts, groups, level)


def _charts(
    titled: Sequence[tuple[str, Callable[[_Cells, int], float]]],
    groups: list[tuple[int, Group]],
    level: float,
) -> list[CurveChart]:
    found = []
    for title, value in titled:
        curves = tuple(_curve(position, group, value, level) for position, group in groups)
        curves = tuple(curve for curve in curves if curve.points)
        if curves:
            found.append(CurveChart(title, curves))
    return found


def _curve(
    position: int, group: Group, value: Callable[[_Cells, int], float], level: float
) -> Curve:
    points = []
    for k in range(len(group.grid)):
        found = [value(member.grid, k) for member in group.members]
        found = [v for v in found if not math.isnan(v)]
        if found:
            points.append((k, seed_summary(found, level=level)))
    return Curve(position, tuple(points))


def _cell(bucket: int, cells: _Cells, k: int) -> float:
    return float(cells[k, bucket])
