"""A training in this process, from the first check to the closed run."""

from __future__ import annotations

from collections.abc import Mapping

import mlflow
from mlflow import MlflowClient

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.text import warn
from clear_mlflow.learning.measured import Training
from clear_mlflow.scoring import Scores
from clear_mlflow.tracking.ensemble_run import run_of
from clear_mlflow.tracking.lifecycle import RunResult, close, join, result_of
from clear_mlflow.tracking.training_run import open_training_run


def train_in_process(client: MlflowClient, training: Training, asked: Mapping[str, str]) -> Scores:
    """Train here, into the active run, which is left open, or a new one."""
    closed = _train(client, training, asked)
    if closed.scores is None or isinstance(closed.problem, RecordError):  # rows are missing
        problem = closed.problem or TrackingError(str(closed.error))
        if closed.error != str(problem):  # how it ended is kept for sync, and where
            warn(str(closed.error))
        raise problem
    if closed.problem is not None:
        warn(str(closed.error))
    return closed.scores


def train_ensemble_in_process(
    client: MlflowClient, training: Training, asked: Mapping[str, str]
) -> dict[int, Scores]:
    """Train members together here, below the active run or a new one; seed to scores."""
    closed = _train(client, training, asked)
    if closed.error is not None:
        raise TrackingError(closed.error)
    return dict(closed.members)


def _train(client: MlflowClient, training: Training, asked: Mapping[str, str]) -> RunResult:
    active = mlflow.active_run()
    ours = active is None
    if active is None:
        run_id = open_training_run(client, training.config)
    else:
        run_id = str(active.info.run_id)
        join(client, run_id)
    run = run_of(client, run_id, training.config, asked)
    rows = run.recorder.rows_by_run
    try:
        with run:
            run.track(training)
    except BaseException as error:
        result = result_of(error, run_id)
        closed = close(client, run_id, result, run.member_ids, ours=ours, rows=rows)
        if closed.problem is not None and closed.problem is not error:
            warn(str(closed.error))
        raise
    return close(client, run_id, result_of(None, run_id), run.member_ids, ours=ours, rows=rows)
