"""A training in a child process, from the first check to the closed run."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_RUN_ID
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT, MLFLOW_RUN_NOTE

from clear_mlflow.core.distributed import ALONE_HERE, DistributedEnv
from clear_mlflow.core.errors import ClearError
from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.process.parent import TrainingDied, TrainingProcess
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.scoring import score
from clear_mlflow.store import names
from clear_mlflow.store.client import log_tags, mlflow_errors, preflight, use_store
from clear_mlflow.store.lease import wait_for_expiry
from clear_mlflow.store.search import expand_run_id
from clear_mlflow.tracking.ensemble_run import run_of
from clear_mlflow.tracking.lifecycle import RunResult, close, close_project_run, result_of, take
from clear_mlflow.tracking.resume import (
    ResumePoint,
    check_data,
    check_parameters,
    holds_rows,
    parameters_to_resume,
    read_resume_point,
    take_over,
)
from clear_mlflow.tracking.training_run import open_training_run


def train_supervised(
    process: TrainingProcess,
    asked: Mapping[str, str],
    signals: StoppingSignals,
    place: DistributedEnv = ALONE_HERE,
    *,
    name: str | None = None,
    stay: bool = True,
) -> RunResult:
    """Have a child train, and close the record however that ends; *stay*: wait for elsewhere."""
    with process:
        signals.hand_to(process.stop)
        try:
            client = preflight()
            named = _interrupted_run(client, signals, stay)
            if named is None:
                config = process.config
                run_id = open_training_run(client, config, name)
        except (ClearError, TrainingDied) as error:
            process.stop()
            return close_project_run(result_of(error, None, signals.received))
        if named is None:
            return _train(client, process, run_id, config, asked, signals, place)
        # It has checked its parameters and no more: those of the run are what counts.
        process.stop()
    return resume_supervised(named, asked, signals, place)


def resume_supervised(
    run_id: str,
    given: Mapping[str, str],
    signals: StoppingSignals,
    place: DistributedEnv = ALONE_HERE,
    *,
    assume_dead: bool = False,
    stay: bool = True,
) -> RunResult:
    """Resume a run that was interrupted, and close its record; what is wrong is reported first."""
    try:
        client = preflight(opens_run=False)
        run_id = expand_run_id(client, run_id)
        beside = _describe_resume(client, run_id)
    except ClearError as error:
        return close_project_run(result_of(error, None, signals.received))
    result = _resume(client, run_id, given, signals, place, assume_dead, stay)
    return result if beside is None else close_project_run(result, beside)


def train_into(
    asked: Mapping[str, str], run_id: str, experiment_id: str, tracking_uri: str
) -> tuple[int, str | None, bool]:
    """Train into a run of a sweep, as a cluster's worker: exit code, error, was it killed."""
    use_store(tracking_uri)
    os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
    os.environ |= {"MLFLOW_RUN_ID": run_id, "MLFLOW_EXPERIMENT_ID": experiment_id}
    with StoppingSignals(tell=False) as signals:
        parameters = {**parameter_defaults(), **asked}
        process = TrainingProcess(TrainConfig.resolve(parameters))
        result = train_supervised(process, parameters, signals)
    return result.exit_code, result.error, result.exit_code == 128 + signal.SIGKILL


def _resume(
    client: MlflowClient,
    run_id: str,
    given: Mapping[str, str],
    signals: StoppingSignals,
    place: DistributedEnv,
    assume_dead: bool,
    stay: bool,
) -> RunResult:
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
        try:
            if not assume_dead:
                wait_for_expiry(
                    client, run_id, can_wait=stay, should_stop=lambda: bool(signals.received)
                )
            point = read_resume_point(client, run_id, Path(folder), assume_dead=assume_dead)
            asked, wanted = parameters_to_resume(point, given)
        except ClearError as error:
            return result_of(error, None, signals.received)
        if point.is_complete:
            return _close_complete(client, point)
        with TrainingProcess(wanted) as process:
            signals.hand_to(process.stop)
            try:
                config = process.config
                check_parameters(point, config)
                check_data(point, process.facts)
                take_over(client, point, assume_dead=assume_dead)
            except (ClearError, TrainingDied) as error:
                process.stop()
                return result_of(error, None, signals.received)
            if point.state is not None:
                process.resume_from(point.state.file)
            return _train(client, process, run_id, config, asked, signals, place, point)


def _train(
    client: MlflowClient,
    process: TrainingProcess,
    run_id: str,
    config: TrainConfig,
    asked: Mapping[str, str],
    signals: StoppingSignals,
    place: DistributedEnv,
    resumed: ResumePoint | None = None,
) -> RunResult:
    """Train into a run that is open, and close it."""
    if place.size > 1:
        with suppress(ClearError), mlflow_errors(f"tag run {run_id}"):
            client.set_tag(run_id, names.PROCESSES_TAG, str(place.size))
    run = run_of(client, run_id, config, asked, resumed)
    rows = run.recorder.rows_by_run
    try:
        with run:
            run.track(process)
    except (ClearError, TrainingDied) as error:
        process.stop()
        result = result_of(error, run_id, signals.received)
        closed = close(client, run_id, result, run.member_ids, rows=rows)
        return _with_resume(closed, config, place)
    except BaseException as error:
        close(client, run_id, result_of(error, run_id), run.member_ids, rows=rows)
        raise
    return close(client, run_id, result_of(None, run_id), run.member_ids, rows=rows)


def _with_resume(outcome: RunResult, config: TrainConfig, place: DistributedEnv) -> RunResult:
    """Say how to resume a run that was stopped, if there is something to resume it from."""
    if (
        outcome.exit_code < 128
        or outcome.is_lost
        or config.resumable == "off"
        or config.seeds != NONE
    ):
        return outcome
    how = (
        f"clear-mlflow train --resume {outcome.run_id}"
        if place.size == 1
        else f"the same command with MLFLOW_RUN_ID={outcome.run_id} in its environment"
    )
    return dataclasses.replace(outcome, links=(f"resume   {how}", *outcome.links))


def _interrupted_run(client: MlflowClient, signals: StoppingSignals, stay: bool) -> str | None:
    """The run that the environment names, where an earlier training into it left rows."""
    named = MLFLOW_RUN_ID.get()
    if not named or mlflow.active_run() is not None:
        return None
    wait_for_expiry(client, named, can_wait=stay, should_stop=lambda: bool(signals.received))
    with mlflow_errors(f"read run {named}"):
        return named if holds_rows(client, named) else None


def _describe_resume(client: MlflowClient, run_id: str) -> str | None:
    """Make the run that ``mlflow run -P resume=RUN`` opened say what it is; gives its id."""
    beside = MLFLOW_RUN_ID.get()
    if not beside or beside == run_id:
        return None
    with mlflow_errors(f"read run {beside}"):
        run = client.get_run(beside)
        if MLFLOW_PROJECT_ENTRY_POINT not in run.data.tags:
            return None
        note = f"Resumes run {run_id}, which holds all that was measured."
        tags = {names.KIND_TAG: names.KIND_RESUME, names.RESUMED_TAG: run_id}
        log_tags(client, beside, {**tags, MLFLOW_RUN_NOTE: note})
    return str(beside)


def _close_complete(client: MlflowClient, point: ResumePoint) -> RunResult:
    """Nothing is left to train: score the run if it is not, and close it if it was left open."""
    run_id = point.run.info.run_id
    note = f"run {run_id} holds all of its rows; there is nothing to resume"
    if str(point.run.info.status) == "FINISHED":
        with suppress(ClearError):
            return RunResult(0, "FINISHED", run_id, scores=score(client, run_id), note=note)
    with mlflow_errors(f"take over run {run_id}"):
        take(client, point.run)
    return dataclasses.replace(close(client, run_id, result_of(None, run_id)), note=note)
