"""The comparison page's tables of metrics: verdicts on pairs of groups, and the leaderboard."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.page.wording import group_name, interval_text, p_value_text, short
from clear_mlflow.comparison.verdicts import Verdict, tests_about
from clear_mlflow.statistics import SeedSummary

_SIGNS = {"different": "✓", "equivalent": "=", "not shown": "–", "too few": "?"}


def verdicts(comparison: Comparison) -> dict[str, Any]:
    """What the tests of pairs show: of the ranking metric in sentences, of others in a table."""
    score = comparison.score

    def signed(value: float) -> str:
        return f"{'+' if value > 0 else ''}{score.number(value)}"

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
                "difference": signed(test.difference),
                "interval": interval_text(test.interval, score),
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


def leaderboard(comparison: Comparison) -> dict[str, Any]:
    """Groups by metrics, the best of each column marked."""
    metrics, ranked, best = comparison.metrics, comparison.ranked_by, _best(comparison)
    number, unsorted = comparison.score.number, len(comparison.settings) > 1

    def cell(position: int, group: Group, metric: str) -> dict[str, Any]:
        found = group.metrics.get(metric)
        return {
            "value": "" if found is None else repr(found.mean),
            "text": "" if found is None else number(found.mean),
            "best": (position, metric) in best,
            "spread": _spread(comparison, group, found),
            "interval": found and interval_text(found.interval, comparison.score, 3),
            "sorted": metric == ranked,
        }

    return {
        "about": f"Mean over seeds, ± standard deviation, [{100 * comparison.level:g} % interval "
        "of the mean, Student's t]. ★: the best mean of a column. Empty: not defined. A click on a "
        "name sorts.",
        "columns": [
            {
                "name": metric.split("/", 1)[-1].replace("_", " "),
                "full": metric,
                "first": "descending" if comparison.is_higher_better(metric) else "ascending",
                "sorted": metric == ranked and not unsorted,
            }
            for metric in metrics
        ],
        "families": [
            {"name": family, "span": len(list(members))}
            for family, members in groupby(metrics, key=lambda metric: metric.split("/", 1)[0])
        ],
        "rows": [
            {
                "name": group_name(comparison, group),
                "seeds": len(group.counted),
                "diverged": len(group.diverged),
                "cells": [cell(position, group, metric) for metric in metrics],
            }
            for position, group in enumerate(comparison.groups)
        ],
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
            if len(means) > 1:
                top = (max if comparison.is_higher_better(metric) else min)(means.values())
                best |= {(position, metric) for position, mean in means.items() if mean == top}
    return best


def _spread(comparison: Comparison, group: Group, found: SeedSummary | None) -> str:
    if found is None or found.std is None:
        return ""
    of = "" if found.n == len(group.counted) else f" ({found.n} of {len(group.counted)})"
    return f"± {comparison.score.number(found.std)}{of}"
