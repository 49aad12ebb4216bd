"""Charts of a score after each trained bucket, and charts as SVG files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import one_line
from clear_mlflow.report.colours import GROUPS
from clear_mlflow.report.page import render_fragment

_MAX_TITLE = 80  # characters


@dataclass(frozen=True)
class LinePoint:
    """A value after some number of trained buckets."""

    num_trained: int
    value: float  # an accuracy as a fraction
    title: str  # the tooltip
    interval: tuple[float, float] | None = None
    has_dot: bool = False  # in a chart without dots, too


@dataclass(frozen=True)
class Line:
    """A curve: points from left to right, and their style."""

    colour: int  # index in report.colours.GROUPS
    points: Sequence[LinePoint]
    dash: int = 0  # 0 to 2
    name: str = ""  # in a legend


@dataclass(frozen=True)
class Axis:
    """The y-axis of a chart, which clips accuracies at its ends."""

    low: float = 0.0
    high: float = 1.0
    score: Score = ACCURACY

    def list_ticks(self, *, is_large: bool) -> list[tuple[float, str]]:
        """Return 3 or 5 round values with labels, accuracies in percent."""
        count = 5 if is_large else 3
        if not self.score.is_accuracy:
            return list_round_ticks(self.low, self.high, count)
        return [(v / 100, label) for v, label in list_round_ticks(100 * self.low, 100, count)]

    @property
    def note(self) -> str:
        """A sentence for readers of the chart, or "".

        For accuracies: that the axis does not start at 0. For other scores, always: that values of
        the untrained model outside the axis are omitted.
        """
        if self.score.is_accuracy:
            return "The y-axis does not start at 0." if self.low > 0 else ""
        return (
            "The y-axis shows the range measured in training; values of the untrained model "
            "outside of it are omitted."
        )


def build_axis(lines: Sequence[Line], score: Score = ACCURACY) -> Axis:
    """Return one y-axis for charts that share it.

    For accuracies, it is from 0, 0.25, 0.5 or 0.75, below all points, to 1. For other scores, it is
    the range of all points except the untrained model's. Raises ValueError without points.
    """
    points = [point for line in lines for point in line.points]
    if not score.is_accuracy:
        points = [point for point in points if point.num_trained > 0] or points
    values = [v for point in points for v in (point.value, *(point.interval or ()))]
    if score.is_accuracy:
        return Axis(max(0.0, min(0.75, math.floor(4 * min(values)) / 4)))
    return Axis(*pad_range(min(values), max(values)), score)


def list_round_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Return about *count* round numbers of a range, with labels."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (math.isclose(step, 2.5 * power)))
    is_fixed = decimals <= 6 and max(abs(low), abs(high)) < 1e6
    values = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(value, f"{value:.{decimals}f}" if is_fixed else f"{value:.3g}") for value in values]


def pad_range(low: float, high: float) -> tuple[float, float]:
    """Widen a range a little, also one that is a single value."""
    room = 0.06 * (high - low)
    # A share of the difference between huge, almost equal numbers may be lost in rounding.
    if low - room == low or high + room == high:
        room = 0.1 * max(abs(low), abs(high)) or 1.0
    return low - room, high + room


def compute_past_means(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (T + 1,) means of a grid's rows on buckets trained on.

    A mean is NaN if a cell was not measured, and before the first bucket.
    """
    return np.array([row[:k].mean() if k else math.nan for k, row in enumerate(grid)])


def compute_future_means(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (T + 1,) means of a grid's rows on buckets to come.

    A mean is NaN if a cell was not measured, and after the last bucket.
    """
    return np.array([row[k:].mean() if k < len(row) else math.nan for k, row in enumerate(grid)])


def build_line_chart(
    title: str,
    lines: Sequence[Line],
    last: int,
    *,
    size: tuple[int, int],
    axis: Axis,
    has_dots: bool,
    times: Sequence[date] = (),
    x_shares: Sequence[float] = (),
    x_ticks: Sequence[tuple[int, str]] = (),
    x_label: str = "",
) -> dict[str, Any]:
    """Return what the template ``curves`` draws over 0 to *last* trained buckets.

    size: width and height, pixels; the axes of small charts have no labels. has_dots: draw a dot
    at each point. times: dates of the buckets, for an x-axis to scale. x_shares: positions of the
    points, 0 to 1, if not evenly spaced. x_ticks: points that get a vertical line and a label.
    """
    width, height = size
    dates = _format_dates(times)
    is_large = width > 400
    y_ticks = axis.list_ticks(is_large=is_large)
    left = 34 if axis.score.is_accuracy else 12 + 6 * max((len(t) for _, t in y_ticks), default=0)
    # Half of the last date is drawn to the right of the last point.
    right = width - 10 - 3 * len(dates[-1] if dates else "")
    top, bottom = (26, height - 40) if is_large else (8, height - 22)
    if not x_shares:
        x_shares = _place_dates(times) if times else [k / last for k in range(last + 1)]

    def x(k: int) -> float:
        return round(left + (right - left) * x_shares[k], 1)

    def y(value: float) -> float:
        share = (min(max(value, axis.low), axis.high) - axis.low) / (axis.high - axis.low)
        return round(bottom - (bottom - top) * share, 1)

    def build_curve(line: Line) -> dict[str, Any]:
        points = line.points
        if not axis.score.is_accuracy:
            points = [point for point in points if axis.low <= point.value <= axis.high]
        intervals = [(p.num_trained, p.interval) for p in points if p.interval is not None]
        upper = [f"{x(k)} {y(high)}" for k, (_, high) in intervals]
        lower = [f"{x(k)} {y(low)}" for k, (low, _) in reversed(intervals)]
        return {
            "colour": line.colour,
            "dash": line.dash,
            "line": f"M{' '.join(f'{x(point.num_trained)} {y(point.value)}' for point in points)}",
            "band": f"M{'L'.join([*upper, *lower])}Z" if len(intervals) > 1 else "",
            "dots": [
                {"x": x(point.num_trained), "y": y(point.value), "title": point.title}
                for point in points
                if has_dots or point.has_dot or len(points) == 1
            ],
        }

    labels = [(x(k), label) for k, label in x_ticks or enumerate(dates, start=1)]
    if not labels:
        step = max(1, math.ceil(last / (10 if is_large else 5)))
        labels = [(x(k), str(k)) for k in range(0, last + 1, step)]
    return {
        "title": one_line(title, _MAX_TITLE),
        "width": width,
        "height": height,
        "left": left,
        "right": right,
        "top": top,
        "bottom": bottom,
        "radius": 3.5 if has_dots else 2.5,
        "lines_at": [x(k) for k, _ in x_ticks],
        "x_ticks": _drop_overlaps(labels),
        "y_ticks": [(y(value), label) for value, label in y_ticks],
        "x_label": (x_label or ("bucket date" if times else "buckets trained")) if is_large else "",
        "y_label": one_line(axis.score.label, _MAX_TITLE) if is_large else "",
        "curves": [curve for curve in map(build_curve, lines) if curve["line"] != "M"],
    }


def build_curves(
    means: Sequence[tuple[str, Sequence[Line]]],
    buckets: Sequence[tuple[str, Sequence[Line]]],
    score: Score,
    *,
    last: int,
    times: Sequence[date],
    size: tuple[int, int],
) -> dict[str, Any] | None:
    """Return large charts of *means*, small ones of buckets, and a note.

    Charts without lines are left out; returns None if all are. means, buckets: titles with lines.
    last, times: as in :func:`build_line_chart`. size: width and height of a large chart, pixels.
    """
    bucket_lines = [line for _, lines in buckets for line in lines]
    mean_lines = [line for _, lines in means for line in lines] or bucket_lines
    if not mean_lines:
        return None
    axis, mean_axis = build_axis(bucket_lines or mean_lines, score), build_axis(mean_lines, score)
    chart = partial(build_line_chart, last=last, times=times)
    return {
        "note": mean_axis.note,
        "means": [
            chart(title, lines, size=size, axis=mean_axis, has_dots=True)
            for title, lines in means
            if lines
        ],
        "buckets": [
            chart(title, lines, size=(240, 165), axis=axis, has_dots=False)
            for title, lines in buckets
            if lines
        ],
    }


def _place_dates(times: Sequence[date]) -> list[float]:
    """Return positions of 0 to T trained buckets on a time axis."""
    days = [time.toordinal() for time in times]
    start = days[0] - ((days[-1] - days[0]) / (len(days) - 1) if len(days) > 1 else 1)
    return [(day - start) / (days[-1] - start) for day in [start, *days]]


def _format_dates(times: Sequence[date]) -> list[str]:
    """Return years if all are 1 January, else months or ISO dates."""
    length = 4 if all((t.month, t.day) == (1, 1) for t in times) else 10
    if length == 10 and all(t.day == 1 for t in times):
        length = 7
    return [time.isoformat()[:length] for time in times]


def _drop_overlaps(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return (pixel, label) ticks without those that would overlap."""
    ticks: list[tuple[float, str]] = []
    for position, label in labels:
        if not ticks or position - ticks[-1][0] >= 8 * len(label):
            ticks.append((position, label))
    return ticks


def render_svg(
    macro: str,
    charts: Sequence[Mapping[str, Any]],
    *,
    columns: int,
    legend: Sequence[Line] = (),
) -> bytes:
    """Return charts side by side as an SVG file.

    macro: of pieces.html, which draws each chart: ``curves``, ``dots`` or ``costs``. charts: at
    least one, all equally wide. columns: most charts in a row. legend: lines whose names are listed
    below the charts.
    """
    columns = min(columns, len(charts))
    row_height = max(chart["height"] for chart in charts) + 30  # with a title
    legend_top = math.ceil(len(charts) / columns) * row_height
    text = render_fragment(
        "clear_mlflow.report.page/svg_file",
        macro=macro,
        charts=charts,
        columns=columns,
        row_height=row_height,
        legend=legend,
        legend_top=legend_top,
        width=charts[0]["width"] * columns,
        height=legend_top + 18 * len(legend) + 8,
        colours=GROUPS,
    )
    return text.encode("utf-8", "replace")
