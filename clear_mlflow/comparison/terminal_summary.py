"""The comparison for the terminal: the leaderboard, the verdicts, the warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import COST, mean_text, seeds_text
from clear_mlflow.comparison.verdicts import tests_about
from clear_mlflow.core.score import significant
from clear_mlflow.core.text import NOT_MEASURED, truncate

_MOST_ROWS = 50
_MOST_ASKED = 4  # columns
# Verdicts with effect sizes and seeds needed; of more, those are on the page.
_MOST_DETAILED = 6


def comparison_text(comparison: Comparison) -> Iterator[RenderableType]:
    """What is printed, part by part."""
    for number, table in enumerate(_leaderboards(comparison)):
        if number:
            yield Text()
        yield table
    if len(comparison.groups) > _MOST_ROWS:
        yield Text(f"… {len(comparison.groups) - _MOST_ROWS} more groups", style="dim")
    for verdict in comparison.verdicts:
        real = verdict.outcome in ("different", "equivalent")
        yield Text()
        yield Text.assemble(("✓ " if real else "– ", "green" if real else "dim"), verdict.sentence)
        if verdict.beside and len(comparison.verdicts) <= _MOST_DETAILED:
            yield Padding(Text(" ".join(verdict.beside), style="dim"), (0, 0, 0, 2))
    if comparison.exploratory:
        yield Text()
        yield Text.assemble(("? ", "dim"), comparison.exploratory_text)
    if about := tests_about(comparison.verdicts, comparison.level):
        yield Text()
        yield Text(about, style="dim")
    if comparison.warnings:
        yield Text()
    for warning in comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)


def _leaderboards(comparison: Comparison) -> Iterator[Table]:
    """The usual metrics and what was spent, then what was asked for, as much as fits into 80."""
    metrics = [metric for metric in comparison.headline_metrics if metric != COST]
    has_costs = COST in comparison.headline_metrics
    if has_costs:  # four with deviations, and this one
        metrics = metrics[:1] + metrics[2:]
    first = _MOST_ASKED + (not has_costs)
    yield _leaderboard(comparison, metrics[:first], has_costs=has_costs)
    for start in range(first, len(metrics), _MOST_ASKED):
        yield _leaderboard(comparison, metrics[start : start + _MOST_ASKED])


def _leaderboard(
    comparison: Comparison, metrics: Sequence[str], *, has_costs: bool = False
) -> Table:
    score = comparison.score
    # The box's own divider is the one space between columns.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(
        "group\n(validation)" if comparison.is_validation else "group", overflow="fold"
    )
    table.add_column("seeds", justify="right", no_wrap=True)
    for metric in metrics:
        family, _, name = metric.partition("/")
        head = f"{family}/\n{name}".replace("_", "_\n")
        table.add_column(head, justify="right", no_wrap=True)  # names of groups are folded first
    if has_costs:
        table.add_column("training\nFLOPs", justify="right")
    what = ", accuracies as fractions" if score.is_accuracy else ""
    table.caption = f"mean over seeds ± standard deviation{what}"
    # A digit less than elsewhere: five columns fit into 80.
    number = "{:.3f}".format if score.is_accuracy else score.cell
    for group in comparison.groups[:_MOST_ROWS]:
        values = [
            "\n".join(filter(None, [mean_text(summary, number, "±"), group.partial_seeds(metric)]))
            for metric, summary in ((metric, group.metrics.get(metric)) for metric in metrics)
        ]
        if has_costs:
            cost = group.metrics.get(COST)
            values.append(NOT_MEASURED if cost is None else significant(cost.mean, 3))
        table.add_row(Text(truncate(group.name, 60)), seeds_text(group), *values)
    return table
