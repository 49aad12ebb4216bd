"""The comparison page's tables of metrics: verdicts on pairs of groups, and the leaderboard."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.verdicts import tests_about

SIGNS = {"different": "✓", "equivalent": "=", "not shown": "–", "too few": "?"}


def verdicts(comparison: Comparison) -> dict[str, Any]:
    """What the tests of pairs show."""
    return {
        "verdicts": comparison.verdicts,
        "signs": SIGNS,
        "exploratory": comparison.exploratory_text,
        "how": tests_about(comparison.verdicts, comparison.level),
        "nothing_to_test": (
            "There is one group: nothing to test it against."
            if len(comparison.groups) == 1
            else "No two groups could be tested against each other: that needs two seeds or more "
            "on both sides, or stored predictions of one run on each, and the same test set."
        ),
    }


def leaderboard(comparison: Comparison) -> dict[str, Any]:
    """The columns of the table of groups by metrics, and the best of each column."""
    metrics = comparison.metrics
    is_one_order = len(comparison.settings) == 1
    return {
        "about": f"Mean over seeds, ± standard deviation, [{100 * comparison.level:g} % interval "
        "of the mean, Student's t]. ★: the best mean of a column. Empty: not defined. A click on a "
        "name sorts.",
        "columns": [
            {
                "name": metric.split("/", 1)[-1],
                "full": metric,
                "first": "ascending"
                if comparison.is_higher_better(metric) is False
                else "descending",
                "ranks": metric == comparison.ranked_by,
                "sorted": metric == comparison.ranked_by and is_one_order,
            }
            for metric in metrics
        ],
        "families": [
            {"name": family, "span": len(list(members))}
            for family, members in groupby(metrics, key=lambda metric: metric.split("/", 1)[0])
        ],
        "best": _best(comparison),
    }


def _best(comparison: Comparison) -> set[tuple[int, str]]:
    """Positions and metrics of the best groups, of each setting that has more than one."""
    best = set()
    for setting in range(len(comparison.settings)):
        for metric in comparison.metrics:
            means = {
                position: group.metrics[metric].mean
                for position, group in enumerate(comparison.groups)
                if group.setting == setting and metric in group.metrics
            }
            higher = comparison.is_higher_better(metric)
            if len(means) > 1 and higher is not None:
                top = (max if higher else min)(means.values())
                best |= {(position, metric) for position, mean in means.items() if mean == top}
    return best
