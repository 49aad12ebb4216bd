"""LibContinual's log: the result of each task, and a table with a row per task at the end.

Source: core/trainer.py of RL-VIG/LibContinual (a399ed4), ``train_loop``. Per-task accuracies are
percentages. NumPy shortens the table from 32 tasks on, so the rows are those of the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_LOG_BYTES
from clear_mlflow.importers._base import (
    Format,
    ParsedRun,
    ResultFile,
    check_end,
    check_number,
    is_number,
    parse_index,
    read_printed_rows,
)

_RESULT = re.compile(r"=+Result of Task ([0-9]{1,9}) Testing!=+")
_END = re.compile(r"=+Overall Result of ([0-9]{1,9}) Tasks!=+")


class LibContinual(Format):
    """The output of LibContinual's trainer, or the log file with the same lines."""

    name = "libcontinual"
    scale = "percent"
    marks_initial = True
    is_log = True
    max_bytes = MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file contains the result of the first task, or the final table."""
        content = file.content
        return b"=Result of Task 0 Testing!=" in content or b" * Average Acc Table : \n" in content

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        Raises RecordError if a task is missing, or if its averages are not those of its rows.
        """
        lines = [line.strip() for line in file.iter_lines()]
        rows: list[list[float]] = []
        table: list[list[float]] = []
        num_tasks = None
        numbers: dict[str, float] = {}  # the last of each name
        is_result = False  # a result, and no test within the training of a task
        for number, line in enumerate(lines):
            name, _, value = line.removeprefix("* ").partition(":")
            name, value = name.strip(), value.strip()
            if line.startswith("="):
                is_result = bool(match := _RESULT.fullmatch(line))
                if match and parse_index(match[1], "a task") != len(rows):
                    raise RecordError(f"has the result of task {match[1]}; expected {len(rows)}")
                if match := _END.fullmatch(line):
                    num_tasks, is_result = parse_index(match[1], "a number of tasks"), True
            elif name == "Average Acc Table":
                table = read_printed_rows(lines, number + 1)
            elif is_result and name == "Per-Task Acc":
                lines[number] = value
                printed = read_printed_rows(lines, number)
                row = printed[0] if printed else []
                if len(row) != len(rows) + 1:
                    raise RecordError(
                        f"has {len(row)} accuracies after task {len(rows)}; expected {len(rows) + 1}"
                    )
                check_number(
                    f"after task {len(rows)} the average",
                    numbers.get("[Task] Last Average Acc", np.nan),
                    float(np.mean(row)),
                    0.01,
                )
                rows.append(row)
            elif is_result and is_number(value.partition(" ")[0]):
                numbers[name] = float(value.partition(" ")[0])
        rows = rows or [row[: i + 1] for i, row in enumerate(table)]
        check_end(file, num_tasks == len(rows) > 0, "its overall result, or the result of a task")
        yield ParsedRun(rows=rows, proof=_check_rows(rows, table, numbers))


def _check_rows(
    rows: list[list[float]], table: list[list[float]], numbers: dict[str, float]
) -> str:
    """Check rows against the final table and averages, and report the proof.

    Raises RecordError if they do not fit.
    """
    cells = np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])
    if table and (
        [len(row) for row in table] != [len(rows)] * len(rows)
        or not np.allclose(table, cells, 0, 0.006)
    ):
        raise RecordError("has a final table that is not that of its tasks, or is transposed")
    last = len(rows) - 1
    computed = {
        "[Task] Last Average Acc": float(np.mean(rows[-1])),
        "[Task] Overall Avg Acc": float(np.mean([np.mean(row) for row in rows])),
        "Forgetting": 0.0
        if last < 2
        else float(np.sum(np.diagonal(cells)[: last - 1] - cells[last, : last - 1]) / last),
    }
    proofs = []
    for name, value in computed.items():
        if name in numbers:
            check_number(name, numbers[name], value, 0.01)
            proofs.append(f"{name} {numbers[name]:g}")
    return f"rows as training: fits {', '.join(proofs)}" if proofs else ""
