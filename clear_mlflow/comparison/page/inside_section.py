"""The comparison page's charts of tests inside buckets: the stability gap of several methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.inside import InsideGroup, inside_groups, over_seeds
from clear_mlflow.comparison.page.wording import many, setting_text, short
from clear_mlflow.core.text import percent
from clear_mlflow.report.colours import GROUPS
from clear_mlflow.report.page.inside_charts import inside_about
from clear_mlflow.report.page.inside_curves import LARGE, SMALL, InsideAxis, mean_steps
from clear_mlflow.report.page.line_chart import Line, axis_over
from clear_mlflow.report.page.matrix_map import short_key, spread_positions


def inside_parts(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """For each setting whose runs were tested inside their buckets: two means, and each bucket."""
    for setting, description in enumerate(comparison.settings):
        if groups := inside_groups(comparison, setting):
            charts = _Charts(groups, description.buckets)
            several = len(comparison.settings) > 1
            yield {
                "setting": setting_text(comparison, setting) if several else "",
                "about": _about(comparison, setting, groups),
                "legend": [charts.key(group) for group in groups],
                "means": charts.means(),
                "buckets": charts.buckets(),
            }


class _Charts:
    """What is drawn of the groups of one setting."""

    def __init__(self, groups: Sequence[InsideGroup], keys: Sequence[str]) -> None:
        self._groups = groups
        self._keys = keys
        self._across = InsideAxis([group.course for group in groups], keys)

    def key(self, group: InsideGroup) -> dict[str, Any]:
        """A line of the legend."""
        colour, dash = _style(group)
        name = f"{short(group.group.name)} ({many(group.runs, 'run')})"
        return {"colour": colour, "dash": dash, "name": name}

    def means(self) -> list[dict[str, Any]]:
        """Accuracy on what was learned before, and on what is being learned."""
        before, new = [], []
        for group in self._groups:
            course = group.course
            for position in filter(course.of_bucket, range(course.num_begun)):
                if position:
                    before += self._lines(group, *course.before(position), band=True)
                new += self._lines(group, *course.on(position), band=True)
        charts = [
            ("Mean accuracy on the buckets before the one in training", before),
            ("Accuracy on the bucket in training", new),
        ]
        return [
            self._across.chart(title, lines, LARGE, axis_over(lines))
            for title, lines in charts
            if lines
        ]

    def buckets(self) -> list[dict[str, Any]]:
        """Accuracy on each bucket, from the first test inside it to the end."""
        begun = max(group.course.num_begun for group in self._groups)
        charts = [
            (
                f"Accuracy on bucket {short_key(self._keys[j])}",
                [
                    line
                    for group in self._groups
                    if j < group.course.num_begun
                    for line in self._lines(group, *group.course.since(j))
                ],
            )
            for j in spread_positions(begun)
        ]
        axis = axis_over([line for _, lines in charts for line in lines])
        return [self._across.chart(title, lines, SMALL, axis) for title, lines in charts if lines]

    def _lines(
        self, group: InsideGroup, at: list[int], values: NDArray[np.float64], *, band: bool = False
    ) -> list[Line]:
        """The curve of a group, where anything was measured."""
        means, ends = over_seeds(values)
        line = self._across.line(
            _style(group),
            short(group.group.name, 60),
            [group.course.moments[t] for t in at],
            means,
            lambda value: f"{percent(value)} %",
            ends if band else (),
        )
        return [line] if line.points else []


def _style(group: InsideGroup) -> tuple[int, int]:
    return group.position % len(GROUPS), group.position // len(GROUPS) % 3


def _about(comparison: Comparison, setting: int, groups: Sequence[InsideGroup]) -> str:
    about = inside_about(mean_steps([group.course for group in groups]))
    if len({group.course.steps for group in groups}) > 1:
        about += " Where runs take different numbers of steps, a bucket is as long as their mean."
    if any(group.runs > 1 for group in groups):
        about += " Lines are means over seeds; bands reach from the lowest of them to the highest."
    drawn = {group.position for group in groups}
    without = [
        short(group.name, 40)
        for position, group in enumerate(comparison.groups)
        if group.setting == setting and position not in drawn
    ]
    if without:
        more = f" and {len(without) - 5} more" if without[5:] else ""
        about += f" Not drawn, for lack of such tests: {', '.join(without[:5])}{more}."
    return about
