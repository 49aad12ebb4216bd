"""Rows of the accuracy matrix as artifacts of an MLflow run: write one, read all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.errors import RecordError, TrackingError
from clear_mlflow.record import ROWS_FOLDER, RowRecord, row_file_name, row_index
from clear_mlflow.tracking.preflight import explained

# A row of a hundred buckets takes 3 kB. What is larger is no row, and is not downloaded.
_LARGEST_ROW_BYTES = 1 << 20


def write_row(client: MlflowClient, run_id: str, record: RowRecord) -> None:
    """Store one row as an artifact; it is whole and there when this returns."""
    name = row_file_name(record.row.row)
    with explained(f"store {name} of run {run_id}"):
        client.log_text(run_id, record.to_json(), f"{ROWS_FOLDER}/{name}")


def stored_rows(client: MlflowClient, run: Run) -> list[str]:
    """Names of the row files that a run holds, in row order; other files are not looked at.

    Raises:
        RecordError: a row file is too large to be one.
    """
    uri = f"{run.info.artifact_uri}/{ROWS_FOLDER}"
    with explained(f"list the rows of run {run.info.run_id}"):
        listed = mlflow.artifacts.list_artifacts(artifact_uri=uri, tracking_uri=client.tracking_uri)
    rows: dict[str, int] = {}
    for file in listed or []:
        name = file.path.rsplit("/", 1)[-1]
        index = row_index(name)
        if file.is_dir or index is None:
            continue
        if file.file_size is not None and file.file_size > _LARGEST_ROW_BYTES:
            raise RecordError(f"{name} has {file.file_size} bytes; a row has at most 1 MiB")
        rows[name] = index
    return sorted(rows, key=rows.__getitem__)


def refuse_foreign_rows(client: MlflowClient, run: Run) -> None:
    """Make sure that a run to be trained into holds no row yet.

    Raises:
        TrackingError: it does; training into it again would contradict them.
    """
    if rows := stored_rows(client, run):
        raise TrackingError(
            f"run {run.info.run_id} already holds {len(rows)} rows ({rows[0]} to {rows[-1]}); "
            "training into it again would contradict them: start a new run"
        )


def read_rows(client: MlflowClient, run: Run) -> dict[str, RowRecord]:
    """Read all rows of a run from its artifact store.

    Returns:
        File name to row, in row order; empty where the run holds none.

    Raises:
        RecordError: a file is damaged, or of a newer format.
        TrackingError: the artifact store does not answer.
    """
    records = {}
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
        for name in stored_rows(client, run):
            with explained(f"read {name} of run {run.info.run_id}"):
                local = mlflow.artifacts.download_artifacts(
                    artifact_uri=f"{run.info.artifact_uri}/{ROWS_FOLDER}/{name}",
                    dst_path=folder,
                    tracking_uri=client.tracking_uri,
                )
            try:
                text = Path(local).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise RecordError(f"{name} is not UTF-8 text: {error}") from error
            records[name] = RowRecord.from_json(text, source=name)
    return records
