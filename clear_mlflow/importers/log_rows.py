"""Rows that a log prints as lists, found by a regular expression of the user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.importers._base import (
    DECIMAL_COMMA,
    DEVIATION,
    Format,
    ParsedRun,
    ResultFile,
    is_cell,
    parse_cell,
)

_MAX_SECONDS = 20
_SEPARATOR, _SPACE = re.compile(r"[\s,;]+"), re.compile(r"[\s;]+")
# An expression can take exponential time, which only the end of its process bounds.
_SEARCH = """
import json, re, sys
expression, method, lines = json.load(sys.stdin)
matches = map(getattr(re.compile(expression), method), lines)
print(json.dumps([(n, match[1] or "") for n, match in enumerate(matches, 1) if match]))
"""


class LogRows(Format):
    """Lines of a log with a test's accuracies, found by ``rows``."""

    name = "log-rows"
    is_general = True
    max_bytes = untrusted.MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if the options have an expression for rows."""
        return file.options.rows is not None

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield a run for each sequence of rows.

        A row that is shorter than the one before, or that follows a square, begins a run. Raises
        RecordError if no line matches, or a cell is not a number.
        """
        num_initial = file.options.initial == "first-row"
        runs: list[list[list[float]]] = []
        if file.options.rows is None:
            raise ConfigError("format is 'log-rows', which needs rows; pass a regular expression")
        lines = untrusted.decode_text(file.content).split("\n")
        for number, text in search_lines(file.options.rows, lines):
            if "%" in text and file.options.scale != "percent":
                raise RecordError(f"contains % in line {number}; pass scale=percent")
            row = _parse_cells(text, number)
            last = runs[-1] if runs else []
            is_square = 1 < len(row) == len(last) - num_initial and len(last[0]) == len(row)
            if not last or len(row) < len(last[-1]) or is_square:
                runs.append([])
            runs[-1].append(row)
        if not runs:
            raise RecordError(f"contains no line that matches rows, {safe_repr(file.options.rows)}")
        for index, rows in enumerate(runs, start=1):
            label = f"run {index}" if len(runs) > 1 else ""
            yield ParsedRun(rows=rows, orientation="rows", label=label)


def search_lines(
    expression: str, lines: Sequence[str], *, name: str = "rows", method: str = "search"
) -> list[tuple[int, str]]:
    """Search lines in another process, and raise RecordError after 20 seconds.

    Returns number and group of each line that matches. name: parameter with the expression.
    method: "search", or "fullmatch" for complete lines.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-I", "-c", _SEARCH],
            input=json.dumps([expression, method, lines]),
            capture_output=True,
            encoding="ascii",
            timeout=_MAX_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise RecordError(
            f"takes over {_MAX_SECONDS} seconds to search for {safe_repr(expression)}; pass "
            f"{name}=... with fewer nested repetitions"
        ) from None
    except (subprocess.CalledProcessError, OSError) as error:
        raise RecordError(f"cannot be searched: {safe_repr(str(error), 100)}") from error
    matches: list[tuple[int, str]] = json.loads(done.stdout)
    if len(matches) > untrusted.MAX_LINES:
        raise RecordError(f"contains more than {untrusted.MAX_LINES} lines that match {name}")
    return matches


def _parse_cells(text: str, line: int) -> list[float]:
    """Return a row's numbers, without brackets, % and deviations, or raise."""
    numbers = DEVIATION.sub("", text).replace("%", " ").strip("[]() \t\r,;")
    cells = _SPACE.split(numbers)
    if len(cells) > 1 and all(map(DECIMAL_COMMA.fullmatch, cells)):  # 91,2 52,0
        cells = [cell.replace(",", ".") for cell in cells]
    else:
        cells = _SEPARATOR.split(numbers)
    for index, cell in enumerate(cells, start=1):
        if not is_cell(cell):
            raise RecordError(
                f"contains {safe_repr(cell)} in line {line}, cell {index}; expected a number"
            )
    return [parse_cell(cell) for cell in cells]
