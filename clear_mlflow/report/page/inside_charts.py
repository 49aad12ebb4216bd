"""Accuracy inside the buckets as curves: what a model loses when a bucket begins, and gets back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.text import percent
from clear_mlflow.report.page.line_chart import Axis, Line, LinePoint, axis_over, line_chart
from clear_mlflow.report.page.matrix_map import short_key, spread_positions

_LARGE, _SMALL = (1240, 320), (390, 190)
_BINS = 300  # of a curve across; in each, the lowest and the highest point are drawn


def inside_charts(tests: AnytimeMatrix) -> dict[str, Any] | None:
    """What the page shows of a run's tests inside its buckets; None where no test is evidence."""
    matrix = tests.matrix
    if tests.protocol == "streaming" or not tests.tests:
        return None
    course = _Course(tests)
    before, new = [], []
    for position in range(course.num_buckets):
        at = course.of_bucket(position)
        if not at:
            continue
        if position:
            name = "the buckets before"
            values = [float(course.cells[t, :position].mean()) for t in at]
            before.append(course.line(0, name, at, values))
        values = [float(course.cells[t, position]) for t in at]
        new.append(course.line(1, f"bucket {short_key(matrix.buckets[position])}", at, values))
    means = [line for line in (*before, *new) if line.points]
    panels = []
    for j in spread_positions(course.num_buckets):
        at = [t for t in range(len(course.cells)) if course.trained[t] >= j]
        title = f"Accuracy on bucket {short_key(matrix.buckets[j])}"
        line = course.line(0, title, at, [float(course.cells[t, j]) for t in at])
        if line.points:
            panels.append((title, line))
    axis = Axis(0.5 if axis_over([line for _, line in panels]).low >= 0.5 else 0.0)  # round steps
    names = {0: "the buckets before the one in training", 1: "the bucket in training"}
    shown = sum(len(of_bucket) for of_bucket in tests.tests.values())
    return {
        "about": f"The model was tested {shown:,} times inside its buckets. Across: optimiser "
        "steps; a vertical line is the end of a bucket, a dot its row of the matrix. A curve that "
        "falls behind such a line and rises again before the next one is the stability gap, of "
        "which rows alone show nothing.",
        "legend": [
            {"colour": colour, "dash": 0, "name": name}
            for colour, name in names.items()
            if any(line.colour == colour for line in means)
        ],
        "mean": course.chart("Mean accuracy on", means, _LARGE, axis_over(means)),
        "buckets": [course.chart(title, [line], _SMALL, axis) for title, line in panels],
    }


class _Course:
    """All tests of a run, from row 0 on, along its optimiser steps."""

    def __init__(self, tests: AnytimeMatrix) -> None:
        matrix = tests.matrix
        self.keys = matrix.buckets
        unknown = np.full(matrix.num_buckets, np.nan)
        cells: list[Any] = [unknown if matrix.initial is None else matrix.initial]
        trained, steps, ends = [-1], [0.0], []
        done = 0.0
        for position in range(max(matrix.num_rows, 1 + max(tests.tests))):
            inside = tests.tests.get(position, ())
            # A bucket whose tests are missing is as long as one step.
            length = inside[0].num_steps if inside else 1
            for test in inside:
                cells.append(test.accuracy)
                trained.append(position)
                steps.append(done + test.step)
            done += length
            if position < matrix.num_rows:
                ends.append(len(cells))
                cells.append(matrix.values[position])
                trained.append(position)
                steps.append(done)
        self.cells: NDArray[np.float64] = np.array(cells, dtype=np.float64)
        self.trained = trained
        self.num_buckets = 1 + trained[-1]
        self._ends = ends
        self._places = [step / steps[-1] for step in steps]

    def of_bucket(self, position: int) -> list[int]:
        """The tests while a bucket is trained on, and the one before them."""
        at = [t for t, bucket in enumerate(self.trained) if bucket == position]
        return [at[0] - 1, *at] if at else []

    def line(self, colour: int, name: str, at: Sequence[int], values: Sequence[float]) -> Line:
        """A curve through some tests, with a dot at each that is a row."""
        ends = {0, *self._ends}
        points = [
            LinePoint(t, value, f"{name}, {self._when(t)}: {percent(value)} %", dot=t in ends)
            for t, value in zip(at, values, strict=True)
            if value == value
        ]
        return Line(colour, self._thinned(points))

    def chart(
        self, title: str, lines: Sequence[Line], size: tuple[int, int], axis: Axis
    ) -> dict[str, Any]:
        """What the macro ``chart`` draws of curves."""
        return line_chart(
            title,
            lines,
            len(self.cells) - 1,
            size=size,
            axis=axis,
            dots=False,
            places=self._places,
            marks=[(t, short_key(self.keys[self.trained[t]])) for t in self._ends],
        )

    def _when(self, t: int) -> str:
        trained = self.trained[t]
        return "before training" if trained < 0 else f"after {short_key(self.keys[trained])}"

    def _thinned(self, points: Sequence[LinePoint]) -> list[LinePoint]:
        """Few enough points to draw: no drop and no row is lost."""
        if len(points) <= 4 * _BINS:
            return list(points)
        kept: dict[int, LinePoint] = {point.k: point for point in points if point.dot}
        bins: dict[int, list[LinePoint]] = {}
        for point in points:
            bins.setdefault(int(self._places[point.k] * _BINS), []).append(point)
        for found in bins.values():
            for point in (min(found, key=_value), max(found, key=_value)):
                kept[point.k] = point
        return [kept[k] for k in sorted(kept)]


def _value(point: LinePoint) -> float:
    return point.value
