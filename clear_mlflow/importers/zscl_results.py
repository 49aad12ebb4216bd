"""Results of ZSCL, MoE-Adapters4CL and DyTox: a JSON line per task, and evaluation output of mtil/.

Source: Thunderbeee/ZSCL (b96e714), JiazuoYu/MoE-Adapters4CL (4572d97) and arthurdouillard/dytox
(1eebbd8, whose last line has only the average). cil/main.py writes a JSON
line per task, with continuum's scores in percent, and a last line with their averages.
mtil/src/models/evaluation.py prints the accuracy of a checkpoint on a data set; a checkpoint is
named after the data set that it was trained on last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LOG_BYTES, convert, parse_json
from clear_mlflow.importers._base import (
    EARLIER,
    MEAN_WEIGHTED,
    NAN,
    WEIGHTED,
    Format,
    ParsedRun,
    PrintedNumber,
    ResultFile,
    check_end,
    parse_cell,
)

_EVENT = re.compile(
    r"(?:^|\r)(?:Checkpoint loaded from (?P<checkpoint>.{1,300})|"
    r"Evaluating on (?P<dataset>[\w.-]{1,100})|Top-1 accuracy: (?P<accuracy>[0-9]{1,3}\.[0-9]{2}))"
    r"$"
)


class _Line(msgspec.Struct):
    """A line of metrics.json. The last one has only averages."""

    task: int | None = None
    acc: float = NAN
    avg_acc: float = NAN
    fwt: float = NAN  # of the mean of the accuracies on earlier tasks
    acc_per_task: Annotated[list[float], msgspec.Meta(max_length=MAX_BUCKETS)] = []
    last: float | None = None
    avg: float = NAN


class ClassIncremental(Format):
    """``metrics.json`` of cil/main.py in ZSCL and MoE-Adapters4CL, and DyTox's log."""

    name = "zscl"
    scale = "percent"
    marks_initial = True
    is_log = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the first line has task and acc_per_task."""
        return file.head.startswith('{"task": ') and '"acc_per_task": [' in file.head

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        Raises RecordError if the line of a task is missing, or the last line with the averages.
        """
        rows: list[list[float]] = []
        printed = []
        is_complete = False
        for text in file.iter_lines(MAX_BUCKETS + 1):
            line: _Line = convert(parse_json(text, 2**20), _Line)
            step = len(rows) + 1
            if line.task is None and line.avg == line.avg:
                is_complete = True
                if line.last is not None:
                    printed.append(PrintedNumber(WEIGHTED, line.last, step - 1))
                printed.append(PrintedNumber(MEAN_WEIGHTED, line.avg, step - 1))
                break
            if line.task != step - 1 or len(line.acc_per_task) != step:
                raise RecordError(
                    f"has the line {safe_repr(text)}; expected task {step - 1} with {step} "
                    "accuracies in acc_per_task, or avg at the end"
                )
            rows.append(line.acc_per_task)
            printed.append(PrintedNumber(WEIGHTED, line.acc, step))
            printed.append(PrintedNumber(MEAN_WEIGHTED, line.avg_acc, step))
            if step > 1:
                printed.append(PrintedNumber(EARLIER, line.fwt, step))
        check_end(file, is_complete and bool(rows), "the line with avg at its end")
        yield ParsedRun(rows=rows, printed=printed)


class MultiDomain(Format):
    """Evaluation output of mtil/: checkpoints tested on data sets, in any order."""

    name = "mtil"
    scale = "percent"
    marks_initial = True
    max_bytes = MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True for a checkpoint, a data set and an accuracy."""
        parts = (b"Checkpoint loaded from ", b"Evaluating on ", b"Top-1 accuracy: ")
        return all(part in file.content for part in parts)

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run, ordered by ``buckets`` or the log.

        Raises RecordError unless each checkpoint was tested on each data set, or, with
        future="not-tested", on those up to its own.
        """
        accuracies: dict[tuple[str, str], float] = {}
        checkpoint = dataset = last_event = ""
        for line in file.iter_lines():
            if not (match := _EVENT.search(line[-400:])):
                continue
            # MoE-Adapters4CL loads a second file, its router, right after the first.
            if match["checkpoint"] and last_event != "checkpoint":
                checkpoint = match["checkpoint"].rpartition("/")[2].removesuffix(".pth")
            elif match["dataset"]:
                dataset = match["dataset"]
            elif match["accuracy"] and last_event == "dataset":
                accuracy = parse_cell(match["accuracy"])
                if accuracies.setdefault((checkpoint, dataset), accuracy) != accuracy:
                    raise RecordError(
                        f"tests {safe_repr(checkpoint)} twice on {safe_repr(dataset)}"
                    )
            last_event = match.lastgroup or ""
        names = list(dict.fromkeys(checkpoint for checkpoint, _ in accuracies))
        datasets = sorted({tested for _, tested in accuracies})
        if sorted(names) != datasets or len(names) > MAX_BUCKETS or last_event != "accuracy":
            raise RecordError(
                f"has the checkpoints {safe_repr(names)} and tests on {safe_repr(datasets)}; "
                "expected a test of each on each, and checkpoints named after the data sets"
            )
        stated = file.options.bucket_names
        names = stated if sorted(stated) == datasets else names
        rows = [[accuracies.get((name, tested), NAN) for tested in names] for name in names]
        # Later data sets that were not tested prove the order.
        is_proven = not any(c == c for i, row in enumerate(rows) for c in row[i + 1 :])
        is_past_only = file.options.future == "not-tested"
        for i, row in enumerate(rows):
            if any(cell != cell for cell in (row[: i + 1] if is_past_only else row)):
                raise RecordError(
                    f"lacks tests of {safe_repr(names[i])}: it is truncated; or pass "
                    "future=not-tested if only future data sets were not tested"
                )
        order = "buckets in the order of the log, which proves nothing; --buckets states another"
        order = "" if is_proven or names == stated else order
        yield ParsedRun(rows=rows, buckets=names, order=order)
