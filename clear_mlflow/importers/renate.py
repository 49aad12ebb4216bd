"""Renate's results: the metrics_summary files of an experiment, and its results dictionary as JSON.

Source: src/renate/benchmark/experimentation.py and src/renate/utils/module.py. After each update
all test sets are tested, future ones too; accuracies are fractions. A file
``metrics_summary_update_<n>.csv`` has the matrix so far; the ``metrics_summary.csv`` of
newer versions has metrics and no matrix. The dictionary has the untrained model under
``accuracy_init``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_RESULTS_BYTES
from clear_mlflow.importers._base import Format, Parsed, Source, numbers, rows_of
from clear_mlflow.importers.plain_text import table_of, to_cell

_METRIC = "accuracy"
# Some versions put the time behind the number, others do not.
_UPDATE = re.compile(r"metrics_summary_update_([0-9]{1,6})(_.*)?\.csv")
_NO_MATRIX = (
    "holds metrics of an experiment and no matrix; import the last metrics_summary_update_*.csv "
    "beside it"
)


def _parse_csv(source: Source) -> list[Parsed]:
    """Two header lines (metric, task), then a line per update."""
    source.bounded(MAX_RESULTS_BYTES)
    table = table_of(source)
    if len(table) < 2 or "Average Accuracy" in table[0]:
        raise RecordError(_NO_MATRIX)
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
    for position, line in enumerate(table[2:]):
        if len(line) != len(metrics) or line[0] != str(position + 1):
            raise RecordError(
                f"has the line {safe_repr(line)}; expected that of update {position + 1}"
            )
        rows.append([to_cell(line[j]) for j in columns])
    return [Parsed(rows=rows)]


def _passes_over(names: Sequence[str]) -> dict[str, str]:
    """Each update writes all rows so far: only the last one is the run."""
    updates = {name: int(match[1]) for name in names if (match := _UPDATE.fullmatch(name))}
    if not updates:
        return {}
    last = max(updates.values())
    earlier = "an earlier state of the run; a later update next to it contains all rows"
    reasons = {name: earlier for name, number in updates.items() if number < last}
    if "metrics_summary.csv" in names:
        summary = "holds metrics and no matrix; the matrix is in metrics_summary_update_*.csv"
        reasons["metrics_summary.csv"] = summary
    return reasons


def _recognises_json(source: Source) -> bool:
    # Each metric's results follow each other, so the name may be far from the beginning.
    return source.looks_like_json and f'"{_METRIC}_init"'.encode() in source.content


def _parse_json(source: Source) -> list[Parsed]:
    document = source.json
    if not isinstance(document, dict):
        raise RecordError(f"is {safe_repr(document)}; expected Renate's results dictionary")
    first = document.get(f"{_METRIC}_init")
    if first is not None and (not isinstance(first, list) or len(first) != 1):
        raise RecordError(f"{_METRIC}_init is {safe_repr(first)}; expected one list in a list")
    return [
        Parsed(
            rows=rows_of(document.get(_METRIC), _METRIC),
            initial=None if first is None else numbers(first[0], f"{_METRIC}_init"),
        )
    ]


FORMATS = [
    Format(
        name="renate-csv",
        title="Renate's metrics_summary",
        recognises=lambda source: source.head.startswith("Task ID,"),
        parse=_parse_csv,
        scale="fraction",
        has_initial=True,
        passes_over=_passes_over,
    ),
    Format(
        name="renate-results",
        title="Renate's results dictionary",
        recognises=_recognises_json,
        parse=_parse_json,
        scale="fraction",
        has_initial=True,
    ),
]
