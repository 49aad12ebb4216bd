"""The comparison for the terminal: the leaderboard, the verdicts, the warnings."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clear_mlflow.comparison.across import AcrossDatasets
from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import seeds_text
from clear_mlflow.comparison.verdicts import tests_about
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import NOT_MEASURED, printable, shortened

_MOST_ROWS = 50
# Verdicts with effect sizes, permutation tests and seeds needed; of more, those are on the page.
_MOST_DETAILED = 6


def comparison_text(comparison: Comparison) -> Iterator[RenderableType]:
    """What is printed, part by part."""
    yield _leaderboard(comparison)
    if len(comparison.groups) > _MOST_ROWS:
        yield Text(f"… {len(comparison.groups) - _MOST_ROWS} more groups", style="dim")
    if comparison.across is not None:
        yield Text()
        yield _across(comparison.across, comparison.score)
        for sentence in comparison.across.sentences:
            yield Text.assemble(("- ", "dim"), sentence)
    for verdict in comparison.verdicts:
        real = verdict.outcome in ("different", "equivalent")
        yield Text()
        yield Text.assemble(("✓ " if real else "– ", "green" if real else "dim"), verdict.sentence)
        for sentence in verdict.beside if len(comparison.verdicts) <= _MOST_DETAILED else ():
            yield Padding(Text(sentence, style="dim"), (0, 0, 0, 2))
    if about := tests_about(comparison.verdicts, comparison.level):
        yield Text()
        yield Text(about, style="dim")
    if comparison.warnings:
        yield Text()
    for warning in comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)


def _leaderboard(comparison: Comparison) -> Table:
    metrics = comparison.headline_metrics
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column(
        "group\n(validation)" if comparison.is_validation else "group", overflow="fold"
    )
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
                spread = "" if found.std is None else f" ±{_number(found.std, comparison.score)}"
                text = f"{_number(found.mean, comparison.score)}{spread}"
            cells.append(text)
        table.add_row(Text(shortened(group.name, 60)), seeds_text(group), *cells)
    return table


def _number(value: float, score: Score) -> str:
    return f"{value:.3f}" if score.is_accuracy else score.cell(value)


def _across(across: AcrossDatasets, score: Score) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("method", overflow="fold")
    for heading in ("average\nrank", "interquartile\nmean", *map(printable, across.datasets)):
        table.add_column(heading, justify="right")
    for method in across.methods:
        means = [method.mean, *(one.mean for one in method.on_each)]
        table.add_row(
            Text(method.name), f"{method.rank:.2f}", *(_number(mean, score) for mean in means)
        )
    return table
