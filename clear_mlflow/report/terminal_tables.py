"""The matrix and its metrics for the terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from functools import partial

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from clear_mlflow.core.matrix import TEST, AccuracyMatrix, iter_measured_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.text import format_count, printable, truncate, truncate_start
from clear_mlflow.metrics import MetricResult

_WIDTH = 80  # columns of a terminal
_LABEL = 14  # columns of the row labels
_KEY = 24  # columns of a bucket key in a line
_CELL = 5  # columns of "100.0"


def render_run(record: Record, metrics: Iterable[MetricResult]) -> Iterator[RenderableType]:
    """Yield a run's matrix and metrics, with notes on what is missing."""
    yield build_matrix_table(record.masked_matrix)
    if record.dataset.split != TEST:
        yield Text(
            f"measured on {record.dataset.split} images: use these numbers to choose, not to report"
        )
    if not record.is_complete:
        yield Text(
            f"partial: {record.num_stored} of {format_count(record.matrix.num_buckets, 'row')}; do "
            "not compare these metrics with metrics of complete runs"
        )
    yield ""
    yield build_metrics_table(metrics)


def describe_retention(matrix: AccuracyMatrix) -> Iterator[str]:
    """Yield each earlier bucket's value when new and in the last row.

    Accuracies also have the share that was retained. Buckets that lack a value are left out.
    """
    score = matrix.score
    for j in range(matrix.num_rows - 1):
        learned, last = float(matrix.values[j, j]), float(matrix.values[-1, j])
        if math.isnan(learned + last):
            continue
        unit = " %" if score.is_accuracy else ""
        line = f"learned {score.format_cell(learned)}{unit}, now {score.format_cell(last)}{unit}"
        if score.is_accuracy and learned > 0:
            line += f", retained {last / learned:.0%}".replace("%", " %")
        yield f"bucket {truncate_start(matrix.buckets[j], _KEY)}: {line}"


def build_matrix_table(matrix: AccuracyMatrix) -> Table:
    """Return the matrix in 80 characters, without middle columns if wider.

    All measured rows are in the table, also the initialisation row.
    """
    score = matrix.score
    widest = max(
        (len(score.format_cell(v)) for _, _, row in iter_measured_rows(matrix) for v in row),
        default=0,
    )
    cell_width = max(_CELL, widest)
    max_columns = (_WIDTH - _LABEL) // (cell_width + 1)
    columns = list(range(matrix.num_buckets))
    is_elided = len(columns) > max_columns
    if is_elided:
        half = (max_columns - 1) // 2
        columns = columns[:half] + columns[-half:]
    key_width = max(cell_width, (_WIDTH - _LABEL) // (len(columns) + is_elided) - 1)

    # The box's own column divider is the one space between columns.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    header = "% tested on →" if score.is_accuracy else f"{truncate(score.name, _LABEL - 5)} on →"
    table.add_column(header, no_wrap=True)
    for position, j in enumerate(columns):
        if is_elided and position == len(columns) // 2:
            table.add_column("…", no_wrap=True)
        key = _shorten_key(matrix.buckets[j], key_width)
        table.add_column(key, justify="right", no_wrap=True, min_width=cell_width)

    for i, name, values in iter_measured_rows(matrix):
        label = Text("initial", style="dim")
        if i >= 0:
            label = Text.assemble("after ", _shorten_key(name, _LABEL - 7))
        cells = [
            Text(score.format_cell(values[j]), style="bold" if i == j else "") for j in columns
        ]
        if is_elided:
            cells.insert(len(columns) // 2, Text("…", style="dim"))
        table.add_row(label, *cells)
    return table


def format_matrix(matrix: AccuracyMatrix) -> str:
    """Return the matrix as ``print`` shows it."""
    return render_text(build_matrix_table(matrix))


def build_metrics_table(metrics: Iterable[MetricResult]) -> Table:
    """Return each metric's value, or the reason why it is undefined."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("")
    for metric in metrics:
        note = Text(printable(metric.note), style="dim")
        table.add_row(Text(printable(metric.name)), metric.text, note)
    return table


def render_text(*parts: RenderableType) -> str:
    """Return tables and texts as a terminal of 80 columns prints them."""
    out = io.StringIO()
    create = partial(Console, markup=False, emoji=False, highlight=False)
    console = create(file=out, width=_WIDTH, force_terminal=False, color_system=None)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _shorten_key(key: str, width: int) -> Text:
    """Cut the start of a key to *width* terminal columns."""
    text = truncate_start(key, width)
    while cell_len(text) > width:
        text = truncate_start(key, len(text) - 1)
    return Text(text)
