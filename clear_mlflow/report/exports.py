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
    """The matrix as JSON: fractions, or another score, in full precision; null = not measured.

    >>> print(matrix_json(AccuracyMatrix([[0.9, float("nan")]])), end="")
    {
      "schema": {"name": "clear_mlflow/accuracy_matrix", "version": "1.0"},
      "buckets": ["1", "2"],
      "num_instances": null,
      "initial": null,
      "values": [[0.9, null]]
    }
    """
    content = {"schema": SCHEMA, **matrix.to_dict()}
    # A line for each part, so that two files can be compared by eye.
    lines = (f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def matrix_csv(matrix: AccuracyMatrix) -> str:
    """The matrix as CSV: fractions in full precision, an empty cell where nothing was measured.

    The header holds the keys of the buckets tested on; the first column says what was trained
    through, ``initial`` for the untrained model. A key that a spreadsheet would take for a formula
    has an apostrophe put before it.

    >>> print(matrix_csv(AccuracyMatrix([[0.9, float("nan")]], initial=[0.1, 0.2])), end="")
    trained_through,1,2
    initial,0.1,0.2
    1,0.9,
    """
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
