"""A score over the buckets trained on, as curves in a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import one_line

_LONGEST_TITLE = 80


@dataclass(frozen=True)
class LinePoint:
    """A value after some number of trained buckets."""

    k: int  # buckets trained so far
    value: float  # an accuracy as a fraction
    title: str  # what pointing at it says
    ends: tuple[float, float] | None = None  # of an interval around it
    dot: bool = False  # it has one in a chart without dots, too


@dataclass(frozen=True)
class Line:
    """A curve: which colour and which dashes it has, and its points from left to right."""

    colour: int  # of report.colours.GROUPS
    points: Sequence[LinePoint]
    dash: int = 0  # 0 to 2


@dataclass(frozen=True)
class Axis:
    """The axis up of a chart; accuracies are drawn at its ends where they lie beyond."""

    low: float = 0.0
    high: float = 1.0
    score: Score = ACCURACY

    def ticks(self, *, large: bool) -> list[tuple[float, str]]:
        """Values and their texts: of accuracies in percent, from end to end."""
        steps = 5 if large else 3
        if not self.score.is_accuracy:
            return round_ticks(self.low, self.high, steps)
        return [(v / 100, text) for v, text in round_ticks(100 * self.low, 100, steps)]

    @property
    def about(self) -> str:
        """A sentence on where it begins and ends."""
        if self.score.is_accuracy:
            return f"Up: {self.score.label}; mind where the axis begins."
        return (
            f"Up: {self.score.label}; an untrained model's values are left out where they are "
            "beyond what was measured in training."
        )


def axis_over(lines: Sequence[Line], score: Score = ACCURACY) -> Axis:
    """The axis of charts drawn alike: of accuracies to 1, of others without the untrained model."""
    points = [point for line in lines for point in line.points]
    if not score.is_accuracy:
        points = [point for point in points if point.k > 0] or points
    ends = [end for point in points for end in (point.value, *(point.ends or ()))]
    if score.is_accuracy:
        return Axis(max(0.0, min(0.75, math.floor(4 * min(ends)) / 4)))
    return Axis(*padded(min(ends), max(ends)), score)


def round_ticks(low: float, high: float, steps: int) -> list[tuple[float, str]]:
    """Round numbers between two ends, about as many as *steps*, and their texts."""
    raw = (high - low) / steps
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (math.isclose(step, 2.5 * power)))
    is_plain = decimals <= 6 and max(abs(low), abs(high)) < 1e6
    values = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(value, f"{value:.{decimals}f}" if is_plain else f"{value:.3g}") for value in values]


def padded(low: float, high: float) -> tuple[float, float]:
    """Ends a little outside of what lies between them; around one value, some room."""
    room = 0.06 * (high - low)
    # Of huge numbers that are all but equal, a share of their difference may be nothing.
    if low - room == low or high + room == high:
        room = 0.1 * max(abs(low), abs(high)) or 1.0
    return low - room, high + room


def past_mean(grid: NDArray[np.float64], k: int) -> float:
    """Mean of a (T + 1, T) grid on the k buckets trained on; NaN where one was not measured."""
    return float(grid[k, :k].mean()) if k else math.nan


def future_mean(grid: NDArray[np.float64], k: int) -> float:
    """Mean of the score on the buckets still to come after k; NaN as in :func:`past_mean`."""
    return float(grid[k, k:].mean()) if k < grid.shape[1] else math.nan


def line_chart(
    title: str,
    lines: Sequence[Line],
    last: int,
    *,
    size: tuple[int, int],
    axis: Axis,
    dots: bool,
    times: Sequence[date] = (),
    places: Sequence[float] = (),
    marks: Sequence[tuple[int, str]] = (),
) -> dict[str, Any]:
    """What ``chart`` draws over 0 to *last* buckets; to scale with *times* or *places* (0 to 1)."""
    width, height = size
    dates = _dates(times)
    # Half of the last date is drawn to the right of the last place.
    ticks = axis.ticks(large=dots or width > 600)
    left = 34 if axis.score.is_accuracy else 12 + 6 * max((len(t) for _, t in ticks), default=0)
    right, top, bottom = width - 10 - 3 * len(dates[-1] if dates else ""), 8, height - 22
    if not places:
        places = _places(times) if times else [k / last for k in range(last + 1)]

    def x(k: int) -> float:
        return round(left + (right - left) * places[k], 1)

    def y(value: float) -> float:
        share = (min(max(value, axis.low), axis.high) - axis.low) / (axis.high - axis.low)
        return round(bottom - (bottom - top) * share, 1)

    def drawn(line: Line) -> dict[str, Any]:
        points = line.points
        if not axis.score.is_accuracy:
            points = [point for point in points if axis.low <= point.value <= axis.high]
        spread = [(point.k, point.ends) for point in points if point.ends is not None]
        upper = [f"{x(k)} {y(high)}" for k, (_, high) in spread]
        lower = [f"{x(k)} {y(low)}" for k, (low, _) in reversed(spread)]
        return {
            "colour": line.colour,
            "dash": line.dash,
            "line": f"M{' '.join(f'{x(point.k)} {y(point.value)}' for point in points)}",
            "band": f"M{'L'.join([*upper, *lower])}Z" if len(spread) > 1 else "",
            "dots": [
                {"x": x(point.k), "y": y(point.value), "title": point.title}
                for point in points
                if dots or point.dot or len(points) == 1
            ],
        }

    across = [(x(k), text) for k, text in marks or enumerate(dates, start=1)]
    if not across:
        every = max(1, math.ceil(last / (10 if dots else 5)))
        across = [(x(k), str(k)) for k in range(0, last + 1, every)]
    return {
        "title": one_line(title, _LONGEST_TITLE),
        "width": width,
        "height": height,
        "left": left,
        "right": right,
        "dot": 3.5 if dots else 2.5,
        "marks": [x(k) for k, _ in marks],
        "across": _apart(across),
        "up": [{"at": y(value), "text": text} for value, text in ticks],
        "curves": [curve for curve in map(drawn, lines) if curve["line"] != "M"],
    }


def _places(times: Sequence[date]) -> list[float]:
    """Where 0 to T trained buckets lie on an axis of time from 0 to 1."""
    days = [time.toordinal() for time in times]
    before = days[0] - ((days[-1] - days[0]) / (len(days) - 1) if len(days) > 1 else 1)
    return [(day - before) / (days[-1] - before) for day in [before, *days]]


def _dates(times: Sequence[date]) -> list[str]:
    """The dates as texts: years, or months, where they begin one."""
    length = 4 if all((t.month, t.day) == (1, 1) for t in times) else 10
    if length == 10 and all(t.day == 1 for t in times):
        length = 7
    return [time.isoformat()[:length] for time in times]


def _apart(texts: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
    """Those that do not lie over the one before."""
    found: list[dict[str, Any]] = []
    for place, text in texts:
        if not found or place - found[-1]["at"] >= 8 * len(text):
            found.append({"at": place, "text": text})
    return found
