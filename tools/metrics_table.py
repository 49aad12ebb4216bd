"""The tables of docs/metrics.md that list all metrics, from the docstrings of their functions.

``python tools/generate.py`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from clear_mlflow.metrics import (
    ALL_METRICS,
    CHANGE,
    PREDICTION_METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
)

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

_HEAD = "| name | formula | defined when |\n|---|---|---|\n"


def metrics_page() -> str:
    """Return docs/metrics.md with current tables of the matrix, predictions and tests."""
    before, *parts = PAGE.read_text(encoding="utf-8").split(_HEAD)
    tables = (ALL_METRICS, PREDICTION_METRICS, WITHIN_BUCKET_METRICS)
    if len(parts) != len(tables):
        raise ValueError(f"{PAGE} has {len(parts)} tables of metrics; expected {len(tables)}")
    rests = (re.sub(r"\A(\|.*\n)*", "", part) for part in parts)
    pairs = zip(tables, rests, strict=True)
    return before + "".join(_HEAD + _format_rows(table) + rest for table, rest in pairs)


def _format_rows(metrics: Iterable[Metric]) -> str:
    """Return a line for each definition, with the names of all metrics that share it."""
    names_by_definition: dict[str, list[str]] = {}
    for metric in metrics:
        names_by_definition.setdefault(_format_definition(metric), []).append(f"`{metric.name}`")
    return "".join(
        f"| {', '.join(names)} | {definition} |\n"
        for definition, names in names_by_definition.items()
    )


def _format_definition(metric: Metric) -> str:
    text = " ".join(metric.documentation.split()) + " "
    match = re.search(r"Formula: (.+?)\. Defined when (.+?)\. ", text)
    if match is None:
        raise ValueError(f"the docstring of {metric.name} lacks 'Formula: ... Defined when ....'")
    extent = re.search(r"in \[(\S+), (\S+)\]", text)
    minimum = extent[1] if extent else "-1" if metric.score_role == CHANGE else "0"
    sign = "" if metric.higher_is_better else " ↓"
    return f"{match[1]}{' ±' if minimum == '-1' else ''}{sign} | {match[2]}"
