"""The tables of a comparison's page: verdicts on pairs of groups, and the leaderboard."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from clear_mlflow.comparison.build import GROUP_COLUMNS, Comparison
from clear_mlflow.comparison.wording import write_assumptions

SIGNS = {"different": "✓", "equivalent": "=", "not shown": "–", "too few": "?"}


def build_verdicts(comparison: Comparison) -> dict[str, Any]:
    """Return the template's variables for the tests of pairs of groups."""
    return {
        "verdicts": comparison.list_pairs(),
        "signs": SIGNS,
        "exploratory": comparison.exploratory_text,
        "tests_note": write_assumptions(comparison.list_pairs(), comparison.level),
        "no_tests_note": (
            "There is only one group, so there is nothing to test it against."
            if len(comparison.groups) == 1
            else "No two groups could be tested against each other. A test needs the same test set "
            "and at least two seeds of both groups, or one run of each with stored predictions."
        ),
    }


def build_leaderboard(comparison: Comparison) -> dict[str, Any]:
    """Return the columns of groups by metrics, the ranked one first, and each column's best."""
    ranked = comparison.ranked_by
    families = [metric.split("/", 1)[0] for metric in comparison.metrics]
    # The family of the ranked metric comes first, and the ranked metric first in it.
    first_family = ranked.split("/", 1)[0] if ranked else None
    metrics = sorted(
        comparison.metrics,
        key=lambda metric: (
            metric.split("/", 1)[0] != first_family,
            families.index(metric.split("/", 1)[0]),
            metric != ranked,
        ),
    )
    frame = comparison.groups_frame
    cells = [
        [
            {"value": value, "text": text}
            for value, text in zip(
                frame[column.name, "value"], frame[column.name, "text"], strict=True
            )
        ]
        for column in GROUP_COLUMNS
    ]
    has_one_order = len(comparison.conditions) == 1
    return {
        "note": f"Mean over seeds, ± standard deviation, [{100 * comparison.level:g} % interval "
        "of the mean, Student's t]. ★ marks the best mean of a column; an empty cell is "
        "undefined. Click a column's name to sort.",
        "columns": [
            {
                "name": metric.split("/", 1)[-1],
                "full_name": metric,
                "first_order": "ascending"
                if comparison.is_higher_better(metric) is False
                else "descending",
                "is_ranked": metric == ranked,
                "is_sorted": metric == ranked and has_one_order,
            }
            for metric in metrics
        ],
        "families": [
            {"name": family, "span": len(list(members))}
            for family, members in groupby(metrics, key=lambda metric: metric.split("/", 1)[0])
        ],
        "group_columns": [column.name for column in GROUP_COLUMNS],
        "group_cells": list(zip(*cells, strict=True)),
        "best": _find_best(comparison),
    }


def _find_best(comparison: Comparison) -> set[tuple[int, str]]:
    """Return (position, metric) of the best of several groups, by test conditions."""
    best = set()
    for conditions in range(len(comparison.conditions)):
        for metric in comparison.metrics:
            means = {
                position: group.metrics[metric].mean
                for position, group in enumerate(comparison.groups)
                if group.conditions == conditions and metric in group.metrics
            }
            higher = comparison.is_higher_better(metric)
            if len(means) > 1 and higher is not None:
                top = (max if higher else min)(means.values())
                best |= {(position, metric) for position, mean in means.items() if mean == top}
    return best
