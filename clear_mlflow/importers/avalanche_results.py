"""What Avalanche's ``strategy.eval`` returns, as JSON: one dictionary, or a list, a test each.

Source: avalanche/evaluation/metric_utils.py (names of metrics) and
avalanche/training/plugins/evaluation.py (``get_last_metrics``, ``get_all_metrics``). Keys end in
``Exp010``: they are ordered by number, not as texts. The k-th dictionary of a list is row k. A
single dictionary is one test, that of the model after the last bucket. In what ``get_all_metrics``
gives, each key has all its values, and the k-th of them is that of the k-th test.
"""

from __future__ import annotations

from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.importers._avalanche import METRIC, SIGN, Cell, experience, of_one_stream
from clear_mlflow.importers._base import NAN, Format, Parsed, Source, number, numbers


def _recognises(source: Source) -> bool:
    return source.looks_like_json and (SIGN in source.head or "_phase/" in source.head)


def _parse(source: Source) -> list[Parsed]:
    document = source.json
    if isinstance(document, dict):
        document = _tests_of(document)
    if not isinstance(document, list) or not all(isinstance(test, dict) for test in document):
        raise RecordError(f"is {shown(document)}; expected what strategy.eval returns, or a list")
    if len(document) > MAX_BUCKETS + 1:
        raise RecordError(f"holds {len(document)} tests; at most {MAX_BUCKETS + 1} are read")
    cells: list[Cell] = []
    for position, test in enumerate(document):
        seen: set[tuple[str, int]] = set()
        for key, value in test.items():
            if not (match := METRIC.fullmatch(key)):
                continue
            place = match["stream"], experience(match["exp"])
            if place in seen:
                raise RecordError(f"has two accuracies of {shown(key)}, under two tasks")
            seen.add(place)
            cells.append((position + 1, *place, number(value, "an accuracy")))
    tests = of_one_stream(cells)
    # As many rows as tests: whether the first is the untrained model's is not known here.
    rows = [[NAN] * (1 + max(j for _, j in tests)) for _ in document]
    for (row, column), value in tests.items():
        rows[row - 1][column] = value
    return [Parsed(rows=rows)]


def _tests_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The tests that one dictionary contains, as one dictionary each."""
    values = {key: value for key, value in document.items() if METRIC.fullmatch(key)}
    if not values:
        raise RecordError(f"holds no key as {SIGN}test_stream/Task000/Exp000")
    if not any(isinstance(value, list) for value in values.values()):
        width = 1 + max(experience(key.rsplit("/Exp", 1)[1]) for key in values)
        # One test: the one after the last bucket. The rows before it were not kept.
        return [{} for _ in range(width - 1)] + [values]
    series = {}
    for key, value in values.items():
        if not isinstance(value, list) or len(value) != 2:
            raise RecordError(f"{shown(key)} is {shown(value)}; expected its steps and its values")
        series[key] = numbers(value[1], f"the series {shown(key)}")
    lengths = {len(value) for value in series.values()}
    if len(lengths) != 1:
        raise RecordError(
            f"has series of {shown(sorted(lengths))} values; which of them belong to one test is "
            "not known unless all experiences were tested each time"
        )
    return [{key: value[i] for key, value in series.items()} for i in range(lengths.pop())]


FORMATS = [
    Format(
        name="avalanche-results",
        title="Avalanche's evaluation results",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
    )
]
