"""Print a comparison: leaderboards, verdicts and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clear_mlflow.comparison.build import GROUP_COLUMNS, Comparison
from clear_mlflow.comparison.groups import COST
from clear_mlflow.comparison.tables import format_mean
from clear_mlflow.comparison.wording import DIFFERENT, EQUIVALENT, write_assumptions
from clear_mlflow.core.score import format_significant
from clear_mlflow.core.text import NOT_MEASURED, truncate

_MAX_GROUPS = 50
_MAX_METRICS = 4  # columns of a table with costs
# Up to so many verdicts are printed with details, which are always on the page.
_MAX_DETAILED = 6


def render_comparison(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the parts to print."""
    for number, table in enumerate(_build_leaderboards(comparison)):
        if number:
            yield Text()
        yield table
    if len(comparison.groups) > _MAX_GROUPS:
        yield Text(f"… {len(comparison.groups) - _MAX_GROUPS} more groups", style="dim")
    pairs = comparison.list_pairs()
    for pair in pairs:
        is_decided = pair["outcome"] in (DIFFERENT, EQUIVALENT)
        mark = ("✓ ", "green") if is_decided else ("– ", "dim")
        yield Text()
        yield Text.assemble(mark, pair["sentence"])
        if pair["details"] and len(pairs) <= _MAX_DETAILED:
            yield Padding(Text(" ".join(pair["details"]), style="dim"), (0, 0, 0, 2))
    if comparison.exploratory_text:
        yield Text()
        yield Text.assemble(("? ", "dim"), comparison.exploratory_text)
    if assumptions := write_assumptions(pairs, comparison.level):
        yield Text()
        yield Text(assumptions, style="dim")
    if comparison.warnings:
        yield Text()
    for warning in comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)


def _build_leaderboards(comparison: Comparison) -> Iterator[Table]:
    """Yield a table of headline metrics with costs, then of other metrics, 80 characters wide."""
    metrics = [metric for metric in comparison.headline_metrics if metric != COST]
    has_costs = COST in comparison.headline_metrics
    if has_costs:
        metrics = metrics[:1] + metrics[2:]
    first = _MAX_METRICS + (not has_costs)
    yield _build_leaderboard(comparison, metrics[:first], has_costs=has_costs)
    for start in range(first, len(metrics), _MAX_METRICS):
        yield _build_leaderboard(comparison, metrics[start : start + _MAX_METRICS])


def _build_leaderboard(
    comparison: Comparison, metrics: Sequence[str], *, has_costs: bool = False
) -> Table:
    score, frame = comparison.score, comparison.groups_frame
    # The only space between columns is the divider of the box.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(
        "group\n(validation)" if comparison.is_validation else "group", overflow="fold"
    )
    columns: list[list[Text | str]] = [
        [Text(truncate(name, 60)) for name in frame["group", "name"]]
    ]
    for column in GROUP_COLUMNS:
        table.add_column(column.name, justify="right", no_wrap=True)
        columns.append([*frame[column.name, "text"]])
    # One digit less than elsewhere, so that five columns fit.
    number = "{:.3f}".format if score.is_accuracy else score.cell
    for metric in metrics:
        family, _, name = metric.partition("/")
        header = f"{family}/\n{name}".replace("_", "_\n")
        table.add_column(header, justify="right", no_wrap=True)  # group names are folded first
        cells = frame[metric].itertuples()
        means = ((format_mean(c.mean, c.std, number, "±"), c.partial) for c in cells)
        columns.append(["\n".join(filter(None, lines)) for lines in means])
    if has_costs:
        table.add_column("training\nFLOPs", justify="right")
        costs = frame[COST, "mean"]
        columns.append([NOT_MEASURED if c != c else format_significant(c, 3) for c in costs])
    unit = ", accuracies as fractions" if score.is_accuracy else ""
    table.caption = f"mean over seeds ± standard deviation{unit}"
    for row in list(zip(*columns, strict=True))[:_MAX_GROUPS]:
        table.add_row(*row)
    return table
