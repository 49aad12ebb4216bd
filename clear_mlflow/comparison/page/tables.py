"""The comparison page's tables of metrics: verdicts on pairs of groups, and the leaderboard."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.page.wording import (
    group_name,
    interval_text,
    p_value_text,
    short,
    signed,
)
from clear_mlflow.comparison.verdicts import Verdict, tests_about
from clear_mlflow.core.score import Score
from clear_mlflow.statistics import SeedSummary

_SIGNS = {"different": "✓", "equivalent": "=", "not shown": "–", "too few": "?"}


def verdicts(comparison: Comparison) -> dict[str, Any]:
    """What the tests of pairs say: of the ranking metric in sentences, of others in a table."""
    return {
        "headline": [_sentence(verdict) for verdict in comparison.verdicts],
        "headline_metric": comparison.ranked_by,
        "how": tests_about(comparison.verdicts, comparison.level),
        "nothing_to_test": (
            "There is one group: nothing to test it against."
            if len(comparison.groups) == 1
            else "No two groups could be tested against each other: that needs two seeds or more "
            "on both sides, or stored predictions of one run on each, and the same test set."
        ),
        "others": [
            {
                "a": short(comparison.groups[test.a].name, 40),
                "b": short(comparison.groups[test.b].name, 40),
                "metric": test.metric,
                "difference": signed(test.difference, comparison.score),
                "interval": interval_text(test.interval, comparison.score),
                "p": p_value_text(test.p_value),
                "adjusted": p_value_text(test.adjusted),
                "real": test.adjusted <= 1 - comparison.level,
            }
            for test in comparison.exploratory
        ],
    }


def _sentence(verdict: Verdict) -> dict[str, Any]:
    return {
        "sign": _SIGNS[verdict.outcome],
        "real": verdict.outcome in ("different", "equivalent"),
        "sentence": verdict.sentence,
        "beside": " ".join(verdict.beside),
        "pair": f"{verdict.a}-{verdict.b}",
    }


def across(comparison: Comparison) -> dict[str, Any] | None:
    """Methods by datasets; None: there is one dataset, or no two methods on all."""
    found = comparison.across
    if found is None:
        return None
    return {
        "metric": found.metric,
        "datasets": [short(name, 40) for name in found.datasets],
        "rows": [
            {
                "name": method.name,
                "rank": f"{method.rank:.2f}",
                "mean": comparison.score.number(method.mean),
                "interval": interval_text(method.interval, comparison.score, 3),
                "cells": [
                    {
                        "text": comparison.score.number(one.mean),
                        "spread": ""
                        if one.std is None
                        else f"± {comparison.score.number(one.std)}",
                    }
                    for one in method.on_each
                ],
            }
            for method in found.methods
        ],
        "sentences": found.sentences,
    }


def leaderboard(comparison: Comparison) -> dict[str, Any]:
    """Groups by metrics, the best of each column marked."""
    metrics = comparison.metrics
    level = f"{100 * comparison.level:g} %"
    best = _best(comparison)
    columns = [
        {
            "name": metric.split("/", 1)[-1].replace("_", " "),
            "full": metric,
            "first": "descending" if comparison.is_higher_better(metric) else "ascending",
            "sorted": metric == comparison.ranked_by and len(comparison.settings) == 1,
        }
        for metric in metrics
    ]
    families = [
        {"name": family, "span": len(list(members))}
        for family, members in groupby(metrics, key=lambda metric: metric.split("/", 1)[0])
    ]
    about = (
        f"Mean over seeds, ± standard deviation, [{level} interval of the mean, Student's t]. "
        "★: the best mean of a column. Empty: not defined. A click on a name sorts."
    )
    rows = []
    for position, group in enumerate(comparison.groups):
        cells = []
        for metric in metrics:
            found = group.metrics.get(metric)
            cells.append(
                {
                    "value": "" if found is None else repr(found.mean),
                    "text": "" if found is None else comparison.score.number(found.mean),
                    "best": position in best.get(metric, ()),
                    "spread": _spread(group, found, comparison.score),
                    "interval": ""
                    if found is None
                    else interval_text(found.interval, comparison.score, 3),
                    "sorted": metric == comparison.ranked_by,
                }
            )
        rows.append(
            {
                "name": group_name(comparison, group),
                "seeds": len(group.counted),
                "diverged": len(group.diverged),
                "cells": cells,
            }
        )
    return {"about": about, "columns": columns, "families": families, "rows": rows}


def _best(comparison: Comparison) -> dict[str, set[int]]:
    """Metric to the positions of its best groups, one of each setting that has more than one."""
    best: dict[str, set[int]] = {}
    for setting in range(len(comparison.settings)):
        for metric in comparison.metrics:
            means = {
                position: group.metrics[metric].mean
                for position, group in enumerate(comparison.groups)
                if group.setting == setting and metric in group.metrics
            }
            if len(means) > 1:
                top = (max if comparison.is_higher_better(metric) else min)(means.values())
                best.setdefault(metric, set()).update(p for p, m in means.items() if m == top)
    return best


def _spread(group: Group, found: SeedSummary | None, score: Score) -> str:
    if found is None or found.std is None:
        return ""
    of = "" if found.n == len(group.counted) else f" ({found.n} of {len(group.counted)})"
    return f"± {score.number(found.std)}{of}"
