"""A training in this process, from the first check to the closed run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import mlflow
from mlflow import MlflowClient

from clear_mlflow.core.errors import ClearError, DivergedError, TrackingError
from clear_mlflow.core.warning import warn
from clear_mlflow.journal.ending import leave_outcome, release
from clear_mlflow.journal.sender import UnsentError, is_final
from clear_mlflow.journal.spool import End
from clear_mlflow.learning.measured import Training
from clear_mlflow.runs.closing import close, forget_process, leave_unsent
from clear_mlflow.runs.ensemble_run import TrackedEnsemble
from clear_mlflow.runs.opening import open_run
from clear_mlflow.runs.outcome import RunResult, unsent_outcome
from clear_mlflow.runs.training_run import TrainingRun, track
from clear_mlflow.scoring.scores import Scores, score
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors


def train_in_process(client: MlflowClient, training: Training, asked: Mapping[str, str]) -> Scores:
    """Train in this process, into the active MLflow run or one of its own.

    An active run is joined and left open; a run that this opens is closed, whatever happens.

    Args:
        client: what :func:`~clear_mlflow.store.client.preflight` gave.
        training: ready to begin.
        asked: parameters as text, as the user gave them.
    """
    joined = mlflow.active_run()
    run_id = joined.info.run_id if joined else open_run(client, training.config)
    trained = False
    try:
        with TrainingRun(client, run_id, training.config, asked) as run:
            track(training, run)
        trained = True
        scores = score(client, run_id)
    except UnsentError as error:
        outcome = unsent_outcome(error, run_id)
        leave_unsent(client, run_id, outcome, None, None if joined else mlflow.end_run)
        raise
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        # What the rows so far define is logged if it can be. The caller gets the first error, and
        # is told of a second one: it must not take the first one's place.
        try:
            with mlflow_errors(f"score run {run_id}"):
                client.set_tag(run_id, names.ERROR_TAG, f"{type(error).__name__}: {error}")
                if isinstance(error, DivergedError):
                    client.set_tag(run_id, names.DIVERGED_TAG, "true")
                score(client, run_id)
        except ClearError as refusal:
            warn(str(refusal))
        kept = End(status, f"{type(error).__name__}: {error}", isinstance(error, DivergedError))
        if trained and isinstance(error, TrackingError) and not is_final(error):
            kept = End("FINISHED")  # all is stored; it could not be read back
        _end(client, run_id, status, joined is None, kept)
        raise
    _end(client, run_id, "FINISHED", joined is None, End("FINISHED"))
    return scores


def _end(client: MlflowClient, run_id: str, status: str, ours: bool, kept: End) -> None:
    """Close a run of this process, or keep how it ended where the store is away.

    Args:
        client: the store.
        run_id: of the run.
        status: that it is given.
        ours: whether it was opened here; a run that was joined is left open.
        kept: what sync will close it with.
    """
    try:
        with mlflow_errors(f"close run {run_id}"):
            if ours:
                mlflow.end_run(status)
            forget_process(client, run_id)
    except ClearError as refusal:
        told = leave_outcome(
            client, run_id, kept if ours else dataclasses.replace(kept, status=None)
        )
        release(run_id, mlflow.end_run if ours else lambda _: None)
        warn(f"{refusal}; {told}")


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
    joined = mlflow.active_run()
    run_id = joined.info.run_id if joined else open_run(client, training.config)
    ensemble = TrackedEnsemble(client, run_id, training.config, asked)
    outcome = RunResult(0, "FINISHED", run_id, None, None)

    def end(status: str) -> None:
        if joined is None:
            mlflow.end_run(status)

    try:
        with ensemble:
            ensemble.track(training)
    except UnsentError as error:
        outcome = unsent_outcome(error, run_id)
        leave_unsent(client, run_id, outcome, ensemble, None if joined else mlflow.end_run)
        raise
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        told = f"{type(error).__name__}: {error}"
        diverged = isinstance(error, DivergedError)
        seed = error.seed if isinstance(error, DivergedError) else None
        outcome = RunResult(1, status, run_id, None, told, diverged, seed=seed)
        closed = close(client, run_id, outcome, ensemble, end)
        if closed.error != told:
            warn(str(closed.error))
        raise
    closed = close(client, run_id, outcome, ensemble, end)
    if closed.error is not None:
        raise TrackingError(closed.error)
    return dict(closed.members)
