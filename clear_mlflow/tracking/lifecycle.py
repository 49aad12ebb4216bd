"""The life of an MLflow run of ours: how it is opened, how it came out, how it is ended.

No other module asks MLflow to start or create a run.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import statistics
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.environment_variables import (
    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING,
    MLFLOW_RUN_ID,
)
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.core.errors import ClearError, DivergedError, RecordError, TrackingError
from clear_mlflow.core.text import safe_repr, warn
from clear_mlflow.journal.run_folder import (
    HEADER_JSON,
    Outcome,
    RunFolder,
    Status,
    candidate_folders,
    find_run_folders,
)
from clear_mlflow.journal.uploader import UnsentError, is_final, store_outcome
from clear_mlflow.process.parent import TrainingDied
from clear_mlflow.scoring import Scores, score
from clear_mlflow.store import names
from clear_mlflow.store.client import log_tags, mlflow_errors, retry_on_conflict
from clear_mlflow.store.compat import forget_active_run, forget_system_metrics, is_generated_name
from clear_mlflow.store.lease import (
    LeaseHeldError,
    LeaseLostError,
    check_holder,
    check_not_held,
    format_lease,
    is_held,
    lease_tags,
    wait_for_expiry,
)
from clear_mlflow.store.ui_urls import format_run_links
from clear_mlflow.tracking.logged_models import log_models

# A child that ended by one of these was stopped from outside; by any other it broke.
_KILLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
TRY_LATER = os.EX_TEMPFAIL  # 75, what programs leave with that may be started again as they were


@dataclass(frozen=True)
class RunResult:
    """How what a run is of ended."""

    exit_code: int  # 0 done, 1 a bug, 2 bad input, 75 try later, 128 + n stopped by signal n
    status: Status
    run_id: str | None  # None: it ended before a run was opened
    error: str | None = None  # one line
    problem: ClearError | None = None  # why the record is not in order, however training ended
    diverged: DivergedError | None = None
    scores: Scores | None = None  # of the rows that are stored
    members: Mapping[int, Scores] = field(default_factory=dict)  # of an ensemble, by seed
    links: tuple[str, ...] = ()  # lines that say where to look at the run
    note: str | None = None  # what else there is to say, in one line

    @property
    def unsent(self) -> UnsentError | None:
        """What was measured waits on local disk: the store was away."""
        return self.problem if isinstance(self.problem, UnsentError) else None

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the run over; nothing is stored in it."""
        return isinstance(self.problem, LeaseLostError)


def result_of(
    error: BaseException | None,
    run_id: str | None,
    received: Sequence[int] = (),
) -> RunResult:
    """How a training ended, by what it raised and the signals received."""
    if isinstance(error, LeaseLostError):
        return RunResult(2, "FAILED", run_id, str(error), error)
    if isinstance(error, UnsentError):
        result = result_of(error.__cause__, run_id, received)
        return replace(result, exit_code=result.exit_code or 2, problem=error)
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return RunResult(0, "FINISHED", run_id)
    if received:
        message = f"stopped by {signal.Signals(received[0]).name}"
        return RunResult(128 + received[0], "KILLED", run_id, message)
    if isinstance(error, ClearError):
        diverged = error if isinstance(error, DivergedError) else None
        code = TRY_LATER if isinstance(error, LeaseHeldError) else 2
        return RunResult(code, "FAILED", run_id, str(error), diverged=diverged)
    if isinstance(error, TrainingDied):
        if -error.returncode in _KILLING:
            return RunResult(128 - error.returncode, "KILLED", run_id, str(error))
        return RunResult(1, "FAILED", run_id, str(error))
    status: Status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
    return RunResult(1, status, run_id, f"{type(error).__name__}: {error}")


def open_run(
    client: MlflowClient,
    name: str,
    check: Callable[[Run], object],
    *,
    rename: bool = False,
    system_metrics: bool | None = None,
) -> str:
    """Start an MLflow run, or take up the environment's (its name stays, unless *rename*)."""
    named = MLFLOW_RUN_ID.get()
    monitor = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    with mlflow_errors("open a run"):
        new_name: str | None = name
        if named:
            wait_for_expiry(client, named)
        run = client.get_run(named) if named else None
        if run is not None:
            check_not_held(client, run, "unset MLFLOW_RUN_ID for a run of its own")
            check(run)
            # MLflow's "upbeat-foal-91" says nothing about the run; a person's own name stays.
            new_name = name if rename or is_generated_name(run.info.run_name) else None
        opened = retry_on_conflict(
            lambda: mlflow.start_run(
                run_name=new_name,
                tags=lease_tags(),
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
            tags={names.PROCESS_TAG: format_lease(), **tags},
            log_system_metrics=monitor.get() if monitor.is_set() else True,
        )


def create_run(
    client: MlflowClient, experiment_id: str, name: str | None, tags: Mapping[str, str]
) -> str:
    """Open a run that does not become MLflow's active one."""
    opened = client.create_run(experiment_id, run_name=name, tags=resolve_tags(dict(tags)))
    return str(opened.info.run_id)


def join(client: MlflowClient, run_id: str) -> None:
    """Take a run of the user's own, which is MLflow's active one."""
    with mlflow_errors(f"join run {run_id}"):
        wait_for_expiry(client, run_id)
        run = client.get_run(run_id)
        if is_held(client, run):
            raise TrackingError(f"run {run_id} is being trained into already; end that first")
        take(client, run)


def take(client: MlflowClient, run: Run) -> None:
    """Hold a run from now on; whoever held it stores nothing more in it."""
    log_tags(client, run.info.run_id, lease_tags())


def close_abandoned(client: MlflowClient, run: Run) -> None:
    """Close a run as KILLED whose process was seen to be gone, unless it gives a sign of life."""
    run_id = run.info.run_id
    with mlflow_errors(f"read run {run_id}"):
        now = client.get_run(run_id)
    if str(now.info.status) != "RUNNING":
        return  # it was closed meanwhile
    for tag in (names.PROCESS_TAG, names.HOLDER_TAG):
        if now.data.tags.get(tag) != run.data.tags.get(tag):
            raise TrackingError(f"run {run_id} is trained into again; it is left as it is")
    end(client, run_id, "KILLED", "the process that trained it is gone")


def end(
    client: MlflowClient,
    run_id: str,
    status: Status | None,
    error: str | None = None,
    *,
    diverged: bool = False,
    check: Callable[[Run], object] | None = None,
) -> Run:
    """Say why a run ended, set its status (None: it stays), forget its process."""
    return store_outcome(client, run_id, Outcome(status, error, diverged), check=check)


def close(
    client: MlflowClient,
    run_id: str,
    result: RunResult,
    members: Mapping[int, str] | None = None,
    *,
    ours: bool = True,
    rows: Mapping[str, Collection[int]] | None = None,
) -> RunResult:
    """Score what a run holds and end it, members first (seed to run); *ours* False: left open.

    rows: rows that this process stored, by run; a missing one is an error.
    """
    if result.is_lost:
        _forget(run_id)
        return result
    if result.unsent is not None:
        return _leave_unsent(client, run_id, result, result.unsent, members or {}, ours)
    if members is None:
        return _close_one(client, run_id, result, ours, rows)
    scores: dict[int, Scores] = {}
    for seed, member_id in members.items():
        closed = _close_one(client, member_id, _of_member(result, seed), True, rows)
        if closed.scores is not None:
            scores[seed] = closed.scores
        if closed.exit_code and not result.exit_code:
            problem = TrackingError(f"seed {seed}: {closed.error}")
            result = replace(
                result,
                exit_code=closed.exit_code,
                status="FAILED",
                error=str(problem),
                problem=problem,
            )
    try:
        if len(scores) == len(members):
            summarize_members(client, run_id, scores)
    except ClearError as refusal:
        result = _with_problem(replace(result, status="FAILED"), refusal)
    return replace(_close_one(client, run_id, result, ours, rows), members=scores)


def close_project_run(result: RunResult, run_id: str | None = None) -> RunResult:
    """Close the run that ``mlflow run`` opened for what was done elsewhere, or did not begin."""
    named = run_id or (MLFLOW_RUN_ID.get() if result.status == "KILLED" else None)
    if named:
        with suppress(ClearError), mlflow_errors(f"close run {named}"):
            client = MlflowClient()
            run = client.get_run(named)
            is_open = MLFLOW_PROJECT_ENTRY_POINT in run.data.tags and run.info.status == "RUNNING"
            if run_id is not None or is_open:
                end(client, named, result.status, result.error)
    return result


def summarize_members(client: MlflowClient, run_id: str, scores: Mapping[int, Scores]) -> None:
    """Log mean and sample deviation of each metric that is defined for all members."""
    if not scores or any(of_member.record is None for of_member in scores.values()):
        return
    now = get_current_time_millis()
    metrics = []
    summaries = [of_member.results.values_by_name for of_member in scores.values()]
    for name in summaries[0]:
        values = [summary.get(name, math.nan) for summary in summaries]
        if any(math.isnan(value) for value in values):
            continue
        metrics.append(Metric(f"mean/{name}", statistics.fmean(values), now, 0))
        if len(values) > 1:
            metrics.append(Metric(f"std/{name}", statistics.stdev(values), now, 0))
    tags = [RunTag(names.MEMBERS_TAG, str(len(scores)))]
    with mlflow_errors(f"log the summary of run {run_id}"):
        client.log_batch(run_id, metrics=metrics, tags=tags)


def _of_member(result: RunResult, seed: int) -> RunResult:
    diverged = result.diverged
    return replace(result, diverged=diverged if diverged and diverged.seed == seed else None)


def _with_problem(result: RunResult, problem: ClearError) -> RunResult:
    """Training went well or not; that its record is not in order is what counts now."""
    return replace(
        result,
        exit_code=result.exit_code or 2,
        error="; ".join(filter(None, (result.error, str(problem)))),
        problem=result.problem or problem,
    )


def _close_one(
    client: MlflowClient,
    run_id: str,
    ended: RunResult,
    ours: bool,
    rows: Mapping[str, Collection[int]] | None,
) -> RunResult:
    """Score what is stored, say why the run ended, and set its status."""
    result = ended
    try:
        with mlflow_errors(f"read run {run_id}"):
            stored = client.get_run(run_id)
        check_holder(stored)
        scores = score(client, run_id)
        result = replace(result, scores=scores)
        log_models(client, stored, scores)
        expected = set((rows or {}).get(run_id, ()))
        if missing := sorted(expected.difference(scores.record.rows if scores.record else ())):
            raise RecordError(
                f"run {run_id} stored rows that are missing now in "
                f"{safe_repr(str(stored.info.artifact_uri), 200)}: {', '.join(map(str, missing))}; "
                f"put their files back, then run 'clear-mlflow evaluate {run_id}'"
            )
    except LeaseLostError as lost:
        return _lost(run_id, ended, lost)
    except ClearError as refusal:
        result = _with_problem(result, refusal)
        if result.status == "FINISHED":
            result = replace(result, status="FAILED")
    except BaseException as error:  # a bug, or Ctrl-C: the run does not stay open
        result = result_of(error, run_id)
        with suppress(ClearError):
            end(client, run_id, result.status if ours else None, result.error, check=check_holder)
        raise
    try:
        with mlflow_errors(f"look at run {run_id}"):
            run = end(
                client,
                run_id,
                result.status if ours else None,
                result.error,
                diverged=result.diverged is not None,
                check=check_holder,
            )
            result = replace(result, links=tuple(format_run_links(client, run)))
    except LeaseLostError as lost:
        return _lost(run_id, ended, lost)
    except ClearError as refusal:
        result = _with_problem(result, refusal)
        if not is_final(refusal):
            if ours:
                _forget(run_id)
            where = _leave_end(client, run_id, ended, ours)
            result = replace(result, error="; ".join(filter(None, (result.error, where))))
    return result


def _leave_unsent(
    client: MlflowClient,
    run_id: str,
    result: RunResult,
    unsent: UnsentError,
    members: Mapping[int, str],
    ours: bool,
) -> RunResult:
    """Write down how a training ended whose rows the store did not take; it is asked nothing."""
    for seed, member_id in members.items():
        folder = unsent.folders.get(member_id)
        _leave_end(client, member_id, _of_member(result, seed), True, folder)
    _leave_end(client, run_id, result, ours, unsent.folders.get(run_id))
    if ours:
        _forget(run_id)
    return _with_problem(result, unsent)


def _leave_end(
    client: MlflowClient, run_id: str, result: RunResult, ours: bool, folder: Path | None = None
) -> str:
    """Write how a run ended into its journal; says how to close it ("" if no disk takes it)."""
    ended = Outcome(result.status if ours else None, result.error, result.diverged is not None)
    known = [folder] if folder else find_run_folders(run_id)
    for where in (*known, *candidate_folders(run_id)):
        try:
            if (where / HEADER_JSON).is_file():
                journal = RunFolder.reopen(where, run_id)
            else:
                journal = RunFolder.create(where, run_id, client.tracking_uri)
            try:
                journal.append_outcome(ended)
            finally:
                journal.close()
        except (OSError, ClearError) as error:
            warn(f"how run {run_id} ended could not be kept for sync: {error}")
            continue
        return f"the run is open there until 'clear-mlflow sync {shlex.quote(str(where))}'"
    return ""


def _lost(run_id: str, result: RunResult, lost: LeaseLostError) -> RunResult:
    """Leave a run to the process that has taken it over."""
    _forget(run_id)
    return replace(_with_problem(result, lost), problem=lost)


def _forget(run_id: str) -> None:
    """Let go of MLflow's active run as it is: its status is not ours to set, or not now."""
    forget_active_run(run_id)
    if monitor := forget_system_metrics(run_id):
        # It may hang in a call to the store.
        threading.Thread(target=monitor.finish, daemon=True).start()
