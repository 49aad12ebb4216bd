"""The matrix as files for other programs: JSON, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import math
import re

from clear_mlflow.core.matrix import AccuracyMatrix, iter_measured_rows

SCHEMA = {"name": "clear_mlflow/accuracy_matrix", "version": "1.0"}


def format_matrix_json(matrix: AccuracyMatrix) -> str:
    """Return the matrix as JSON in full precision, null where not measured."""
    content = {"schema": SCHEMA, **matrix.to_dict()}
    # One line per field, so that two files can be compared by eye.
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def format_matrix_csv(matrix: AccuracyMatrix) -> str:
    """Return the matrix as CSV in full precision, empty where not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trained_through", *map(disarm_formula, matrix.buckets)])
    for _, name, values in iter_measured_rows(matrix):
        cells = ["" if math.isnan(value) else repr(value) for value in values.tolist()]
        writer.writerow([disarm_formula(name), *cells])
    return text.getvalue()


def disarm_formula(cell: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would calculate.

    A text that has an apostrophe there gets another, so that different texts stay different.
    """
    # Some spreadsheets read full-width characters like the ASCII ones.
    return f"'{cell}" if re.match(r"[\s']*[=+\-@＝＋－＠]", cell) else cell
