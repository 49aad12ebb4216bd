"""The comparison for the terminal: the leaderboard, the verdicts, the warnings."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.core.text import NOT_MEASURED, printable, shortened

# Columns of a terminal's 80 that the metrics have: the one that ranks, and those said most often.
_SHOWN = (
    "clear/in_domain_accuracy",
    "clear/next_domain_accuracy",
    "renate/average_accuracy",
    "renate/forgetting",
)
_MOST_ROWS = 50


def comparison_text(comparison: Comparison) -> Iterator[RenderableType]:
    """What is printed, part by part."""
    yield _leaderboard(comparison)
    if len(comparison.groups) > _MOST_ROWS:
        yield Text(f"… {len(comparison.groups) - _MOST_ROWS} more groups", style="dim")
    headline = [test for test in comparison.tests if test.metric == comparison.ranked_by]
    if headline:
        yield Text()
    for test in headline:
        mark = "✓" if test.outcome == "different" else "–"
        yield Text.assemble(
            (mark, "green" if test.outcome == "different" else "dim"), " ", test.sentence
        )
    if comparison.warnings:
        yield Text()
    for warning in comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)


def _leaderboard(comparison: Comparison) -> Table:
    metrics = [
        name
        for name in dict.fromkeys([comparison.ranked_by, *_SHOWN])
        if name is not None and name in comparison.metrics
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("seeds", justify="right", no_wrap=True)
    for metric in metrics:
        family, _, name = metric.partition("/")
        table.add_column(f"{family}/\n{name.replace('_', ' ')}", justify="right")
    for group in comparison.groups[:_MOST_ROWS]:
        cells = []
        for metric in metrics:
            found = group.metrics.get(metric)
            text = NOT_MEASURED
            if found is not None:
                spread = "" if found.std is None else f" ±{found.std:.3f}"
                text = f"{found.mean:.3f}{spread}"
            cells.append(text)
        table.add_row(Text(shortened(printable(group.name), 60)), str(len(group.counted)), *cells)
    return table
