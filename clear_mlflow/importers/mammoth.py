"""Mammoth's logs.pyd: a line per run, each the repr of a Python dictionary.

Source: utils/loggers.py, ``Logger.write``, and utils/training.py of aimagelab/mammoth, e75a491.
``accuracy_<j>_task<i>`` is the accuracy in percent on task j at test i, which is the test of the
tasks so far after task i. With ``--eval_future`` each test is followed by a test of the tasks to
come, numbered on: its accuracies begin with the next task. The lines are never
executed or evaluated: the arguments of a run may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LINE_CHARACTERS, MAX_LOG_BYTES, MAX_RUNS
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile, parse_cell, parse_index

_CELL = re.compile(r"accuracy_([0-9]{1,9})_task([0-9]{1,9})")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NUMPY_FLOAT = re.compile(r"\b(?:np|numpy)\.float[0-9]{2}\(([^()]*)\)")  # in the repr of numpy 2
# A list, a dictionary or the arguments of a call, without another one in it.
_NESTED = re.compile(r"[\[({][^\[\](){}]*[\])}]")
_MAX_DEPTH = 20  # of lists and dictionaries in the arguments of a run
_METADATA_NAMES = {  # mammoth's name to ours
    "model": "strategy",
    "dataset": "dataset",
    "backbone": "model",
    "seed": "seed",
}


class Mammoth(Format):
    """``logs.pyd`` of one model: a line per run."""

    name = "mammoth"
    scale = "percent"
    marks_initial = True
    max_bytes = MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True for .pyd, or a dictionary with accmean_task1."""
        return file.name.lower().endswith(".pyd") or (
            file.head.startswith("{'") and b"'accmean_task1'" in file.content
        )

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield a run per line, labelled "line N" if there are several.

        Raises RecordError if a line is not a dictionary, or lacks an accuracy.
        """
        is_single = sum(1 for _ in file.iter_lines(MAX_RUNS)) == 1
        for number, line in enumerate(file.iter_lines(MAX_RUNS), start=1):
            text = line.strip()
            try:
                entries = _parse_entries(text)
                rows = _build_rows(entries)
            except RecordError as error:
                raise RecordError(f"line {number} {error}") from error
            metadata = {new: entries.get(old, "None") for old, new in _METADATA_NAMES.items()}
            yield ParsedRun(
                rows=rows,
                metadata={
                    name: value
                    for name, value in metadata.items()
                    if value != "None" and 1 <= len(value) <= 100 and value.isprintable()
                },
                label="" if is_single else f"line {number}",
            )


def _build_rows(entries: dict[str, str]) -> list[list[float]]:
    """Build a row of accuracies for each test, or raise RecordError."""
    tests: dict[int, dict[int, float]] = {}
    for name, value in entries.items():
        if match := _CELL.fullmatch(name):
            task, test = (parse_index(n, "a task", 2 * MAX_BUCKETS) for n in match.groups())
            tests.setdefault(test, {})[task] = parse_cell(value)
    if not tests:
        raise RecordError(
            "contains no accuracy_<j>_task<i>: mammoth stores accuracies per task only for "
            "class-il and task-il, and means otherwise"
        )
    rows = []
    for test in range(1, max(tests) + 1):
        cells = tests.get(test, {})
        if set(cells) != set(range(1, len(cells) + 1)):
            raise RecordError(
                f"contains tasks {safe_repr(sorted(cells))} at test {test}; expected 1, 2, ..."
            )
        rows.append([cells[task] for task in range(1, len(cells) + 1)])
    future_rows: list[list[float]] = []
    if entries.get("eval_future") in ("True", "1"):
        rows, future_rows = rows[0::2], rows[1::2]
    num_future = len(future_rows[-1]) if len(future_rows) == len(rows) else 0
    for i, row in enumerate(rows):
        future = future_rows[i] if i < len(future_rows) else []
        expected = len(rows) + num_future if future_rows else i + 1
        if len(row) != i + 1 or len(row) + len(future) != expected:
            raise RecordError(
                f"contains {format_count(len(row), 'accuracy', 'accuracies')} of past and "
                f"{len(future)} of future tasks after "
                f"task {i + 1}; expected {i + 1}, and with eval_future all others: --validation, "
                "--eval_epochs and --start_from log further tests, which cannot be distinguished"
            )
        row += future
    return rows


def _parse_entries(line: str) -> dict[str, str]:
    """Parse a dictionary's repr to strings, without nested values."""
    if len(line) > MAX_LINE_CHARACTERS:
        raise RecordError(f"has {len(line)} characters; at most {MAX_LINE_CHARACTERS} are read")
    if not (line.startswith("{") and line.endswith("}")):
        raise RecordError(f"is {safe_repr(line)}; expected the text of a Python dictionary")
    text = _STRING.sub(lambda match: "" if set(match[0]) & set(",:[](){}") else match[0], line)
    text = _NUMPY_FLOAT.sub(r"\1", text)[1:-1]
    for _ in range(_MAX_DEPTH):
        text = _NESTED.sub("", text)
    if set(text) & set("[](){}"):
        raise RecordError(
            "is not a single Python dictionary: its brackets do not match, or are nested too deeply"
        )
    pairs = (entry.partition(":")[::2] for entry in text.split(","))
    return {name.strip(" '\""): value.strip(" '\"") for name, value in pairs}
