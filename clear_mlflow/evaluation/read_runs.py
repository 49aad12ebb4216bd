"""What is read of runs that are compared: rows, tests inside their buckets, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.comparison.subjects import Subject
from clear_mlflow.core.errors import ClearError
from clear_mlflow.metrics import Metric
from clear_mlflow.scoring.anytime_scores import read_anytime_scores
from clear_mlflow.scoring.prediction_scores import read_predictions
from clear_mlflow.statistics import CorrectMatrix
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.matrices import StoredMatrix, read_matrices
from clear_mlflow.store.pool import mapped

_JOBS = 8


def read_with_inside(
    client: MlflowClient,
    runs: Iterable[Run],
    *,
    metrics: Sequence[Metric],
    read_files: bool | None,
    jobs: int | None = None,
) -> Iterator[tuple[StoredMatrix, Mapping[str, float], str | None]]:
    """The matrix of each run, the metrics of its tests inside buckets, and why there are none.

    Of a run that was scored, those metrics are taken as they were logged; others' tests are read.
    A run without such tests has no metrics of them, and needs no reason.
    """
    for stored in read_matrices(client, runs, metrics=metrics, read_files=read_files, jobs=jobs):
        summary: Mapping[str, float] = {}
        problem = None
        if stored.record is not None:
            try:
                scores = read_anytime_scores(client, stored.run, stored.record)
                summary, problem = scores.summary, scores.problem
            except ClearError as error:
                problem = str(error)
        yield stored, summary, problem


def read_correctness(
    client: MlflowClient, subjects: Iterable[Subject], *, jobs: int | None = None
) -> Iterator[tuple[Subject, CorrectMatrix | None, str | None]]:
    """For each run its hits, None where it stored no predictions, and why they cannot be used."""
    yield from mapped(partial(_correctness, client), subjects, jobs or _JOBS)


def _correctness(
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
