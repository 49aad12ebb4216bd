"""Renate's results: the metrics_summary files of an experiment, and its results dictionary as JSON.

Source: src/renate/benchmark/experimentation.py and src/renate/utils/module.py. After each update
all test sets are tested, future ones too; accuracies are fractions. A file
``metrics_summary_update_<n>.csv`` contains the matrix so far; the ``metrics_summary.csv`` of
newer versions contains metrics and no matrix. The dictionary has the untrained model under
``accuracy_init``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile, to_floats, to_rows
from clear_mlflow.importers.plain_text import parse_cell, read_table

_METRIC = "accuracy"
# Some versions put the time behind the number.
_UPDATE = re.compile(r"metrics_summary_update_([0-9]{1,6})(_.*)?\.csv")


class RenateCSV(Format):
    """``metrics_summary_update_<n>.csv``: two header lines (metric, task), a line per update."""

    name = "renate-csv"
    title = "Renate's metrics_summary"
    scale = "fraction"
    marks_initial = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file begins with "Task ID,", as Renate's CSV files do."""
        return file.head.startswith("Task ID,")

    def parse(self, file: ResultFile) -> list[ParsedRun]:
        """Return a list of the file's one run. Raises RecordError if it contains no matrix."""
        table = read_table(file)
        if len(table) < 2 or "Average Accuracy" in table[0]:
            raise RecordError(
                "contains metrics of an experiment and no matrix; import the last "
                "metrics_summary_update_*.csv next to it"
            )
        metrics, tasks = table[0], table[1]
        if len(tasks) != len(metrics) or tasks[0] != "":
            raise RecordError("has no second header line of tasks; expected ',Task 1,Task 2,...'")
        columns = [j for j, name in enumerate(metrics) if name == _METRIC]
        if not columns:
            raise RecordError(
                f"has the metrics {safe_repr(sorted(set(metrics[1:])))}; expected {_METRIC!r}"
            )
        if [tasks[j] for j in columns] != [f"Task {i + 1}" for i in range(len(columns))]:
            raise RecordError("has columns of accuracy that are not Task 1 to Task T in order")
        rows = []
        for update, line in enumerate(table[2:], start=1):
            if len(line) != len(metrics) or line[0] != str(update):
                raise RecordError(
                    f"has the line {safe_repr(line)}; expected the line of update {update}"
                )
            rows.append([parse_cell(line[j]) for j in columns])
        return [ParsedRun(rows=rows)]

    def find_skipped(self, names: Sequence[str]) -> dict[str, str]:
        """Return reasons to skip the summary and all updates except the last.

        The file of the last update contains all rows.
        """
        updates = {name: int(match[1]) for name in names if (match := _UPDATE.fullmatch(name))}
        if not updates:
            return {}
        last = max(updates.values())
        earlier = "an earlier state of the run; a later update next to it contains all rows"
        reasons = {name: earlier for name, number in updates.items() if number < last}
        if "metrics_summary.csv" in names:
            reasons["metrics_summary.csv"] = (
                "contains metrics and no matrix; the matrix is in metrics_summary_update_*.csv"
            )
        return reasons


class RenateResults(Format):
    """JSON of Renate's results: a list of rows per metric, and the row of the untrained model."""

    name = "renate-results"
    title = "Renate's results dictionary"
    scale = "fraction"
    marks_initial = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file is JSON with the key ``accuracy_init`` anywhere."""
        return file.looks_like_json and f'"{_METRIC}_init"'.encode() in file.content

    def parse(self, file: ResultFile) -> list[ParsedRun]:
        """Return a list of the file's one run. Raises RecordError if it is not valid."""
        document = file.json
        if not isinstance(document, dict):
            raise RecordError(f"is {safe_repr(document)}; expected Renate's results dictionary")
        initial = document.get(f"{_METRIC}_init")
        if initial is not None and (not isinstance(initial, list) or len(initial) != 1):
            raise RecordError(
                f"{_METRIC}_init is {safe_repr(initial)}; expected one list in a list"
            )
        return [
            ParsedRun(
                rows=to_rows(document.get(_METRIC), _METRIC),
                initial=None if initial is None else to_floats(initial[0], f"{_METRIC}_init"),
            )
        ]
