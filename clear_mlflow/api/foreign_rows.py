"""Rows that another program logged as artifacts of a run, written as rows of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.api.import_ import build_records
from clear_mlflow.core.dataset import UNKNOWN
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import PROTOCOLS, AccuracyMatrix, get_measured_split
from clear_mlflow.core.record import RowRecord, format_row_file_name
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.core.untrusted import MAX_RESULTS_BYTES
from clear_mlflow.importers import (
    ReadOptions,
    RowPattern,
    combine_rows,
    load_file,
    parse_row,
    parse_runs,
)
from clear_mlflow.store.artifacts import check_size
from clear_mlflow.store.rows import parse_rows, read_row_files, store_row
from clear_mlflow.tracking.run_sources import RunSource


def copy_foreign_rows(
    client: MlflowClient, run: Run, pattern: RowPattern, options: ReadOptions
) -> str | None:
    """Convert another program's logged matrix to rows of the run.

    Does nothing if no artifact matches, or if the run has rows that were not imported, and returns
    a sentence about that. Dataset, protocol, split and seed are the run's parameters or tags of
    these names. Raises RecordError if an artifact cannot be read, or contradicts a row that was
    imported before, which is kept.
    """
    stored_rows = parse_rows(read_row_files(client, run, may_be_missing=None))
    path = safe_repr(pattern.pattern)
    if any("imported" not in record.extra for record in stored_rows.values()):
        return f"the run's own rows are scored, and {path} is not read"
    source = RunSource(client, run)
    sizes = source.list_files()
    paths = pattern.find_rows(sizes)
    if not paths:
        return f"no artifact matches {path}"
    for name in paths.values():
        check_size(safe_repr(name), sizes[name], MAX_RESULTS_BYTES)
    matrix = _read_matrix(source, paths, options)
    labels = {**run.data.params, **run.data.tags}
    protocol = labels.get("protocol", "")
    metadata = {
        "dataset": truncate(labels.get("dataset", ""), 150) or UNKNOWN,
        "protocol": protocol if protocol in PROTOCOLS else "iid",
        "split": get_measured_split(labels.get("split", "")),
        "seed": labels.get("seed", ""),
    }
    for record in build_records(matrix, metadata, {"format": "rows", "pattern": pattern.pattern}):
        name = format_row_file_name(record.row.row)
        content = record.to_json()
        if name not in stored_rows:
            store_row(client, run, name, content)
        elif RowRecord.from_json(content, source=name).row != stored_rows[name].row:
            raise RecordError(
                f"row {record.row.row} in {path} differs from the one that was imported before, "
                "which is kept; if the file is right, import it as a new run: clear-mlflow import"
            )
    return None


def _read_matrix(
    source: RunSource, paths: Mapping[int | None, str], options: ReadOptions
) -> AccuracyMatrix:
    """Download artifacts, and return the accuracy matrix in them.

    paths: by number of trained buckets; the key None means the complete matrix.
    """
    rows: dict[int, list[float]] = {}
    for row, path in paths.items():
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
            file = load_file(source.fetch_file(path, Path(folder)), options)
        if row is None:
            runs = parse_runs(file)
            if len(runs) != 1:
                raise RecordError(
                    f"{safe_repr(path)} contains {len(runs)} runs; expected only this run's"
                )
            return runs[0].matrix
        try:
            rows[row] = parse_row(file)
        except RecordError as error:
            raise RecordError(f"{safe_repr(file.name, 120)}: {error}") from error
    return combine_rows(rows, options)
