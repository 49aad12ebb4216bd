"""Avalanche's CSVLogger: eval_results.csv, beside which lies training_results.csv.

Source: avalanche/logging/csv_logger.py. Accuracies are fractions of four digits; a bare ``0`` is
written where no accuracy was monitored, and is not measured. ``training_exp`` is ``None`` before
the first training. The file does not say which stream was tested.
"""

from __future__ import annotations

from collections.abc import Sequence

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_LINES, MAX_RESULTS_BYTES
from clear_mlflow.importers._avalanche import experience, one_run
from clear_mlflow.importers._base import Format, Parsed, Source
from clear_mlflow.importers.plain_text import to_cell

_EVAL = "eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"
_TRAINING = "training_exp,epoch,training_accuracy,val_accuracy,training_loss,val_loss"
_NO_MATRIX = "holds accuracies of training epochs; import eval_results.csv, which lies beside it"


def _recognises(source: Source) -> bool:
    return source.head.startswith((_EVAL, _TRAINING))


def _parse(source: Source) -> list[Parsed]:
    source.bounded(MAX_RESULTS_BYTES)
    lines = source.lines(MAX_LINES)
    first = next(lines, "")
    if first == _TRAINING:
        raise RecordError(_NO_MATRIX)
    if first != _EVAL:
        raise RecordError(f"begins with {shown(first)}; expected {_EVAL!r}")
    found: dict[tuple[int, int], float] = {}
    for line in lines:
        cells_in_line = line.split(",", maxsplit=5)
        if len(cells_in_line) < 3:
            raise RecordError(f"holds the line {shown(line)}; expected five values")
        tested, trained, accuracy = (cell.strip() for cell in cells_in_line[:3])
        row = 0 if trained == "None" else _experience(trained) + 1
        column = _experience(tested)
        if accuracy == "0":  # the logger's own default, which is not written as 0.0000
            continue
        value = to_cell(accuracy)
        if found.setdefault((row, column), value) != value:
            raise RecordError(
                f"holds two accuracies of experience {column} after {row} trainings, "
                f"{found[row, column]} and {value}: of two streams, or of two trainings"
            )
    if not found:
        raise RecordError("holds no accuracy: monitor accuracy_metrics(experience=True)")
    return [one_run((row, "test", column, value) for (row, column), value in found.items())]


def _experience(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise RecordError(f"holds the experience {shown(text)}; expected a number from 0")
    return experience(text)


def _passes_over(name: str, siblings: Sequence[str]) -> str | None:
    if name == "training_results.csv" and "eval_results.csv" in siblings:
        return "holds training epochs; the matrix is in eval_results.csv"
    return None


FORMATS = [
    Format(
        name="avalanche-csv",
        title="Avalanche's CSVLogger",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
        has_initial=True,
        passes_over=_passes_over,
    )
]
