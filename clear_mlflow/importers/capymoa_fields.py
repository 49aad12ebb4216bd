"""The fields of CapyMOA's OCLMetrics, as a .npz file.

Source: src/capymoa/ocl/evaluation/_metrics.py and _evaluator.py of CapyMOA 0.15.1, which computes
``accuracy_matrix`` and writes no file of it; docs/import.md has the line that does. After each task
every test set is tested, those of later tasks too: a zero above the diagonal was measured. The
accuracies are fractions, of 32 bits. Tests within a task are not read.
"""

from __future__ import annotations

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.importers import numpy_file
from clear_mlflow.importers._base import Format, Parsed, Source

_MATRIX = "accuracy_matrix"
_ANYTIME = "anytime_accuracy_matrix"  # the fields are those of OCLMetrics where it is there, too


def _recognises(source: Source) -> bool:
    return numpy_file.is_archive(source) and all(
        f"{name}.npy".encode() in source.content for name in (_MATRIX, _ANYTIME)
    )


def _parse(source: Source) -> list[Parsed]:
    found = numpy_file.read_member(source, _MATRIX)
    if not found or any(len(row) != len(found) for row in found):
        raise RecordError(
            f"{_MATRIX} has {len(found)} rows of {shown(sorted({len(row) for row in found}))} "
            "numbers; expected a row and a column for each task"
        )
    return [Parsed(rows=found)]


FORMATS = [
    Format(
        name="capymoa",
        title="CapyMOA's OCLMetrics",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
        has_initial=True,
    )
]
