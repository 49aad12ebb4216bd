"""Avalanche's CSVLogger, and the results of its ``strategy.eval`` as JSON.

CSV: avalanche/logging/csv_logger.py. Accuracies are fractions of four digits; a bare ``0`` is
written where no accuracy was monitored. ``training_exp`` is ``None`` before the first training.

JSON: avalanche/evaluation/metric_utils.py (names of metrics) and
avalanche/training/plugins/evaluation.py (``get_last_metrics``, ``get_all_metrics``). In a list of
dictionaries, the k-th is row k. The dictionary of ``get_all_metrics`` contains the steps and the
values of each key, and the k-th value belongs to the k-th test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.importers._base import (
    NAN,
    Format,
    ParsedRun,
    ResultFile,
    build_rows,
    parse_cell,
    parse_index,
    to_floats,
)

_EVAL_HEADER = "eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"
_TRAINING_HEADER = "training_exp,epoch,training_accuracy,val_accuracy,training_loss,val_loss"
# Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp010, as in its default_metric_name_template:
# at least three digits, and no task if an experience has several.
_METRIC = re.compile(
    r"Top1_Acc_Exp/eval_phase/(?P<stream>[^/]{1,100})_stream(/Task[0-9]{3,6})?/Exp(?P<exp>[0-9]{3,})"
)


class AvalancheCSV(Format):
    """``eval_results.csv``: a line per test of one experience after one training."""

    name = "avalanche-csv"
    scale = "fraction"
    marks_initial = True

    def matches(self, file: ResultFile) -> bool:
        """Return True for the first line of one of CSVLogger's files.

        They are eval_results.csv, and training_results.csv, which :meth:`parse` does not accept.
        """
        return file.head.startswith((_EVAL_HEADER, _TRAINING_HEADER))

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run. An accuracy "0" was not measured.

        0.0000 was.

        Rows and columns are in the order in which experiences were trained. Raises RecordError if
        the file is not eval_results.csv, contains no accuracy, two accuracies of one experience
        after one training, or an experience that was trained twice.
        """
        lines = file.iter_lines()
        if (header := next(lines, "")) != _EVAL_HEADER:
            raise RecordError(
                f"begins with {safe_repr(header)}; expected {_EVAL_HEADER!r}: import "
                "eval_results.csv, which is next to training_results.csv"
            )
        cells: dict[tuple[int, int], float] = {}
        order: list[int] = []  # rows in the order of the file, numbered by the trained experience
        for line in lines:
            fields = [field.strip() for field in line.split(",", maxsplit=5)[:3]]
            if len(fields) < 3:
                raise RecordError(f"contains the line {safe_repr(line)}; expected five values")
            tested, trained, accuracy = fields
            row = 0 if trained == "None" else parse_index(trained, "training_exp") + 1
            column = parse_index(tested, "eval_exp")
            if row and row != (order or [0])[-1]:
                if row in order:
                    raise RecordError(
                        f"contains tests after two trainings on experience {row - 1}, the second "
                        f"after experience {order[-1] - 1}; an accuracy matrix has a row for each"
                    )
                order.append(row)
            # The logger's default for "not monitored" is 0; a measured zero is 0.0000.
            value = NAN if accuracy == "0" else parse_cell(accuracy)
            if math.isnan(value):
                continue
            if cells.setdefault((row, column), value) != value:
                raise RecordError(
                    f"contains two accuracies of experience {column} after {row} trainings, "
                    f"{cells[row, column]} and {value}, from two streams or two trainings"
                )
        if not cells:
            raise RecordError("contains no accuracy: monitor accuracy_metrics(experience=True)")
        num_trainings = max(row for row, _ in cells)
        # The experiences that were trained are tested, too, even if nothing monitored the last.
        cells.setdefault((0, max(num_trainings - 1, 0)), NAN)
        if order == sorted(order):  # those without a test after them were trained, too
            initial, *rows = build_rows(cells)
            yield ParsedRun(rows=rows, initial=initial)
            return
        num_experiences = 1 + max(column for _, column in cells)
        if untested := sorted(set(range(1, num_experiences + 1)) - set(order)):
            raise RecordError(
                f"was trained on experiences {', '.join(str(i - 1) for i in order)} in this order, "
                f"without a test after experience {untested[0] - 1}: whether and when it was "
                "trained is unknown"
            )
        indices = {0: 0, **{number: i for i, number in enumerate(order, start=1)}}
        cells = {(indices[i], indices[j + 1] - 1): value for (i, j), value in cells.items()}
        initial, *rows = build_rows(cells)
        yield ParsedRun(rows=rows, initial=initial, buckets=[str(number) for number in order])

    def find_skipped(self, names: Sequence[str]) -> dict[str, str]:
        """Return the reason to skip training_results.csv if eval_results.csv is next to it."""
        if not {"training_results.csv", "eval_results.csv"} <= set(names):
            return {}
        return {
            "training_results.csv": "contains training epochs; the matrix is in eval_results.csv"
        }


class AvalancheResults(Format):
    """JSON of ``strategy.eval``: metrics per test, or a dictionary of all."""

    name = "avalanche-results"
    scale = "fraction"

    def matches(self, file: ResultFile) -> bool:
        """Return True for JSON with names like ``eval_phase/`` near its beginning."""
        return file.looks_like_json and "_phase/" in file.head

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run, a row for each test.

        Experiences are in the order of ``buckets``, or by number, unless each test adds one. If
        several streams were tested, the stream named "test" is read. Raises RecordError if none of
        them has this name, or if the file contains no accuracy of a test.
        """
        tests = _split_tests(file.json) if isinstance(file.json, dict) else file.json
        if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
            raise RecordError(
                f"is {safe_repr(tests)}; expected the results of strategy.eval, or a list of them"
            )
        if len(tests) > MAX_BUCKETS + 1:
            raise RecordError(f"contains {len(tests)} tests; at most {MAX_BUCKETS + 1} are read")
        cells_by_stream: dict[str, dict[tuple[int, int], float]] = {}
        for row, test in enumerate(tests):
            for key, value in test.items():
                if not (match := _METRIC.fullmatch(key)):
                    continue
                cells = cells_by_stream.setdefault(match["stream"], {})
                column = parse_index(match["exp"], "an experience")
                if (row, column) in cells:
                    raise RecordError(f"has two accuracies of {safe_repr(key)}, under two tasks")
                (cells[row, column],) = to_floats([value], "an accuracy")
        if not cells_by_stream:
            raise RecordError(
                "contains no Top1_Acc_Exp/eval_phase/... of a test; log "
                "accuracy_metrics(experience=True)"
            )
        if "test" not in cells_by_stream and len(cells_by_stream) > 1:
            raise RecordError(
                f"has the streams {safe_repr(sorted(cells_by_stream))}; expected one called test"
            )
        cells = cells_by_stream.get("test") or next(iter(cells_by_stream.values()))
        yield _order_experiences(cells, file.options.bucket_names)


def _order_experiences(cells: Mapping[tuple[int, int], float], stated: Sequence[str]) -> ParsedRun:
    """Order experiences by their training, as proven or stated, else by number.

    stated: numbers of all experiences, from 1, in stream order, or other names.
    """
    rows = build_rows(cells)
    names, note = [str(j + 1) for j in range(len(rows[0]))], ""
    first_rows: dict[int, int] = {}
    for row, column in cells:
        first_rows.setdefault(column, row)
    if sorted(first_rows.values()) == [*range(len(names))]:  # each test adds the one just trained
        names = [str(j + 1) for j in sorted(first_rows, key=first_rows.__getitem__)]
    elif sorted(stated) == sorted(names):
        names = [*stated]
    else:
        note = "experiences by number, which proves no order of training; --buckets states another"
    rows = [[row[int(name) - 1] for name in names] for row in rows]
    return ParsedRun(rows=rows, buckets=names, order=note)


def _split_tests(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert series of steps and values to a dictionary for each test."""
    values_by_key = {}
    for key, value in document.items():
        if not _METRIC.fullmatch(key):
            continue
        if not isinstance(value, list) or len(value) != 2:
            raise RecordError(
                f"{safe_repr(key)} is {safe_repr(value)}; expected its steps and its values"
            )
        values_by_key[key] = to_floats(value[1], f"the series {safe_repr(key)}")
    lengths = {len(values) for values in values_by_key.values()}
    if len(lengths) > 1:
        raise RecordError(
            f"has series of {safe_repr(sorted(lengths))} values, which cannot be assigned to tests "
            "unless all experiences were tested each time"
        )
    return [{key: v[i] for key, v in values_by_key.items()} for i in range(max(lengths, default=0))]
