"""Accuracy within the buckets: curves of what a model loses and regains while it trains on one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.text import format_count, format_percent
from clear_mlflow.report.page.line_charts import Axis, Line, LinePoint, build_axis, build_line_chart
from clear_mlflow.report.page.matrix_map import sample_evenly, shorten_key

_LARGE, _SMALL = (1240, 340), (390, 190)
_BINS = 300  # of a curve's x-axis; the lowest and the highest point of each are drawn
_PAST, _CURRENT = 0, 1  # colours


def build_within_bucket_charts(tests: AnytimeMatrix) -> dict[str, Any] | None:
    """Return the page's charts of a run's tests within its buckets.

    Returns None without tests, or under protocol streaming, whose tests use training images.
    """
    if tests.protocol == "streaming" or not tests.tests:
        return None
    history, keys = _History(tests), tests.matrix.buckets
    means, panels = [], []
    for j in range(history.num_started):
        indices = np.flatnonzero(history.buckets == j)
        if not len(indices):
            continue
        indices = np.append(indices[0] - 1, indices)  # the curve starts at the test before
        if j:
            past = history.cells[indices, :j].mean(axis=1)
            means.append(history.build_line(_PAST, "past buckets", indices, past))
        name = f"bucket {shorten_key(keys[j])}"
        means.append(history.build_line(_CURRENT, name, indices, history.cells[indices, j]))
    # The current bucket is drawn last, over the past ones.
    means = sorted((line for line in means if line.points), key=attrgetter("colour"))
    for j in sample_evenly(history.num_started):
        title = f"Accuracy on bucket {shorten_key(keys[j])}"
        indices = np.flatnonzero(history.buckets >= j)
        line = history.build_line(_PAST, title, indices, history.cells[indices, j])
        if line.points:
            panels.append((title, line))
    axis, mean_axis = build_axis([line for _, line in panels]), build_axis(means)
    names = {_PAST: "mean of the past buckets", _CURRENT: "the bucket in training"}
    num_tests = sum(len(bucket_tests) for bucket_tests in tests.tests.values())
    note = (
        f"The model was tested {format_count(num_tests, 'time')} within its buckets, in "
        f"{format_count(round(history.num_steps), 'optimiser step')}. "
        "A vertical line is the end of a bucket; a dot is its row of the matrix. "
        "A curve that drops after a line and recovers before the next one shows the stability gap, "
        f"which is not visible in the rows. {mean_axis.note}"
    )
    return {
        "note": note.strip(),
        "legend": [
            {"colour": colour, "dash": 0, "name": name}
            for colour, name in names.items()
            if any(line.colour == colour for line in means)
        ],
        "mean": history.draw("Accuracy within the buckets", means, _LARGE, mean_axis),
        "buckets": [history.draw(title, [line], _SMALL, axis) for title, line in panels],
    }


class _History:
    """All tests of a run in order, rows included.

    Attributes:
        buckets: (N,), index of the bucket in training at each test, -1 before training.
        is_row: (N,), True for the rows of the matrix.
        cells: (N, T), accuracy of each test on each bucket.
        x_shares: (N,), position of each test on the x-axis of optimiser steps, 0 to 1.
        num_started: number of buckets whose training has started.
        num_steps: number of optimiser steps.
    """

    def __init__(self, tests: AnytimeMatrix) -> None:
        matrix = tests.matrix
        initial = np.full(matrix.num_buckets, np.nan) if matrix.initial is None else matrix.initial
        moments: list[tuple[int, float, bool, Any]] = [(-1, 0.0, True, initial)]
        self.num_started = max(matrix.num_rows, 1 + max(tests.tests, default=-1))
        self.num_steps = 0.0
        for bucket in range(self.num_started):
            bucket_tests = tests.tests.get(bucket, ())
            # A bucket without tests gets the width of one step.
            size = float(bucket_tests[0].num_steps if bucket_tests else 1)
            moments += [
                (bucket, self.num_steps + size * t.step / t.num_steps, False, t.accuracy)
                for t in bucket_tests
            ]
            self.num_steps += size
            if bucket < matrix.num_rows:
                moments.append((bucket, self.num_steps, True, matrix.values[bucket]))
        buckets, steps, is_row, cells = zip(*moments, strict=True)
        self.buckets, self.is_row = np.array(buckets), np.array(is_row)
        self.cells = np.array(cells, dtype=np.float64)
        self.x_shares = [step / steps[-1] for step in steps]
        self._keys = matrix.buckets

    def build_line(
        self, colour: int, name: str, indices: NDArray[np.int64], values: NDArray[np.float64]
    ) -> Line:
        """Return a curve through finite values, with a dot at each row."""
        points = [
            LinePoint(t, value, self._describe(name, t, value), has_dot=bool(self.is_row[t]))
            for t, value in zip(indices.tolist(), values.tolist(), strict=True)
            if value == value
        ]
        return Line(colour, self._thin_out(points))

    def draw(
        self, title: str, lines: Sequence[Line], size: tuple[int, int], axis: Axis
    ) -> dict[str, Any]:
        """Return what the template ``chart`` draws. size: width, height, pixels."""
        ends = np.flatnonzero(self.is_row & (self.buckets >= 0)).tolist()
        return build_line_chart(
            title,
            lines,
            len(self.buckets) - 1,
            size=size,
            axis=axis,
            has_dots=False,
            x_label="optimiser steps (labels: ends of buckets)",
            x_shares=self.x_shares,
            x_ticks=[(t, shorten_key(self._keys[self.buckets[t]])) for t in ends],
        )

    def _describe(self, name: str, t: int, value: float) -> str:
        """Return the tooltip of a row, "" for a test within a bucket."""
        if not self.is_row[t]:
            return ""
        bucket = self.buckets[t]
        time = "before training" if bucket < 0 else f"after {shorten_key(self._keys[bucket])}"
        return f"{name}, {time}: {format_percent(value)} %"

    def _thin_out(self, points: list[LinePoint]) -> list[LinePoint]:
        """Keep rows and the extrema of _BINS parts of many points."""
        if len(points) <= 4 * _BINS:
            return points
        chosen = {point.num_trained: point for point in points if point.has_dot}
        bins: dict[int, list[LinePoint]] = {}
        for point in points:
            bins.setdefault(int(self.x_shares[point.num_trained] * _BINS), []).append(point)
        for members in bins.values():
            lowest, highest = (extreme(members, key=attrgetter("value")) for extreme in (min, max))
            chosen |= {lowest.num_trained: lowest, highest.num_trained: highest}
        return [chosen[t] for t in sorted(chosen)]
