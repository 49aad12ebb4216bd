"""Curves over the tests inside buckets: where each lies on the axis across, and what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.report.page.line_chart import Axis, Line, LinePoint, line_chart
from clear_mlflow.report.page.matrix_map import short_key

LARGE, SMALL = (1240, 320), (390, 190)
_BINS = 300  # of a curve across; in each, the lowest and the highest point are drawn

# When a test was made: the position of the bucket in training, and the share of its steps that had
# been taken, above 0 and, at its row, 1. Before training it is (-1, 1).
Moment = tuple[int, float]


@dataclass(frozen=True, eq=False)
class InsideCourse:
    """The tests of a run, rows included, or those of the seeds of one method.

    Args:
        moments: ascending, each once.
        cells: (S, N, T), accuracies of S runs at N moments; NaN = not measured.
        steps: optimiser steps of each bucket that was begun.
    """

    moments: tuple[Moment, ...]
    cells: NDArray[np.float64]
    steps: tuple[float, ...]

    @classmethod
    def of(cls, tests: AnytimeMatrix) -> InsideCourse:
        """The course of a run, from row 0 on."""
        matrix = tests.matrix
        unknown = np.full(matrix.num_buckets, np.nan)
        moments: list[Moment] = [(-1, 1.0)]
        cells: list[Any] = [unknown if matrix.initial is None else matrix.initial]
        steps = []
        for position in range(max(matrix.num_rows, 1 + max(tests.tests, default=-1))):
            inside = tests.tests.get(position, ())
            # A bucket whose tests are missing is as long as one step.
            steps.append(float(inside[0].num_steps if inside else 1))
            moments += [(position, test.step / test.num_steps) for test in inside]
            cells += [test.accuracy for test in inside]
            if position < matrix.num_rows:
                moments.append((position, 1.0))
                cells.append(matrix.values[position])
        return cls(tuple(moments), np.array([cells], dtype=np.float64), tuple(steps))

    @classmethod
    def over(cls, courses: Sequence[InsideCourse]) -> InsideCourse:
        """Several runs as one course, at the moments that all runs tested that began a bucket."""
        length = max(len(course.steps) for course in courses)
        moments: list[Moment] = []
        for position in range(-1, length):
            of_bucket = [
                {moment for moment in course.moments if moment[0] == position}
                for course in courses
                if position < len(course.steps)
            ]
            moments += sorted(set.intersection(*of_bucket))
        cells = np.full((len(courses), len(moments), courses[0].cells.shape[2]), np.nan)
        for seed, course in enumerate(courses):
            known = {moment: t for t, moment in enumerate(course.moments)}
            for t, moment in enumerate(moments):
                if moment in known:
                    cells[seed, t] = course.cells[0, known[moment]]
        return cls(tuple(moments), cells, mean_steps(courses))

    @property
    def num_begun(self) -> int:
        """Buckets that were begun."""
        return len(self.steps)

    def of_bucket(self, position: int) -> list[int]:
        """The moments while a bucket is trained on, and the one before them."""
        at = [t for t, (bucket, _) in enumerate(self.moments) if bucket == position]
        return [at[0] - 1, *at] if at else []

    def before(self, position: int) -> tuple[list[int], NDArray[np.float64]]:
        """While a bucket is trained on: mean accuracy on all buckets before it, (S, moments)."""
        at = self.of_bucket(position)
        return at, self.cells[:, at, :position].mean(axis=2)

    def on(self, position: int) -> tuple[list[int], NDArray[np.float64]]:
        """While a bucket is trained on: accuracy on it, (S, moments)."""
        at = self.of_bucket(position)
        return at, self.cells[:, at, position]

    def since(self, position: int) -> tuple[list[int], NDArray[np.float64]]:
        """Accuracy on a bucket from the first test inside it to the end, (S, moments)."""
        at = [t for t, (bucket, _) in enumerate(self.moments) if bucket >= position]
        return at, self.cells[:, at, position]


def mean_steps(courses: Sequence[InsideCourse]) -> tuple[float, ...]:
    """Optimiser steps of each bucket, in the mean of the runs that began it."""
    length = max(course.num_begun for course in courses)
    return tuple(
        float(np.mean([c.steps[position] for c in courses if position < c.num_begun]))
        for position in range(length)
    )


class InsideAxis:
    """The axis across: optimiser steps, with a line and a name at the end of each bucket.

    Where runs take different numbers of steps, a bucket is as long as their mean.

    Args:
        courses: that are drawn along it.
        keys: of all buckets.
    """

    def __init__(self, courses: Sequence[InsideCourse], keys: Sequence[str]) -> None:
        self._keys = keys
        steps = mean_steps(courses)
        self._moments = sorted({moment for course in courses for moment in course.moments})
        ends = [0.0, *np.cumsum(steps).tolist()]
        reached = [
            ends[position] + share * steps[position] if position >= 0 else 0.0
            for position, share in self._moments
        ]
        self._places = [place / reached[-1] for place in reached]
        self._numbers = {moment: k for k, moment in enumerate(self._moments)}

    def line(
        self,
        style: tuple[int, int],
        name: str,
        moments: Sequence[Moment],
        values: Sequence[float],
        text: Callable[[float], str],
        ends: Sequence[tuple[float, float] | None] = (),
    ) -> Line:
        """A curve through some tests, with a dot at each that is a row.

        Args:
            style: its colour and dashes.
            name: what pointing at a dot says first.
            moments: of the tests.
            values: at each; those that are NaN are left out.
            text: a value as pointing at a dot says it.
            ends: of an interval around each value; none: nowhere.
        """
        points = [
            LinePoint(
                self._numbers[moment],
                value,
                f"{name}, {self._when(moment)}: {text(value)}" if moment[1] == 1 else "",
                around,
                dot=moment[1] == 1,
            )
            for moment, value, around in zip(
                moments, values, ends or [None] * len(moments), strict=True
            )
            if value == value
        ]
        colour, dash = style
        return Line(colour, self._thinned(points), dash)

    def chart(
        self, title: str, lines: Sequence[Line], size: tuple[int, int], axis: Axis
    ) -> dict[str, Any]:
        """What the macro ``chart`` draws of curves."""
        return line_chart(
            title,
            lines,
            len(self._moments) - 1,
            size=size,
            axis=axis,
            dots=False,
            places=self._places,
            marks=[(self._numbers[end], key) for end, key in self._ends()],
        )

    @property
    def marks(self) -> list[tuple[float, str]]:
        """The ends of buckets: where each lies, from 0 to 1, and the bucket's key."""
        return [(self.place(end), key) for end, key in self._ends()]

    def place(self, moment: Moment) -> float:
        """Where a test lies, from 0 to 1."""
        return self._places[self._numbers[moment]]

    def _ends(self) -> list[tuple[Moment, str]]:
        return [
            (moment, short_key(self._keys[moment[0]]))
            for moment in self._moments
            if moment[0] >= 0 and moment[1] == 1
        ]

    def _when(self, moment: Moment) -> str:
        return "before training" if moment[0] < 0 else f"after {short_key(self._keys[moment[0]])}"

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
