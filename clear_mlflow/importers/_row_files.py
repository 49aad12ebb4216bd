"""Rows that lie one by one in files of other names: which file is which row, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_RESULTS_BYTES
from clear_mlflow.importers import numpy_file, plain_text
from clear_mlflow.importers._base import (
    NAN,
    Format,
    Parsed,
    Reading,
    Source,
    finish,
    numbers,
    whole,
)

_LONGEST = 500
_MOST_STARS = 3
_SPECIAL = {"*": "[^/]*", "?": "[^/]", "{row}": "(?P<row>[0-9]+)", "{row0}": "(?P<row>[0-9]+)"}
_SPLIT = re.compile(r"(\{row0?\}|\*|\?)")
_FIELDS = ("accuracy", "accuracies", "acc", "values")
_ROWS = Format(
    name="rows",
    title="rows of another program",
    recognises=lambda _source: False,
    parse=lambda _source: (),
    is_general=True,
)


@dataclass(frozen=True)
class RowPattern:
    """Which artifacts are rows: a path with {row} (buckets trained), {row0} (less one), * or ?."""

    text: str

    def __post_init__(self) -> None:
        expected = ""
        if (
            not 1 <= len(self.text) <= _LONGEST
            or not self.text.isprintable()
            or any(part in ("", ".", "..") for part in self.parts)
        ):
            expected = "a path within a run, as results/acc_after_{row}.json"
        elif self.text.count("{row") > 1 or any(c in _SPLIT.sub("", self.text) for c in "{}"):
            expected = "{row} or {row0} once, no other braces"
        # Names come from a run: no pattern may take for ever on one that was made for it.
        elif any(part.count("*") > _MOST_STARS for part in self.parts):
            expected = f"at most {_MOST_STARS} stars in a name"
        if expected:
            raise ConfigError(f"rows is {safe_repr(self.text)}; expected {expected}")

    @property
    def parts(self) -> list[str]:
        """The pattern of each folder, and of the file at last."""
        return self.text.split("/")

    def fits(self, depth: int, name: str) -> bool:
        """Whether a name fits at a depth of the path; 0 is the run's own folder."""
        return bool(_as_regex(self.parts[depth]).fullmatch(name))

    def rows(self, paths: Iterable[str]) -> dict[int | None, str]:
        """The path of each row; a whole matrix has None for its row."""
        regex = _as_regex(self.text)
        matches = {path: match for path in paths if (match := regex.fullmatch(path))}
        if "{row" not in self.text:
            if len(matches) > 1:
                raise RecordError(
                    f"{len(matches)} artifacts match, {safe_repr(min(matches))} and others; write "
                    "{row} in place of the row's number, or {row0} if 0 is the test after the "
                    "first bucket"
                )
            return dict.fromkeys([None], *matches) if matches else {}
        first = 1 if "{row0}" in self.text else 0
        found = [(whole(m["row"], "a row") + first, path) for path, m in matches.items()]
        rows: dict[int | None, str] = {}
        for row, path in sorted(found):
            if row in rows:
                raise RecordError(
                    f"{safe_repr(rows[row])} and {safe_repr(path)} are both row {row}"
                )
            rows[row] = path
        return rows


def matrix_of_rows(files: Mapping[int, Source], reading: Reading) -> AccuracyMatrix:
    """The matrix of rows that were found one by one; a row that is not there is not measured."""
    rows: dict[int, list[float]] = {}
    for row, source in files.items():
        try:
            rows[row] = _cells(source)
        except RecordError as error:
            raise RecordError(f"{safe_repr(source.name, 120)}: {error}") from error
    width = max(len(cells) for cells in rows.values())
    parsed = Parsed(
        rows=[rows.get(row, [NAN] * width) for row in range(1, max(rows) + 1)] or [[NAN] * width],
        initial=rows.get(0),
        orientation="rows",
    )
    return finish(Source("rows", b""), _ROWS, parsed, reading).matrix


def _cells(source: Source) -> list[float]:
    """A row: a JSON list, a line or a column of text, or a .npy file."""
    source.bounded(MAX_RESULTS_BYTES)
    if numpy_file.is_array(source.content):
        return numpy_file.read_row(source.content)
    if source.looks_like_json:
        document = source.json
        if isinstance(document, dict):
            document = next((document[name] for name in _FIELDS if name in document), document)
        return numbers(document, "the row")
    table = plain_text.table_of(source)
    if len(table) != 1 and any(len(line) != 1 for line in table):
        raise RecordError(f"holds {len(table)} lines; expected one row of numbers")
    cells = [cell for line in table for cell in line]
    if not 1 <= len(cells) <= MAX_BUCKETS:
        raise RecordError(f"holds {len(cells)} numbers; expected 1 to {MAX_BUCKETS}")
    return [plain_text.to_cell(cell) for cell in cells]


def _as_regex(pattern: str) -> re.Pattern[str]:
    parts = (_SPECIAL.get(part) or re.escape(part) for part in _SPLIT.split(pattern))
    return re.compile("".join(parts), re.ASCII)
