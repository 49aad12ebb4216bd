"""Results of ZSCL and MoE-Adapters4CL: metrics.json of cil/, and evaluation output of mtil/.

Source: Thunderbeee/ZSCL (b96e714) and JiazuoYu/MoE-Adapters4CL (4572d97). cil/main.py writes a JSON
line per task, with continuum's scores in percent, and a line with the last and average accuracy.
mtil/src/models/evaluation.py prints the accuracy of a checkpoint on each data set; the checkpoints
are named after the data set that they were trained on last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LOG_BYTES, convert, json_value
from clear_mlflow.importers._base import (
    NAN,
    Format,
    ParsedRun,
    ResultFile,
    check_end,
    check_number,
    check_range,
    parse_cell,
    to_floats,
)

_CHECKPOINT = re.compile(r"Checkpoint loaded from (.{1,300})")
_DATASET = re.compile(r"Evaluating on ([\w.-]{1,100})")
_ACCURACY = re.compile(r"(?:.{0,300}\r)?Top-1 accuracy: ([0-9.]{1,20})")


class _Test(msgspec.Struct):
    """A line of metrics.json: one test, after a task."""

    task: int
    acc: float  # weighted by numbers of images
    avg_acc: float
    acc_per_task: list[Any]
    fwt: float  # of old versions of continuum: mean of the accuracies on earlier tasks


class ClassIncremental(Format):
    """``metrics.json`` of cil/main.py, which ZSCL and MoE-Adapters4CL share."""

    name = "zscl"
    scale = "percent"
    marks_initial = True
    is_log = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the first line is an object with task and acc_per_task."""
        return file.head.startswith('{"task": ') and '"acc_per_task": [' in file.head

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        Raises RecordError if a task is missing, or if its averages are not those of its rows.
        """
        rows: list[list[float]] = []
        totals: list[float] = []
        end: dict[str, Any] = {}
        for line in file.iter_lines(MAX_BUCKETS + 1):
            document = convert(json_value(line, 2**20), dict[str, Any])
            if "acc_per_task" not in document:
                end = document
                continue
            test = convert(document, _Test)
            row = to_floats(test.acc_per_task, "acc_per_task")
            if test.task != len(rows) or len(row) != len(rows) + 1 or end:
                raise RecordError(
                    f"has {len(row)} accuracies in the line of task {test.task}; expected "
                    f"{len(rows) + 1} in that of task {len(rows)}"
                )
            rows.append(row)
            totals.append(test.acc)
            check_range(f"after task {test.task} acc", test.acc, row, 0.01)
            check_number("avg_acc", test.avg_acc, float(np.mean(totals)), 0.011)
            past = [cell for earlier in rows for cell in earlier[:-1]]
            if past:
                check_number("fwt", test.fwt, float(np.mean(past)), 0.011)
        check_end(file, bool(end and rows), "the line with last and avg")
        if end and rows:
            last, average = to_floats([end.get("last"), end.get("avg")], "last and avg")
            check_number("last", last, totals[-1], 0.006)
            check_number("avg", average, float(np.mean(totals)), 0.011)
        yield ParsedRun(
            rows=rows, proof=f"rows as training: fits the averages of {len(rows)} lines"
        )


class MultiDomain(Format):
    """Evaluation output of mtil/: checkpoints tested on data sets, in any order."""

    name = "mtil"
    scale = "percent"
    marks_initial = True
    max_bytes = MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file contains a checkpoint, a data set and an accuracy."""
        parts = (b"Checkpoint loaded from ", b"Evaluating on ", b"Top-1 accuracy: ")
        return all(part in file.content for part in parts)

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run; the checkpoints are in the order of the stream.

        Raises RecordError unless each checkpoint was tested on each data set, or, with
        future="not-tested", on those up to its own.
        """
        accuracies: dict[tuple[str, str], float] = {}
        checkpoint = dataset = ""
        is_loading = False
        for line in file.iter_lines():
            if match := _DATASET.fullmatch(line):
                dataset, is_loading = match[1], False
            elif match := _CHECKPOINT.fullmatch(line):
                # MoE-Adapters4CL loads a second file, its router, right after the first.
                if not is_loading:
                    checkpoint, is_loading = PurePosixPath(match[1].strip()).stem, True
            elif (match := _ACCURACY.fullmatch(line)) and checkpoint and dataset:
                accuracy = parse_cell(match[1])
                if accuracies.setdefault((checkpoint, dataset), accuracy) != accuracy:
                    raise RecordError(
                        f"tests {safe_repr(checkpoint)} twice on {safe_repr(dataset)}"
                    )
                dataset = ""
        if dataset:
            raise RecordError(f"is cut off: it lacks the accuracy on {safe_repr(dataset)}")
        names = list(dict.fromkeys(checkpoint for checkpoint, _ in accuracies))
        datasets = {tested for _, tested in accuracies}
        if {*names} != datasets or len(names) > MAX_BUCKETS:
            raise RecordError(
                f"has the checkpoints {safe_repr(names)}, but tests on {safe_repr(sorted(datasets))}"
                "; expected one checkpoint for each data set, named after it"
            )
        rows = [[accuracies.get((name, tested), NAN) for tested in names] for name in names]
        is_past_only = file.options.future == "not-tested"
        missing = [
            (name, tested)
            for i, name in enumerate(names)
            for j, tested in enumerate(names)
            if (name, tested) not in accuracies and (j <= i or not is_past_only)
        ]
        if missing:
            raise RecordError(
                f"lacks {len(missing)} of {len(names) ** 2} tests, for example of {missing[0][0]} "
                f"on {missing[0][1]}; it is truncated, or pass future=not-tested if only future "
                "data sets were not tested"
            )
        proof = "rows as training: the log names checkpoint and data set of each accuracy"
        yield ParsedRun(rows=rows, buckets=names, proof=proof)
