"""The comparison's charts: every metric with its interval, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import COST, Group, mean_text, within_one_percent
from clear_mlflow.comparison.page.wording import interval_text, many, setting_text, short
from clear_mlflow.core.score import Score, significant
from clear_mlflow.metrics import is_cost
from clear_mlflow.report.colours import GROUPS
from clear_mlflow.report.page.line_chart import (
    Line,
    LinePoint,
    axis_over,
    future_mean,
    line_chart,
    padded,
    past_mean,
    round_ticks,
)
from clear_mlflow.statistics import seed_summary

# The most groups whose dots fit beside their names, and whose curves a reader can distinguish.
_MOST_DOTS, _MOST_CURVES = 24, 8

# From (T + 1, T) cells of a run and buckets trained so far to a value; NaN = not defined there.
_Value = Callable[[NDArray[np.float64], int], float]


def plots_about(comparison: Comparison) -> str:
    """What the dots and lines of :func:`metric_plots` are."""
    level = f"{100 * comparison.level:g} %"
    about = f"Dot: mean. Line: {level} interval of the mean over seeds."
    if comparison.image_intervals:
        about += (
            f" Dotted line, at groups of one run: {level} interval over test images, of that one "
            "trained model; other seeds may lie outside of it."
        )
    if len(comparison.groups) > _MOST_DOTS:
        about += f" The first {_MOST_DOTS} groups of the leaderboard."
    return about


def metric_plots(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """For each metric what the macro ``dots`` draws: a dot and an interval for each group."""
    score, shown = comparison.score, list(enumerate(comparison.groups))[:_MOST_DOTS]
    longest = max(len(short(group.name, 20)) for _, group in shown)
    width, left, right, line = 420, 24 + 6 * longest, 404, 22
    for metric in comparison.metrics:
        if is_cost(metric):
            continue
        found = [
            (position, group, group.metrics[metric], *comparison.interval_of(position, metric))
            for position, group in shown
            if metric in group.metrics
        ]
        if not found:
            continue
        ends = [e for _, _, s, interval, _ in found for e in (s.mean, *(interval or ()))]
        low, high = _ends(min(ends), max(ends), score)
        at, dots = partial(_place, (low, high), (left, right)), []
        for row, (position, group, summary, interval, images) in enumerate(found):
            seeds = group.partial_seeds(metric) or str(summary.n)
            evidence = "test images" if images else f"{seeds} seed{'s' * (seeds != '1')}"
            value = f"{score.number(summary.mean)} {interval_text(interval, score=score)}".rstrip()
            dots.append(
                {
                    "colour": position % len(GROUPS),
                    "name": short(group.name, 20),
                    "title": f"{short(group.name)}: {value}; {evidence}",
                    "x": at(summary.mean),
                    "y": 16 + line * row,
                    "low": None if interval is None else at(interval.low),
                    "high": None if interval is None else at(interval.high),
                    "images": images,
                }
            )
        yield {
            "title": metric,
            "lower": comparison.is_higher_better(metric) is False,
            "width": width,
            "left": left,
            "height": 16 + line * len(dots) + 16,
            "ticks": [{"at": at(tick), "text": text} for tick, text in round_ticks(low, high, 4)],
            "dots": dots,
        }


def cost_plots(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """For each setting what ``prices_of`` draws; across is a logarithm from ten times on."""
    ranked, score = comparison.ranked_by or "", comparison.score
    (width, height), left = (560, 320), 60
    higher = comparison.is_higher_better(ranked)
    for setting in range(len(comparison.settings)):
        priced = [
            (position, group, group.metrics[ranked], group.metrics[COST].mean)
            for position, group in enumerate(comparison.groups)
            if group.setting == setting and ranked in group.metrics and COST in group.metrics
        ]
        # A logarithm has no place for 0.
        found = [one for one in priced if one[3] > 0]
        free = [short(group.name, 20) for _, group, _, price in priced if price <= 0]
        prices = [price for *_, price in found]
        # At equal cost all would lie above each other.
        if not prices or within_one_percent(min(prices), max(prices)):
            continue
        without = free[0] if len(free) == 1 else many(len(free), "group")
        scale = math.log10 if max(prices) > 10 * min(prices) else float
        ends = [e for _, _, s, _ in found for e in (s.mean, *(s.interval or ()))]
        low, high = _ends(min(ends), max(ends), score)
        first, last = padded(scale(min(prices)), scale(max(prices)))
        right = width - 24 - 6 * max(len(short(group.name, 20)) for _, group, _, _ in found)
        across = partial(_place, (first, last), (left, right))
        up = partial(_place, (low, high), (height - 22, 8))
        dots: list[dict[str, Any]] = []
        named: list[tuple[float, float, float]] = []  # names: from, to, how far down
        for position, group, summary, price in sorted(found, key=lambda one: up(one[2].mean)):
            bottom, top = map(up, summary.interval) if summary.interval else (None, None)
            text = f"{score.number(summary.mean)} at {significant(price, 3)} training FLOPs"
            name, x, y = short(group.name, 20), across(scale(price)), up(summary.mean)
            to = x + 12 + 6 * len(name)
            line = max([y, *(down + 11 for start, end, down in named if start < to and x < end)])
            named.append((x, to, line))
            dots.append(
                {
                    "colour": position % len(GROUPS),
                    "name": name,
                    "line": round(line, 1),
                    "title": f"{short(group.name)}: {text}",
                    "x": x,
                    "y": y,
                    "low": bottom,
                    "high": top,
                }
            )
        front = front_of([(dot["x"], -dot["y"] if higher else dot["y"]) for dot in dots])
        exact = scale is float
        yield {
            "title": f"{ranked}, by {COST}" + (f", without {without} (0 FLOPs)" if free else ""),
            "width": width,
            "height": height,
            "left": left,
            "right": right,
            "up": [{"at": up(v), "text": text} for v, text in round_ticks(low, high, 5)],
            "across": [
                {"at": across(v), "text": significant(v if exact else 10**v, 2)}
                for v, _ in round_ticks(first, last, 4)
            ],
            "dots": dots,
            "front": "M" + "L".join(f"{dots[i]['x']} {dots[i]['y']}" for i in front),
        }


def front_of(points: Sequence[tuple[float, float]]) -> list[int]:
    """Of (cost, value) pairs those that no other beats in both, by their cost.

    >>> front_of([(2.0, 0.8), (1.0, 0.5), (3.0, 0.7), (2.0, 0.6)])
    [1, 0]
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _place(ends: tuple[float, float], pixels: tuple[int, int], value: float) -> float:
    """Where a value between two ends is drawn, in pixels."""
    (low, high), (first, last) = ends, pixels
    return round(first + (last - first) * (value - low) / (high - low), 1)


def _ends(low: float, high: float, score: Score) -> tuple[float, float]:
    """A little outside of all values."""
    if not score.is_accuracy:
        return padded(low, high)
    span = max(high - low, 0.01)  # a difference of a hundredth of a point fills no panel
    return low - 0.06 * span, high + 0.06 * span


def curve_parts(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """For each setting its learning curves: of means, and of every bucket."""
    score, level = comparison.score, comparison.level
    for setting, description in enumerate(comparison.settings):
        groups = [(p, g) for p, g in enumerate(comparison.groups) if g.setting == setting]
        shown = groups[:_MOST_CURVES]

        def lines(value: _Value, shown: Sequence[tuple[int, Group]] = shown) -> list[Line]:
            found = [_line(position, group, value, level, score) for position, group in shown]
            return [line for line in found if line.points]

        means = {
            f"Mean {score.name} on the buckets trained on so far": lines(past_mean),
            f"Mean {score.name} on the buckets still to come": lines(future_mean),
        }
        buckets = [
            (f"Bucket {k}", lines(partial(_cell, j))) for j, k in enumerate(description.buckets)
        ]
        if not any(found for _, found in buckets):  # no cell is evidence under the protocol
            continue
        axis = axis_over([line for _, of_bucket in buckets for line in of_bucket], score)
        times = shown[0][1].members[0].record.times
        chart = partial(line_chart, last=len(description.buckets), times=times)
        across = "the dates of the buckets, true to scale" if times else "buckets trained on"
        about = f"Across: {across}. {axis.about}"
        if any(len(group.members) > 1 for _, group in shown):
            about += f" Band: {100 * level:g} % interval of the mean over seeds."
        if len(groups) > len(shown):
            about += f" The first {len(shown)} of {len(groups)} groups of the leaderboard."
        yield {
            "setting": setting_text(comparison, setting) if len(comparison.settings) > 1 else "",
            "about": about,
            "legend": [
                {"colour": colour, "dash": dash, "name": short(group.name)}
                for position, group in shown
                for colour, dash in [_style(position)]
            ],
            "means": [
                chart(title, found, size=(560, 300), axis=axis_over(found, score), dots=True)
                for title, found in means.items()
                if found
            ],
            "buckets": [
                chart(title, found, size=(240, 165), axis=axis, dots=False)
                for title, found in buckets
                if found
            ],
        }


def _line(position: int, group: Group, value: _Value, level: float, score: Score) -> Line:
    """A value after each number of trained buckets, over the seeds of a group that define it."""
    name, points = short(group.name, 60), []
    for k in range(len(group.grid)):
        values = [value(member.grid, k) for member in group.members]
        values = [found for found in values if not math.isnan(found)]
        if values:
            summary = seed_summary(values, level=level)
            spread = f"{mean_text(summary, score.cell)}{score.unit}"
            title = f"{name}, after {k}: {spread} ({many(summary.n, 'seed')})"
            points.append(LinePoint(k, summary.mean, title, summary.interval))
    colour, dash = _style(position)
    return Line(colour, points, dash)


def _style(position: int) -> tuple[int, int]:
    """The colour and the dashes of a group."""
    return position % len(GROUPS), position // len(GROUPS) % 3


def _cell(bucket: int, cells: NDArray[np.float64], k: int) -> float:
    return float(cells[k, bucket])
