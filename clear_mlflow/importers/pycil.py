"""Logs of PyCIL, PILOT and C3Box, with a run for the CNN curve and one for the NME curve.

Source: trainer.py, utils/toolkit.py and utils/data_manager.py of G-U-N/PyCIL (87cc411),
sun-hailong/LAMDA-PILOT (2647455) and LAMDA-CL/C3Box (1378ab2). After each task, a line ``CNN:
{'total': 70.25, '00-09': 59.0, ...}`` contains the accuracy of each group of classes. The matrix
printed at the end is transposed, and PyCIL's is out of order beyond 100 classes, as is the forgetting
of it; both are only compared. PyCIL and C3Box always group by ten classes, which need not be the tasks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LOG_BYTES, MAX_RUNS
from clear_mlflow.importers._base import (
    Format,
    ParsedRun,
    ResultFile,
    check_end,
    check_number,
    check_range,
    read_printed_rows,
)

_MESSAGE = re.compile(
    r"(CNN|NME): (\{.*)|(CNN|NME) top1 curve: (\[.*)|(?:Average Accuracy|Forgetting) \((CNN|NME)\): "
    r"?([-+.0-9e]{1,40})|(dataset|model_name|convnet_type|backbone_type|seed|init_cls|increment): "
    r"(.{1,100})"
)
_ENTRY = re.compile(r"'([^']{1,30})': (?:np\.float(?:64|32)\()?([-+.0-9e]{1,40}|nan)")
_FLOAT = re.compile(r"(?<![\w.])[0-9]+(?:\.[0-9]*)?(?![\w.(])")
_METADATA_NAMES = {  # their name to ours
    "model_name": "strategy",
    "dataset": "dataset",
    "convnet_type": "model",
    "backbone_type": "model",
    "seed": "seed",
}


@dataclass
class _Curve:
    """What a log prints about the tests of one training, with one classifier."""

    tests: list[dict[str, float]] = field(default_factory=list)  # accuracy by group of classes
    totals: list[float] = field(default_factory=list)  # the last curve
    average: float | None = None
    forgetting: float | None = None
    matrix: list[list[float]] = field(default_factory=list)  # transposed


@dataclass
class _Training:
    """One training in a log: several seeds, or runs with one name, are written to one file."""

    arguments: dict[str, str]
    num_classes: int
    curves: dict[str, _Curve] = field(default_factory=lambda: {"CNN": _Curve(), "NME": _Curve()})


class PyCIL(Format):
    """A log file, or the output, of PyCIL, PILOT or C3Box."""

    name = "pycil"
    scale = "percent"
    marks_initial = True
    is_log = True
    max_bytes = MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if a line contains the accuracies of a test, or the printed matrix."""
        content = file.content
        return b"CNN: {'total': " in content or b"Accuracy Matrix (CNN):\n[[" in content

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield a run for each training and classifier.

        Raises RecordError if the log is not complete, or contradicts itself.
        """
        runs = [
            (training, classifier, curve)
            for training in _read_trainings(file)
            for classifier, curve in training.curves.items()
            if curve.tests or curve.matrix
        ]
        for number, (training, classifier, curve) in enumerate(runs, start=1):
            label = "" if len(runs) == 1 else f"run {number} {classifier}"
            try:
                rows = _build_rows(file, training, curve)
                proof = _check_rows(rows, curve)
            except RecordError as error:
                raise RecordError(f"{label or classifier} {error}") from error
            source = "\n".join([classifier, *training.arguments.values(), str(rows)])
            groups = _list_groups(curve.tests[-1]) if curve.tests else None
            yield ParsedRun(
                rows=rows,
                buckets=groups,
                metadata={
                    ours: training.arguments[theirs]
                    for theirs, ours in _METADATA_NAMES.items()
                    if theirs in training.arguments
                },
                label=label,
                source_bytes=source.encode(),
                proof=proof,
            )


def _read_trainings(file: ResultFile) -> list[_Training]:
    """Return the trainings of a log, one for each list of the order of classes that it contains."""
    trainings = [_Training({}, 0)]
    arguments: dict[str, str] = {}
    lines = [line.rpartition("=> ")[2].strip() for line in file.iter_lines()]
    for number, line in enumerate(lines):
        if re.fullmatch(r"\[[0-9]+(, [0-9]+)*\]", line):
            if len(trainings) > MAX_RUNS:
                raise RecordError(f"contains more than {MAX_RUNS} runs")
            trainings.append(_Training(arguments, line.count(",") + 1))
            arguments = {}
            continue
        training = trainings[-1]
        if line in ("Accuracy Matrix (CNN):", "Accuracy Matrix (NME):"):
            training.curves[line[-5:-2]].matrix = read_printed_rows(lines, number + 1)
        if not (match := _MESSAGE.fullmatch(line)):
            continue
        classifier, entries, curve_name, curve, printed_name, printed, argument, value = (
            match.groups()
        )
        if classifier:
            test = {name: float(digits) for name, digits in _read_entries(entries)}
            training.curves[classifier].tests.append(test)
            if len(training.curves[classifier].tests) > MAX_BUCKETS:
                raise RecordError(f"contains more than {MAX_BUCKETS} tests of one training")
        elif curve_name:
            training.curves[curve_name].totals = [float(n) for n in _FLOAT.findall(curve)]
        elif printed_name:
            name = "average" if line.startswith("Average") else "forgetting"
            setattr(training.curves[printed_name], name, _parse_float(printed))
        else:
            arguments[argument] = value.strip()
    return trainings


def _read_entries(text: str) -> list[tuple[str, str]]:
    """Return names and digits in the repr of a dictionary. Raises RecordError if it is cut off."""
    if not text.endswith("}"):
        raise RecordError("is cut off: the accuracies of a test lack their closing brace")
    entries = _ENTRY.findall(text[: 64 * MAX_BUCKETS])
    for _, digits in entries:
        _parse_float(digits)
    return entries


def _parse_float(digits: str) -> float:
    """Convert digits to a number. Raises RecordError if they are none."""
    try:
        return float(digits)
    except ValueError as error:
        raise RecordError(f"contains {digits!r}; expected a number") from error


def _build_rows(file: ResultFile, training: _Training, curve: _Curve) -> list[list[float]]:
    """Return the accuracies of each test, one more than in the test before.

    Raises RecordError if tests are missing, or if the groups of classes are not the tasks.
    """
    if not curve.tests:  # only the matrix was copied
        cells = _build_square(curve.matrix).T
        if len(cells) > 10:
            raise RecordError(
                "prints only a matrix of more than 10 tasks, which PyCIL prints out of order; "
                "import the complete log"
            )
        if np.triu(cells, 1).any():
            raise RecordError(
                "prints a matrix with accuracies below the diagonal; the program prints a row per "
                "task tested, with zeros there"
            )
        return [row[: i + 1] for i, row in enumerate(cells.tolist())]
    rows = []
    for number, test in enumerate(curve.tests, start=1):
        groups = [test[name] for name in _list_groups(test)]
        if len(groups) != number:
            raise RecordError(
                f"test {number} has {len(groups)} groups of classes; expected {number}: the groups "
                "are not the tasks, because PyCIL and C3Box always group by ten classes, or tests "
                "are missing"
            )
        check_number(f"in test {number} new", test.get("new", groups[-1]), groups[-1], 0.01)
        check_range(f"in test {number} total", test.get("total", math.nan), groups, 0.01)
        rows.append(groups)
    for test, total in zip(curve.tests, curve.totals, strict=False):
        check_number("in its curve", total, test["total"], 0.005)
    expected = len(rows) if curve.forgetting is not None else 0
    increments = [training.arguments.get(name, "") for name in ("init_cls", "increment")]
    if training.num_classes and all(re.fullmatch("[1-9][0-9]{0,5}", n) for n in increments):
        first, increment = map(int, increments)
        expected = 1 + max(0, math.ceil((training.num_classes - first) / increment))
    is_complete = len(rows) == expected == len(curve.totals) and curve.average is not None
    check_end(file, is_complete, f"{expected or 'all'} tests with their curve and average accuracy")
    return rows


def _check_rows(rows: list[list[float]], curve: _Curve) -> str:
    """Check rows against average accuracy, forgetting and matrix of a log, and report the proof.

    Raises RecordError if they do not fit.
    """
    proofs = []
    if curve.average is not None and len(curve.totals) == len(curve.tests) > 0:
        totals = [test["total"] for test in curve.tests]
        check_number("average accuracy", curve.average, float(np.mean(totals)), 1e-6)
        proofs.append(f"average accuracy {curve.average:g}")
    # PyCIL sorts the names of groups as texts: 100-109 stands before 20-29.
    sorted_rows = [[test[name] for name in sorted(_list_groups(test))] for test in curve.tests]
    cells, sorted_cells = (_fill_zeros(values) for values in (rows, sorted_rows or rows))
    if curve.forgetting is not None and len(rows) > 1:
        values = [float(np.mean(m.max(axis=0)[:-1] - m[-1, :-1])) for m in (cells, sorted_cells)]
        nearest = min(values, key=lambda value: abs(value - curve.forgetting))
        check_number("forgetting", curve.forgetting, nearest, 1e-6)
        proofs.append(
            f"forgetting {curve.forgetting:g}"
            if nearest == values[0]
            else f"forgetting {curve.forgetting:g} of columns out of order, correct {values[0]:g}"
        )
    if curve.tests and curve.matrix:
        printed = _build_square(curve.matrix).T
        if not any(
            printed.shape == matrix.shape and np.allclose(printed, matrix, 0, 0.006)
            for matrix in (cells, sorted_cells)
        ):
            raise RecordError("prints a matrix that is not that of its tests, or is transposed")
        proofs.append("the printed matrix, transposed")
    return f"rows as training: fits {', '.join(proofs)}" if proofs else ""


def _list_groups(test: dict[str, float]) -> list[str]:
    """Return the names of the groups of classes in a test, such as 00-09."""
    return [name for name in test if re.fullmatch("[0-9]+-[0-9]+", name)]


def _fill_zeros(rows: list[list[float]]) -> NDArray[np.float64]:
    """Return a square matrix of rows that grow by one cell, with zeros above the diagonal."""
    return np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])


def _build_square(rows: list[list[float]]) -> NDArray[np.float64]:
    """Return rows as a square matrix. Raises RecordError if a cell is missing."""
    if not rows or {*map(len, rows)} != {len(rows)} or np.isnan(rows).any():
        raise RecordError("prints a matrix that is not square; it is cut off or damaged")
    return np.array(rows)
