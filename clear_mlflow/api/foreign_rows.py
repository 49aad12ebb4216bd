"""Rows that a run holds under other names, written as rows of its own: then it is scored as any."""

from __future__ import annotations

import tempfile

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.api.import_ import foreign_records
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.loop_metadata import UNKNOWN
from clear_mlflow.core.matrix import PROTOCOLS, AccuracyMatrix, measured_split
from clear_mlflow.core.record import row_file_name
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.core.untrusted import MAX_ARTIFACT_FOLDERS, MAX_ARTIFACTS, MAX_RESULTS_BYTES
from clear_mlflow.importers import (
    Reading,
    RowPattern,
    Source,
    load,
    matrix_of_rows,
    read_runs,
)
from clear_mlflow.store.artifacts import download_artifact
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.rows import parse_rows, read_row_files, store_row


def adopt_rows(client: MlflowClient, run: Run, pattern: RowPattern, reading: Reading) -> int:
    """Write the rows that a run holds under other names, but for those that are there; how many."""
    # Rows that were lost since are written again, if what they were read from is there.
    there = parse_rows(read_row_files(client, run, waiting=None))
    if any("imported" not in record.extra for record in there.values()):
        return 0  # rows that a training wrote
    rows = pattern.rows(_matching(client, run, pattern))
    if not rows:
        return 0
    matrix = _read(client, run, rows, reading)
    tags = {**run.data.params, **run.data.tags}
    protocol = tags.get("protocol", "")
    facts = {
        "dataset": truncate(tags.get("dataset", ""), 150) or UNKNOWN,
        "protocol": protocol if protocol in PROTOCOLS else "iid",
        "split": measured_split(tags.get("split", "")),
        "seed": tags.get("seed", ""),
    }
    records = foreign_records(matrix, facts, {"format": "rows", "pattern": pattern.text})
    lacking = [record for record in records if row_file_name(record.row.row) not in there]
    for record in lacking:
        name = row_file_name(record.row.row)
        store_row(client, run, name, record.to_json().encode())
    return len(lacking)


def _matching(client: MlflowClient, run: Run, pattern: RowPattern) -> list[str]:
    """Paths of the artifacts that match, found folder by folder."""
    folders, listed = [""], 0
    for depth in range(len(pattern.parts)):
        is_last = depth == len(pattern.parts) - 1
        found = []
        if len(folders) > MAX_ARTIFACT_FOLDERS:
            raise RecordError(
                f"more than {MAX_ARTIFACT_FOLDERS} folders match {safe_repr(pattern.text)}"
            )
        for folder in folders:
            with mlflow_errors(f"list the artifacts of run {run.info.run_id}"):
                files = client.list_artifacts(run.info.run_id, folder or None)
            listed += len(files)
            if listed > MAX_ARTIFACTS:
                raise RecordError(f"holds more than {MAX_ARTIFACTS} artifacts where rows may be")
            for file in files:
                # The name alone: what a store calls a file is no path to follow.
                name = file.path.rsplit("/", 1)[-1]
                if (
                    file.is_dir == is_last
                    or name in ("", ".", "..")
                    or not pattern.fits(depth, name)
                ):
                    continue
                if is_last and file.file_size is not None and file.file_size > MAX_RESULTS_BYTES:
                    raise RecordError(f"{safe_repr(name)} has {file.file_size} bytes; no row has")
                if "#" in name or "?" in name:
                    # Such a name blocks a request to a server for minutes.
                    raise RecordError(f"{safe_repr(name)} matches; rename it, without # and ?")
                found.append(f"{folder}/{name}" if folder else name)
        folders = found
    return folders


def _read(
    client: MlflowClient, run: Run, rows: dict[int | None, str], reading: Reading
) -> AccuracyMatrix:
    sources: dict[int | None, Source] = {}
    for row, path in rows.items():
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
            sources[row] = load(download_artifact(client, run, path, folder))
    if None in sources:
        runs = read_runs(sources[None], reading=reading)
        if len(runs) != 1:
            raise RecordError(
                f"{safe_repr(rows[None])} holds {len(runs)} runs; expected this run's"
            )
        return runs[0].matrix
    return matrix_of_rows({row: sources[row] for row in sources if row is not None}, reading)
