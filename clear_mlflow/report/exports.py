"""The assembled matrix as files for other programs: JSON, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence

from clear_mlflow.core.matrix import AccuracyMatrix, named_rows

SCHEMA = {"name": "clear_mlflow/accuracy_matrix", "version": "1.0"}


def matrix_json(matrix: AccuracyMatrix) -> str:
    """The matrix as JSON: fractions, or another score, in full precision; null = not measured."""
    content = {"schema": SCHEMA, **matrix.to_dict()}
    # A line for each part, so that two files can be compared by eye.
    lines = (f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def matrix_csv(matrix: AccuracyMatrix) -> str:
    """The matrix as CSV in full precision: keys in the header, an empty cell = not measured."""
    lines = [["trained_through", *map(inert, matrix.buckets)]]
    for _, name, values in named_rows(matrix):
        cells = ["" if math.isnan(value) else repr(value) for value in values.tolist()]
        lines.append([inert(name), *cells])
    return csv_text(lines)


def csv_text(lines: Iterable[Sequence[str]]) -> str:
    """Cells, a sequence for each line, as CSV; texts from outside went through :func:`inert`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def inert(key: str) -> str:
    """A text for a cell of a spreadsheet, with an apostrophe before what it would calculate."""
    # Full-width forms count: some spreadsheets read them as the plain ones.
    return f"'{key}" if key.lstrip().startswith(tuple("=+-@＝＋－＠")) else key
