"""A training in this process, from the first check to the closed run."""

from __future__ import annotations

from collections.abc import Mapping

import mlflow
from mlflow import MlflowClient

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.warning import warn
from clear_mlflow.learning.measured import Training
from clear_mlflow.runs.ensemble_run import run_of
from clear_mlflow.runs.lifecycle import RunResult, close, join, result_of_block
from clear_mlflow.runs.training_run import open_training_run
from clear_mlflow.scoring.scores import Scores


def train_in_process(
    client: MlflowClient, training: Training, asked: Mapping[str, str], run_id: str | None = None
) -> Scores:
    """Train in this process, into the active MLflow run or one of its own.

    An active run is joined and left open; any other is closed, whatever happens.

    Args:
        client: what :func:`~clear_mlflow.store.client.preflight` gave.
        training: ready to begin.
        asked: parameters as text, as the user gave them.
        run_id: of a run that was opened for this; None: the active one, or a new one.
    """
    closed = _train(client, training, asked, run_id)
    if closed.scores is None:
        problem = closed.problem or TrackingError(str(closed.error))
        if closed.error != str(problem):  # how it ended is kept for sync, and where
            warn(str(closed.error))
        raise problem
    _tell(closed)
    return closed.scores


def train_ensemble_in_process(
    client: MlflowClient, training: Training, asked: Mapping[str, str]
) -> dict[int, Scores]:
    """Train members together in this process, each into a run of its own below one of all.

    An active run is joined as the one above them and left open; the members' runs are closed,
    whatever happens.

    Args:
        client: what :func:`~clear_mlflow.store.client.preflight` gave.
        training: ready to begin; its configuration has ``seeds``.
        asked: parameters as text, as the user gave them.

    Returns:
        Seed to scores.
    """
    closed = _train(client, training, asked)
    if closed.error is not None:
        raise TrackingError(closed.error)
    return dict(closed.members)


def _train(
    client: MlflowClient, training: Training, asked: Mapping[str, str], run_id: str | None = None
) -> RunResult:
    ours = run_id is not None or mlflow.active_run() is None
    run_id = run_id or _run_for(client, training)
    run = run_of(client, run_id, training.config, asked)
    try:
        with run:
            run.track(training)
    except BaseException as error:
        result = result_of_block(error, run_id)
        _tell(close(client, run_id, result, run.member_ids, ours=ours), error)
        raise
    return close(client, run_id, result_of_block(None, run_id), run.member_ids, ours=ours)


def _run_for(client: MlflowClient, training: Training) -> str:
    active = mlflow.active_run()
    if active is None:
        return open_training_run(client, training.config)
    join(client, active.info.run_id)
    return str(active.info.run_id)


def _tell(closed: RunResult, error: BaseException | None = None) -> None:
    """Warn of what is wrong with the record, where an error of more weight takes its way."""
    if closed.problem is not None and closed.problem is not error:
        warn(str(closed.error))
