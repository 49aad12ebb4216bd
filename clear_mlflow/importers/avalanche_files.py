"""Avalanche's CSVLogger, and what its ``strategy.eval`` returns, as JSON.

CSV: avalanche/logging/csv_logger.py. ``eval_results.csv`` lies beside ``training_results.csv``.
Accuracies are fractions of four digits; a bare ``0`` is written where no accuracy was monitored,
and is not measured. ``training_exp`` is ``None`` before the first training. The file does not say
which stream was tested.

JSON: avalanche/evaluation/metric_utils.py (names of metrics) and
avalanche/training/plugins/evaluation.py (``get_last_metrics``, ``get_all_metrics``). Keys end in
``Exp010``: they are ordered by number, not as texts. The k-th dictionary of a list is row k. In
what ``get_all_metrics`` gives, each key has all its values, and the k-th is that of the k-th test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LINES, MAX_RESULTS_BYTES
from clear_mlflow.importers._base import NAN, Format, Parsed, Source, grid, numbers, whole
from clear_mlflow.importers.plain_text import to_cell

_EVAL = "eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"
_TRAINING = "training_exp,epoch,training_accuracy,val_accuracy,training_loss,val_loss"
# Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp010, as its default_metric_name_template writes
# it; three digits at least, and no task where an experience has several.
_METRIC = re.compile(
    r"Top1_Acc_Exp/eval_phase/(?P<stream>[^/]{1,100})_stream(/Task[0-9]{3,6})?/Exp(?P<exp>[0-9]{3,})"
)
_SIGN = "Top1_Acc_Exp/eval_phase/"


def _parse_csv(source: Source) -> list[Parsed]:
    source.bounded(MAX_RESULTS_BYTES)
    lines = source.lines(MAX_LINES)
    first = next(lines, "")
    if first == _TRAINING:
        raise RecordError(
            "holds accuracies of training epochs; import eval_results.csv, which lies beside it"
        )
    if first != _EVAL:
        raise RecordError(f"begins with {safe_repr(first)}; expected {_EVAL!r}")
    found: dict[tuple[int, int], float] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",", maxsplit=5)[:3]]
        if len(cells) < 3:
            raise RecordError(f"holds the line {safe_repr(line)}; expected five values")
        row = 0 if cells[1] == "None" else _experience(cells[1]) + 1
        column = _experience(cells[0])
        if cells[2] == "0":  # the logger's own default, which is not written as 0.0000
            continue
        value = to_cell(cells[2])
        if math.isnan(value):
            continue
        if found.setdefault((row, column), value) != value:
            raise RecordError(
                f"holds two accuracies of experience {column} after {row} trainings, "
                f"{found[row, column]} and {value}: of two streams, or of two trainings"
            )
    if not found:
        raise RecordError("holds no accuracy: monitor accuracy_metrics(experience=True)")
    rows = grid(found)
    # Row 0, before any training, is no bucket: the grid may have one column too many.
    width = max(len(rows) - 1, 1 + max(j for _, j in found))
    initial, *rows = (row[:width] for row in rows)
    return [Parsed(rows=rows, initial=initial)]


def _experience(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise RecordError(f"holds the experience {safe_repr(text)}; expected a number from 0")
    return whole(text, "an experience")


def _passes_over(names: Sequence[str]) -> dict[str, str]:
    if not {"training_results.csv", "eval_results.csv"} <= set(names):
        return {}
    return {"training_results.csv": "holds training epochs; the matrix is in eval_results.csv"}


def _parse_json(source: Source) -> list[Parsed]:
    document = source.json
    if isinstance(document, dict):
        document = _tests_of(document)
    if not isinstance(document, list) or not all(isinstance(test, dict) for test in document):
        raise RecordError(
            f"is {safe_repr(document)}; expected what strategy.eval returns, or a list"
        )
    if len(document) > MAX_BUCKETS + 1:
        raise RecordError(f"holds {len(document)} tests; at most {MAX_BUCKETS + 1} are read")
    streams: dict[str, list[dict[int, float]]] = {}
    for position, test in enumerate(document):
        for key, value in test.items():
            if not (match := _METRIC.fullmatch(key)):
                continue
            rows = streams.setdefault(match["stream"], [{} for _ in document])
            column = _experience(match["exp"])
            if column in rows[position]:
                raise RecordError(f"has two accuracies of {safe_repr(key)}, under two tasks")
            (rows[position][column],) = numbers([value], "an accuracy")
    if not streams:
        raise RecordError(f"holds no {_SIGN}... of a test; log accuracy_metrics(experience=True)")
    if "test" not in streams and len(streams) > 1:
        raise RecordError(f"has the streams {safe_repr(sorted(streams))}; expected one called test")
    found = streams.get("test") or next(iter(streams.values()))
    width = 1 + max(column for row in found for column in row)
    # As many rows as tests: whether the first is the untrained model's is not known here.
    return [Parsed(rows=[[row.get(column, NAN) for column in range(width)] for row in found])]


def _tests_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The tests that one dictionary contains, as one dictionary each."""
    values = {key: value for key, value in document.items() if _METRIC.fullmatch(key)}
    if not values:
        raise RecordError(f"holds no key as {_SIGN}test_stream/Task000/Exp000")
    series = {}
    for key, value in values.items():
        if not isinstance(value, list) or len(value) != 2:
            raise RecordError(
                f"{safe_repr(key)} is {safe_repr(value)}; expected its steps and its values"
            )
        series[key] = numbers(value[1], f"the series {safe_repr(key)}")
    lengths = {len(value) for value in series.values()}
    if len(lengths) != 1:
        raise RecordError(
            f"has series of {safe_repr(sorted(lengths))} values; which of them belong to one test "
            "is not known unless all experiences were tested each time"
        )
    return [{key: value[i] for key, value in series.items()} for i in range(lengths.pop())]


FORMATS = [
    Format(
        name="avalanche-csv",
        title="Avalanche's CSVLogger",
        recognises=lambda source: source.head.startswith((_EVAL, _TRAINING)),
        parse=_parse_csv,
        scale="fraction",
        has_initial=True,
        passes_over=_passes_over,
    ),
    Format(
        name="avalanche-results",
        title="Avalanche's evaluation results",
        recognises=lambda source: source.looks_like_json and "_phase/" in source.head,
        parse=_parse_json,
        scale="fraction",
    ),
]
