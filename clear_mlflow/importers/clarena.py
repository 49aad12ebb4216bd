"""CLArena's acc.csv: a line per task trained, with the average accuracy over the tasks so far.

Source: clarena/metrics/cl_acc.py of pengxiang-wang/continual-learning-arena (bf58528),
``update_test_acc_to_csv``. Each line has one number more than the line before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.importers._base import (
    Format,
    ParsedRun,
    ResultFile,
    check_end,
    check_number,
    parse_cell,
    unit_of_last_digit,
)
from clear_mlflow.importers.plain_text import read_table

_TITLES = ["after_training_task", "average_accuracy"]
_TESTED = "test_on_task_"


class CLArena(Format):
    """``acc.csv`` of a continual learning experiment."""

    name = "clarena"
    scale = "fraction"
    marks_initial = True
    is_log = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the first line names the trained task, the average and a tested task."""
        return file.head.startswith(",".join([*_TITLES, _TESTED]))

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        Raises RecordError if a task is missing, or if an average is not that of its line.
        """
        names, *lines = read_table(file)
        tasks = [name.removeprefix(_TESTED) for name in names[2:]]
        rows = []
        for number, line in enumerate(lines, start=1):
            task, average, *cells = (*line, "", "")[: max(2, len(line))]
            row = [parse_cell(cell) for cell in cells[:number] if cell]
            if number > len(tasks) or task != tasks[number - 1] or len(row) != number:
                raise RecordError(
                    f"has {len(row)} accuracies in the line of task {safe_repr(task)}; expected "
                    f"one for each of the tasks up to number {number} of {safe_repr(tasks)}"
                )
            tolerance = 0.5 * sum(map(unit_of_last_digit, (average, cells[0])))
            mean = float(np.mean(row))
            check_number(
                f"after task {task} the average", parse_cell(average), mean, tolerance + 1e-6
            )
            rows.append(row)
        check_end(file, len(rows) == len(tasks), f"the lines of {len(tasks)} tasks")
        proof = f"rows as training: fits {len(rows)} average accuracies"
        yield ParsedRun(rows=rows, buckets=tasks, proof=proof)
