"""Accuracy inside the buckets as curves: what a model loses when a bucket begins, and gets back."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.text import percent
from clear_mlflow.report.page.line_chart import Axis, Line, LinePoint, axis_over, line_chart
from clear_mlflow.report.page.matrix_map import short_key, spread_positions

_LARGE, _SMALL = (1240, 320), (390, 190)
_BINS = 300  # of a curve across; in each, the lowest and the highest point are drawn
_BEFORE, _NEW = 0, 1  # colours


def inside_charts(tests: AnytimeMatrix) -> dict[str, Any] | None:
    """What the page shows of a run's tests inside its buckets; None where no test is evidence."""
    if tests.protocol == "streaming" or not tests.tests:
        return None
    course, keys = _Course(tests), tests.matrix.buckets
    means = []
    for position in range(course.num_begun):
        at = course.during(position)
        if at and position:
            before = course.cells[at, :position].mean(axis=1)
            means.append(course.line(_BEFORE, "the buckets before", at, before))
        if at:
            name = f"bucket {short_key(keys[position])}"
            means.append(course.line(_NEW, name, at, course.cells[at, position]))
    # Those before first, so that the bucket in training is drawn over them.
    means = sorted((line for line in means if line.points), key=lambda line: line.colour)
    panels = []
    for j in spread_positions(course.num_begun):
        title = f"Accuracy on bucket {short_key(keys[j])}"
        at = [t for t, (bucket, _) in enumerate(course.moments) if bucket >= j]
        line = course.line(_BEFORE, title, at, course.cells[at, j])
        if line.points:
            panels.append((title, line))
    axis = axis_over([line for _, line in panels])
    names = {_BEFORE: "the buckets before the one in training", _NEW: "the bucket in training"}
    shown = sum(len(of_bucket) for of_bucket in tests.tests.values())
    return {
        "about": f"The model was tested {shown:,} times inside its buckets. Across: "
        f"{course.steps:,.0f} optimiser steps; a vertical line is the end of a bucket, a dot its "
        "row of the matrix. Up: accuracy, %; mind where the axis begins. A curve that falls behind "
        "such a line and rises again before the next one is the stability gap, of which rows alone "
        "show nothing.",
        "legend": [
            {"colour": colour, "dash": 0, "name": name}
            for colour, name in names.items()
            if any(line.colour == colour for line in means)
        ],
        "mean": course.chart("Mean accuracy on", means, _LARGE, axis_over(means)),
        "buckets": [course.chart(title, [line], _SMALL, axis) for title, line in panels],
    }


class _Course:
    """A run's tests, rows included, by steps: ``moments`` (bucket, share), ``cells`` (N, T)."""

    def __init__(self, tests: AnytimeMatrix) -> None:
        matrix = tests.matrix
        unknown = np.full(matrix.num_buckets, np.nan)
        self.moments: list[tuple[int, float]] = [(-1, 1.0)]
        cells: list[Any] = [unknown if matrix.initial is None else matrix.initial]
        reached, self.steps = [0.0], 0.0
        self.num_begun = max(matrix.num_rows, 1 + max(tests.tests, default=-1))
        for position in range(self.num_begun):
            inside = tests.tests.get(position, ())
            # A bucket whose tests are missing is as long as one step.
            steps = float(inside[0].num_steps if inside else 1)
            self.moments += [(position, test.step / test.num_steps) for test in inside]
            cells += [test.accuracy for test in inside]
            if position < matrix.num_rows:
                self.moments.append((position, 1.0))
                cells.append(matrix.values[position])
            shares = (share for bucket, share in self.moments if bucket == position)
            reached += [self.steps + share * steps for share in shares]
            self.steps += steps
        self.cells = np.array(cells, dtype=np.float64)
        self._keys = matrix.buckets
        self._places = [place / reached[-1] for place in reached]

    def during(self, position: int) -> list[int]:
        """The moments while a bucket is trained on, and the one before them."""
        at = [t for t, (bucket, _) in enumerate(self.moments) if bucket == position]
        return [at[0] - 1, *at] if at else []

    def line(self, colour: int, name: str, at: Sequence[int], values: NDArray[np.float64]) -> Line:
        """A curve through the values at some moments, with a dot at each that is a row."""
        points = [
            LinePoint(
                t,
                value,
                f"{name}, {self._when(t)}: {percent(value)} %" if self._is_row(t) else "",
                dot=self._is_row(t),
            )
            for t, value in zip(at, values.tolist(), strict=True)
            if value == value
        ]
        return Line(colour, self._thinned(points))

    def chart(
        self, title: str, lines: Sequence[Line], size: tuple[int, int], axis: Axis
    ) -> dict[str, Any]:
        """What the macro ``chart`` draws of curves."""
        ends = [t for t, (bucket, _) in enumerate(self.moments) if bucket >= 0 and self._is_row(t)]
        return line_chart(
            title,
            lines,
            len(self.moments) - 1,
            size=size,
            axis=axis,
            dots=False,
            places=self._places,
            marks=[(t, short_key(self._keys[self.moments[t][0]])) for t in ends],
        )

    def _is_row(self, t: int) -> bool:
        return self.moments[t][1] == 1

    def _when(self, t: int) -> str:
        bucket = self.moments[t][0]
        return "before training" if bucket < 0 else f"after {short_key(self._keys[bucket])}"

    def _thinned(self, points: list[LinePoint]) -> list[LinePoint]:
        """Few enough points to draw: no drop and no row is lost."""
        if len(points) <= 4 * _BINS:
            return points
        kept = {point.k: point for point in points if point.dot}
        bins: dict[int, list[LinePoint]] = {}
        for point in points:
            bins.setdefault(int(self._places[point.k] * _BINS), []).append(point)
        for found in bins.values():
            for point in (min(found, key=attrgetter("value")), max(found, key=attrgetter("value"))):
                kept[point.k] = point
        return [kept[k] for k in sorted(kept)]
