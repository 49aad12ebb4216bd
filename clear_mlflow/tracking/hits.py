"""What the stored predictions of a run got right, read back from its artifacts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import mlflow
import numpy as np
from mlflow import MlflowClient

from clear_mlflow.comparison.subjects import Subject
from clear_mlflow.errors import ClearError, RecordError
from clear_mlflow.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.statistics import Hits
from clear_mlflow.tracking.pool import mapped
from clear_mlflow.tracking.preflight import explained

_JOBS = 8


def read_hits(
    client: MlflowClient, subjects: Iterable[Subject]
) -> Iterator[tuple[Subject, Hits | None, str | None]]:
    """For each run its hits, None where it stored no predictions, and why they cannot be used."""
    yield from mapped(partial(_read, client), subjects, _JOBS)


def _read(client: MlflowClient, subject: Subject) -> tuple[Subject, Hits | None, str | None]:
    try:
        hits = _hits(client, subject)
        if hits is not None:
            _check(hits, subject)
        return subject, hits, None
    except ClearError as error:
        return subject, None, str(error)


def _hits(client: MlflowClient, subject: Subject) -> Hits | None:
    with explained(f"read the predictions of run {subject.run_id}"):
        run = client.get_run(subject.run_id)
        uri = f"{run.info.artifact_uri}/{PREDICTIONS_FOLDER}"
        listed = mlflow.artifacts.list_artifacts(artifact_uri=uri, tracking_uri=client.tracking_uri)
    # The name alone: what a store calls a file is no path to follow.
    there = {file.path.rsplit("/", 1)[-1] for file in listed or [] if not file.is_dir}
    wanted = [predictions_file_name(row) for row in subject.record.rows]
    if EVALUATION_SET_FILE not in there or not there.intersection(wanted):
        return None
    if missing := [name for name in wanted if name not in there]:
        raise RecordError(f"{missing[0]} is not among the stored predictions")
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:

        def local(name: str) -> Path:
            with explained(f"read {name} of run {subject.run_id}"):
                return Path(
                    mlflow.artifacts.download_artifacts(
                        artifact_uri=f"{uri}/{name}",
                        dst_path=folder,
                        tracking_uri=client.tracking_uri,
                    )
                )

        images = EvaluationSet.load(local(EVALUATION_SET_FILE))
        return Hits.of(images, (RowPredictions.load(local(name)) for name in wanted))


def _check(hits: Hits, subject: Subject) -> None:
    """Make sure that the predictions are those that the rows were counted from.

    Raises:
        RecordError: they are not.
    """
    counted, stored = hits.matrix(), subject.record.matrix
    if (
        counted.buckets != stored.buckets
        or not np.array_equal(counted.values, stored.values, equal_nan=True)
        or not np.array_equal(_initial(counted.initial), _initial(stored.initial))
    ):
        raise RecordError("its stored predictions count otherwise than its rows")


def _initial(values: object) -> object:
    return [] if values is None else values
