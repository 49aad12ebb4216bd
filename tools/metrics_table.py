"""The table of docs/metrics.md that lists all metrics of the matrix, from their own docstrings.

``python tools/generate.py`` writes it.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from clear_mlflow.metrics import ALL_METRICS, CHANGE, Metric

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

_HEAD = "| name | formula | defined when |\n|---|---|---|\n"


def metrics_page() -> str:
    """docs/metrics.md, with the table of these metrics in it."""
    before, head, rest = PAGE.read_text(encoding="utf-8").partition(_HEAD)
    if not head:
        raise ValueError(f"{PAGE} has no table of all metrics; expected the line {_HEAD[:40]}...")
    after = re.sub(r"\A(\|.*\n)*", "", rest)
    alike: dict[str, list[str]] = {}
    for metric in ALL_METRICS:
        alike.setdefault(_definition(metric), []).append(f"`{metric.name}`")
    rows = (f"| {', '.join(names)} | {text} |\n" for text, names in alike.items())
    return before + head + "".join(rows) + after


def _definition(metric: Metric) -> str:
    text = " ".join((inspect.getdoc(metric.function) or "").split())
    formula = re.search(r"Formula: (.+?)\. Defined when (.+?)\. ", text)
    if formula is None:
        raise ValueError(f"the docstring of {metric.name} lacks 'Formula: ... Defined when ....'")
    extent = re.search(r"in \[(\S+), (\S+)\]", text)
    least = extent[1] if extent else "-1" if metric.score_role == CHANGE else "0"
    sign = "" if metric.higher_is_better else " ↓"
    return f"{formula[1]}{' ±' if least == '-1' else ''}{sign} | {formula[2]}"
