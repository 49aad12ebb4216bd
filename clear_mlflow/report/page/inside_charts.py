"""Accuracy inside the buckets as curves: what a model loses when a bucket begins, and gets back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.text import percent
from clear_mlflow.report.page.inside_curves import LARGE, SMALL, InsideAxis, InsideCourse
from clear_mlflow.report.page.line_chart import Line, axis_over
from clear_mlflow.report.page.matrix_map import short_key, spread_positions

_BEFORE, _NEW = (0, 0), (1, 0)  # colour and dashes


def inside_charts(tests: AnytimeMatrix) -> dict[str, Any] | None:
    """What the page shows of a run's tests inside its buckets; None where no test is evidence."""
    keys = tests.matrix.buckets
    if tests.protocol == "streaming" or not tests.tests:
        return None
    course = InsideCourse.of(tests)
    across = InsideAxis([course], keys)

    def line(style: tuple[int, int], name: str, at: list[int], values: Any) -> Line:
        moments = [course.moments[t] for t in at]
        return across.line(style, name, moments, values[0].tolist(), _percent)

    before, new = [], []
    for position in range(course.num_begun):
        if not course.of_bucket(position):
            continue
        if position:
            before.append(line(_BEFORE, "the buckets before", *course.before(position)))
        new.append(line(_NEW, f"bucket {short_key(keys[position])}", *course.on(position)))
    means = [line for line in (*before, *new) if line.points]
    panels = []
    for j in spread_positions(course.num_begun):
        title = f"Accuracy on bucket {short_key(keys[j])}"
        drawn = line(_BEFORE, title, *course.since(j))
        if drawn.points:
            panels.append((title, drawn))
    axis = axis_over([drawn for _, drawn in panels])
    names = {0: "the buckets before the one in training", 1: "the bucket in training"}
    shown = sum(len(of_bucket) for of_bucket in tests.tests.values())
    return {
        "about": f"The model was tested {shown:,} times inside its buckets. "
        f"{inside_about(course.steps)}",
        "legend": [
            {"colour": colour, "dash": 0, "name": name}
            for colour, name in names.items()
            if any(line.colour == colour for line in means)
        ],
        "mean": across.chart("Mean accuracy on", means, LARGE, axis_over(means)),
        "buckets": [across.chart(title, [drawn], SMALL, axis) for title, drawn in panels],
    }


def inside_about(steps: Sequence[float]) -> str:
    """What such charts show, and how they are read.

    Args:
        steps: optimiser steps of each bucket that was begun.
    """
    return (
        f"Across: {sum(steps):,.0f} optimiser steps; a vertical line is the end of a bucket, a dot "
        "its row of the matrix. Up: accuracy, %; mind where the axis begins. A curve that falls "
        "behind such a line and rises again before the next one is the stability gap, of which "
        "rows alone show nothing."
    )


def _percent(value: float) -> str:
    return f"{percent(value)} %"
