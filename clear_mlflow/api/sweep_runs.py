"""Train and compare a sweep: a loop over planned runs, whose states are read from the store.

Two sweeps may share runs. A run belongs to whoever trains it, and its state is read immediately
before it is trained, so each run is trained once.
"""

from __future__ import annotations

import html
import json
import random
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
from mlflow.utils.mlflow_tags import (
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
    MLFLOW_RUN_NOTE,
)
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.api.compared import (
    ComparedRuns,
    compare_stored_runs,
    split_group_by,
    store_comparison,
)
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.version import __version__
from clear_mlflow.engines import Task, TaskResult
from clear_mlflow.engines.local import LocalEngine, start_program
from clear_mlflow.engines.ray_cluster import LOCAL, RayEngine
from clear_mlflow.grids import (
    Grid,
    PlannedRun,
    complete_runs,
    hash_config,
    hash_json,
    read_grid,
)
from clear_mlflow.journal.run_folder import Outcome, Status
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import select_training_parameters
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.session import check_files, check_parameters, complete_arguments
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, append_lines, escape
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    is_missing_store,
    log_tags,
    mlflow_errors,
    open_store,
    preflight,
    resolve_store_uri,
    set_up_mlflow,
)
from clear_mlflow.store.lease import (
    RENEW_SECONDS,
    Lease,
    build_lease_tags,
    check_not_being_trained,
    is_being_trained,
    is_expired,
)
from clear_mlflow.store.search import (
    get_or_create_experiment,
    get_project_run,
    search_runs,
    select_runs,
)
from clear_mlflow.store.ui_urls import format_comparison_links, read_sweep_comparison
from clear_mlflow.tracking.lifecycle import build_type_tags, create_run
from clear_mlflow.tracking.resume import (
    has_rows,
    is_resume_reserved,
    reserve_resume,
)
from clear_mlflow.tracking.tracked_training import train_sweep_run

Engine: TypeAlias = LocalEngine | RayEngine
ProgramStarter: TypeAlias = Callable[[Sequence[str], Mapping[str, str], str], Any]
GridSource: TypeAlias = Mapping[str, Any] | str | Path | None

# States of a run.
DONE_BEFORE, DONE, FAILED = "done before", "done", "failed"
ELSEWHERE, NOT_DONE, TRAINING = "trains elsewhere", "not done", "training"

_POLL_SECONDS = 0.5
# A sweep takes days, and continues after a restart of the server as its trainings do.
_RETRY_SECONDS, _PAUSE_SECONDS = 600.0, 10.0


@dataclass
class SweepRun:
    """A run of a sweep: one combination of parameters, with its state and MLflow run."""

    planned: PlannedRun = field(repr=False)
    state: str = NOT_DONE
    run_id: str | None = None
    error: str | None = None
    seconds: float = 0.0  # from the start of the last training to its end
    num_tries: int = 0  # trainings that this sweep started
    note: str | None = None  # whether the last training resumes, or why it does not
    started_at: float = field(default=0.0, repr=False)  # monotonic time
    # Number of resumes in the store before this sweep resumed the run; None if it did not.
    resumes_before: str | None = field(default=None, repr=False)
    # Attempts that cannot be resumed: run id to reason.
    refusals: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Name of the MLflow run: strategy, dataset, seed and the other varied parameters."""
        return self.planned.name

    def to_dict(self) -> dict[str, Any]:
        """Return run id, name, state, error, parameters and their hash, for JSON."""
        return {
            "run_id": self.run_id,
            "name": self.planned.name,
            "state": self.state,
            "error": self.error,
            "parameters": dict(self.planned.parameters),
            "fingerprint": self.planned.config_hash,
        }


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The runs of a sweep and their comparison, which notebooks and ``print`` show.

    ``clear_mlflow.runs(EXPERIMENT)`` returns the runs as objects.
    """

    run_id: str  # of the parent run
    runs: tuple[SweepRun, ...]
    comparison: ComparedRuns | None = None
    problems: tuple[str, ...] = ()  # one line each, about anything except single runs

    @property
    def counts(self) -> Counter[str]:
        """Number of runs by state."""
        return Counter(run.state for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """True if every run is done and nothing else went wrong, such as the comparison."""
        return not self.problems and all(run.state in (DONE, DONE_BEFORE) for run in self.runs)

    @property
    def compared(self) -> ComparedRuns:
        """The comparison of the runs. Raises ConfigError if nothing was compared."""
        if self.comparison is None:
            problem = f"nothing was compared in {self.summary}"
            raise ConfigError("; ".join([problem, *self.problems]))
        return self.comparison

    @property
    def summary(self) -> str:
        """Number of runs by state, in one line."""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items()))
        return f"sweep {self.run_id}: {counts or 'no runs'}"

    def __repr__(self) -> str:
        return f"SweepResult({self.summary})"

    def __str__(self) -> str:
        parts = [self.summary, *self.problems]
        return "\n\n".join(parts if self.comparison is None else [*parts, str(self.comparison)])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in (self.summary, *self.problems))
        return lines if self.comparison is None else lines + self.comparison._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Return the runs with their states, the comparison and the problems, for JSON."""
        return {
            "run_id": self.run_id,
            "runs": [run.to_dict() for run in self.runs],
            "compared": None if self.comparison is None else self.comparison.to_dict(),
            "problems": list(self.problems),
        }


def run_sweep(
    grid: GridSource,
    *,
    experiment: str | None,
    run_name: str | None,
    retries: int,
    group_by: str | Sequence[str],
    rank_by: str,
    start: ProgramStarter = start_program,
    **engine_options: Any,
) -> tuple[SweepResult, StoppingSignals]:
    """Train and compare the runs of a grid, like :func:`clear_mlflow.sweep`.

    Prints a line to standard error when a run starts or ends. Also returns the received signals:
    a signal such as SIGINT ends the sweep early, and does not raise.

    start: starts a training process on this machine, like :func:`.local.start_program`.
    engine_options: the other arguments of :func:`build_engine`.
    """
    if retries < 0:
        raise ConfigError(f"retries is {retries}; expected a whole number of at least 0")
    planned = read_checked_grid(grid, engine_options["engine"])
    engine = build_engine(planned, start=start, **engine_options)
    set_up_mlflow()
    client = preflight(experiment=experiment)
    # MLflow may have opened a run for this process, in another experiment.
    project_run = None if experiment else get_project_run(client, names.KIND_SWEEP)
    experiment_id = (
        get_or_create_experiment(client, experiment)
        if project_run is None
        else str(project_run.info.experiment_id)
    )
    states = [run.state for run in SweepStore(client, experiment_id).plan(planned)]
    num_waiting = states.count(NOT_DONE)
    if not num_waiting:
        engine = LocalEngine()  # no cluster is started without need
    # The engine is entered first: Ray takes the signals for itself when it starts.
    with engine, StoppingSignals() as signals:
        if num_waiting:
            _print_line(
                f"{num_waiting} of {len(states)} runs to train, {engine.describe_capacity()}"
            )
        result = train_and_compare(
            planned,
            client,
            experiment_id,
            engine,
            retries=retries,
            group_by=group_by,
            rank_by=rank_by,
            run_name=run_name,
            should_stop=lambda: bool(signals.received),
        )
    return result, signals


def plan_sweep(grid: GridSource, **engine_options: Any) -> tuple[list[SweepRun], str]:
    """Return the runs of a grid with their states, and how many would train at a time, as text.

    The text is empty if no run would be trained. Writes nothing to the store. Connects to the Ray
    cluster, or starts one, if the engine is ray and runs would be trained.

    engine_options: arguments of :func:`build_engine`.
    """
    planned = read_checked_grid(grid, engine_options["engine"])
    engine = build_engine(planned, **engine_options)
    client, name = open_store(), MLFLOW_EXPERIMENT_NAME.get()
    runs = [SweepRun(run) for run in planned.runs]
    if not is_missing_store(client.tracking_uri) and (
        not name or client.get_experiment_by_name(name) is not None
    ):
        runs = SweepStore(client, get_or_create_experiment(client)).plan(planned)
    if all(run.state != NOT_DONE for run in runs):
        return runs, ""
    with engine:
        return runs, engine.describe_capacity()


def read_checked_grid(grid: GridSource, engine: str) -> Grid:
    """Read a grid and check the parameters of every run.

    engine: "local" or "ray"; with "local", data folders and weights must exist, too. Raises
    ConfigError if *grid* is None, a run is invalid, or two runs would train the same.
    """
    if grid is None:
        raise ConfigError("grid is none; pass a YAML file, for example examples/sweep.yaml")
    planned = read_grid(grid if isinstance(grid, Mapping) else Path(grid))
    for run in planned.runs:
        try:
            check_parameters(run.config)
            if engine == "local":  # the machines of a cluster have their own files
                check_files(run.config)
        except ClearError as error:
            raise ConfigError(f"a run of the sweep, {safe_repr(run.name)}: {error}") from None
    return complete_runs(planned, complete_arguments)


def build_engine(
    grid: Grid,
    *,
    engine: str,
    jobs: int | str,
    address: str,
    cpus: float,
    gpus: float | str,
    start: ProgramStarter = start_program,
) -> Engine:
    """Return the engine that trains the runs: processes on this machine, or a Ray cluster.

    "auto" for jobs is one process, or as many runs as the cluster has room for. See
    :func:`clear_mlflow.sweep` for the options. Raises ConfigError if one is invalid.

    start: starts a training process on this machine.
    """
    if isinstance(jobs, int) and jobs < 1:
        raise ConfigError(f"jobs is {jobs}; expected a whole number of at least 1, or auto")
    for name, amount in (("cpus", cpus), ("gpus", gpus)):
        # Ray shares a core or GPU among runs, but more than one only as a whole number.
        if not isinstance(amount, str) and (amount < 0 or (amount > 1 and amount % 1)):
            raise ConfigError(f"{name} is {amount}; expected a number, for example 1, 2 or 0.5")
    if engine == "ray":
        needs_no_gpu = all(run.config.device == "cpu" for run in grid.runs)
        return RayEngine(
            train_sweep_run,
            address,
            cpus=cpus,
            gpus=float(gpus) if gpus != AUTO else 0.0 if needs_no_gpu else None,
            jobs=None if jobs == AUTO else int(jobs),
        )
    ray_options = {"address": (address, LOCAL), "cpus": (cpus, 1), "gpus": (gpus, AUTO)}
    if unused := [
        f"{name} {value!r}" for name, (value, default) in ray_options.items() if value != default
    ]:
        raise ConfigError(
            f"engine is {engine}, but {' and '.join(unused)} applies only to Ray; pass engine=ray, "
            "or leave it out"
        )
    return LocalEngine(1 if jobs == AUTO else int(jobs), start)


def train_and_compare(
    grid: Grid,
    client: MlflowClient,
    experiment_id: str,
    engine: Engine,
    *,
    retries: int = 2,
    group_by: str | Sequence[str] = AUTO,
    rank_by: str = AUTO,
    run_name: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepResult:
    """Train the runs of a grid that are not done, compare all, and store the result.

    Prints a line to standard error when a run starts or ends. The parent run is opened, and closed
    with the comparison. If an error is raised, it is FAILED. See :func:`clear_mlflow.sweep` for the
    other options.

    engine: trains the runs; the caller has entered it. should_stop: called repeatedly; if it
    returns True, active runs are stopped and scored.
    """
    engine.check_store(resolve_store_uri(client.tracking_uri))
    store = SweepStore(client, experiment_id)
    runs = store.plan(grid)
    parent_id = store.open_parent_run(grid, run_name)
    try:
        _train_runs(store, runs, engine, retries, should_stop)
        result, comparison_run = SweepResult(parent_id, tuple(runs)), None
        if not should_stop():
            labels = split_group_by(group_by)
            labels = grid.group_by if labels is None else labels
            result, comparison_run = store.compare(result, labels, rank_by)
        store.close_parent_run(result, comparison_run, is_stopped=should_stop())
        return result
    except BaseException:
        with suppress(ClearError):
            store_outcome(client, parent_id, Outcome("FAILED"))
        raise


def _print_state(run: SweepRun, runs: Sequence[SweepRun]) -> None:
    """Print a run's state to standard error, after "[ended/total]"."""
    event = run.state
    if run.state in (DONE, FAILED):
        event += f" in {run.seconds:.0f} s"
    elif run.state == TRAINING:
        event = "started" if run.num_tries == 1 else f"started again, try {run.num_tries}"
        event += f" ({run.note})" if run.note else ""
    elif run.state == NOT_DONE:
        event = "ended early"
    error = f": {run.error}" if run.error else ""
    num_ended = sum(other.state in (DONE, FAILED) for other in runs)
    line = one_line(f"{event}: {run.name}{error} (run {run.run_id})")
    _print_line(f"[{num_ended}/{len(runs)}] {line}")


def _train_runs(
    store: SweepStore,
    runs: Sequence[SweepRun],
    engine: Engine,
    retries: int,
    should_stop: Callable[[], bool],
) -> None:
    """Train the runs that are not done, until all have ended.

    Stops and waits for active runs if *should_stop* returns True. Renews the parent run's lease.
    """
    queue = deque(run for run in runs if run.state != DONE_BEFORE)
    active: dict[str, SweepRun] = {}
    is_stopped = False
    renewed_at = time.monotonic()
    while active or (queue and not should_stop()):
        while queue and not should_stop() and engine.count_free_slots() > 0:
            run = queue[0]
            _retry_while_unreachable(partial(store.claim, run), should_stop)
            queue.popleft()
            if run.state == TRAINING and run.run_id is not None:
                active[run.run_id] = run
                engine.start(store.build_task(run.planned, run.run_id))
            _print_state(run, runs)
        if should_stop() and not is_stopped:
            is_stopped = True
            engine.stop()
        for task_result in engine.wait_for_results(_POLL_SECONDS):
            run = active[task_result.run_id]
            _retry_while_unreachable(
                partial(
                    store.record_end,
                    run,
                    task_result,
                    may_retry=run.num_tries <= retries,
                    is_stopped=should_stop(),
                ),
                should_stop,
            )
            del active[task_result.run_id]
            if run.state == NOT_DONE:
                queue.append(run)
            _print_state(run, runs)
        if time.monotonic() - renewed_at > RENEW_SECONDS:
            renewed_at = time.monotonic()
            with suppress(ClearError):
                store.renew_lease()
    for run in runs:
        if run.state == ELSEWHERE and store.is_done_now(str(run.run_id)):
            run.state = DONE_BEFORE


def _retry_while_unreachable(step: Callable[[], object], should_stop: Callable[[], bool]) -> None:
    """Repeat *step* for up to 10 minutes while it raises TrackingError."""
    deadline = time.monotonic() + _RETRY_SECONDS
    while True:
        try:
            step()
            return
        except TrackingError:
            if should_stop() or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


class SweepStore:
    """Reads and writes the MLflow runs of a sweep: its parent run, and one run per training.

    Args:
        client: client of the store.
        experiment_id: experiment of the runs.
    """

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._parent_id: str | None = None  # id of the parent run, after it was opened

    def plan(self, grid: Grid) -> list[SweepRun]:
        """Return each run of a grid with its state in the store, which is only read.

        The state is "done before", "not done", or "trains elsewhere": another process trains it
        now. To find that out may take up to three minutes.
        """
        attempts: dict[str, list[Run]] = {}
        for stored_run in self._search_sweep_runs("!= ''"):
            attempts.setdefault(_hash_stored_config(stored_run, grid), []).append(stored_run)
        runs = [SweepRun(planned) for planned in grid.runs]
        for run in runs:
            stored_runs = attempts.get(run.planned.config_hash, [])
            if state_and_id := self._find_done_or_active_attempt(stored_runs):
                run.state, run.run_id = state_and_id
        return runs

    def build_task(self, planned: PlannedRun, run_id: str) -> Task:
        """Return what an engine needs to train a planned run into an MLflow run.

        Leaves out ``memory`` if the strategy lacks a buffer: a grid may set it for all strategies,
        but passed to such a run it would be an error.
        """
        uri = resolve_store_uri(self._client.tracking_uri)
        parameters = dict(planned.parameters)
        if "memory" in planned.config.ignored_parameters:
            parameters.pop("memory", None)
        return Task(parameters, run_id, self._experiment_id, uri)

    def claim(self, run: SweepRun) -> None:
        """Open or resume an MLflow run for a run, unless it is done or another process trains it.

        Sets the state to "done before", "trains elsewhere" or "training". Deletes earlier MLflow
        runs with the same parameters that are not resumed. Waits and tries again while another
        sweep claims the same run: both write first and read then, so at least one sees the other
        and withdraws.
        """
        while True:
            attempts = self._list_attempts(run)
            if state_and_id := self._find_done_or_active_attempt(attempts):
                run.state, run.run_id = state_and_id
                return
            interrupted, note = self._find_resumable_attempt(run, attempts)
            with mlflow_errors("open a run of the sweep"):
                run_id = self._open_run(run) if interrupted is None else interrupted.info.run_id
                if interrupted is not None:  # a sweep of another grid may have started it
                    self._client.set_tag(run_id, MLFLOW_PARENT_RUN_ID, self._parent_id)
                    self._client.update_run(run_id, name=run.name)
                others = [r for r in self._list_attempts(run) if r.info.run_id != run_id]
                if not self._find_done_or_active_attempt(others):
                    for attempt in others:
                        self._client.delete_run(attempt.info.run_id)
                    break
                if interrupted is None:
                    self._client.delete_run(run_id)
            time.sleep(random.uniform(0.5, 2.0))  # noqa: S311  (so that one of two is first)
        run.state, run.run_id, run.error, run.note = TRAINING, run_id, None, note
        run.resumes_before = None
        if interrupted is not None:
            run.resumes_before = interrupted.data.tags.get(names.RESUMES_TAG, "0")
        run.num_tries += 1
        run.started_at = time.monotonic()

    def _open_run(self, run: SweepRun) -> str:
        """Create an MLflow run with status SCHEDULED, which the training sets to RUNNING."""
        tags = {
            **build_type_tags(names.KIND_TRAIN),
            MLFLOW_PARENT_RUN_ID: str(self._parent_id),
            names.SWEEP_RUN_TAG: run.planned.config_hash,
        }
        run_id = create_run(self._client, self._experiment_id, run.name, tags)
        self._client.update_run(run_id, status="SCHEDULED")
        return run_id

    def record_end(
        self, run: SweepRun, task_result: TaskResult, *, may_retry: bool, is_stopped: bool
    ) -> None:
        """Set the state of a run after its training process ended, and the error and the seconds.

        The state is "done", "trains elsewhere", "failed" or "not done": then it is trained again,
        unless the sweep was stopped. That is also the state if the process could not resume the
        MLflow run, which is noted, so that the next training begins anew. Closes and scores the
        MLflow run if the process could not.

        may_retry: True if a run whose process was killed may be resumed.
        """
        with mlflow_errors(f"read run {task_result.run_id}"):
            stored_run = self._client.get_run(task_result.run_id)
        tags = stored_run.data.tags
        error = task_result.error or f"its training ended with exit code {task_result.exit_code}"
        error = " ".join(tags.get(names.ERROR_TAG, error).split())
        if _is_done(stored_run):
            state, reason = DONE, None
        elif task_result.exit_code == 2 and self._is_trained_elsewhere(stored_run):
            state, reason = ELSEWHERE, None
        elif is_stopped:
            self._close_run(stored_run, "KILLED", "the sweep was stopped")
            state, reason = NOT_DONE, "stopped"
        elif task_result.is_lost and may_retry:
            # Only the engine knows so far that the process is dead.
            self._close_run(stored_run, "KILLED", error)
            state, reason = NOT_DONE, task_result.error
        elif not task_result.is_lost and run.resumes_before == tags.get(names.RESUMES_TAG, "0"):
            # The training could not resume the run and left it as it was.
            reason = task_result.error or error
            run.refusals[task_result.run_id] = reason
            run.num_tries -= 1
            state = NOT_DONE
        else:
            tries = f" ({run.num_tries} tries)" if task_result.is_lost else ""
            state, reason = FAILED, f"{error}{tries}"
            self._close_run(stored_run, "KILLED" if task_result.is_lost else "FAILED", reason)
        run.state, run.error = state, reason
        run.seconds = time.monotonic() - run.started_at

    def is_done_now(self, run_id: str) -> bool:
        """Read an MLflow run, and return True if it is done."""
        with mlflow_errors(f"read run {run_id}"):
            return _is_done(self._client.get_run(run_id))

    def renew_lease(self) -> None:
        """Renew this process's right to write to the parent run. Call it every 30 seconds.

        Raises LeaseLostError if another process has taken the parent run over.
        """
        Lease(self._client, str(self._parent_id)).renew()

    def open_parent_run(self, grid: Grid, name: str | None) -> str:
        """Open the parent run, which all sweeps of the same grid share, and return its id.

        Uses the oldest parent run of the grid in the experiment, or else the run that ``mlflow
        run`` opened for this process, or else a new one. Sets it to RUNNING, and stores the grid in
        it. Raises TrackingError if another process works on the same sweep.

        name: name of the parent run if the grid has none yet, or None to build it from the grid.
        """
        client = self._client
        project_run = get_project_run(client, names.KIND_SWEEP)
        tags = {
            names.KIND_TAG: names.KIND_SWEEP,
            names.SWEEP_TAG: grid.digest,
            **build_lease_tags(),
            names.VERSION_TAG: __version__,
        }
        with mlflow_errors("open the run of the sweep"):
            parents = client.search_runs(
                [self._experiment_id],
                f"tags.`{names.SWEEP_TAG}` = '{grid.digest}'",
                order_by=["attributes.start_time ASC"],
                max_results=1,
            )
            if not parents:
                tags[MLFLOW_RUN_NAME] = name or _build_name(grid)
                run_id = (
                    create_run(client, self._experiment_id, None, tags)
                    if project_run is None
                    else str(project_run.info.run_id)
                )
            else:
                run_id = str(parents[0].info.run_id)
                check_not_being_trained(client, parents[0], "wait for its end, or stop it")
                if project_run is not None:
                    project_tags = {
                        names.KIND_TAG: names.KIND_SWEEP,
                        names.SWEEP_GOES_ON_TAG: run_id,
                        MLFLOW_RUN_NOTE: f"Continued the sweep of run {run_id}.",
                    }
                    log_tags(client, project_run.info.run_id, project_tags)
                tags[names.RESUMES_TAG] = str(reserve_resume(client, parents[0]))
            log_tags(client, run_id, tags)
            client.update_run(run_id, status="RUNNING")
            client.log_text(run_id, grid.text, names.SWEEP_GRID)
        self._parent_id = run_id
        return run_id

    def compare(
        self, result: SweepResult, labels: Sequence[str], rank_by: str
    ) -> tuple[SweepResult, Run | None]:
        """Compare the runs. Return the result with the comparison, and the run that stores it.

        A stored comparison of the same runs is reused. If the runs cannot be compared, the error
        is added to the problems of the result, and the run is None.

        labels: parameters or tags that the seeds of one method share. rank_by: metric, or "auto".
        """
        run_ids = tuple(str(run.run_id) for run in result.runs if self._is_compared(run))
        if not run_ids:
            return result, None
        params = {"group_by": ",".join(labels) or NONE, "rank_by": rank_by}
        digest = hash_json(json.dumps([sorted(run_ids), params], sort_keys=True))
        try:
            compared = compare_stored_runs(
                self._client,
                select_runs(self._client, run_ids=run_ids),
                group_by=labels,
                rank_by=None if rank_by == AUTO else rank_by,
                explicit=True,
            )
            run = self._find_comparison(result.run_id, digest)
            if run is None:
                run = store_comparison(
                    self._client, compared, experiment_id=self._experiment_id, params=params
                )
                with mlflow_errors(f"tag run {run.info.run_id}"):
                    self._client.set_tag(run.info.run_id, MLFLOW_PARENT_RUN_ID, result.run_id)
                    reference = json.dumps({"run_id": run.info.run_id, "of": digest})
                    self._client.set_tag(result.run_id, names.SWEEP_COMPARISON_TAG, reference)
            links = tuple(format_comparison_links(self._client, run))
            compared = replace(compared, run_id=str(run.info.run_id), links=links)
            return replace(result, comparison=compared), run
        except ClearError as error:
            return replace(result, problems=(f"the runs were not compared: {error}",)), None

    def close_parent_run(
        self, result: SweepResult, comparison_run: Run | None, *, is_stopped: bool
    ) -> None:
        """Write the final states of all runs into the parent run, and set its status.

        The status is FINISHED if all went well, else FAILED, or KILLED if *is_stopped*. Also logs a
        description, and the metrics of the best method. comparison_run: run that stores the
        comparison, or None.
        """
        status: Status = "FINISHED" if result.is_complete else "FAILED"
        with mlflow_errors(f"close run {result.run_id}"):
            text = json.dumps([run.to_dict() for run in result.runs], indent=2) + "\n"
            self._client.log_text(result.run_id, text, names.SWEEP_RUNS_JSON)
            tags, metrics = {MLFLOW_RUN_NOTE: _build_note(result, comparison_run)}, []
            if comparison_run is not None:
                now = get_current_time_millis()
                # Also under the runs' own names: MLflow's list shows the parent run first.
                metrics = [
                    Metric(metric_name, value, now, 0)
                    for name, value in comparison_run.data.metrics.items()
                    if name.startswith(names.LEADER_METRICS)
                    for metric_name in (name, name.removeprefix(names.LEADER_METRICS))
                ]
                if names.LEADER_TAG in comparison_run.data.tags:
                    tags[names.LEADER_TAG] = comparison_run.data.tags[names.LEADER_TAG]
            run_tags = [RunTag(name, value) for name, value in tags.items()]
            self._client.log_batch(result.run_id, metrics=metrics, tags=run_tags)
            store_outcome(self._client, result.run_id, Outcome("KILLED" if is_stopped else status))

    def _search_sweep_runs(self, condition: str) -> list[Run]:
        """Return the sweeps' runs whose hash of parameters meets a condition."""
        condition = f"tags.`{names.SWEEP_RUN_TAG}` {condition}"
        return list(search_runs(self._client, [self._experiment_id], condition))

    def _list_attempts(self, run: SweepRun) -> list[Run]:
        """Return the MLflow runs with a run's parameters, newest first."""
        return [
            attempt
            for attempt in self._search_sweep_runs(f"= '{run.planned.config_hash}'")
            if attempt.info.status != "FAILED" or not self._is_in_other_live_sweep(attempt)
        ]

    def _find_done_or_active_attempt(self, attempts: Sequence[Run]) -> tuple[str, str] | None:
        """Return state and id of a done or active run, or None."""
        for state, has_state in ((DONE_BEFORE, _is_done), (ELSEWHERE, self._is_trained_elsewhere)):
            for attempt in reversed(attempts):
                if has_state(attempt):
                    return state, str(attempt.info.run_id)
        return None

    def _is_trained_elsewhere(self, stored_run: Run) -> bool:
        """Return True if another process trains a run. May wait three minutes."""
        if is_being_trained(self._client, stored_run) or is_resume_reserved(stored_run):
            return True
        # A live sweep starts what is SCHEDULED, and resumes what was KILLED.
        is_open = stored_run.info.status not in ("FINISHED", "FAILED")
        return is_open and self._is_in_other_live_sweep(stored_run)

    def _is_in_other_live_sweep(self, stored_run: Run) -> bool:
        """Return True if a run belongs to another sweep whose process is alive."""
        parent_id = stored_run.data.tags.get(MLFLOW_PARENT_RUN_ID)
        if parent_id in (None, self._parent_id):
            return False
        (parent,) = select_runs(self._client, run_ids=[parent_id])
        return isinstance(parent, Run) and is_being_trained(self._client, parent)

    def _find_resumable_attempt(
        self, run: SweepRun, attempts: Sequence[Run]
    ) -> tuple[Run | None, str | None]:
        """Return the newest run to resume, or None, with a note."""
        note = None
        for attempt in sorted(attempts, key=lambda stored: stored.info.start_time, reverse=True):
            run_id = attempt.info.run_id
            if attempt.info.status != "KILLED" and not is_expired(self._client, attempt):
                continue
            if not has_rows(self._client, run_id):
                note = note or "from its beginning: it had ended before its first row"
            elif run_id in run.refusals:
                note = note or f"from its beginning: {run.refusals[run_id]}"
            else:
                return attempt, "resumed"
        return None, note

    def _close_run(self, stored_run: Run, status: Status, error: str) -> None:
        """Score an open run, and set its status and error."""
        if stored_run.info.status in ("RUNNING", "SCHEDULED"):
            closed = store_outcome(self._client, stored_run.info.run_id, Outcome(status, error))
            list(rescore_runs(self._client, [closed]))

    def _is_compared(self, run: SweepRun) -> bool:
        """Return True if a run is done or diverged."""
        if run.run_id is None or run.state != FAILED:
            return run.state in (DONE, DONE_BEFORE)
        with mlflow_errors(f"read run {run.run_id}"):
            tags = self._client.get_run(run.run_id).data.tags
        return tags.get(names.DIVERGED_TAG) == "true"

    def _find_comparison(self, parent_id: str, digest: str) -> Run | None:
        """Return the run that stores the same comparison, or None."""
        with mlflow_errors(f"read run {parent_id}"):
            reference = read_sweep_comparison(self._client.get_run(parent_id).data.tags)
        if reference.get("of") != digest:
            return None
        (run,) = select_runs(self._client, run_ids=[str(reference.get("run_id"))])
        return run if isinstance(run, Run) else None


def _is_done(stored_run: Run) -> bool:
    """Return True if a run is FINISHED and completely stored."""
    is_finished = stored_run.info.status == "FINISHED"
    return is_finished and stored_run.data.tags.get(names.ROWS_TAG) == "complete"


def _hash_stored_config(stored_run: Run, grid: Grid) -> str:
    """Hash a run's logged parameters, or return its tag if that fails."""
    parameters = select_training_parameters(stored_run.data.params)
    # The user's code that a store names is imported only if the grid names it, too.
    trusted = {(planned.config.strategy, planned.config.dataset) for planned in grid.runs}
    with suppress(ConfigError):
        config = TrainConfig.resolve(parameters)
        if parameters and (config.strategy, config.dataset) in trusted:
            return hash_config(complete_arguments(config))
    return str(stored_run.data.tags[names.SWEEP_RUN_TAG])


def _build_name(grid: Grid) -> str:
    """Return a name for the parent run: up to four strategies, and the number of runs."""
    strategies = list(dict.fromkeys(run.config.strategy for run in grid.runs))
    methods = ", ".join(strategies[:4]) + (", …" if strategies[4:] else "")
    return f"sweep {methods}: {len(grid.runs)} run{'s' if len(grid.runs) > 1 else ''}"


def _build_note(result: SweepResult, comparison_run: Run | None) -> str:
    """Return Markdown for the parent run: counts of states, failed runs, and the comparison."""
    counts = Counter("done" if run.state == DONE_BEFORE else run.state for run in result.runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [f"{len(result.runs)} runs: {states}. All of them: `{names.SWEEP_RUNS_JSON}`.", ""]
    failed = [run for run in result.runs if run.state == FAILED]
    if failed:
        lines += ["| failed | reason |", "|---|---|"]
        rows = [
            f"| {escape(run.planned.name, 200)} | {escape(str(run.error), 300)} |" for run in failed
        ]
        lines = [*append_lines(lines, rows, MAX_NOTE_BYTES // 2, "more"), ""]
    if comparison_run is not None:
        note = comparison_run.data.tags.get(MLFLOW_RUN_NOTE, "")
        # Without its heading: MLflow's page folds a description after some four lines.
        note = re.sub(r"\A### .*\n\n", "", note)
        lines = append_lines(lines, note.splitlines(), MAX_NOTE_BYTES, "more lines")
    return "\n".join(lines)


def _print_line(line: str) -> None:
    """Print a line to standard error, if it is still open."""
    with suppress(OSError):  # nobody may be reading any more
        print(line, file=sys.stderr, flush=True)
