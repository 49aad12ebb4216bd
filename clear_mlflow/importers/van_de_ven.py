"""The results dictionary of GMvandeVen/continual-learning (``--results-dict``).

Source: eval/evaluate.py, ``test_all_so_far`` and ``initiate_plotting_dict``; utils.py,
``save_object``; for the older form, evaluate.py, ``initiate_precision_dict``. Accuracies are
fractions. Future contexts are written as 0 and not tested, so they are NaN. The program pickles its
dictionary: that file is taken apart without being unpickled (see ``_literal_pickle``), and the
same dictionary as JSON is read, too.
"""

from __future__ import annotations

import re
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_PICKLE_BYTES, MAX_TESTS, check_depth
from clear_mlflow.importers._base import Format, Parsed, Source, grid, number, whole
from clear_mlflow.importers._literal_pickle import looks_like_pickle, read_literals

_ACCURACIES = "acc per context"
_OLDER = "all_tasks"
_CONTEXT = re.compile(r"context ([0-9]{1,9})")


def _recognises(source: Source) -> bool:
    # The key comes first in the dictionary, so the file's beginning has it.
    if looks_like_pickle(source.content):
        return _ACCURACIES in source.head or _OLDER in source.head
    return source.looks_like_json and (
        f'"{_ACCURACIES}"' in source.head or f'"{_OLDER}"' in source.head
    )


def _parse(source: Source) -> list[Parsed]:
    if looks_like_pickle(source.content):
        source.bounded(MAX_PICKLE_BYTES)
        document: Any = read_literals(source.content)
        check_depth(document)
    else:
        document = source.json
    if not isinstance(document, dict):
        raise RecordError(f"is {shown(document)}; expected the results of a run")
    accuracies, trained = document.get(_ACCURACIES), document.get("x_context")
    if isinstance(older := document.get(_OLDER), list):
        accuracies = {f"context {j + 1}": values for j, values in enumerate(older)}
        trained = document.get("x_task")
    if not isinstance(accuracies, dict) or not accuracies:
        raise RecordError(f"has no dictionary {_ACCURACIES!r}; expected the results of a run")
    tests = _contexts(trained)
    cells: dict[tuple[int, int], float] = {}
    for name, values in accuracies.items():
        match = _CONTEXT.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[1] == "0":
            raise RecordError(f"holds {shown(name)}; expected 'context 1', 'context 2', ...")
        if not isinstance(values, list) or len(values) != len(tests):
            raise RecordError(
                f"{name} is {shown(values)}; expected an accuracy for each of {len(tests)} tests"
            )
        column = whole(match[1], "a context") - 1
        for row, value in zip(tests, values, strict=True):
            cells[row - 1, column] = number(value, f"an accuracy of {name}")
    rows = grid(cells)
    if len(rows) > len(accuracies):
        raise RecordError(f"has {len(rows)} contexts trained, but {len(accuracies)} tested")
    return [Parsed(rows=rows)]


def _contexts(value: object) -> list[int]:
    """After how many contexts each test was made; of several tests the last one counts.

    Raises:
        RecordError: it is not said, or all tests are said to be of the end (task-free training).
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TESTS:
        raise RecordError(f"x_context is {shown(value)}; expected the context of each test")
    for context in value:
        if isinstance(context, bool) or not isinstance(context, int) or not 1 <= context <= 1000:
            raise RecordError(f"x_context holds {shown(context)}; expected 1 to 1000")
    if value != sorted(value):
        raise RecordError("x_context does not rise; expected tests in their order")
    if len(value) > 1 and len(set(value)) == 1:
        raise RecordError(
            f"holds {len(value)} tests, all after context {value[0]}: of task-free training, whose "
            "rows belong to no context"
        )
    return value


FORMATS = [
    Format(
        name="van-de-ven",
        title="GMvandeVen's results dictionary",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
        zeros_are_untested=True,
        has_initial=True,
    )
]
