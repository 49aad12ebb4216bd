"""The leaderboard: a line per group, for MLflow's table view, spreadsheets and the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.core.text import shortened
from clear_mlflow.report.exports import csv_text, inert

_LONGEST_NAME = 200
_PARTS = ("mean", "std", "low", "high", "n")

_Cell = str | int | float | None  # None where a value is not defined


def leaderboard_columns(comparison: Comparison) -> list[str]:
    """Names of the columns: five for each metric, and what was grouped by behind them."""
    return [
        *("rank", "group", "runs"),
        *(f"{metric} {part}" for metric in _metrics(comparison) for part in _PARTS),
        *(f"by {name}" for name in comparison.group_by),
        *("dataset", "protocol", "split", "run ids"),
    ]


def leaderboard_rows(comparison: Comparison) -> Iterator[list[_Cell]]:
    """A row per group, best first."""
    for rank, group in enumerate(comparison.groups, start=1):
        setting = comparison.settings[group.setting]
        cells: list[_Cell] = [rank, _text(group.name), len(group.members)]
        for metric in _metrics(comparison):
            found = group.metrics.get(metric)
            if found is None:
                cells += [None, None, None, None, 0]
            else:
                values = (found.mean, found.std, *(found.interval or (None, None)))
                cells += [None if v is None else _digits(v) for v in values] + [found.n]
        cells += [_text(group.labels[name]) for name in comparison.group_by]
        cells += [_text(setting.dataset), setting.protocol, setting.split]
        yield [*cells, " ".join(member.run_id for member in group.members)]


def leader_numbers(comparison: Comparison) -> dict[str, float]:
    """The leader's means of the metrics named most often; none where there are several settings."""
    leader, ranked = comparison.groups[0], comparison.ranked_by
    if len(comparison.settings) > 1 or ranked not in leader.metrics:
        return {}
    names = comparison.headline_metrics
    return {name: _digits(leader.metrics[name].mean) for name in names if name in leader.metrics}


def leaderboard_table(comparison: Comparison) -> str:
    """The leaderboard as MLflow's table artifact."""
    table = {"columns": leaderboard_columns(comparison), "data": [*leaderboard_rows(comparison)]}
    return json.dumps(table, allow_nan=False)


def leaderboard_csv(comparison: Comparison) -> str:
    """The leaderboard for spreadsheets: 12 digits, an empty cell where nothing is defined.

    A text that a spreadsheet would take for a formula has an apostrophe put before it.
    """
    header = [*map(inert, leaderboard_columns(comparison))]
    return csv_text([header, *([*map(_csv_cell, row)] for row in leaderboard_rows(comparison))])


def _metrics(comparison: Comparison) -> list[str]:
    """The one that ranks first: a table's first columns are those that are seen."""
    return sorted(comparison.metrics, key=lambda metric: metric != comparison.ranked_by)


def _csv_cell(value: _Cell) -> str:
    if value is None:
        return ""
    return inert(value) if isinstance(value, str) else repr(value)


def _digits(value: float) -> float:
    """A number without the last digits, which are rounding: .918 and not .9179999999999999."""
    return float(f"{value:.12g}")


def _text(text: str) -> str:
    return shortened(text, _LONGEST_NAME)
