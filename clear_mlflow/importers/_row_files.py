"""Rows in separate files: which file of a run is which row, and the matrix of all rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_RESULTS_BYTES, check_size
from clear_mlflow.importers import numpy_file, plain_text
from clear_mlflow.importers._base import (
    NAN,
    ParsedRun,
    ReadOptions,
    ResultFile,
    parse_cell,
    parse_index,
    to_floats,
)
from clear_mlflow.importers._normalise import convert_run

_ROW_FIELDS = ("accuracy", "accuracies", "acc", "values")
_PLACEHOLDERS = {
    "*": "[^/]*",
    "?": "[^/]",
    "{row}": "(?P<row>[0-9]+)",
    "{row0}": "(?P<row>[0-9]+)",
}
_PLACEHOLDER = re.compile(r"(\{row0?\}|\*|\?)")


class RowPattern:
    """Pattern of artifact paths that each contain one row.

    ``{row}`` means the number of trained buckets, ``{row0}`` for one less, and * and ? for
    any characters of a name. Raises ConfigError if the pattern is not a path within a run.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        parts = pattern.split("/")
        expected = ""
        if (
            not 1 <= len(pattern) <= 500
            or not pattern.isprintable()
            or any(part in ("", ".", "..") for part in parts)
        ):
            expected = "a path within a run, such as results/acc_after_{row}.json"
        elif pattern.count("{row") > 1 or any(c in _PLACEHOLDER.sub("", pattern) for c in "{}"):
            expected = "{row} or {row0} once, no other braces"
        # A run of somebody else chooses the names: matching them must not take exponential time.
        elif any(part.count("*") > 3 for part in parts):
            expected = "at most 3 stars in a name"
        if expected:
            raise ConfigError(
                f"rows is {safe_repr(pattern)}; expected {expected}", parameter="rows"
            )

    def find_rows(self, paths: Iterable[str]) -> dict[int | None, str]:
        """Return matching paths by row, or a complete matrix's under None.

        Returns {} if none matches. A pattern without {row} or {row0} matches a complete matrix,
        whose key is None. Raises RecordError if two paths have the same number, a number is above
        1000, or several paths match a pattern without a number.
        """
        regex = _compile_pattern(self.pattern)
        matches = {path: match for path in paths if (match := regex.fullmatch(path))}
        if "{row" not in self.pattern:
            if len(matches) > 1:
                raise RecordError(
                    f"{len(matches)} artifacts match, {safe_repr(min(matches))} and others; write "
                    "{row} in place of the row's number, or {row0} if 0 is the test after the "
                    "first bucket"
                )
            return dict.fromkeys([None], *matches) if matches else {}
        first = 1 if "{row0}" in self.pattern else 0
        rows: dict[int | None, str] = {}
        numbered = [(parse_index(m["row"], "a row") + first, path) for path, m in matches.items()]
        for row, path in sorted(numbered):
            if row in rows:
                raise RecordError(
                    f"{safe_repr(rows[row])} and {safe_repr(path)} are both row {row}"
                )
            rows[row] = path
        return rows


def parse_row(file: ResultFile) -> list[float]:
    """Parse a file with a single row, or raise RecordError.

    The file is a JSON list, a JSON object with the list as ``accuracy``, ``accuracies``, ``acc`` or
    ``values``, a line or column of text, or a .npy array. NaN means not measured. Raises
    RecordError for anything else, and for more than one row.
    """
    check_size(file.content, MAX_RESULTS_BYTES)
    if file.looks_like_json:
        document = file.json
        if isinstance(document, dict):
            document = next((document[name] for name in _ROW_FIELDS if name in document), document)
        return to_floats(document, "the row")
    if numpy_file.is_npy(file.content):
        rows = numpy_file.parse_npy_rows(file.content)
    else:
        rows = [[parse_cell(cell) for cell in line] for line in plain_text.parse_table(file)]
    if len(rows) != 1 and any(len(row) != 1 for row in rows):
        raise RecordError(f"contains {len(rows)} lines; expected one row of numbers")
    cells = [cell for row in rows for cell in row]
    if not 1 <= len(cells) <= MAX_BUCKETS:
        raise RecordError(f"contains {len(cells)} numbers; expected 1 to {MAX_BUCKETS}")
    return cells


def combine_rows(rows: Mapping[int, Sequence[float]], options: ReadOptions) -> AccuracyMatrix:
    """Build a matrix from rows by number of trained buckets.

    0 is the untrained model. Missing rows become NaN; the option ``orientation`` is ignored. Raises
    RecordError if the rows are ambiguous or invalid, and ConfigError if an option contradicts them.

    rows: at least one.
    """
    width = max(map(len, rows.values()))
    parsed = ParsedRun(
        rows=[rows.get(row, [NAN] * width) for row in range(1, max(rows) + 1)] or [[NAN] * width],
        initial=rows.get(0),
        orientation="rows",
    )
    options = replace(options, orientation="auto")  # the pattern names the rows
    return convert_run(ResultFile("rows", b"", options), plain_text.PlainText(), parsed).matrix


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    parts = (_PLACEHOLDERS.get(part) or re.escape(part) for part in _PLACEHOLDER.split(pattern))
    return re.compile("".join(parts), re.ASCII)
