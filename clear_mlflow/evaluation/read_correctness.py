"""What the stored predictions of a run got right, for tests over test images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from mlflow import MlflowClient

from clear_mlflow.comparison.subjects import Subject
from clear_mlflow.core.errors import ClearError
from clear_mlflow.scoring.prediction_scores import read_predictions
from clear_mlflow.statistics import CorrectMatrix
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.pool import mapped

_JOBS = 8


def read_correctness(
    client: MlflowClient, subjects: Iterable[Subject], *, jobs: int | None = None
) -> Iterator[tuple[Subject, CorrectMatrix | None, str | None]]:
    """For each run its hits, None where it stored no predictions, and why they cannot be used."""
    yield from mapped(partial(_read, client), subjects, jobs or _JOBS)


def _read(
    client: MlflowClient, subject: Subject
) -> tuple[Subject, CorrectMatrix | None, str | None]:
    try:
        with mlflow_errors(f"read run {subject.run_id}"):
            run = client.get_run(subject.run_id)
        found = read_predictions(client, run, subject.record)
        if found is None:
            return subject, None, None
        return subject, CorrectMatrix.of(found.images, found.answers.values()), None
    except ClearError as error:
        return subject, None, str(error)
