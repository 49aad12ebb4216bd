"""Train with a tracked run: here or in a child process, from the first check to the ended run."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_RUN_ID
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

from clear_mlflow.core.disk import set_offline
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ClearError, DivergedError, TrackingError, TrainingDied
from clear_mlflow.core.text import safe_repr, warn
from clear_mlflow.journal.uploader import UnsentError
from clear_mlflow.learning.measured import Training
from clear_mlflow.learning.parameters.config import TrainConfig, list_parameter_defaults
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.process.training_process import TrainingProcess
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.client import connect_store, get_run, log_tags, mlflow_errors, set_up_mlflow
from clear_mlflow.store.lease import (
    Lease,
    LeaseLostError,
    build_lease_tags,
    wait_for_renewal_or_expiry,
)
from clear_mlflow.store.offline import is_offline_folder
from clear_mlflow.store.search import (
    expand_run_id,
    find_experiment_ids,
    read_project_run,
    search_runs,
)
from clear_mlflow.tracking.lifecycle import (
    RunResult,
    build_result,
    build_type_tags,
    create_run,
    end_project_run,
    end_run,
    get_active_run_id,
    join_run,
    log_ensemble_summary,
)
from clear_mlflow.tracking.resume import (
    ResumePoint,
    check_data,
    check_parameters,
    detect_rows,
    read_resume_point,
    resolve_resume_parameters,
    take_over,
)
from clear_mlflow.tracking.training_run import TrainingRun, format_run_name, open_training_run


def train_in_process(
    client: MlflowClient, training: Training, requested: Mapping[str, str]
) -> RunResult:
    """Train in this process, and return the result with its scores.

    Trains into MLflow's active run, which is left open, or into a new one, which is ended. Raises
    what training raises, and TrackingError or RecordError if the run is not stored and scored.

    requested: the parameters that the caller passed, as text.
    """
    active_id = get_active_run_id()
    if active_id is not None:
        join_run(client, active_id)
    run_id = active_id or open_training_run(client, training.config)
    result, error = _train_and_end_run(
        client, training, run_id, requested, sets_status=active_id is None
    )
    failure = error or result.problem
    if failure is None:
        return result
    # The result has more to tell than the error, such as the folder that keeps the outcome.
    if result.problem not in (None, error) and result.error != str(failure):
        warn(str(result.error))
    raise failure


def train_supervised(
    process: TrainingProcess,
    requested: Mapping[str, str],
    signals: StoppingSignals,
    *,
    run_name: str | None = None,
    can_wait: bool = True,
) -> RunResult:
    """Train in a child process, and end the run in any case.

    Resumes the run that MLFLOW_RUN_ID names if it has rows of an earlier training. Errors are in
    the result.

    process: the child process, with the parameters of the training. requested: the parameters that
    the user passed, as text. signals: they stop the training. run_name: name of a new run; None for
    a generated name. can_wait: wait up to three minutes if a process on another machine may be
    training into the run; if False, the result has exit code 75 in this case.
    """
    try:
        with process:  # stops the child if an error is raised
            signals.hand_to(process.stop)
            client = connect_store()
            interrupted_id = _find_interrupted_run(client, signals, can_wait)
            if interrupted_id is None:
                # Before the data are loaded: mlflow run created a run without tags of ours.
                _tag_project_run(client, build_type_tags(names.KIND_TRAIN))
                run_id = open_training_run(client, process.config, run_name)
                return _train_supervised(client, process, run_id, requested, signals)
            process.stop()  # a resumed run has its own parameters
    except (ClearError, TrainingDied) as error:
        return end_project_run(build_result(error, None, signals.received))
    return resume_supervised(interrupted_id, requested, signals)


def resume_supervised(
    run_id: str,
    requested: Mapping[str, str],
    signals: StoppingSignals,
    *,
    can_wait: bool = True,
) -> RunResult:
    """Resume a run in a child process, and end it.

    A run that contains all of its rows is only scored and ended. Tags the run that ``mlflow run -P
    resume=RUN`` opened, if any. Errors are in the result. See :func:`train_supervised` for the
    other arguments.

    run_id: id of the run, its first 6 or more digits, or an offline folder with one unfinished run,
    which this process then uses as its store. requested: parameters that the user passed, as text;
    they may not differ from the run's.
    """
    try:
        is_folder = is_offline_folder(Path(run_id))
        if is_folder:
            set_offline(run_id)
        client = connect_store(opens_run=False)
        run_id = _find_unfinished_run(client) if is_folder else expand_run_id(client, run_id)
        if MLFLOW_RUN_ID.get() != run_id:
            note = f"Resumes run {run_id}, which contains all measured rows."
            tags = {names.KIND_TAG: names.KIND_RESUME, names.RESUMED_TAG: run_id}
            _tag_project_run(client, {**tags, MLFLOW_RUN_NOTE: note})
        wait_for_renewal_or_expiry(
            client, run_id, can_wait=can_wait, should_stop=lambda: bool(signals.received)
        )
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
            point = read_resume_point(client, run_id, Path(folder))
            config = resolve_resume_parameters(point, requested)
            if point.is_complete:
                return end_project_run(end_complete_run(client, point))
            with TrainingProcess(config) as process:  # stops the child if an error is raised
                signals.hand_to(process.stop)
                check_parameters(point, process.config)
                check_data(point, process.dataset)
                take_over(client, point)
                if point.state is not None:
                    process.resume_from(point.state.file)
                result = _train_supervised(client, process, run_id, requested, signals, point)
    except (ClearError, TrainingDied) as error:
        result = build_result(error, None, signals.received)
    return end_project_run(result)


def train_sweep_run(
    requested: Mapping[str, str], run_id: str, experiment_id: str, tracking_uri: str
) -> tuple[int, str | None, bool]:
    """Set MLflow's environment variables, and train into a sweep's run.

    Returns the exit code, the error in one line or None, and True if the child process was ended by
    SIGKILL, for example because memory ran out.

    requested: the parameters of the run, as text; others have their defaults.
    """
    set_up_mlflow()
    mlflow.set_tracking_uri(tracking_uri)
    os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
    os.environ |= {"MLFLOW_RUN_ID": run_id, "MLFLOW_EXPERIMENT_ID": experiment_id}
    with StoppingSignals(print_message=False) as signals:
        parameters = {**list_parameter_defaults(), **requested}
        process = TrainingProcess(TrainConfig.resolve(parameters))
        result = train_supervised(process, parameters, signals)
    return result.exit_code, result.error, result.exit_code == 128 + signal.SIGKILL


def end_complete_run(client: MlflowClient, resume_point: ResumePoint) -> RunResult:
    """Score a complete run and end it. Errors are in the result.

    A finished run is only scored. The result has a note that there is nothing to resume.
    """
    run_id = resume_point.run.info.run_id
    note = f"run {run_id} contains all of its rows; there is nothing to resume"
    if str(resume_point.run.info.status) == "FINISHED":
        with suppress(ClearError):
            return RunResult(0, "FINISHED", run_id, scores=score(client, run_id), note=note)
    Lease(client, run_id).acquire()
    return replace(end_run(client, run_id, build_result(None, run_id)), note=note)


def _train_supervised(
    client: MlflowClient,
    process: TrainingProcess,
    run_id: str,
    requested: Mapping[str, str],
    signals: StoppingSignals,
    resume_point: ResumePoint | None = None,
) -> RunResult:
    result, error = _train_and_end_run(
        client, process, run_id, requested, resume_point, signals.received
    )
    if error is not None and not isinstance(error, (ClearError, TrainingDied)):
        raise error
    is_stopped = result.exit_code >= 128 and not result.has_lost_lease
    if not is_stopped or process.config.resumable == "off":
        return result
    if process.config.seeds != NONE:  # the parent run contains no rows
        if not result.members:
            return result
        run_id = str([*result.members.values()][-1].run_id)
    command = (
        f"clear-mlflow train --resume {run_id}"
        if read_dist_env().size == 1
        else f"the same command with MLFLOW_RUN_ID={run_id} in its environment"
    )
    return replace(result, links=(f"resume   {command}", *result.links))


def _train_and_end_run(
    client: MlflowClient,
    training: Training,
    run_id: str,
    requested: Mapping[str, str],
    resume_point: ResumePoint | None = None,
    received_signals: Sequence[int] = (),
    *,
    sets_status: bool = True,
    is_member: bool = False,
) -> tuple[RunResult, BaseException | None]:
    """Train into a RUNNING run, end it, and return result and error.

    is_member: the run is a child run of an ensemble's, which has printed the dataset's warnings.
    """
    run = TrainingRun(client, run_id, training.config, requested, resume_point=resume_point)
    members: dict[int, RunResult] = {}  # by seed
    error: BaseException | None = None
    try:
        with run:
            if not is_member:
                for warning in training.dataset.warnings or ():
                    warn(f"dataset {training.dataset.name}: {warning}")
            if training.config.seeds == NONE:
                run.track(training)
            else:
                run.log_dataset(replace(training.dataset, evaluation_set=None))
                _train_members(client, training, run_id, requested, received_signals, members)
    except BaseException as raised:
        if isinstance(training, TrainingProcess):
            training.stop()
        error = raised
    result = end_run(
        client,
        run_id,
        build_result(error, run_id, received_signals),
        sets_status=sets_status,
        stored_rows=run.recorder.rows,
    )
    return replace(result, members=members), error


def _train_members(
    client: MlflowClient,
    training: Training,
    parent_id: str,
    requested: Mapping[str, str],
    received_signals: Sequence[int],
    results: dict[int, RunResult],
) -> None:
    """Train each seed into a child run, filling *results*.

    received_signals: may grow. results: filled with the result of each seed that is trained.
    """
    experiment_id = get_run(client, parent_id).info.experiment_id
    configs = training.config.split_seeds()
    for config in configs:
        seed = config.seed
        tags = {MLFLOW_PARENT_RUN_ID: parent_id, **build_lease_tags()}
        tags |= build_type_tags(names.KIND_TRAIN)
        with mlflow_errors(f"open a child run of run {parent_id}"):
            run_id = create_run(client, experiment_id, format_run_name(config), tags)
        results[seed], error = _train_and_end_run(
            client,
            training.for_member(config),
            run_id,
            {**requested, "seed": str(seed), "seeds": NONE},
            received_signals=received_signals,
            is_member=True,
        )
        if isinstance(error, UnsentError) and config != configs[-1]:
            error.__cause__ = error.__cause__ or TrackingError(
                f"the store was away after seed {seed}; no further seed is trained"
            )
        if isinstance(error, DivergedError):
            raise DivergedError(f"seed {seed}: {error}") from error
        if error is not None and not isinstance(error, LeaseLostError):  # the parent has its lease
            raise error
        if results[seed].exit_code:
            raise TrackingError(f"seed {seed}: {results[seed].error}")
    log_ensemble_summary(client, parent_id)


def _find_interrupted_run(
    client: MlflowClient, signals: StoppingSignals, can_wait: bool
) -> str | None:
    """Wait for a live process, and return MLFLOW_RUN_ID with rows, or None.

    May wait three minutes for a process on another machine.
    """
    run_id = MLFLOW_RUN_ID.get()
    if not run_id or get_active_run_id() is not None:
        return None
    wait_for_renewal_or_expiry(
        client, run_id, can_wait=can_wait, should_stop=lambda: bool(signals.received)
    )
    with mlflow_errors(f"read run {run_id}"):
        return run_id if detect_rows(client, run_id) else None


def _find_unfinished_run(client: MlflowClient) -> str:
    is_unfinished = f"tags.`{names.KIND_TAG}` = 'train' AND attributes.status != 'FINISHED'"
    runs = [*search_runs(client, find_experiment_ids(client), is_unfinished)]
    if not runs:
        raise TrackingError("the offline folder contains no unfinished run to resume")
    if len(runs) > 1:
        listed = ", ".join(safe_repr(f"{r.info.run_id} {r.info.run_name}") for r in runs[:10])
        raise TrackingError(
            f"the offline folder contains {len(runs)} unfinished runs; resume one of them by its "
            f"id, with offline: {listed}"
        )
    return str(runs[0].info.run_id)


def _tag_project_run(client: MlflowClient, tags: Mapping[str, str]) -> None:
    """Set tags of the run that ``mlflow run`` opened, if any."""
    if (run := read_project_run(client)) is not None:
        with mlflow_errors(f"tag run {run.info.run_id}"):
            log_tags(client, run.info.run_id, tags)
