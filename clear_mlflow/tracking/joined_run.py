"""What a run that a custom loop joins contains already, and whether the loop may continue it."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.environment_variables import MLFLOW_RUN_ID

from clear_mlflow.core.anytime import AnytimeRow, format_anytime_file_name
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.predictions import EVALUATION_SET_FILE, PREDICTIONS_FOLDER, EvaluationSet
from clear_mlflow.core.record import RowRecord
from clear_mlflow.core.text import safe_repr
from clear_mlflow.journal.uploader import upload_remaining_folders
from clear_mlflow.scoring.run_record import read_tests
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import connect_store, mlflow_errors
from clear_mlflow.store.rows import read_rows
from clear_mlflow.tracking.lifecycle import get_active_run_id


def read_rows_to_join(shared_run_id: str | None) -> tuple[str | None, dict[int, AccuracyRow]]:
    """Upload what earlier processes left, and read the active run's rows.

    Returns its id and rows, or None and no rows.

    shared_run_id: run of another logger, if there is one.
    """
    run_id = shared_run_id or get_active_run_id() or MLFLOW_RUN_ID.get()
    if run_id is None:
        return None, {}
    _, records = _upload_and_read_rows(connect_store(opens_run=False), run_id)
    return run_id, {record.row.row: record.row for record in records.values()}


def read_joined_run(
    client: MlflowClient, run_id: str, dataset: DatasetDescription, seed: int | None
) -> tuple[Run, dict[int, AccuracyRow], dict[tuple[int, int], AnytimeRow]]:
    """Upload what earlier processes left, and read rows and tests.

    Raises TrackingError if they belong to another loop than this dataset and seed.
    """
    run, records = _upload_and_read_rows(client, run_id)
    rows: dict[int, AccuracyRow] = {}
    for file_name, record in records.items():
        row = record.row.reorder(dataset.buckets)
        _check_same_loop(row, record, dataset, seed, f"{run_id} contains {file_name}")
        rows[row.row] = row
    images, tags = dataset.evaluation_set, run.data.tags
    if rows and images is not None and names.PREDICTIONS_TAG in tags:
        _check_test_images(client, run, images)
    tests = read_tests(client, run) if names.ANYTIME_TAG in tags else []
    for test in tests:  # a run may contain tests before its first row
        _check_same(
            {
                "buckets": (test.buckets, dataset.buckets),
                "num_instances": (test.num_instances, dataset.num_test),
            },
            f"{run_id} contains {format_anytime_file_name(test.bucket, test.test)}",
        )
    return run, rows, {(test.bucket, test.test): test for test in tests}


def _upload_and_read_rows(client: MlflowClient, run_id: str) -> tuple[Run, dict[str, RowRecord]]:
    """Upload what earlier processes left, and read the run and its rows."""
    with mlflow_errors(f"read run {run_id}"):
        upload_remaining_folders(client, client.get_run(run_id))
        run = client.get_run(run_id)
    return run, read_rows(client, run)


def _check_same_loop(
    row: AccuracyRow,
    record: RowRecord,
    dataset: DatasetDescription,
    seed: int | None,
    location: str,
) -> None:
    """Raise TrackingError if a stored row belongs to another loop.

    row: the row of *record*, with its buckets in the order of *dataset*.
    """
    stored = record.dataset
    pairs = {
        "buckets": (row.buckets, dataset.buckets),
        "num_instances": (row.num_instances, dataset.num_test),
        "score": (row.score, dataset.score),
        "protocol": (stored.protocol, dataset.protocol),
        "split": (stored.split, dataset.split),
        "dataset": (stored.name, dataset.name),
        "dataset_digest": (stored.digest, dataset.digest),
        "seed": (record.seed, seed),
    }
    _check_same(pairs, location)


def _check_same(pairs: Mapping[str, tuple[object, object]], location: str) -> None:
    """Raise TrackingError if a stored value differs from the loop's.

    pairs: the stored value and the loop's, by the argument of track.
    """
    for name, (stored_value, value) in pairs.items():
        if stored_value != value:
            advice = "pass it to track, or " if value is None else ""
            raise TrackingError(
                f"run {location} with {name} {safe_repr(stored_value)}, but this loop has "
                f"{safe_repr(value)}; {advice}start a new run"
            )


def _check_test_images(client: MlflowClient, run: Run, images: EvaluationSet) -> None:
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with folder.open_scratch() as scratch:
        with mlflow_errors(f"read the evaluation set of run {run.info.run_id}"):
            file = folder.fetch_file(EVALUATION_SET_FILE, scratch)
        stored = EvaluationSet.load(file)
    if stored.digest != images.digest:
        raise TrackingError(
            f"the predictions in run {run.info.run_id} belong to other test images; start a new run"
        )
