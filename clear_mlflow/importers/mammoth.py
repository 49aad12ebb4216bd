"""Mammoth's logs.pyd: a line per run, each the text of a Python dictionary.

Source: utils/loggers.py, ``Logger.write``, and utils/training.py of aimagelab/mammoth, e75a491.
``accuracy_<j>_task<i>`` is the accuracy in percent on task j at test i, that of the tasks so far
after task i. With ``--eval_future`` a test of the tasks to come follows each, numbered on: its
accuracies are those from the next task on. The lines are taken apart here and never executed or
evaluated: a run's arguments may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LINE_CHARACTERS, MAX_RUNS
from clear_mlflow.importers._base import NAN, Format, Parsed, Source, whole

_PART = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<open>[\[({])|(?P<close>[\])}])"""
    r"""|(?P<mark>[,:])|(?P<word>[^\s'"\[\](){},:]+))""",
    re.DOTALL,
)
_CELL = re.compile(r"accuracy_([0-9]{1,9})_task([0-9]{1,9})")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]{1,4})?")
# What numpy 2 writes for its own numbers, and what it writes for none.
_WRAPPERS = ("np.float64", "np.float32", "np.float16", "numpy.float64")
_FACTS = {"model": "strategy", "dataset": "dataset", "backbone": "model", "seed": "seed"}


def _recognises(source: Source) -> bool:
    return source.name.lower().endswith(".pyd") or (
        source.head.startswith("{'") and b"'accmean_task1'" in source.content
    )


def _parse(source: Source) -> Iterator[Parsed]:
    is_one = sum(1 for _ in source.lines(MAX_RUNS)) == 1
    for position, line in enumerate(source.lines(MAX_RUNS)):
        try:
            rows, facts = _run(line.strip())
        except RecordError as error:
            raise RecordError(f"line {position + 1} {error}") from error
        label = "" if is_one else f"line {position + 1}"
        yield Parsed(rows=rows, facts=facts, label=label, part=line.strip().encode())


def _run(line: str) -> tuple[list[list[float]], dict[str, str]]:
    entries = _entries(line)
    tests: dict[int, dict[int, float]] = {}
    for key, value in entries.items():
        if match := _CELL.fullmatch(key):
            column, test = (whole(digits, "a task", 2 * MAX_BUCKETS) for digits in match.groups())
            tests.setdefault(test, {})[column] = _accuracy(key, value)
    if not tests:
        raise RecordError(
            "holds no accuracy_<j>_task<i>: mammoth keeps accuracies per task for class-il and "
            "task-il alone, and means otherwise"
        )
    rows = []
    for test in range(1, max(tests) + 1):
        cells = tests.get(test, {})
        if set(cells) != set(range(1, len(cells) + 1)):
            raise RecordError(
                f"holds tasks {safe_repr(sorted(cells))} at test {test}; expected 1, 2, ..."
            )
        rows.append([cells[column] for column in range(1, len(cells) + 1)])
    ahead: list[list[float]] = []
    if entries.get("eval_future") in (["True"], ["1"]):
        rows, ahead = rows[0::2], rows[1::2]
    width = len(rows) + (len(ahead[-1]) if len(ahead) == len(rows) else 0)
    for i, row in enumerate(rows):
        future = ahead[i] if i < len(ahead) else []
        if len(row) != i + 1 or len(row) + len(future) != (width if ahead else i + 1):
            raise RecordError(
                f"holds {len(row)} accuracies of past and {len(future)} of future tasks after task "
                f"{i + 1}; expected {i + 1}, and with eval_future all others: --validation, "
                "--eval_epochs and --start_from log further tests, which are not told apart"
            )
        row += future
    facts = {
        ours: fact
        for theirs, ours in _FACTS.items()
        if theirs in entries and (fact := _fact(entries[theirs]))
    }
    return rows, facts


def _entries(line: str) -> dict[str, list[str]]:
    """The entries of a dictionary's text: each key with the parts of its value, at any depth."""
    if len(line) > MAX_LINE_CHARACTERS:
        raise RecordError(f"has {len(line)} characters; at most {MAX_LINE_CHARACTERS} are read")
    if not (line.startswith("{") and line.endswith("}")):
        raise RecordError(f"is {safe_repr(line)}; expected the text of a Python dictionary")
    found: dict[str, list[str]] = {}
    key: str | None = None
    value: list[str] = []
    depth, position = 0, 0
    while position < len(line):
        match = _PART.match(line, position)
        if match is None:
            raise RecordError(
                f"is no Python dictionary at {safe_repr(line[position : position + 20])}"
            )
        position, part = match.end(), match[0].strip()
        depth += bool(match["open"]) - bool(match["close"])
        if depth < 0 or (depth == 0 and position < len(line)):
            raise RecordError("is no single Python dictionary: its brackets do not match")
        if depth == 1 and part == ":" and key is None and len(value) == 1:
            key, value = _plain(value[0]), []
        elif (depth == 1 and part == ",") or depth == 0:
            if key is not None:
                found[key] = value
            key, value = None, []
        elif not (depth == 1 and part == "{" and position == 1):
            value.append(part)
    if depth != 0:
        raise RecordError("is cut off: a bracket is not closed")
    return found


def _accuracy(key: str, parts: list[str]) -> float:
    if len(parts) == 4 and parts[0] in _WRAPPERS and parts[1::2] == ["(", ")"]:
        parts = parts[2:3]
    if parts in (["nan"], ["None"]):
        return NAN
    if len(parts) != 1 or not _NUMBER.fullmatch(parts[0]):
        raise RecordError(f"holds {safe_repr(' '.join(parts))} for {key}; expected a number")
    return float(parts[0])


def _fact(parts: list[str]) -> str:
    """A text or a whole number among the run's arguments; empty where it is anything else."""
    text = _plain(parts[0]) if len(parts) == 1 else "None"
    return text if text != "None" and 1 <= len(text) <= 100 and text.isprintable() else ""


def _plain(part: str) -> str:
    """A part's value: a text without its quotes, anything else as it is written."""
    return part[1:-1] if part[0] in "'\"" else part


FORMATS = [
    Format(
        name="mammoth",
        title="mammoth's logs.pyd",
        recognises=_recognises,
        parse=_parse,
        scale="percent",
        has_initial=True,
    )
]
