"""LibContinual's log: the accuracies in percent after each task, and averages at the end.

Source: core/trainer.py of RL-VIG/LibContinual (a399ed4), ``train_loop``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError
from clear_mlflow.importers._base import (
    AVERAGE,
    FORGETTING,
    WEIGHTED,
    Format,
    ParsedRun,
    PrintedNumber,
    ResultFile,
    check_end,
    parse_cell,
)

_RESULT = re.compile(r"Result of (Task )?([0-9]{1,4}) (?:Testing|Tasks)!=+\n([^=]*)")
_NUMBER = re.compile(r"^ \* ([^:\n]{1,60}?) ?: (-?[0-9.]{1,20})", re.M)
_ROW = re.compile(r"^ \* Per-Task Acc: \[([^\[\]]*)\]", re.M)
_NAMES = {
    "[Batch] Last Average Acc": WEIGHTED,
    "[Task] Last Average Acc": AVERAGE,
    "[Task] Overall Avg Acc": AVERAGE,
    "Forgetting": FORGETTING,
}


class LibContinual(Format):
    """The output or log file of LibContinual's trainer."""

    name = "libcontinual"
    scale = "percent"
    marks_initial = True
    is_log = True
    max_bytes = untrusted.MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file contains the result of the first task."""
        return b"=Result of Task 0 Testing!=" in file.content

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        Raises RecordError if the result of a task is missing, or the overall result at the end.
        """
        rows: list[list[float]] = []
        printed = []
        num_tasks = None
        for match in _RESULT.finditer(untrusted.decode_text(file.content)):
            is_task, number, section = match[1], int(match[2]), match[3]
            row = _ROW.search(section)
            if not is_task:
                num_tasks = number
            elif number != len(rows) or row is None or number >= untrusted.MAX_BUCKETS:
                raise RecordError(f"lacks the Per-Task Acc of task {len(rows)}")
            else:
                rows.append([parse_cell(cell) for cell in row[1].split()])
            printed += [
                PrintedNumber.parse(_NAMES[name], digits, len(rows))
                for name, digits in _NUMBER.findall(section)
                if name in _NAMES and rows
            ]
        check_end(file, num_tasks == len(rows) > 0, "its overall result, or the result of a task")
        yield ParsedRun(rows=rows, printed=printed)
