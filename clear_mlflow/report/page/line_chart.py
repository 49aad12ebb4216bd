"""Accuracy over the buckets trained on, as curves in a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.text import one_line

_LONGEST_TITLE = 80


@dataclass(frozen=True)
class LinePoint:
    """A value after some number of trained buckets."""

    k: int  # buckets trained so far
    value: float  # a fraction
    title: str  # what pointing at it says
    ends: tuple[float, float] | None = None  # of an interval around it
    dot: bool = False  # it has one in a chart without dots, too


@dataclass(frozen=True)
class Line:
    """A curve: which colour and which dashes it has, and its points from left to right."""

    colour: int  # of report.colours.GROUPS
    points: Sequence[LinePoint]
    dash: int = 0  # 0 to 2


def past_mean(grid: NDArray[np.float64], k: int) -> float:
    """Mean accuracy on the k buckets trained on; NaN where a cell of them was not measured.

    Args:
        grid: (T + 1, T), fractions; row 0 is the initialisation.
        k: buckets trained so far.
    """
    return float(grid[k, :k].mean()) if k else math.nan


def future_mean(grid: NDArray[np.float64], k: int) -> float:
    """Mean accuracy on the buckets still to come after k; NaN as in :func:`past_mean`."""
    return float(grid[k, k:].mean()) if k < grid.shape[1] else math.nan


def axis_start(lines: Sequence[Line]) -> float:
    """Where the axis of charts begins: the quarter below all that is drawn in them."""
    found = [
        point.value if point.ends is None else min(point.value, point.ends[0])
        for line in lines
        for point in line.points
    ]
    return max(0.0, min(0.75, math.floor(4 * min(found)) / 4))


def line_chart(
    title: str,
    lines: Sequence[Line],
    last: int,
    *,
    size: tuple[int, int],
    lowest: float,
    dots: bool,
    times: Sequence[date] = (),
    places: Sequence[float] = (),
    marks: Sequence[tuple[int, str]] = (),
) -> dict[str, Any]:
    """What the macro ``chart`` draws.

    Args:
        title: any text; one line of it is shown.
        lines: with a point at least each.
        last: buckets of the stream, at least 1; the axis across runs from 0 to there.
        size: width and height.
        lowest: where the axis up begins, a quarter from 0 to 0.75; it ends at 1.
        dots: a dot for each point; otherwise only for a line of a single one, in a small chart.
        times: of the buckets, ascending: the axis across is then of time, true to scale, and what
            was measured before training is drawn before the first, at their mean distance.
        places: where 0 to *last* lie on the axis across, from 0 to 1, where not evenly.
        marks: which of them have a line from top to bottom and a name, in place of numbers.
    """
    width, height = size
    dates = _dates(times)
    # Half of the last date is drawn to the right of the last place.
    left, right, top, bottom = 34, width - 10 - 3 * len(dates[-1] if dates else ""), 8, height - 22

    if not places:
        places = _places(times) if times else [k / last for k in range(last + 1)]

    def x(k: int) -> float:
        return round(left + (right - left) * places[k], 1)

    def y(value: float) -> float:
        share = (min(max(value, lowest), 1.0) - lowest) / (1 - lowest)
        return round(bottom - (bottom - top) * share, 1)

    def drawn(line: Line) -> dict[str, Any]:
        path = " ".join(f"{x(point.k)} {y(point.value)}" for point in line.points)
        spread = [(point.k, point.ends) for point in line.points if point.ends is not None]
        band = ""
        if len(spread) > 1:
            upper = [f"{x(k)} {y(high)}" for k, (_, high) in spread]
            lower = [f"{x(k)} {y(low)}" for k, (low, _) in reversed(spread)]
            band = f"M{'L'.join([*upper, *lower])}Z"
        return {
            "colour": line.colour,
            "dash": line.dash,
            "line": f"M{path}",
            "band": band,
            "dots": [
                {"x": x(point.k), "y": y(point.value), "title": point.title}
                for point in line.points
                if dots or point.dot or len(line.points) == 1
            ],
        }

    named = [text for _, text in marks] or dates
    named_at = [x(k) for k, _ in marks] or [x(k) for k in range(1, last + 1)]
    every = max(1, math.ceil(last / (10 if dots else 5)))
    # Steps of a round number, whatever quarter the axis begins at.
    ticks = {0.0: 4, 0.25: 3, 0.5: 5, 0.75: 5}[lowest] if dots or width > 600 else 2
    return {
        "title": one_line(title, _LONGEST_TITLE),
        "width": width,
        "height": height,
        "left": left,
        "right": right,
        "dot": 3.5 if dots else 2.5,
        "marks": [x(k) for k, _ in marks],
        "across": _ticks(named, named_at)
        if named
        else [{"at": x(k), "text": str(k)} for k in range(0, last + 1, every)],
        "up": [
            {"at": y(lowest + (1 - lowest) * i / ticks), "text": _share(lowest, i / ticks)}
            for i in range(ticks + 1)
        ],
        "curves": [drawn(line) for line in lines],
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


def _ticks(dates: Sequence[str], places: Sequence[float]) -> list[dict[str, Any]]:
    """A tick at each date that does not lie over the one before."""
    found: list[dict[str, Any]] = []
    for text, place in zip(dates, places, strict=True):
        if not found or place - found[-1]["at"] >= 8 * len(text):
            found.append({"at": place, "text": text})
    return found


def _share(lowest: float, part: float) -> str:
    return f"{100 * (lowest + (1 - lowest) * part):g}"
