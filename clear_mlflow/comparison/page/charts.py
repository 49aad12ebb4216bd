"""The comparison page's drawings: every metric with its interval, and learning curves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.curves import (
    MOST_CURVES,
    Curve,
    CurveChart,
    bucket_charts,
    mean_charts,
)
from clear_mlflow.comparison.page.wording import interval_text, many, setting_text, short
from clear_mlflow.core.score import Score
from clear_mlflow.report.colours import GROUPS
from clear_mlflow.report.page.line_chart import (
    Line,
    LinePoint,
    axis_over,
    line_chart,
    padded,
    round_ticks,
)
from clear_mlflow.statistics import SeedSummary

# The most groups whose dots fit beside their names.
_MOST_DOTS = 24


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
    """For each metric a drawing: a dot and an interval for each group."""
    shown = list(enumerate(comparison.groups))[:_MOST_DOTS]
    longest = max(len(short(group.name, 20)) for _, group in shown)
    width, left, right, line = 420, 24 + 6 * longest, 404, 22
    for metric in comparison.metrics:
        found = [
            (position, group, group.metrics[metric], *comparison.interval_of(position, metric))
            for position, group in shown
            if metric in group.metrics
        ]
        if not found:
            continue
        ends = [e for _, _, s, interval, _ in found for e in (s.mean, *(interval or ()))]
        low, high, ticks = _axis(min(ends), max(ends), comparison.score)

        def at(value: float, low: float = low, high: float = high) -> float:
            return round(left + (right - left) * (value - low) / (high - low), 1)

        dots = []
        for row, (position, group, summary, interval, images) in enumerate(found):
            name = short(group.name)
            evidence = "test images" if images else many(summary.n, "seed")
            score = comparison.score
            value = f"{score.number(summary.mean)} {interval_text(interval, score)}".rstrip()
            dots.append(
                {
                    "colour": position % len(GROUPS),
                    "name": short(name, 20),
                    "title": f"{name}: {value}; {evidence}",
                    "x": at(summary.mean),
                    "y": 16 + line * row,
                    "low": None if interval is None else at(interval.low),
                    "high": None if interval is None else at(interval.high),
                    "images": images,
                }
            )
        yield {
            "title": metric,
            "lower": not comparison.is_higher_better(metric),
            "width": width,
            "left": left,
            "height": 16 + line * len(dots) + 16,
            "ticks": [{"at": at(tick), "text": text} for tick, text in ticks],
            "dots": dots,
        }


def _axis(low: float, high: float, score: Score) -> tuple[float, float, list[tuple[float, str]]]:
    """Ends a little outside, and three to six round numbers between them."""
    if score.is_accuracy:  # a difference of a hundredth of a point fills no panel
        span = max(high - low, 0.01)
        low, high = low - 0.06 * span, high + 0.06 * span
    else:
        low, high = padded(low, high)
    return low, high, round_ticks(low, high, 4)


def curve_parts(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """For each setting its learning curves: of means, and of every bucket."""
    for setting in range(len(comparison.settings)):
        groups = [(p, g) for p, g in enumerate(comparison.groups) if g.setting == setting]
        shown = groups[:MOST_CURVES]
        last = len(comparison.settings[setting].buckets)
        buckets = [
            (chart.title, _lines(chart, comparison))
            for chart in bucket_charts(shown, comparison.level)
        ]
        score = comparison.score
        axis = axis_over([line for _, lines in buckets for line in lines], score)
        times = shown[0][1].members[0].record.times
        across = "the dates of the buckets, true to scale" if times else "buckets trained on"
        about = f"Across: {across}. {axis.about}"
        if any(len(group.members) > 1 for _, group in shown):
            about += f" Band: {100 * comparison.level:g} % interval of the mean over seeds."
        if len(groups) > len(shown):
            about += f" The first {len(shown)} of {len(groups)} groups of the leaderboard."
        yield {
            "setting": setting_text(comparison, setting) if len(comparison.settings) > 1 else "",
            "about": about,
            "legend": [
                {
                    "colour": position % len(GROUPS),
                    "dash": position // len(GROUPS) % 3,
                    "name": short(group.name),
                }
                for position, group in shown
            ],
            "means": [
                line_chart(
                    chart.title,
                    lines,
                    last,
                    size=(560, 300),
                    axis=axis_over(lines, score),
                    dots=True,
                    times=times,
                )
                for chart in mean_charts(shown, comparison.level)
                for lines in [_lines(chart, comparison)]
            ],
            "buckets": [
                line_chart(title, lines, last, size=(240, 165), axis=axis, dots=False, times=times)
                for title, lines in buckets
            ],
        }


def _lines(chart: CurveChart, comparison: Comparison) -> list[Line]:
    return [_line(curve, comparison) for curve in chart.curves]


def _line(curve: Curve, comparison: Comparison) -> Line:
    name = short(comparison.groups[curve.group].name, 60)
    points = [
        LinePoint(
            k,
            summary.mean,
            f"{name}, after {k}: {_with_spread(summary, comparison.score)}",
            None if summary.interval is None else (summary.interval.low, summary.interval.high),
        )
        for k, summary in curve.points
    ]
    return Line(curve.group % len(GROUPS), points, curve.group // len(GROUPS) % 3)


def _with_spread(summary: SeedSummary, score: Score) -> str:
    spread = "" if summary.std is None else f" ± {score.cell(summary.std)}"
    return f"{score.cell(summary.mean)}{score.unit}{spread} ({many(summary.n, 'seed')})"
