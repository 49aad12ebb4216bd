"""Groups of runs that were tested inside their buckets, for what draws them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.curves import MOST_CURVES
from clear_mlflow.comparison.groups import Group
from clear_mlflow.report.page.inside_curves import InsideCourse


@dataclass(frozen=True, eq=False)
class InsideGroup:
    """A group whose runs, or some of them, were tested inside their buckets."""

    position: int  # in the comparison
    group: Group
    course: InsideCourse  # of those runs that were read
    runs: int  # so many


def inside_groups(comparison: Comparison, setting: int) -> list[InsideGroup]:
    """The groups of a setting that are drawn, best first."""
    groups = [(p, g) for p, g in enumerate(comparison.groups) if g.setting == setting]
    found = []
    for position, group in groups[:MOST_CURVES]:
        tests = [
            comparison.inside[m.run_id] for m in group.members if m.run_id in comparison.inside
        ]
        if tests:
            course = InsideCourse.over([InsideCourse.of(of_run) for of_run in tests])
            found.append(InsideGroup(position, group, course, len(tests)))
    return found


def over_seeds(
    values: NDArray[np.float64],
) -> tuple[list[float], list[tuple[float, float] | None]]:
    """Each moment's mean over the runs that measured it, and its lowest and highest run.

    Args:
        values: (S, N), of S runs at N moments; NaN = not measured.

    Returns:
        (N,) means, NaN where no run measured; and the two ends, None of fewer than two runs.
    """
    means: list[float] = []
    ends: list[tuple[float, float] | None] = []
    for at_moment in values.T:
        known = at_moment[~np.isnan(at_moment)]
        means.append(float(known.mean()) if len(known) else np.nan)
        ends.append((float(known.min()), float(known.max())) if len(known) > 1 else None)
    return means, ends
