"""Renate's results: the metrics_summary files of an experiment, and its results dictionary as JSON.

Source: src/renate/benchmark/experimentation.py and src/renate/utils/module.py. After each update
all test sets are tested, future ones too; accuracies are fractions. A file
``metrics_summary_update_<n>.csv`` contains the matrix so far; the ``metrics_summary.csv`` of
newer versions contains metrics and no matrix. The dictionary has the untrained model under
``accuracy_init``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import convert
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile, parse_cell, to_rows
from clear_mlflow.importers.plain_text import parse_table

# Some versions put the time behind the number.
_UPDATE = re.compile(r"metrics_summary_update_([0-9]{1,6})(_.*)?\.csv")


class RenateCSV(Format):
    """``metrics_summary_update_<n>.csv``: two header lines (metric, task), a line per update."""

    name = "renate-csv"
    scale = "fraction"
    marks_initial = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file begins with Renate's "Task ID,"."""
        return file.head.startswith("Task ID,")

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run. Raises RecordError if it contains no matrix."""
        table = parse_table(file) or [[]]
        metrics, tasks = table[0], table[1] if len(table) > 1 else []
        columns = [j for j, name in enumerate(metrics) if name == "accuracy"]
        if not columns:
            raise RecordError(
                f"contains no matrix, only the metrics {safe_repr(metrics[1:])}; expected "
                "'accuracy': import the last metrics_summary_update_*.csv"
            )
        expected_tasks = [f"Task {number}" for number in range(1, len(columns) + 1)]
        if len(tasks) != len(metrics) or [tasks[j] for j in columns] != expected_tasks:
            raise RecordError(
                f"has the second line {safe_repr(tasks)}; expected ',Task 1,Task 2,...' in order"
            )
        rows = []
        for number, line in enumerate(table[2:], start=1):
            if len(line) != len(metrics) or line[0] != str(number):
                raise RecordError(
                    f"has the line {safe_repr(line)}; expected the line of update {number}"
                )
            rows.append([parse_cell(line[j]) for j in columns])
        yield ParsedRun(rows=rows)

    def find_skipped(self, names: Sequence[str]) -> dict[str, str]:
        """Return reasons to skip the summary and all updates except the last.

        The file of the last update contains all rows.
        """
        updates = {name: int(match[1]) for name in names if (match := _UPDATE.fullmatch(name))}
        earlier = "an earlier state of the run; a later update next to it contains all rows"
        last = max(updates.values(), default=0)
        reasons = {name: earlier for name, number in updates.items() if number < last}
        if updates and "metrics_summary.csv" in names:
            reasons["metrics_summary.csv"] = (
                "contains metrics and no matrix; the matrix is in metrics_summary_update_*.csv"
            )
        return reasons


class RenateResults(Format):
    """JSON of Renate's results: rows per metric, and the untrained model's."""

    name = "renate-results"
    scale = "fraction"
    marks_initial = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file is JSON with the key ``accuracy_init`` anywhere."""
        return file.looks_like_json and b'"accuracy_init"' in file.content

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run, from the fields ``accuracy`` and ``accuracy_init``.

        Raises RecordError if ``accuracy`` is missing, or if one is not a list of rows.
        """
        document = convert(file.json, dict[str, object])
        initial = to_rows(document.get("accuracy_init") or [], "accuracy_init")
        if len(initial) > 1:
            raise RecordError(f"accuracy_init contains {len(initial)} lists; expected one")
        yield ParsedRun(
            rows=to_rows(document.get("accuracy"), "accuracy"),
            initial=initial[0] if initial else None,
        )
