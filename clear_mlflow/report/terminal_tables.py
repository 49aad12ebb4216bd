"""The matrix and its metrics for the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from clear_mlflow.core.matrix import TEST, AccuracyMatrix, named_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.text import ending, printable, truncate
from clear_mlflow.metrics import MetricResult

_WIDTH = 80  # what a terminal has at least, and what is assumed where there is none
_LABEL = 14  # columns for what was trained through
_CELL = 5  # columns of "100.0"


def run_text(record: Record, metrics: Iterable[MetricResult]) -> Iterator[RenderableType]:
    """A run's accuracy matrix and metrics, and what they are of where that is not the usual."""
    yield matrix_table(record.masked_matrix)
    if record.split != TEST:
        yield Text(f"measured on {record.split} images: to choose by, not to report")
    if not record.is_complete:
        yield Text(
            f"partial: {record.num_stored} of {record.masked_matrix.num_buckets} rows; these "
            "metrics are of them alone, and not to be compared with those of whole runs"
        )
    yield ""
    yield metrics_table(metrics)


def matrix_table(matrix: AccuracyMatrix) -> Table:
    """The matrix, accuracies in %, in 80 columns: middle ones are left out behind an ellipsis."""
    score = matrix.score
    widest = max((len(score.cell(v)) for _, _, row in named_rows(matrix) for v in row), default=0)
    cell_width = max(_CELL, widest)
    fitting = (_WIDTH - _LABEL) // (cell_width + 1)
    columns = list(range(matrix.num_buckets))
    elided = len(columns) > fitting
    if elided:
        half = (fitting - 1) // 2
        columns = columns[:half] + columns[-half:]
    key_width = max(cell_width, (_WIDTH - _LABEL) // (len(columns) + elided) - 1)

    # The box's own column divider is the one space between columns.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    what = "% tested on →" if score.is_accuracy else f"{truncate(score.name, _LABEL - 5)} on →"
    table.add_column(what, no_wrap=True)
    for position, j in enumerate(columns):
        if elided and position == len(columns) // 2:
            table.add_column("…", no_wrap=True)
        key = _fitted(matrix.buckets[j], key_width)
        table.add_column(key, justify="right", no_wrap=True, min_width=cell_width)

    for i, name, values in named_rows(matrix):
        label = Text("initial", style="dim")
        if i >= 0:
            label = Text.assemble("after ", _fitted(name, _LABEL - 7))
        cells = [Text(score.cell(values[j]), style="bold" if i == j else "") for j in columns]
        if elided:
            cells.insert(len(columns) // 2, Text("…", style="dim"))
        table.add_row(label, *cells)
    return table


def matrix_text(matrix: AccuracyMatrix) -> str:
    """The matrix as ``print`` shows it."""
    return as_text(matrix_table(matrix))


def metrics_table(metrics: Iterable[MetricResult]) -> Table:
    """Every metric with its value, or with the reason why it has none."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("")
    for line in metrics:
        table.add_row(
            Text(printable(line.name)), line.text, Text(printable(line.note), style="dim")
        )
    return table


def as_text(*parts: RenderableType) -> str:
    """Tables and texts, as a terminal of 80 columns prints them."""
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, force_terminal=False, color_system=None)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _fitted(key: str, width: int) -> Text:
    """A bucket key in at most *width* terminal columns, of which wide characters take two."""
    text = ending(key, width)
    while cell_len(text) > width:
        text = ending(key, len(text) - 1)
    return Text(text)
