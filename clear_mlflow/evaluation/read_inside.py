"""The metrics of tests inside buckets of runs that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import ClearError
from clear_mlflow.metrics import Metric
from clear_mlflow.scoring.anytime_scores import read_anytime_scores
from clear_mlflow.store.matrices import StoredMatrix, read_matrices


def read_with_inside(
    client: MlflowClient,
    runs: Iterable[Run],
    *,
    metrics: Sequence[Metric],
    verify: str,
    jobs: int | None = None,
) -> Iterator[tuple[StoredMatrix, Mapping[str, float], str | None]]:
    """The matrix of each run, the metrics of its tests inside buckets, and why there are none.

    Of a run that was scored, those metrics are taken as they were logged; others' tests are read.
    A run without such tests has no metrics of them, and needs no reason.

    Args:
        client: the store.
        runs: as a listing gave them; what is given for each is in their order.
        metrics: to summarise each matrix by.
        verify: see :func:`~clear_mlflow.store.matrices.stored_rows_of`.
        jobs: runs that are read at once; None: as many as suits the store.

    Raises:
        ConfigError: *verify* is unknown.
    """
    listed = list(runs)
    found = read_matrices(client, listed, metrics=metrics, verify=verify, jobs=jobs)
    for run, stored in zip(listed, found, strict=True):
        summary: Mapping[str, float] = {}
        problem = None
        if stored.record is not None:
            try:
                scores = read_anytime_scores(client, run, stored.record)
                summary, problem = scores.summary, scores.problem
            except ClearError as error:
                problem = str(error)
        yield stored, summary, problem
