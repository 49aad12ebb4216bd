"""The charts of a comparison, and names and numbers on its page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import COST, LEVEL, Group, is_equal_cost
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.score import Score, format_significant
from clear_mlflow.core.text import format_count, one_line, show_blank
from clear_mlflow.metrics import is_cost
from clear_mlflow.report.colours import GROUPS, CellScale, build_cell_scale
from clear_mlflow.report.page.line_charts import (
    Line,
    LinePoint,
    build_curves,
    compute_future_means,
    compute_past_means,
    list_round_ticks,
    pad_range,
)
from clear_mlflow.statistics import Interval, seed_summary

# The most groups whose names fit next to their dots, and whose curves a reader can distinguish.
MAX_DOTS, _MAX_CURVES = 24, 8
_NAME_HEIGHT = 13  # pixels
_MAX_NAME = 80  # characters

# Returns (T + 1,) values, after each row of the (T + 1, T) cells of a run, or NaN.
_History = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def build_metric_plots(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield what the template ``dots`` draws for each metric.

    Costs, and groups after the first MAX_DOTS, are left out.
    """
    score, groups = comparison.score, comparison.groups[:MAX_DOTS]
    max_name = max(len(comparison.short_names[group]) for group in groups)
    width, left, right, line_height = 420, 24 + 6 * max_name, 404, 22
    for metric in comparison.metrics:
        if is_cost(metric):
            continue
        rows = [
            (group, group.metrics[metric], *comparison.get_interval(group, metric))
            for group in groups
            if metric in group.metrics
        ]
        if not rows:
            continue
        values = [v for _, s, interval, _ in rows for v in (s.mean, *(interval or ()))]
        low, high = _widen_range(min(values), max(values), score)
        to_pixels, dots = partial(_to_pixel, (low, high), (left, right)), []
        for row, (group, summary, interval, is_over_images) in enumerate(rows):
            partial_seeds = group.format_partial_seeds(metric)
            seeds = f"{partial_seeds} seeds" if partial_seeds else format_count(summary.n, "seed")
            source = "test images" if is_over_images else seeds
            value = f"{score.format_metric(summary.mean)} {format_interval(interval, score=score)}"
            point = to_pixels(summary.mean), 16 + line_height * row
            ends = interval and (to_pixels(interval.low), to_pixels(interval.high))
            text = f"{value.rstrip()}; {source}"
            dot = _build_dot(comparison, group, text, point, ends)
            dots.append({**dot, "is_over_images": is_over_images})
        yield {
            "title": metric,
            "is_lower_better": comparison.is_higher_better(metric) is False,
            "width": width,
            "left": left,
            "height": 16 + line_height * len(dots) + 16,
            "ticks": [(to_pixels(v), label) for v, label in list_round_ticks(low, high, 4)],
            "dots": dots,
        }


def build_cost_plots(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield what the template ``costs`` draws: metric against training FLOPs.

    There is a plot for each of the test conditions whose groups differ in cost by over 1 %. Groups
    with 0 FLOPs, and those after the first MAX_DOTS, are left out. The x-axis is logarithmic if
    the largest cost is more than ten times the smallest.
    """
    metric, score = comparison.ranked_by or "", comparison.score
    width, height, left, top = 720, 400, 46, 26
    bottom = height - 40
    is_higher_better = comparison.is_higher_better(metric)
    for conditions in comparison.conditions:
        groups = [
            group
            for group in comparison.groups
            if group.conditions == conditions and {metric, COST} <= group.metrics.keys()
        ]
        # A logarithmic axis cannot show 0.
        free = [comparison.short_names[g] for g in groups if g.metrics[COST].mean <= 0]
        groups = [group for group in groups if group.metrics[COST].mean > 0][:MAX_DOTS]
        costs = [group.metrics[COST].mean for group in groups]
        summaries = [group.metrics[metric] for group in groups]
        # With equal costs, all dots would be above each other.
        if not costs or is_equal_cost(min(costs), max(costs)):
            continue
        is_log = max(costs) > 10 * min(costs)
        transform = math.log10 if is_log else float
        values = [v for s in summaries for v in (s.mean, *(s.interval or ()))]
        low, high = _widen_range(min(values), max(values), score)
        first, last = pad_range(transform(min(costs)), transform(max(costs)))
        right = width - 24 - 6 * max(len(comparison.short_names[group]) for group in groups)
        to_x = partial(_to_pixel, (first, last), (left, right))
        to_y = partial(_to_pixel, (low, high), (bottom, top))
        dots: list[dict[str, Any]] = []
        for group, summary, cost in zip(groups, summaries, costs, strict=True):
            mean = score.format_metric(summary.mean)
            value = f"{mean} at {format_significant(cost, 3)} training FLOPs"
            point, interval = (to_x(transform(cost)), to_y(summary.mean)), summary.interval
            ends = interval and (to_y(interval.low), to_y(interval.high))
            dots.append(_build_dot(comparison, group, value, point, ends))
        dots.sort(key=lambda dot: dot["y"])
        name_ys = separate_positions([dot["y"] for dot in dots], _NAME_HEIGHT, (top, bottom))
        for dot, name_y in zip(dots, name_ys, strict=True):
            dot["name_y"] = round(name_y, 1)
        front = find_pareto_front(
            [(dot["x"], -dot["y"] if is_higher_better else dot["y"]) for dot in dots]
        )
        omitted = free[0] if len(free) == 1 else format_count(len(free), "group")
        if is_log:
            exponents = range(math.ceil(first), math.floor(last) + 1)
            x_ticks = [(float(e), f"1e{e}") for e in exponents if not e % (len(exponents) // 8 + 1)]
        if not is_log or len(x_ticks) < 2:
            x_ticks = [
                (v, format_significant(10**v if is_log else v, 2))
                for v, _ in list_round_ticks(first, last, 4)
            ]
        yield {
            "title": f"{metric} and training cost"
            + (f", without {omitted} (0 FLOPs)" if free else ""),
            "width": width,
            "height": height,
            "left": left,
            "right": right,
            "top": top,
            "bottom": bottom,
            "x_label": f"training FLOPs{' (log scale)' if is_log else ''}",
            "y_label": metric,
            "y_ticks": [(to_y(v), label) for v, label in list_round_ticks(low, high, 5)],
            "x_ticks": [(to_x(v), label) for v, label in x_ticks],
            "lines_at": [to_x(v) for v, _ in x_ticks],
            "dots": dots,
            "front": "M" + "L".join(f"{dots[i]['x']} {dots[i]['y']}" for i in front),
        }


def _build_dot(
    comparison: Comparison,
    group: Group,
    text: str,
    point: tuple[float, float],
    ends: tuple[float, float] | None,
) -> dict[str, Any]:
    """Return a group's dot: colour, name, tooltip (``title``) and pixels.

    text: tooltip, after the group's name. point: x and y of the dot. ends: pixels of the ends of
    its interval, or None without one.
    """
    low, high = ends or (None, None)
    return {
        "colour": comparison.groups.index(group) % len(GROUPS),
        "name": comparison.short_names[group],
        "title": f"{group.name}: {text}",
        "x": point[0],
        "y": point[1],
        "low": low,
        "high": high,
    }


def separate_positions(
    positions: Sequence[float], gap: float, limits: tuple[float, float]
) -> list[float]:
    """Move sorted positions at least *gap* apart, within limits if possible.

    >>> separate_positions([10, 12, 13, 90], 10, (0, 100))
    [10, 20, 30, 90]
    >>> separate_positions([80, 95, 96], 10, (0, 100))
    [80, 90, 100]
    """
    moved: list[float] = []
    for position in positions:
        moved.append(max(position, moved[-1] + gap) if moved else max(position, limits[0]))
    highest = limits[1]
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], highest)
        highest = moved[i] - gap
    return moved


def find_pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return indices of (cost, value) pairs that exceed all cheaper ones.

    They are sorted by cost.

    >>> find_pareto_front([(2.0, 0.8), (1.0, 0.5), (3.0, 0.7), (2.0, 0.6)])
    [1, 0]
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _to_pixel(ends: tuple[float, float], pixels: tuple[int, int], value: float) -> float:
    (low, high), (first, last) = ends, pixels
    return round(first + (last - first) * (value - low) / (high - low), 1)


def _widen_range(low: float, high: float, score: Score) -> tuple[float, float]:
    """Return a y-range with margins of 6 %."""
    if not score.is_accuracy:
        return pad_range(low, high)
    span = max(high - low, 0.01)
    return low - 0.06 * span, high + 0.06 * span


def build_curve_parts(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the learning curves under each test conditions: means, and each bucket.

    Groups after the first _MAX_CURVES, and test conditions without a measured cell, are left out.
    """
    score = comparison.score
    for conditions in comparison.conditions:
        groups = [group for group in comparison.groups if group.conditions == conditions]
        drawn_groups = groups[:_MAX_CURVES]
        histories: list[tuple[str, _History]] = [
            (f"Mean {score.name} on past buckets", compute_past_means),
            (f"Mean {score.name} on future buckets", compute_future_means),
        ]
        histories += [
            (f"Bucket {key}", itemgetter((slice(None), j)))
            for j, key in enumerate(conditions.buckets)
        ]
        panels = []
        for title, history in histories:
            lines = [_build_line(comparison, group, history) for group in drawn_groups]
            panels.append((title, [line for line in lines if line.points]))
        last, times = len(conditions.buckets), conditions.times
        curves = build_curves(
            panels[:2], panels[2:], score, last=last, times=times, size=(560, 320)
        )
        if curves is None:
            continue
        notes = [curves["note"]]
        if any(len(group.members) > 1 for group in drawn_groups):
            notes.append(f"Band: {100 * LEVEL:g} % interval of the mean over seeds.")
        if len(groups) > len(drawn_groups):
            notes.append(
                f"The first {len(drawn_groups)} of {len(groups)} groups of the leaderboard."
            )
        is_only = len(comparison.conditions) == 1
        yield {
            **curves,
            "conditions": "" if is_only else describe_conditions(conditions),
            "note": " ".join(filter(None, notes)),
            "legend": lines,  # the same names and colours in all panels
        }


def _build_line(comparison: Comparison, group: Group, history: _History) -> Line:
    """Return a group's line: the mean of *history* over seeds.

    history: function from the (T + 1, T) cells of a run to a value after each of 0 to T buckets.
    """
    name, score, points = group.name, comparison.score, []
    values_by_row = np.transpose([history(member.grid) for member in group.members])
    for num_trained, row in enumerate(values_by_row):
        if values := row[~np.isnan(row)].tolist():
            summary = seed_summary(values, level=LEVEL)
            std = "" if summary.std is None else f" ± {score.format_cell(summary.std)}"
            mean = f"{score.format_cell(summary.mean)}{std}{score.unit}"
            title = f"{name}, after {num_trained}: {mean} ({format_count(summary.n, 'seed')})"
            points.append(LinePoint(num_trained, summary.mean, title, summary.interval))
    position = comparison.groups.index(group)
    return Line(position % len(GROUPS), points, position // len(GROUPS) % 3, name)


def build_matrix_scales(comparison: Comparison) -> dict[DatasetDescription, CellScale]:
    """Return a colour scale for each of ``comparison.conditions``."""
    grids: dict[DatasetDescription, list[NDArray[np.float64]]] = defaultdict(list)
    for group in comparison.groups:
        grids[group.conditions] += [run.grid for run in group.members]
    return {key: build_cell_scale(comparison.score, grids[key]) for key in grids}


def shorten(name: str, limit: int = _MAX_NAME) -> str:
    """Shorten an untrusted name in its middle: names end differently."""
    return one_line(show_blank(name), limit)


def describe_conditions(conditions: DatasetDescription) -> str:
    """Return dataset, test set and protocol of test conditions."""
    text = f"{shorten(conditions.name)}, {format_count(len(conditions.buckets), 'bucket')}"
    noun = "images" if conditions.score.is_accuracy else "instances"
    if conditions.num_test is not None:
        text += f", {sum(conditions.num_test):,} {conditions.split} {noun}"
    if not conditions.score.is_accuracy:
        text += f", {conditions.score.label}"
    return f"{text}, protocol {conditions.protocol}, digest {shorten(conditions.digest, 24)}"


def name_group(comparison: Comparison, group: Group) -> str:
    """Return a group's name, with its test set if there are several."""
    conditions = group.conditions
    if len(comparison.conditions) == 1:
        return group.name
    number = comparison.conditions.index(conditions) + 1
    return f"{group.name} [{conditions.protocol}, {conditions.split} set {number}]"


def format_interval(interval: Interval | None, decimals: int = 4, *, score: Score) -> str:
    """Return an interval in brackets, "" without one."""
    if interval is None:
        return ""
    number = f"{{:.{decimals}f}}".format if score.is_accuracy else score.format_metric
    return f"[{number(interval.low)}, {number(interval.high)}]"
