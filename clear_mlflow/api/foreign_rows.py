"""Rows that another program stored in a run under its own names, stored again as its rows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.api.import_ import build_records
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.loop_metadata import UNKNOWN
from clear_mlflow.core.matrix import PROTOCOLS, AccuracyMatrix, measured_split
from clear_mlflow.core.record import row_file_name
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.core.untrusted import (
    MAX_ARTIFACT_FOLDERS,
    MAX_ARTIFACTS,
    MAX_RESULTS_BYTES,
)
from clear_mlflow.importers import (
    ReadOptions,
    combine_rows,
    load_file,
    parse_index,
    read_row,
    read_runs,
)
from clear_mlflow.store.artifacts import download
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.rows import parse_rows, put_row, read_row_files

_MAX_LENGTH = 500
_MAX_STARS = 3
_PLACEHOLDERS = {
    "*": "[^/]*",
    "?": "[^/]",
    "{row}": "(?P<row>[0-9]+)",
    "{row0}": "(?P<row>[0-9]+)",
}
_PLACEHOLDER = re.compile(r"(\{row0?\}|\*|\?)")


class RowPattern:
    """Path of row artifacts with {row} (buckets trained), {row0} (one less), * or ?.

    Raises ConfigError if the pattern is not a path within a run.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.parts = pattern.split("/")
        expected = ""
        if (
            not 1 <= len(pattern) <= _MAX_LENGTH
            or not pattern.isprintable()
            or any(part in ("", ".", "..") for part in self.parts)
        ):
            expected = "a path within a run, such as results/acc_after_{row}.json"
        elif pattern.count("{row") > 1 or any(c in _PLACEHOLDER.sub("", pattern) for c in "{}"):
            expected = "{row} or {row0} once, no other braces"
        # A run of somebody else chooses the names: matching them must not take exponential time.
        elif any(part.count("*") > _MAX_STARS for part in self.parts):
            expected = f"at most {_MAX_STARS} stars in a name"
        if expected:
            raise ConfigError(f"rows is {safe_repr(pattern)}; expected {expected}")

    def matches_part(self, depth: int, name: str) -> bool:
        """Return True if the name of a folder or file matches the pattern's part at *depth*."""
        return bool(_compile_pattern(self.parts[depth]).fullmatch(name))

    def find_rows(self, paths: Iterable[str]) -> dict[int | None, str]:
        """Return row number to path, in order; the key of a complete matrix is None.

        Raises RecordError if two paths are the same row, or several match without a number.
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


def adopt_rows(client: MlflowClient, run: Run, pattern: RowPattern, options: ReadOptions) -> int:
    """Store the artifacts of a run that match as its rows; return how many rows were written.

    Writes only rows that the run lacks, and nothing into a run whose rows a training wrote. Raises
    RecordError if the artifacts do not form a matrix.
    """
    stored = parse_rows(read_row_files(client, run, waiting=None))
    if any("imported" not in record.extra for record in stored.values()):
        return 0
    paths = pattern.find_rows(_list_matching(client, run, pattern))
    if not paths:
        return 0
    matrix = _read_matrix(client, run, paths, options)
    tags = {**run.data.params, **run.data.tags}
    protocol = tags.get("protocol", "")
    metadata = {
        "dataset": truncate(tags.get("dataset", ""), 150) or UNKNOWN,
        "protocol": protocol if protocol in PROTOCOLS else "iid",
        "split": measured_split(tags.get("split", "")),
        "seed": tags.get("seed", ""),
    }
    records = build_records(matrix, metadata, {"format": "rows", "pattern": pattern.pattern})
    missing = [record for record in records if row_file_name(record.row.row) not in stored]
    for record in missing:
        put_row(client, run, row_file_name(record.row.row), record.to_json().encode())
    return len(missing)


def _list_matching(client: MlflowClient, run: Run, pattern: RowPattern) -> list[str]:
    """Return the paths of the artifacts that match, listing only folders that match.

    Raises RecordError if there are too many folders or artifacts, if a file is too large for a
    row, or if a name contains # or ?, which would block a request to a server for minutes.
    """
    folders, num_listed = [""], 0
    for depth in range(len(pattern.parts)):
        is_last = depth == len(pattern.parts) - 1
        if len(folders) > MAX_ARTIFACT_FOLDERS:
            raise RecordError(
                f"more than {MAX_ARTIFACT_FOLDERS} folders match {safe_repr(pattern.pattern)}"
            )
        paths = []
        for folder in folders:
            with mlflow_errors(f"list the artifacts of run {run.info.run_id}"):
                files = client.list_artifacts(run.info.run_id, folder or None)
            num_listed += len(files)
            if num_listed > MAX_ARTIFACTS:
                raise RecordError(
                    f"contains more than {MAX_ARTIFACTS} artifacts to search for rows"
                )
            for file in files:
                # Only the name: the path comes from the store and must not be followed.
                name = file.path.rsplit("/", 1)[-1]
                if file.is_dir == is_last or name in ("", ".", ".."):
                    continue
                if not pattern.matches_part(depth, name):
                    continue
                if is_last and file.file_size is not None and file.file_size > MAX_RESULTS_BYTES:
                    raise RecordError(
                        f"{safe_repr(name)} has {file.file_size} bytes, too many for a row"
                    )
                if "#" in name or "?" in name:
                    raise RecordError(f"{safe_repr(name)} matches; rename it, without # and ?")
                paths.append(f"{folder}/{name}" if folder else name)
        folders = paths
    return folders


def _read_matrix(
    client: MlflowClient, run: Run, paths: dict[int | None, str], options: ReadOptions
) -> AccuracyMatrix:
    """Download the files and combine their rows; the key None is a file with the matrix."""
    rows: dict[int, list[float]] = {}
    for row, path in paths.items():
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
            file = load_file(download(client, run, path, folder), options)
        if row is None:
            runs = read_runs(file)
            if len(runs) != 1:
                raise RecordError(
                    f"{safe_repr(path)} contains {len(runs)} runs; expected only this run's"
                )
            return runs[0].matrix
        try:
            rows[row] = read_row(file)
        except RecordError as error:
            raise RecordError(f"{safe_repr(file.name, 120)}: {error}") from error
    return combine_rows(rows, options)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    parts = (_PLACEHOLDERS.get(part) or re.escape(part) for part in _PLACEHOLDER.split(pattern))
    return re.compile("".join(parts), re.ASCII)
