"""Open MLflow runs, decide how they ended, and end them.

Together with the upload of an outcome and copies of runs, this is the only module that creates,
starts or ends a run.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import mlflow
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING as _SYSTEM_METRICS
from mlflow.environment_variables import MLFLOW_RUN_ID
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import (
    MLFLOW_AUTOLOGGING,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_PROJECT_ENTRY_POINT,
)
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.core.errors import (
    ClearError,
    DivergedError,
    RecordError,
    TrackingError,
    TrainingDied,
)
from clear_mlflow.core.text import safe_repr, warn
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import (
    HEADER_JSON,
    OUTCOME_JSON,
    Outcome,
    RunFolder,
    Status,
    find_run_folders,
    list_candidate_folders,
)
from clear_mlflow.journal.uploader import (
    UnsentError,
    is_permanent_error,
    read_exit_wait,
    store_outcome,
)
from clear_mlflow.scoring import Scores
from clear_mlflow.scoring.run_log import score
from clear_mlflow.scoring.run_record import parse_logged_versions
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    forget_active_run,
    forget_system_metrics,
    get_run,
    is_generated_name,
    mlflow_errors,
    retry_on_conflict,
)
from clear_mlflow.store.lease import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    build_lease_tags,
    check_has_lease,
    check_not_being_trained,
    detect_live_trainer,
    format_lease,
    is_held_by_this_process,
    wait_for_renewal_or_expiry,
)
from clear_mlflow.store.ui_urls import format_run_links
from clear_mlflow.tracking.logged_models import log_models

# A training process that one of these ended was stopped; any other signal is a crash.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class RunResult:
    """How a training ended: exit code, status, error, and scores."""

    exit_code: int  # 0: done, 1: a bug, 2: invalid input, 75: try later, 128 + n: signal n
    status: Status
    run_id: str | None  # None if training ended before a run was opened
    error: str | None = None  # one line
    problem: ClearError | None = None  # why the record is incomplete or not stored, if it is
    diverged: bool = False  # the loss or the output was not a finite number
    scores: Scores | None = None  # of the stored rows
    members: Mapping[int, RunResult] = field(default_factory=dict)  # of an ensemble, by seed
    links: tuple[str, ...] = ()  # lines with addresses of the run
    note: str | None = None  # one more line for the user

    @property
    def unsent(self) -> UnsentError | None:
        """The error if rows are only on local disk, or None."""
        return self.problem if isinstance(self.problem, UnsentError) else None

    @property
    def has_lost_lease(self) -> bool:
        """True if another process took over the run."""
        return isinstance(self.problem, LeaseLostError)

    def build_outcome(self, *, sets_status: bool = True) -> Outcome:
        """Build the outcome to store, including the status if *sets_status*."""
        status = self.status if sets_status else None
        return Outcome(status, self.error, self.diverged)

    def add_problem(self, problem: ClearError, *, keep_status: bool = False) -> RunResult:
        """Return a copy with one more error and a nonzero exit code.

        FINISHED becomes FAILED, unless *keep_status*.
        """
        fails = self.status == "FINISHED" and not keep_status
        return replace(
            self,
            exit_code=self.exit_code or 2,
            status="FAILED" if fails else self.status,
            error="; ".join(filter(None, (self.error, str(problem)))),
            problem=self.problem or problem,
        )


def build_result(
    error: BaseException | None, run_id: str | None, received_signals: Sequence[int] = ()
) -> RunResult:
    """Convert a training's exception and signals to its result.

    The status is KILLED after KeyboardInterrupt, or if a stopping signal ended the training
    process, else FAILED. An UnsentError has the status of the error that caused it.

    error: None or SystemExit(0) means FINISHED. received_signals: numbers of the signals that this
    process received; after one, any error except LeaseLostError means KILLED.
    """
    if isinstance(error, LeaseLostError):
        return RunResult(2, "FAILED", run_id, str(error), error)
    if isinstance(error, UnsentError):
        result = build_result(error.__cause__, run_id, received_signals)
        return replace(result, exit_code=result.exit_code or 2, problem=error)
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return RunResult(0, "FINISHED", run_id)
    if received_signals:
        message = f"stopped by {signal.Signals(received_signals[0]).name}"
        return RunResult(128 + received_signals[0], "KILLED", run_id, message)
    if isinstance(error, ClearError):
        exit_code = os.EX_TEMPFAIL if isinstance(error, LeaseHeldError) else 2
        diverged = isinstance(error, DivergedError)
        return RunResult(exit_code, "FAILED", run_id, str(error), diverged=diverged)
    if isinstance(error, TrainingDied):
        if -error.returncode in _STOP_SIGNALS:
            return RunResult(128 - error.returncode, "KILLED", run_id, str(error))
        return RunResult(1, "FAILED", run_id, str(error))
    status: Status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
    return RunResult(1, status, run_id, f"{type(error).__name__}: {error}")


def open_run(
    client: MlflowClient,
    name: str,
    check: Callable[[Run], object],
    *,
    run_type: str = names.KIND_TRAIN,
    rename: bool = False,
    system_metrics: bool | None = None,
) -> str:
    """Start a new active run, or wait for and continue MLFLOW_RUN_ID.

    Returns its id. Makes it MLflow's active run and acquires its lease, the right of this process
    to write to it. Waits up to three minutes if a process on another machine may have the lease of
    an existing run. Raises TrackingError if another process is training into it.

    name: name of a new run, or of one whose name MLflow generated. check: called with the run that
    MLFLOW_RUN_ID names, before it is changed; raises if the run must not be used. run_type:
    kind of the run, in a tag that is set in the call that creates the run. rename: set the
    name even if MLflow did not generate the old one. system_metrics: True to log the use of
    processor and memory, unless MLflow's environment variable decides that; None: MLflow's default.
    """
    read_exit_wait()  # an invalid number is an error before the run exists
    run_id = MLFLOW_RUN_ID.get()
    new_name: str | None = name
    with mlflow_errors("open a run"):
        if run_id:
            wait_for_renewal_or_expiry(client, run_id)
            run = client.get_run(run_id)
            check_not_being_trained(client, run, "unset MLFLOW_RUN_ID to open a new run")
            check(run)
            new_name = name if rename or is_generated_name(run.info.run_name) else None
        opened = retry_on_conflict(
            lambda: mlflow.start_run(
                run_name=new_name,
                tags={**build_type_tags(run_type), **build_lease_tags()},
                log_system_metrics=None if _SYSTEM_METRICS.is_set() else system_metrics,
            )
        )
    return str(opened.info.run_id)


def build_type_tags(run_type: str) -> dict[str, str]:
    """Build the tags that a new run of this package has."""
    return {names.KIND_TAG: run_type, names.VERSION_TAG: __version__}


def reopen_run(run_id: str, tags: Mapping[str, str] | None = None) -> None:
    """Set an ended run to RUNNING and make it MLflow's active run.

    This process must have acquired its lease, the right to write to it, and renews it once here.
    tags: further tags to set.
    """
    with mlflow_errors(f"open run {run_id} again"):
        mlflow.start_run(
            run_id=run_id,
            # Not the holder's tag: a process that lost the lease must not take it back here.
            tags={names.PROCESS_TAG: format_lease(), **(tags or {})},
            log_system_metrics=None if _SYSTEM_METRICS.is_set() else True,
        )


def create_run(
    client: MlflowClient, experiment_id: str, name: str | None, tags: Mapping[str, str]
) -> str:
    """Create a run, not MLflow's active one, and return its id.

    tags: tags in addition to those that MLflow sets, such as the user's name.
    """
    created = client.create_run(experiment_id, run_name=name, tags=resolve_tags(dict(tags)))
    return str(created.info.run_id)


def join_run(client: MlflowClient, run_id: str) -> None:
    """Wait for an open run's lease, and acquire it.

    Waits up to three minutes if a process on another machine may have the lease. Raises
    TrackingError if another process is training into the run.
    """
    with mlflow_errors(f"join run {run_id}"):
        wait_for_renewal_or_expiry(client, run_id)
        run = client.get_run(run_id)
        if is_held_by_this_process(run) and detect_live_trainer(client, run):
            raise TrackingError(
                f"this process trains into run {run_id} already; end that 'with' block or training "
                "first, or open a run for each: mlflow.start_run(nested=True)"
            )
        check_not_being_trained(client, run, "end that first")
    lease = Lease(client, run_id)
    lease.acquire()
    lease.renew()


def get_active_run_id(store_uri: str | None = None) -> str | None:
    """Return the id of MLflow's active run, None without one.

    store_uri: also return None if this is not MLflow's tracking URI.
    """
    active = mlflow.active_run()
    if active is None or store_uri not in (None, mlflow.get_tracking_uri()):
        return None
    return str(active.info.run_id)


def get_autolog_run_id() -> str | None:
    """Return the id of the run that MLflow's autologging opened, or None."""
    active = mlflow.active_run()
    if active is None or MLFLOW_AUTOLOGGING not in active.data.tags:
        return None
    return str(active.info.run_id)


def end_run(
    client: MlflowClient,
    run_id: str,
    result: RunResult,
    *,
    sets_status: bool = True,
    stored_rows: Collection[int] = (),
) -> RunResult:
    """Score a run's rows, log its models, and set its status.

    Returns the result with scores and links, and with an error if the run's record is incomplete.
    If the store cannot be reached, status and error are written to local disk for ``clear-mlflow
    sync``. A run that another process took over is left as it is.

    result: how the training ended. sets_status: False for a run that the user opened. stored_rows:
    numbers of the rows that this process stored; it is an error if the store lacks one of them.
    """
    if result.has_lost_lease:
        _forget_run(run_id)
        return result
    if result.unsent is not None:
        _leave_for_sync(client, run_id, result, sets_status)
        return result.add_problem(result.unsent, keep_status=True)
    training_result = result
    try:
        run = get_run(client, run_id)
        check_has_lease(run)
        result = _score_run(client, run, result, stored_rows)
        outcome = result.build_outcome(sets_status=sets_status)
        run = store_outcome(client, run_id, outcome, needs_lease=True)
        with mlflow_errors(f"look at run {run_id}"):
            return replace(result, links=tuple(format_run_links(client, run)))
    except LeaseLostError as error:
        _forget_run(run_id)
        result = training_result.add_problem(error, keep_status=True)
        return replace(result, problem=error)
    except ClearError as error:
        result = result.add_problem(error, keep_status=True)
        if is_permanent_error(error):
            return result
        hint = _leave_for_sync(client, run_id, training_result, sets_status)
        return replace(result, error="; ".join(filter(None, (result.error, hint))))
    except BaseException as error:  # a bug, or Ctrl-C: the run must not stay open
        outcome = build_result(error, run_id).build_outcome(sets_status=sets_status)
        with suppress(ClearError):
            store_outcome(client, run_id, outcome, needs_lease=True)
        raise


def end_expired_run(client: MlflowClient, run: Run) -> None:
    """Set a RUNNING run to KILLED because its process is gone.

    run: the run as it was when its lease was found to have expired. Does nothing if it has ended
    since, and raises TrackingError if a process has acquired or renewed its lease since.
    """
    run_id = run.info.run_id
    current = get_run(client, run_id)
    if str(current.info.status) != "RUNNING":
        return
    for tag in (names.PROCESS_TAG, names.HOLDER_TAG):
        if current.data.tags.get(tag) != run.data.tags.get(tag):
            raise TrackingError(f"run {run_id} is trained into again; it is left as it is")
    store_outcome(client, run_id, Outcome("KILLED", "the process that trained it is gone"))


def end_shared_run(run_id: str, error: BaseException | None = None) -> None:
    """End another logger's run: FINISHED, or by *error* FAILED or KILLED."""
    store_outcome(MlflowClient(), run_id, build_result(error, run_id).build_outcome())


def end_project_run(result: RunResult) -> RunResult:
    """End the run that ``mlflow run`` opened, unless it was trained into.

    Returns *result*.

    Ignores failures: ``mlflow run`` sets the status of the run, too.
    """
    run_id = MLFLOW_RUN_ID.get()
    if run_id and run_id != result.run_id:
        with suppress(ClearError), mlflow_errors(f"close run {run_id}"):
            client = MlflowClient()
            run = client.get_run(run_id)
            is_untouched = run.info.status == "RUNNING" and names.PROCESS_TAG not in run.data.tags
            if is_untouched and MLFLOW_PROJECT_ENTRY_POINT in run.data.tags:
                store_outcome(client, run_id, Outcome(result.status, result.error))
    return result


def log_ensemble_summary(client: MlflowClient, run_id: str) -> None:
    """Log mean and sample standard deviation over an ensemble's members.

    They are named ``mean/METRIC`` and ``std/METRIC``; with one member, only the mean is logged.
    Also tags the run with the number of members. Skips metrics that are undefined for a member.
    Logs nothing if the run is not an ensemble, if it has a summary, until all members are FINISHED,
    or if one lacks rows.
    """
    with mlflow_errors(f"read the members of run {run_id}"):
        run = client.get_run(run_id)
        if run.data.tags.get(names.KIND_TAG) != names.KIND_ENSEMBLE or (
            names.MEMBERS_TAG in run.data.tags
        ):
            return
        members = client.search_runs(
            [run.info.experiment_id],
            f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' "
            f"AND tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'",
            max_results=1000,
        )
    num_seeds = len(run.data.params["seeds"].split(","))
    if [str(member.info.status) for member in members] != ["FINISHED"] * num_seeds:
        return
    logged = [
        {name: run.data.metrics.get(name) for name in parse_logged_versions(run.data.tags)}
        for run in members
    ]
    if not all(logged):  # a member without rows
        return
    scores = pd.DataFrame(logged, dtype=float).dropna(axis="columns")
    time = get_current_time_millis()
    metrics = [
        Metric(f"{statistic}/{name}", value, time, 0)
        for statistic, values in (("mean", scores.mean()), ("std", scores.std()))
        for name, value in values.dropna().items()
    ]
    with mlflow_errors(f"log the summary of run {run_id}"):
        tags = [RunTag(names.MEMBERS_TAG, str(num_seeds))]
        client.log_batch(run_id, metrics=metrics, tags=tags)


def _score_run(
    client: MlflowClient, run: Run, result: RunResult, expected_rows: Collection[int]
) -> RunResult:
    run_id = run.info.run_id
    try:
        scores = score(client, run_id)
        result = replace(result, scores=scores)
        log_models(client, run, scores)
        stored_rows = scores.record.rows if scores.record else ()
        if missing_rows := sorted(set(expected_rows).difference(stored_rows)):
            raise RecordError(
                f"run {run_id} stored rows that are missing now in "
                f"{safe_repr(str(run.info.artifact_uri), 200)}: "
                f"{', '.join(map(str, missing_rows))}; put their files back, then run "
                f"'clear-mlflow evaluate {run_id}'"
            )
    except ClearError as error:
        return result.add_problem(error)
    return result


def _leave_for_sync(client: MlflowClient, run_id: str, result: RunResult, sets_status: bool) -> str:
    """Write a run's end to disk, and return advice to sync it.

    Returns "" if no disk can be written. If *sets_status*, MLflow forgets the run.
    """
    if sets_status:
        _forget_run(run_id)
    for path in (*find_run_folders(run_id), *list_candidate_folders(run_id)):
        try:
            if (path / HEADER_JSON).is_file():
                run_folder = RunFolder.reopen(path)
            else:
                run_folder = RunFolder.create(path, run_id, client.tracking_uri)
            try:
                outcome = result.build_outcome(sets_status=sets_status)
                run_folder.append_json(OUTCOME_JSON, outcome)
            finally:
                run_folder.close()
        except (OSError, ClearError) as error:
            warn(f"how run {run_id} ended could not be kept for sync: {error}")
        else:
            return f"the run is open there until 'clear-mlflow sync {shlex.quote(str(path))}'"
    return ""


def _forget_run(run_id: str) -> None:
    """Make MLflow forget a run, so that exit leaves its status."""
    forget_active_run(run_id)
    if monitor := forget_system_metrics(run_id):
        # In a thread: it may hang in a call to the store.
        threading.Thread(target=monitor.finish, daemon=True).start()
