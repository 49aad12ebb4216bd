"""The life of an MLflow run of ours: how it is opened, how it came out, and how it is ended.

Every run goes through here: that of a training, an ensemble, your own loop, an import, a
comparison or a sweep, and one that ``evaluate`` or ``sync`` closes because its process is gone. No
other module asks MLflow to start, create or end a run.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import statistics
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, MLFLOW_RUN_ID
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.core.errors import ClearError, DivergedError, TrackingError
from clear_mlflow.journal.ending import hurried, leave_outcome
from clear_mlflow.journal.sender import UnsentError, is_final
from clear_mlflow.journal.spool import End
from clear_mlflow.process.parent import TrainingDied
from clear_mlflow.runs.logged_models import log_models
from clear_mlflow.scoring.scores import Scores, score
from clear_mlflow.store import names
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.compat import forget_active_run, forget_system_metrics, is_generated
from clear_mlflow.store.conflicts import retry_on_conflict
from clear_mlflow.store.heartbeat import (
    LostRunError,
    heartbeat,
    holding,
    lives_here,
    refuse_if_lost,
    sign_of_life,
    trains_now,
)
from clear_mlflow.store.ui_urls import link_comparison, run_links

# A child that ended by one of these was stopped from outside; by any other it broke.
_KILLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class RunResult:
    """How what a run is of ended."""

    exit_code: int  # 0 done, 1 a bug, 2 bad input, 128 + n stopped by signal n
    status: str  # FINISHED, FAILED or KILLED, as MLflow calls it
    run_id: str | None  # None: it ended before a run was opened
    scores: Scores | None = None  # of the rows that are stored
    error: str | None = None  # one line
    diverged: bool = False  # the loss or the model's output was no longer a number
    links: tuple[str, ...] = ()  # lines that say where to look at the run
    seed: int | None = None  # of the member of an ensemble that diverged
    members: Mapping[int, Scores] = field(default_factory=dict)  # of an ensemble, by seed
    note: str | None = None  # what else there is to say, in one line
    unsent: UnsentError | None = None  # what was measured waits on local disk: the store was away
    problem: ClearError | None = None  # why the record is not in order, however training ended
    is_lost: bool = False  # another process has taken the run over; nothing is stored in it


def open_run(
    client: MlflowClient,
    name: str,
    check: Callable[[Run], object],
    *,
    rename: bool = False,
    system_metrics: bool | None = None,
) -> str:
    """Start an MLflow run, or take up the one that the environment names; it is then active.

    Args:
        client: the store.
        name: of the run; one that a person gave a named run stays.
        check: refuses a named run that this cannot go into.
        rename: give a named run that name in any case.
        system_metrics: whether MLflow watches the machine where the environment does not say.

    Raises:
        TrackingError: another process trains into the named run; it is left as it is.
    """
    named = MLFLOW_RUN_ID.get()
    monitor = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    with mlflow_errors("open a run"):
        new_name: str | None = name
        run = client.get_run(named) if named else None
        if run is not None:
            refuse_second(client, run, "unset MLFLOW_RUN_ID for a run of its own")
            check(run)
            # MLflow's "upbeat-foal-91" says nothing about the run; a person's own name stays.
            new_name = name if rename or is_generated(run.info.run_name) else None
        opened = retry_on_conflict(
            lambda: mlflow.start_run(
                run_name=new_name,
                tags=holding(),
                log_system_metrics=monitor.get() if monitor.is_set() else system_metrics,
            )
        )
    return str(opened.info.run_id)


def open_again(run: Run, tags: Mapping[str, str]) -> None:
    """Make a run that has ended, or whose process is gone, MLflow's active one."""
    monitor = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    with mlflow_errors(f"open run {run.info.run_id} again"):
        mlflow.start_run(
            run_id=run.info.run_id,
            # Who holds it was said when it was taken: one that wakes here does not say it anew.
            tags={names.PROCESS_TAG: heartbeat(), **tags},
            log_system_metrics=monitor.get() if monitor.is_set() else True,
        )


def create_run(
    client: MlflowClient, experiment_id: str, name: str | None, tags: Mapping[str, str]
) -> str:
    """Open a run that does not become MLflow's active one."""
    opened = client.create_run(experiment_id, run_name=name, tags=resolve_tags(dict(tags)))
    return str(opened.info.run_id)


def join(client: MlflowClient, run_id: str) -> None:
    """Take a run of the user's own, which is MLflow's active one.

    Raises:
        TrackingError: it is being trained into.
    """
    with mlflow_errors(f"join run {run_id}"):
        run = client.get_run(run_id)
        if trains_now(client, run):
            raise TrackingError(f"run {run_id} is being trained into already; end that first")
        take(client, run)


def take(client: MlflowClient, run: Run) -> None:
    """Hold a run from now on; whoever held it stores nothing more in it."""
    log_tags(client, run.info.run_id, holding())


def close_abandoned(client: MlflowClient, run: Run) -> None:
    """Close a run as KILLED whose process is gone, unless it gives a sign of life after all.

    Args:
        client: the store.
        run: as it was when its process was seen to be gone.

    Raises:
        TrackingError: a process trains into it again; it is left as it is.
    """
    run_id = run.info.run_id
    with mlflow_errors(f"read run {run_id}"):
        now = client.get_run(run_id)
    if str(now.info.status) != "RUNNING":
        return  # it was closed meanwhile
    for tag in (names.PROCESS_TAG, names.HOLDER_TAG):
        if now.data.tags.get(tag) != run.data.tags.get(tag):
            raise TrackingError(f"run {run_id} is trained into again; it is left as it is")
    end(client, run_id, "KILLED", "the process that trained it is gone")


def refuse_second(
    client: MlflowClient, run: Run, advice: str, *, assume_dead: bool = False
) -> None:
    """Make sure that no process trains into a run.

    Args:
        client: the store.
        run: as it is now.
        advice: what to do where one does.
        assume_dead: believe the user that it is dead, unless it is seen to live on this machine.

    Raises:
        TrackingError: one does.
    """
    if assume_dead and not lives_here(run):
        return
    if trains_now(client, run):
        told = sign_of_life(run)
        more = f" ({told})" if told else ""
        raise TrackingError(
            f"another process trains into run {run.info.run_id} now{more}; {advice}"
        )


def end(
    client: MlflowClient,
    run_id: str,
    status: str | None,
    error: str | None = None,
    *,
    diverged: bool = False,
    check: Callable[[Run], object] | None = None,
) -> Run:
    """Say why a run ended, set its status, and remove the tag that names its process.

    Args:
        client: the store.
        run_id: of the run.
        status: FINISHED, FAILED or KILLED; None: the status stays as it is.
        error: why it ended early.
        diverged: whether the loss or the output was no longer a number.
        check: refuses the run, as it is now, if this process may no longer end it.

    Returns:
        The run, as it is then.

    Raises:
        TrackingError: the store did not take it.
    """
    with mlflow_errors(f"close run {run_id}"):
        if check is not None:
            check(client.get_run(run_id))
        if error:
            client.set_tag(run_id, names.ERROR_TAG, error[:8000])
        if diverged:
            client.set_tag(run_id, names.DIVERGED_TAG, "true")
        # The status before the process: while a run is RUNNING, its process has to be known.
        if status is not None and _is_active(run_id):
            mlflow.end_run(status)
        elif status is not None:
            client.set_terminated(run_id, status)
        run = client.get_run(run_id)
        if names.PROCESS_TAG in run.data.tags:
            try:
                client.delete_tag(run_id, names.PROCESS_TAG)
            except MlflowException as gone:  # another evaluate has closed it, too
                if gone.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
    return run


def close(
    client: MlflowClient,
    run_id: str,
    result: RunResult,
    members: Mapping[int, str] | None = None,
    *,
    ours: bool = True,
) -> RunResult:
    """Score what a run holds and end it; the members of an ensemble are scored and ended first.

    If the store is away, how the run ended is kept on local disk for ``clear-mlflow sync``.

    Args:
        client: the store.
        run_id: of the run.
        result: how the work that the run records ended.
        members: of an ensemble, seed to run.
        ours: whether it was opened here; a run of the user's own is left open.
    """
    if result.is_lost:
        _forget(run_id)
        return result
    if result.unsent is not None:
        return _leave_unsent(client, run_id, result, members or {}, ours)
    if members is None:
        return _close_one(client, run_id, result, ours)
    scores: dict[int, Scores] = {}
    for seed, member_id in members.items():
        diverged = result.diverged and result.seed == seed
        of_member = dataclasses.replace(result, run_id=member_id, diverged=diverged)
        closed = _close_one(client, member_id, of_member, True)
        if closed.scores is not None:
            scores[seed] = closed.scores
        if closed.exit_code and not result.exit_code:
            told = TrackingError(f"seed {seed}: {closed.error}")
            result = dataclasses.replace(
                result, exit_code=closed.exit_code, status="FAILED", error=str(told), problem=told
            )
    try:
        if len(scores) == len(members):
            summarize_members(client, run_id, scores)
    except ClearError as refusal:
        result = dataclasses.replace(
            result,
            exit_code=result.exit_code or 2,
            status="FAILED",
            error=_joined(result.error, refusal),
            problem=result.problem or refusal,
        )
    return dataclasses.replace(_close_one(client, run_id, result, ours), members=scores)


def close_beside(client: MlflowClient, beside: str | None, result: RunResult) -> RunResult:
    """Give the run that ``mlflow run`` opened the status of the one that was resumed.

    A signal to the process group ends MLflow itself, which would have closed it.
    """
    if beside is not None:
        with suppress(ClearError):
            end(client, beside, result.status, result.error)
    return result


def close_unopened(result: RunResult) -> RunResult:
    """Close the run that ``mlflow run`` opened for a training that was stopped before it began.

    A signal to the process group ends MLflow itself, which would have closed it.
    """
    run_id = MLFLOW_RUN_ID.get()
    if result.status == "KILLED" and run_id:
        with suppress(ClearError), mlflow_errors(f"close run {run_id}"):
            client = MlflowClient()
            run = client.get_run(run_id)
            if MLFLOW_PROJECT_ENTRY_POINT in run.data.tags and run.info.status == "RUNNING":
                end(client, run_id, result.status, result.error)
    return result


def result_of_child(
    error: ClearError | TrainingDied,
    received: list[int],
    run_id: str | None = None,
    died: tuple[int, ...] = (),
) -> RunResult:
    """How a training in a child process ended by an error.

    Args:
        error: what it ended by.
        received: signals that came to this process, in their order.
        run_id: of the run; None where none was opened.
        died: ranks whose processes ended before their training did.
    """
    if isinstance(error, UnsentError):
        cause = error.__cause__
        if isinstance(cause, (ClearError, TrainingDied)):
            return dataclasses.replace(
                result_of_child(cause, received, run_id, died), unsent=error, problem=error
            )
        return result_of_block(error, run_id)
    if isinstance(error, LostRunError):
        return RunResult(2, "FAILED", run_id, error=str(error), problem=error, is_lost=True)
    if died:
        which = " and ".join(map(str, died))
        told = f"the process of rank {which} ended before its training did"
        return RunResult(1, "FAILED", run_id, error=told)
    if received:
        told = f"stopped by {signal.Signals(received[0]).name}"
        return RunResult(128 + received[0], "KILLED", run_id, error=told)
    if isinstance(error, ClearError):
        seed = error.seed if isinstance(error, DivergedError) else None
        diverged = isinstance(error, DivergedError)
        return RunResult(2, "FAILED", run_id, error=str(error), diverged=diverged, seed=seed)
    if -error.returncode in _KILLING:
        return RunResult(128 - error.returncode, "KILLED", run_id, error=str(error))
    return RunResult(1, "FAILED", run_id, error=str(error))


def result_of_block(error: BaseException | None, run_id: str | None) -> RunResult:
    """How a training or a loop in this process ended.

    Args:
        error: what it ended by; None where it came to its end.
        run_id: of the run.
    """
    if isinstance(error, LostRunError):
        return RunResult(2, "FAILED", run_id, error=str(error), problem=error, is_lost=True)
    unsent = error if isinstance(error, UnsentError) else None
    cause = error if unsent is None else unsent.__cause__
    if cause is None or (isinstance(cause, SystemExit) and cause.code in (None, 0)):
        return RunResult(2 if unsent else 0, "FINISHED", run_id, unsent=unsent, problem=unsent)
    return RunResult(
        1,
        "KILLED" if isinstance(cause, KeyboardInterrupt) else "FAILED",
        run_id,
        error=f"{type(cause).__name__}: {cause}",
        diverged=isinstance(cause, DivergedError),
        seed=cause.seed if isinstance(cause, DivergedError) else None,
        unsent=unsent,
        problem=unsent,
    )


def summarize_members(client: MlflowClient, run_id: str, scores: Mapping[int, Scores]) -> None:
    """Log the mean and the standard deviation (of a sample) of every metric of all members.

    A metric that is not defined for one of them is left out: a mean over some would not say so.

    Args:
        client: the store.
        run_id: of the run above the members.
        scores: of each member.
    """
    if not scores or any(of_member.record is None for of_member in scores.values()):
        return
    now = get_current_time_millis()
    metrics = []
    for name in next(iter(scores.values())).summary:
        values = [of_member.summary.get(name, math.nan) for of_member in scores.values()]
        if any(math.isnan(value) for value in values):
            continue
        metrics.append(Metric(f"mean/{name}", statistics.fmean(values), now, 0))
        if len(values) > 1:
            metrics.append(Metric(f"std/{name}", statistics.stdev(values), now, 0))
    tags = [RunTag(names.MEMBERS_TAG, str(len(scores)))]
    with mlflow_errors(f"log the summary of run {run_id}"):
        client.log_batch(run_id, metrics=metrics, tags=tags)


def _close_one(client: MlflowClient, run_id: str, result: RunResult, ours: bool) -> RunResult:
    """Score what is stored, say why the run ended, and set its status."""
    scores, code, status, problem = None, result.exit_code, result.status, result.problem
    error = result.error
    links: tuple[str, ...] = ()
    calls = ExitStack()
    try:
        with mlflow_errors(f"read run {run_id}"):
            stored = client.get_run(run_id)
        refuse_if_lost(stored)
        scores = score(client, run_id)
        log_models(client, stored, scores)
    except LostRunError as lost:
        return _lost(result, lost)
    except ClearError as refusal:
        # Training went well or not; that its record is not in order is what counts now.
        problem = problem or refusal
        error = _joined(error, refusal)
        code, status = code or 2, "FAILED" if status == "FINISHED" else status
        if isinstance(refusal, TrackingError) and not is_final(refusal):
            calls.enter_context(hurried())
    try:
        with calls, mlflow_errors(f"look at run {run_id}"):
            run = end(
                client,
                run_id,
                status if ours else None,
                error,
                diverged=result.diverged,
                check=refuse_if_lost,
            )
            links = tuple(run_links(client, run))
        with suppress(ClearError):
            link_comparison(client, run.info.experiment_id)
    except LostRunError as lost:
        return _lost(result, lost)
    except ClearError as refusal:
        problem = problem or refusal
        error = _joined(error, refusal)
        code = code or 2
        if not is_final(refusal):
            if ours:
                _release(run_id)
            kept = End(result.status if ours else None, result.error, result.diverged)
            error = _joined(error, leave_outcome(client, run_id, kept))
    return dataclasses.replace(
        result,
        exit_code=code,
        status=status,
        scores=scores,
        error=error,
        links=links,
        problem=problem,
    )


def _leave_unsent(
    client: MlflowClient, run_id: str, result: RunResult, members: Mapping[int, str], ours: bool
) -> RunResult:
    """Keep how a training ended whose rows the store did not take; nothing is asked of it."""
    folders = {} if result.unsent is None else result.unsent.folders
    for seed, member_id in members.items():
        diverged = result.diverged and result.seed == seed
        kept = End(result.status, result.error, diverged)
        leave_outcome(client, member_id, kept, folders.get(member_id))
    kept = End(result.status if ours else None, result.error, result.diverged)
    leave_outcome(client, run_id, kept, folders.get(run_id))
    if ours:
        _release(run_id)
    return dataclasses.replace(
        result, exit_code=result.exit_code or 2, error=_joined(result.error, result.unsent)
    )


def _lost(result: RunResult, lost: LostRunError) -> RunResult:
    """Leave a run to the process that has taken it over."""
    if result.run_id is not None:
        _forget(result.run_id)
    error = _joined(result.error, lost)
    code = result.exit_code or 2
    return dataclasses.replace(result, exit_code=code, error=error, problem=lost, is_lost=True)


def _forget(run_id: str) -> None:
    """Let go of MLflow's active run as it is: its status is another process's to set."""
    forget_active_run(run_id)
    if monitor := forget_system_metrics(run_id):
        threading.Thread(target=monitor.finish, daemon=True).start()


def _release(run_id: str) -> None:
    """Let go of MLflow's active run, whose store is away, within seconds; it stays RUNNING."""
    if _is_active(run_id):
        with hurried(), suppress(Exception):
            mlflow.end_run("RUNNING")
    if not _is_active(run_id) and (monitor := forget_system_metrics(run_id)):
        # It may hang in a call to the store.
        threading.Thread(target=monitor.finish, daemon=True).start()


def _is_active(run_id: str) -> bool:
    active = mlflow.active_run()
    return active is not None and active.info.run_id == run_id


def _joined(error: str | None, more: object) -> str:
    return "; ".join(filter(None, (error, str(more))))
