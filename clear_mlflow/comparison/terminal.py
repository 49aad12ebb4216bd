"""Print a comparison: leaderboards, verdicts and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clear_mlflow.comparison.groups import COST, Group, truncate_name
from clear_mlflow.comparison.published_results import NOTE
from clear_mlflow.comparison.result import (
    BETTER,
    DIFFERENT,
    EQUIVALENT,
    UNDECIDED,
    UNTESTED,
    WORSE,
    Across,
    Comparison,
)
from clear_mlflow.comparison.tables import (
    build_text_columns,
    format_difference,
    format_mean,
    list_percent_metrics,
)
from clear_mlflow.comparison.wording import describe_assumptions
from clear_mlflow.core.score import format_significant
from clear_mlflow.core.text import NOT_MEASURED, format_count

_MAX_GROUPS = 50
_MAX_METRICS = 4  # columns of a table with costs
# Up to so many verdicts are printed with details, which are always on the page.
_MAX_DETAILED = 6
_MARKS = {BETTER: "✓", WORSE: "✗", UNDECIDED: "–", UNTESTED: ""}
_MAX_VALUES = 6  # columns of a table of values of a parameter


def render_comparison(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield leaderboards, verdicts, the tests' assumptions, and warnings.

    At most _MAX_GROUPS groups are listed. Verdicts have details if there are at most _MAX_DETAILED.
    """
    for number, table in enumerate(_build_leaderboards(comparison)):
        if number:
            yield Text()
        yield table
    if len(comparison.groups) > _MAX_GROUPS:
        count = format_count(len(comparison.groups) - _MAX_GROUPS, "more group")
        yield Text(f"… {count}", style="dim")
    if comparison.published:
        yield Text()
        yield from _render_published(comparison)
    pairs = comparison.pairs
    for pair in pairs:
        is_decided = pair.outcome in (DIFFERENT, EQUIVALENT)
        mark = ("✓ ", "green") if is_decided else ("– ", "dim")
        yield Text()
        yield Text.assemble(mark, pair.sentence)
        if pair.details and len(pairs) <= _MAX_DETAILED:
            yield Padding(Text(" ".join(pair.details), style="dim"), (0, 0, 0, 2))
    if comparison.exploratory:
        yield Text()
        yield Text.assemble(("? ", "dim"), comparison.exploratory)
    if comparison.across is not None:
        yield Text()
        yield from _render_across(comparison, comparison.across)
    if assumptions := describe_assumptions(pairs):
        yield Text()
        yield Text(assumptions, style="dim")
    if comparison.warnings:
        yield Text()
    for warning in comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)


def _render_published(comparison: Comparison) -> Iterator[RenderableType]:
    metrics = comparison.published_metrics[:_MAX_METRICS]
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, style="italic")
    table.add_column("published", overflow="fold")
    for name in metrics:
        table.add_column(name.replace("/", "/\n").replace("_", "_\n"), justify="right")
    for result in comparison.published:
        cells = [result.values.get(name, "") for name in metrics]
        names = f"{result.method}: {result.recipe}"
        table.add_row(*(Text(cell, style="italic") for cell in (names, *cells)))
    table.caption = NOTE
    yield table
    for source in dict.fromkeys(result.source for result in comparison.published):
        yield Text(source, style="dim italic", overflow="fold")


def _render_across(comparison: Comparison, across: Across) -> Iterator[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    has_cells = len(across.values) <= _MAX_VALUES
    counted = (BETTER, UNDECIDED, WORSE)
    table.add_column(f"across {across.parameter}", overflow="fold")
    values = map(truncate_name, across.values) if has_cells else counted
    for name in (*values, "mean"):
        table.add_column(name, justify="right", overflow="fold")
    for pair in across.pairs:
        cells = [f"{pair.count(outcome)}" for outcome in counted]
        if has_cells:
            cells = [
                f"{format_difference(comparison, difference)} {_MARKS[pair.outcomes[value]]}"
                for value, difference in pair.differences.items()
            ]
        mean = format_difference(comparison, pair.mean_difference)
        table.add_row(*map(Text, (f"{pair.a} - {pair.b}", *cells, mean)))
    unit = " in points" if comparison.ranked_by in list_percent_metrics(comparison) else ""
    marks = "; ✓ better, ✗ worse, – not decided" if has_cells else ""
    table.caption = f"differences in {comparison.ranked_by}{unit}{marks}"
    yield table
    for pair in across.pairs:
        yield Text()
        yield Text(f"{pair.sentence}.")


def _build_leaderboards(comparison: Comparison) -> Iterator[Table]:
    """Yield tables of headline metrics, then others, 80 characters wide."""
    metrics = [metric for metric in comparison.table_metrics if metric != COST]
    has_costs = COST in comparison.table_metrics
    first = _MAX_METRICS + (not has_costs)
    starts = range(first, len(metrics), _MAX_METRICS)
    yield _build_leaderboard(
        comparison, metrics[:first], has_costs=has_costs, has_horizons=not starts
    )
    for start in starts:
        has_horizons = start == starts[-1]  # there is no space for them in the first table
        chosen = metrics[start : start + _MAX_METRICS]
        yield _build_leaderboard(comparison, chosen, has_horizons=has_horizons)


def _build_leaderboard(
    comparison: Comparison,
    metrics: Sequence[str],
    *,
    has_costs: bool = False,
    has_horizons: bool = False,
) -> Table:
    """Return a table: metrics are columns, the first _MAX_GROUPS groups rows.

    has_costs: add a column of training FLOPs. has_horizons: keep the column of horizons, if any.
    """
    score = comparison.score
    # One digit less than elsewhere, so that five columns fit.
    number = "{:.3f}".format if score.is_accuracy else score.format_cell

    def format_cell(name: str, group: Group) -> str:
        if name == COST:
            summary = group.metrics.get(COST)
            return NOT_MEASURED if summary is None else format_significant(summary.mean, 3)
        mean = format_mean(group, name, number, "±")
        return "\n".join(filter(None, (mean, group.format_partial_seeds(name))))

    names = [*metrics, COST] if has_costs else metrics
    columns = build_text_columns(comparison, names, format_cell)
    if not has_horizons:
        columns.pop("horizon", None)
    # The only space between columns is the divider of the box.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for name in columns:
        if name == "group":
            head = "group\n(validation)" if comparison.is_validation else name
            table.add_column(head, overflow="fold")
            continue
        family, _, title = name.partition("/")
        head = f"{family}/\n{title}".replace("_", "_\n") if title else name
        # Names of groups and further columns, such as "5, identical", are folded.
        head = "training\nFLOPs" if name == COST else head
        table.add_column(head, justify="right", no_wrap=name in names, overflow="fold")
    unit = ", accuracies as fractions" if score.is_accuracy else ""
    table.caption = f"mean over seeds ± standard deviation{unit}"
    for row in list(zip(*columns.values(), strict=True))[:_MAX_GROUPS]:
        table.add_row(*map(Text, row))
    return table
