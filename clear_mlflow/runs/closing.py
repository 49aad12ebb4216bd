"""What follows a training however it ended: its run is scored, told why, and given its status."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import ExitStack, suppress

import mlflow
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_RUN_ID
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT

from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.journal.ending import hurried, leave_outcome, release
from clear_mlflow.journal.sender import is_final
from clear_mlflow.journal.spool import End
from clear_mlflow.runs.ensemble_run import TrackedEnsemble
from clear_mlflow.runs.outcome import RunResult
from clear_mlflow.scoring.scores import Scores, score
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.ui_urls import run_links


def close(
    client: MlflowClient,
    run_id: str,
    outcome: RunResult,
    ensemble: TrackedEnsemble | None,
    end: Callable[[str], object] = mlflow.end_run,
) -> RunResult:
    """Close a run, and before it the members that it stands above."""
    if outcome.unsent is not None:
        return leave_unsent(client, run_id, outcome, ensemble, end)
    if ensemble is None:
        return close_run(client, run_id, outcome, end)
    scores: dict[int, Scores] = {}
    for seed, member_id in ensemble.run_ids.items():
        of_member = dataclasses.replace(
            outcome, run_id=member_id, diverged=outcome.diverged and outcome.seed == seed
        )
        closed = close_run(
            client, member_id, of_member, functools.partial(client.set_terminated, member_id)
        )
        if closed.scores is not None:
            scores[seed] = closed.scores
        if closed.exit_code and not outcome.exit_code:
            outcome = dataclasses.replace(
                outcome,
                exit_code=closed.exit_code,
                status="FAILED",
                error=f"seed {seed}: {closed.error}",
            )
    try:
        if len(scores) == len(ensemble.run_ids):
            ensemble.summarize(scores)
    except ClearError as refusal:
        error = "; ".join(filter(None, (outcome.error, str(refusal))))
        outcome = dataclasses.replace(
            outcome, exit_code=outcome.exit_code or 2, status="FAILED", error=error
        )
    return dataclasses.replace(close_run(client, run_id, outcome, end), members=scores)


def leave_unsent(
    client: MlflowClient,
    run_id: str,
    outcome: RunResult,
    ensemble: TrackedEnsemble | None,
    end: Callable[[str], object] | None,
) -> RunResult:
    """Keep how a training ended whose rows the store did not take; nothing is asked of the store.

    Args:
        client: the store that is away.
        run_id: of the run.
        outcome: how it ended.
        ensemble: the members that it stands above.
        end: what ends the run; None where it is not ours to end.
    """
    unsent = outcome.unsent
    folders = {} if unsent is None else unsent.folders
    members = {} if ensemble is None else ensemble.run_ids
    for seed, member_id in members.items():
        diverged = outcome.diverged and outcome.seed == seed
        told = End(outcome.status, outcome.error, diverged)
        leave_outcome(client, member_id, told, folders.get(member_id))
    status = None if end is None else outcome.status
    leave_outcome(client, run_id, End(status, outcome.error, outcome.diverged), folders.get(run_id))
    if end is not None:
        release(run_id, end)
    error = "; ".join(filter(None, (outcome.error, str(unsent))))
    return dataclasses.replace(outcome, exit_code=outcome.exit_code or 2, error=error)


def close_run(
    client: MlflowClient,
    run_id: str,
    outcome: RunResult,
    end: Callable[[str], object] = mlflow.end_run,
) -> RunResult:
    """Score what is stored, say why the run ended, and set its status."""
    scores, code, status = None, outcome.exit_code, outcome.status
    errors = [outcome.error] if outcome.error else []
    calls = ExitStack()
    try:
        scores = score(client, run_id)
    except ClearError as refusal:
        # Training went well or not; that its record is not in order is what counts now.
        errors.append(str(refusal))
        if isinstance(refusal, TrackingError) and not is_final(refusal):
            calls.enter_context(hurried())
        code, status = code or 2, "FAILED" if status == "FINISHED" else status
    links: tuple[str, ...] = ()
    try:
        with calls, mlflow_errors(f"close run {run_id}"):
            if errors:
                client.set_tag(run_id, names.ERROR_TAG, "; ".join(errors))
            if outcome.diverged:
                client.set_tag(run_id, names.DIVERGED_TAG, "true")
            # The status first: while a run is RUNNING, its process has to be known.
            end(status)
            forget_process(client, run_id)
            links = tuple(run_links(client, client.get_run(run_id)))
    except ClearError as refusal:
        errors.append(str(refusal))
        code = code or 2
        if not is_final(refusal):
            release(run_id, end)
            told = End(outcome.status, outcome.error, outcome.diverged)
            errors.append(leave_outcome(client, run_id, told))
    return dataclasses.replace(
        outcome,
        exit_code=code,
        status=status,
        scores=scores,
        error="; ".join(filter(None, errors)) or None,
        links=links,
    )


def close_beside(client: MlflowClient, beside: str | None, outcome: RunResult) -> RunResult:
    """Give the run that ``mlflow run`` opened the status of the one that was resumed.

    A signal to the process group ends MLflow itself, which would have closed it.
    """
    if beside is not None:
        with suppress(ClearError), mlflow_errors(f"close run {beside}"):
            if outcome.error:
                client.set_tag(beside, names.ERROR_TAG, outcome.error)
            client.set_terminated(beside, outcome.status)
    return outcome


def close_unopened(outcome: RunResult) -> RunResult:
    """Close the run that ``mlflow run`` opened for a training that was stopped before it began.

    A signal to the process group ends MLflow itself, which would have closed it.
    """
    run_id = MLFLOW_RUN_ID.get()
    if outcome.status == "KILLED" and run_id:
        with suppress(ClearError), mlflow_errors(f"close run {run_id}"):
            client = MlflowClient()
            run = client.get_run(run_id)
            if MLFLOW_PROJECT_ENTRY_POINT in run.data.tags and run.info.status == "RUNNING":
                client.set_tag(run_id, names.ERROR_TAG, outcome.error)
                client.set_terminated(run_id, outcome.status)
    return outcome


def forget_process(client: MlflowClient, run_id: str) -> None:
    """The run is closed: nobody needs to know any more whether its process lives."""
    if names.PROCESS_TAG in client.get_run(run_id).data.tags:
        client.delete_tag(run_id, names.PROCESS_TAG)
