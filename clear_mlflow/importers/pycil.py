"""Logs of PyCIL, PILOT and C3Box, with a run for the CNN curve and one for the NME curve.

Source: trainer.py, utils/toolkit.py and utils/data_manager.py of G-U-N/PyCIL (87cc411),
sun-hailong/LAMDA-PILOT (2647455) and LAMDA-CL/C3Box (1378ab2). After each task, a line ``CNN:
{'total': 70.25, '00-09': 59.0, ...}`` contains the accuracy of each group of classes. PyCIL and
C3Box always group by ten classes, which need not be the tasks. The matrix that is printed at the
end is transposed, and PyCIL's is out of order beyond 100 classes; it is not needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LOG_BYTES, MAX_RUNS
from clear_mlflow.importers._base import (
    FORGETTING,
    MEAN_WEIGHTED,
    WEIGHTED,
    Format,
    ParsedRun,
    PrintedNumber,
    ResultFile,
    check_end,
    parse_cell,
)

_CLASS_ORDER = re.compile(r"\[[0-9]+(, [0-9]+)*\]")
_TEST = re.compile(r"(CNN|NME): \{(.*)\}")
_ENTRY = re.compile(
    r"'([0-9]{1,9}-[0-9]{1,9}|total|new)': (?:np\.float(?:64|32)\()?([.0-9]{1,40}|nan)"
)
_NUMBER = re.compile(r"((?:Average Accuracy|Forgetting) \((?:CNN|NME)\)): ([-.0-9e]{1,40})")
_ARGUMENT = re.compile(r"([a-z_]{1,20}): (.{1,100})")
_METADATA_NAMES = {  # their name to ours
    "model_name": "strategy",
    "dataset": "dataset",
    "convnet_type": "model",
    "backbone_type": "model",
    "seed": "seed",
}


@dataclass
class _Training:
    """One training in a log, which may contain several."""

    arguments: dict[str, str]
    num_classes: int
    tests: dict[str, list[dict[str, float]]] = field(default_factory=dict)  # by CNN or NME
    numbers: dict[str, str] = field(default_factory=dict)  # the last of each name


class PyCIL(Format):
    """A log file, or the output, of PyCIL, PILOT or C3Box."""

    name = "pycil"
    scale = "percent"
    marks_initial = True
    is_log = True
    max_bytes = MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if a line contains the accuracies of a test."""
        return b"CNN: {'total': " in file.content

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield a run for each training and classifier (CNN or NME).

        Raises RecordError if a test is missing, or if the groups of classes are not the tasks.
        """
        trainings = _split_trainings(file)
        is_single = sum(len(training.tests) for training in trainings) == 1
        number = 0
        for training in trainings:
            for classifier, tests in training.tests.items():
                number += 1
                label = "" if is_single else f"run {number} {classifier}"
                yield _build_run(file, training, classifier, tests, label)


def _split_trainings(file: ResultFile) -> list[_Training]:
    """Split a log into trainings, of which the first may be empty."""
    trainings = [_Training({}, 0)]
    arguments: dict[str, str] = {}
    for line in file.iter_lines():
        message = line.rpartition("=> ")[2].strip()
        training = trainings[-1]
        if _CLASS_ORDER.fullmatch(message):
            trainings.append(_Training(arguments, message.count(",") + 1))
            arguments = {}
        elif match := _TEST.fullmatch(message):
            entries = _ENTRY.findall(match[2][: 64 * MAX_BUCKETS])
            tests = training.tests.setdefault(match[1], [])
            tests.append({name: parse_cell(digits) for name, digits in entries})
            if len(tests) > MAX_BUCKETS:
                raise RecordError(f"contains more than {MAX_BUCKETS} tests of one training")
        elif match := _NUMBER.fullmatch(message):
            training.numbers[match[1]] = match[2]
        elif match := _ARGUMENT.fullmatch(message):
            arguments[match[1]] = match[2]
        if len(trainings) > MAX_RUNS or len(arguments) > MAX_RUNS:
            raise RecordError(f"contains more than {MAX_RUNS} runs or arguments")
    return trainings


def _build_run(
    file: ResultFile,
    training: _Training,
    classifier: str,
    tests: list[dict[str, float]],
    label: str,
) -> ParsedRun:
    """Build a run of "CNN" or "NME". tests: percentages by group."""
    rows = []
    groups: list[str] = []
    for step, test in enumerate(tests, start=1):
        groups = [name for name in test if "-" in name]
        # "new" is the accuracy on the classes of the last task.
        if len(groups) != step or test.get("new") != test[groups[-1]] or "total" not in test:
            raise RecordError(
                f"{classifier} test {step} has {len(groups)} groups of classes that are not the "
                f"{step} tasks so far: PyCIL and C3Box always group by ten classes, or tests are "
                "missing"
            )
        rows.append([test[name] for name in groups])
    last, totals = len(tests), [test["total"] for test in tests]
    weights = _find_weights(groups, rows, totals)
    printed = [PrintedNumber(WEIGHTED, t, i, weights=weights) for i, t in enumerate(totals, 1)]
    average = training.numbers.get(f"Average Accuracy ({classifier})")
    forgetting = training.numbers.get(f"Forgetting ({classifier})")
    if average is not None:
        printed.append(PrintedNumber.parse(MEAN_WEIGHTED, average, last))
    if forgetting is not None and groups == sorted(groups):  # else PyCIL's own is wrong
        printed.append(PrintedNumber.parse(FORGETTING, forgetting, last))
    expected = last if forgetting is not None else 0
    sizes = [training.arguments.get(name, "") for name in ("init_cls", "increment")]
    if training.num_classes and all(re.fullmatch("[1-9][0-9]{0,5}", size) for size in sizes):
        expected = 1 + math.ceil((training.num_classes - int(sizes[0])) / int(sizes[1]))
    is_complete = last == expected and average is not None
    check_end(file, is_complete, f"{expected or 'all'} tests of {classifier} with their average")
    return ParsedRun(
        rows=rows,
        buckets=groups,
        metadata={
            our_name: training.arguments[name]
            for name, our_name in _METADATA_NAMES.items()
            if name in training.arguments
        },
        label=label,
        printed=printed,
    )


def _find_weights(
    groups: Sequence[str], rows: Sequence[Sequence[float]], totals: Sequence[float]
) -> list[int]:
    """Return the groups' numbers of classes, or [] if totals contradict them."""
    bounds = [map(int, name.split("-")) for name in groups]
    weights = [1 + abs(last - first) for first, last in bounds]
    averages = [np.average(row, weights=weights[: len(row)]) for row in rows]
    fits = np.abs(np.subtract(averages, totals))[1:] <= 0.0101  # both are rounded
    return weights if 2 * fits.sum() > fits.size else []
