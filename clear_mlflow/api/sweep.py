"""A sweep in MLflow: its runs below one run, those that are done left alone, the rest trained."""

from __future__ import annotations

import html
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
from mlflow.utils.mlflow_tags import (
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
    MLFLOW_RUN_NOTE,
)
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.api.compared import ComparedRuns, read_comparison, write_comparison
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.version import __version__
from clear_mlflow.engines import Ended, Task
from clear_mlflow.engines.local import LocalEngine
from clear_mlflow.engines.ray_cluster import LOCAL, RayEngine
from clear_mlflow.grids.grid import (
    Grid,
    PlannedRun,
    complete_runs,
    digest_of,
    fingerprint,
    read_grid,
)
from clear_mlflow.journal.uploader import is_final
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import logged_parameters
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.session import check_files, check_parameters, complete_arguments
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, escaped, filled
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    log_tags,
    mlflow_errors,
    preflight,
    resolve_store_uri,
    set_up_mlflow,
)
from clear_mlflow.store.lease import Lease, is_expired, is_held, lease_tags
from clear_mlflow.store.search import (
    get_or_create_experiment,
    get_project_run,
    search_runs,
    select_runs,
)
from clear_mlflow.store.sqlite import get_sqlite_path
from clear_mlflow.store.ui_urls import format_comparison_links, read_sweep_comparison
from clear_mlflow.tracking.lifecycle import create_run, end
from clear_mlflow.tracking.resume import claim, holds_rows, is_claimed, read_resume_point
from clear_mlflow.tracking.supervised import train_into

Engine: TypeAlias = LocalEngine | RayEngine

_HEARTBEAT_SECONDS = 30.0
_LOOK_SECONDS = 0.5
# A sweep takes days, and its trainings outlast a server that is started anew: so does the sweep.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 600.0, 10.0

# What became of a planned run.
DONE_BEFORE, DONE, FAILED = "done before", "done", "failed"
ELSEWHERE, NOT_DONE = "trains elsewhere", "not done"


def sweep(
    grid: str | Path | Mapping[str, Any],
    *,
    experiment: str | None = None,
    run_name: str | None = None,
    engine: str = "local",
    jobs: int | None = None,
    address: str = LOCAL,
    cpus: float = 1,
    gpus: float | None = None,
    retries: int = 2,
    group_by: str | Sequence[str] | None = None,
    rank_by: str | None = None,
) -> SweepResult:
    """Train every combination of a grid, each as a run of its own below one run, and compare them.

    Runs of the experiment that are done are left alone and interrupted ones are resumed, so the
    same call continues where it stopped. A run that fails does not stop the others.

    Args:
        grid: a YAML file, or its content: ``{"fixed": {...}, "grid": {"strategy": [...]}}``.
        experiment: of the runs; that of the environment when not given.
        run_name: of the run above them.
        engine: ``local``, this machine, or ``ray``, a cluster.
        address: of a running Ray cluster; ``local`` starts Ray on this machine.
        cpus: cores of each run, on Ray.
        gpus: GPUs of each run, on Ray; 0.5: two runs share one. When not given, one where the
            cluster has any.
        jobs: runs at a time; one, and on Ray as many as there is room for.
        retries: how often a run is resumed that was killed or whose machine went down.
        group_by: as of :func:`clear_mlflow.compare`; strategy, dataset and all that varies beside
            seeds when not given.
        rank_by: likewise.

    Returns:
        What became of each run, and ``compared``, the comparison; it shows itself.

    Raises:
        ConfigError: the grid asks for something that cannot be trained.
        TrackingError: MLflow cannot keep the runs, or another process works on the same sweep.
        KeyboardInterrupt: it was stopped by Ctrl-C, once the runs under way had been scored; of
            another signal, SystemExit.
    """
    planned, on, client, place = prepared(
        grid, engine, jobs, address, cpus=cpus, gpus=gpus, experiment=experiment
    )
    by = group_by.split(",") if isinstance(group_by, str) else group_by
    with on, StoppingSignals() as signals:
        how = Sweep(
            grid=planned,
            retries=retries,
            group_by=None if by is None else tuple(by),
            rank_by=rank_by,
            stopping=lambda: bool(signals.received),
            on_run=reporter(len(planned.runs)),
            name=run_name,
        )
        result = how.over(client, place, on)
    signals.raise_received()
    return result


def prepared(
    grid: str | Path | Mapping[str, Any],
    engine: str,
    jobs: int | None,
    address: str,
    *,
    cpus: float,
    gpus: float | None,
    experiment: str | None = None,
) -> tuple[Grid, Engine, MlflowClient, str]:
    """The runs of a grid, each of which can be trained, and where; the store and the experiment."""
    planned = read_checked_grid(grid, engine)
    on = engine_named(planned, engine, jobs, address, cpus=cpus, gpus=gpus)
    set_up_mlflow()
    client = preflight(experiment=experiment)
    if experiment:
        return planned, on, client, get_or_create_experiment(client, experiment)
    # Of the run that MLflow opened for this process, else the environment's.
    own = get_project_run(client, names.KIND_SWEEP)
    place = get_or_create_experiment(client) if own is None else str(own.info.experiment_id)
    return planned, on, client, place


def read_checked_grid(grid: str | Path | Mapping[str, Any], engine: str) -> Grid:
    """Read a grid and check the parameters, folders and weights of every run.

    Raises ConfigError if a run cannot be trained, or if two runs are equal in effect.
    """
    planned = read_grid(grid if isinstance(grid, Mapping) else Path(grid))
    for run in planned.runs:
        try:
            check_parameters(run.config)
            if engine == "local":  # the machines of a cluster have files of their own
                check_files(run.config)
        except ClearError as error:
            raise ConfigError(f"a run of the sweep, {safe_repr(run.name)}: {error}") from None
    return complete_runs(planned, complete_arguments)


def plan_runs(grid: Grid) -> list[SweptRun]:
    """Return the states of a grid's runs without creating a store or an experiment."""
    set_up_mlflow()
    database, name = get_sqlite_path(mlflow.get_tracking_uri()), MLFLOW_EXPERIMENT_NAME.get()
    if database is None or database.exists():
        client = preflight(opens_run=False)
        own = get_project_run(client, names.KIND_SWEEP)
        if own is not None:
            return find_runs(client, str(own.info.experiment_id), grid)
        if not name or client.get_experiment_by_name(name) is not None:
            return find_runs(client, get_or_create_experiment(client), grid)
    return [SweptRun(run) for run in grid.runs]


def engine_named(
    grid: Grid, engine: str, jobs: int | None, address: str, *, cpus: float, gpus: float | None
) -> Engine:
    """Where a grid's runs are trained: on this machine, or on a Ray cluster."""
    if engine == "ray":
        if gpus is None and all(run.config.device == "cpu" for run in grid.runs):
            gpus = 0.0
        return RayEngine(train_into, address, cpus=cpus, gpus=gpus, jobs=jobs)
    given = {"address": (address, LOCAL), "cpus": (cpus, 1), "gpus": (gpus, None)}
    if more := [f"{name} {value!r}" for name, (value, usual) in given.items() if value != usual]:
        raise ConfigError(
            f"engine is {engine} beside {' and '.join(more)}, which only Ray knows; pass "
            "engine=ray with it, or leave it out"
        )
    return LocalEngine(jobs or 1)


@dataclass(frozen=True)
class SweptRun:
    """One run that a sweep asks for, and what became of it."""

    planned: PlannedRun = field(repr=False)
    state: str = NOT_DONE
    run_id: str | None = None
    error: str | None = None
    seconds: float | None = None  # from its start in this call to its end
    tries: int = 0  # in this call
    note: str | None = None  # of its start: whether it resumes, or why it does not

    @property
    def name(self) -> str:
        """Of the MLflow run: what it trains."""
        return self.planned.name

    def to_dict(self) -> dict[str, Any]:
        """What became of it, as JSON has it."""
        return {
            "run_id": self.run_id,
            "name": self.planned.name,
            "state": self.state,
            "error": self.error,
            "parameters": dict(self.planned.asked),
            "fingerprint": self.planned.fingerprint,
        }


@dataclass(frozen=True, repr=False)
class SweepResult:
    """What became of all runs of a sweep; a notebook shows their comparison, ``print`` its tables.

    ``clear_mlflow.runs(EXPERIMENT)`` gives the runs as objects.
    """

    run_id: str  # of the run above them
    runs: tuple[SweptRun, ...]
    comparison_run: Run | None = None
    comparison: ComparedRuns | None = None
    problems: tuple[str, ...] = ()  # what beside the runs went wrong, one line each

    @property
    def counts(self) -> Counter[str]:
        """State to number of runs."""
        return Counter(run.state for run in self.runs)

    @property
    def is_well(self) -> bool:
        """Whether every run is done, and compared."""
        return not self.problems and all(run.state in (DONE, DONE_BEFORE) for run in self.runs)

    @property
    def compared(self) -> ComparedRuns:
        """The comparison of all runs that are done.

        Raises:
            ConfigError: none is, or they could not be compared.
        """
        if self.comparison is None:
            raise ConfigError(
                "; ".join([f"nothing was compared in {self.summary}", *self.problems])
            )
        return self.comparison

    @property
    def summary(self) -> str:
        """How many runs are done, failed or are still to do."""
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
        """What became of each run, and the comparison, as JSON has it."""
        return {
            "run_id": self.run_id,
            "runs": [run.to_dict() for run in self.runs],
            "compared": None if self.comparison is None else self.comparison.to_dict(),
            "problems": list(self.problems),
        }


def reporter(total: int) -> Callable[[SweptRun], None]:
    """Says on standard error what becomes of each run, as it happens."""
    ended = 0

    def report(run: SweptRun) -> None:
        nonlocal ended
        if run.state in (DONE_BEFORE, ELSEWHERE):
            what = run.state
        elif run.state in (DONE, FAILED):
            ended += 1
            took = f" in {run.seconds:.0f} s" if run.seconds is not None else ""
            what = f"{run.state}{took}"
        elif run.error is not None:
            what = "ended early"
        else:
            what = "started" if run.tries == 1 else f"started again, try {run.tries}"
            what += f" ({run.note})" if run.note else ""
        why = f": {run.error}" if run.error else ""
        line = one_line(f"{what}: {run.planned.name}{why} (run {run.run_id})")
        with suppress(OSError):
            print(f"[{ended}/{total}] {line}", file=sys.stderr, flush=True)

    return report


@dataclass(kw_only=True)
class Sweep:
    """How a sweep is worked through, and its runs while it is; for one call of :meth:`over`."""

    grid: Grid
    retries: int = 2  # how often a run is taken up again whose worker was killed
    group_by: tuple[str, ...] | None = None  # of the comparison; None: what varies, but for seeds
    rank_by: str | None = None  # of the comparison; None: a usual metric
    stopping: Callable[[], bool] = lambda: False  # asked again and again
    on_run: Callable[[SweptRun], None] = lambda _: None  # called as each starts and ends
    name: str | None = None  # of the run above them; made of the grid when not given
    # From here on the work's own; of runs by their id.
    client: MlflowClient = field(init=False)
    experiment_id: str = field(init=False)
    engine: Engine = field(init=False)
    above: str = field(init=False)
    runs: list[SweptRun] = field(init=False)
    waiting: deque[int] = field(default_factory=deque, init=False)
    under_way: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    resumed: dict[str, str] = field(default_factory=dict, init=False)  # how often before this time
    refused: dict[str, str] = field(default_factory=dict, init=False)  # why it cannot be resumed
    beaten: float = field(default_factory=time.monotonic, init=False)

    def over(self, client: MlflowClient, experiment_id: str, engine: Engine) -> SweepResult:
        """Do all runs that are not done, by an engine that was entered, and compare them all."""
        self.client, self.experiment_id, self.engine = client, experiment_id, engine
        engine.check_store(resolve_store_uri(client.tracking_uri))
        self.runs = find_runs(client, experiment_id, self.grid)
        self.above = _open(client, experiment_id, self.grid, self.name)
        try:
            self._do()
            result = SweepResult(self.above, tuple(self.runs))
            if not self.stopping():
                result = self._compared(result)
            _close(client, result, stopped=self.stopping())
            return result
        except BaseException:
            with suppress(ClearError):
                end(client, self.above, "FAILED")
            raise

    def _do(self) -> None:
        """Until all runs have ended, or the sweep is stopped and those under way have ended."""
        self.waiting.extend(i for i, run in enumerate(self.runs) if run.state != DONE_BEFORE)
        is_stopped = False
        while self.under_way or (self.waiting and not self.stopping()):
            while self.waiting and not self.stopping() and self.engine.room() > 0:
                self._patiently(partial(self._start, self.waiting[0]))
                self.waiting.popleft()
            if self.stopping() and not is_stopped:
                is_stopped = True
                self.engine.stop()
            for ended in self.engine.ended(_LOOK_SECONDS):
                self._patiently(partial(self._end, ended))
            self._beat()
        for place, run in enumerate(self.runs):
            if run.state == ELSEWHERE and run.run_id is not None:
                with mlflow_errors(f"read run {run.run_id}"):
                    if is_done(self.client.get_run(run.run_id)):
                        self.runs[place] = replace(run, state=DONE_BEFORE)

    def _compared(self, result: SweepResult) -> SweepResult:
        """Compare all runs that are done, unless that was done for the very same ones."""
        ids = tuple(member for run in result.runs for member in self._members(run))
        if not ids:
            return result
        by = self.grid.group_by if self.group_by is None else self.group_by
        asked = {"group_by": ",".join(by) or NONE, "rank_by": self.rank_by or AUTO}
        digest = digest_of(json.dumps([sorted(ids), asked], sort_keys=True))
        try:
            run = _comparison_before(self.client, result.run_id, digest)
            compared = read_comparison(
                self.client,
                select_runs(self.client, run_ids=ids),
                group_by=by,
                rank_by=self.rank_by,
                explicit=True,
            )
            if run is None:
                run = write_comparison(
                    self.client,
                    compared,
                    experiment_id=self.experiment_id,
                    params=asked,
                )
                with mlflow_errors(f"tag run {run.info.run_id}"):
                    self.client.set_tag(run.info.run_id, MLFLOW_PARENT_RUN_ID, result.run_id)
                    made = json.dumps({"run_id": run.info.run_id, "of": digest})
                    self.client.set_tag(result.run_id, names.SWEEP_COMPARISON_TAG, made)
            links = tuple(format_comparison_links(self.client, run))
            compared = replace(compared, run_id=str(run.info.run_id), links=links)
            return replace(result, comparison_run=run, comparison=compared)
        except ClearError as error:
            return replace(result, problems=(f"the runs were not compared: {error}",))

    def _members(self, run: SweptRun) -> list[str]:
        """The runs with rows of one that has a result: itself, or the members of an ensemble."""
        if run.run_id is None or run.state not in (DONE, DONE_BEFORE, FAILED):
            return []
        with mlflow_errors(f"read run {run.run_id}"):
            if run.state == FAILED:
                tags = self.client.get_run(run.run_id).data.tags
                if tags.get(names.DIVERGED_TAG) != "true":
                    return []
            if run.planned.config.seeds == NONE:
                return [run.run_id]
            wanted = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.run_id}'"
            found = self.client.search_runs([self.experiment_id], wanted, max_results=1000)
        return [str(member.info.run_id) for member in found]

    def _patiently(self, step: Callable[[], None]) -> None:
        """Do a step, and do it again while the store does not answer."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return step()
            except TrackingError:
                if self.stopping() or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _start(self, place: int) -> None:
        """Start the training of a run, unless it is done or another process trains it now."""
        while (run := self._claim_run(self.runs[place])) is None:
            time.sleep(random.uniform(0.5, 2.0))  # noqa: S311  (so that one of two is first)
        self.runs[place] = run
        if run.state == NOT_DONE and run.run_id is not None:
            self.under_way[run.run_id] = place, time.monotonic()
            uri = resolve_store_uri(self.client.tracking_uri)
            self.engine.start(Task(run.planned.asked, run.run_id, self.experiment_id, uri))
        self.on_run(run)

    def _claim_run(self, run: SweptRun) -> SweptRun | None:
        """Open a run to train into, or find that it is done or held; return it with its id.

        Returns None if another sweep opens the same run at this moment: of two that write first
        and read then, at least one sees the other and withdraws.
        """
        attempts = self._list_attempts(run)
        if settled := _find_settled(self.client, run, attempts, self.above):
            return settled
        interrupted, note = self._find_interrupted(attempts)
        tags = {MLFLOW_PARENT_RUN_ID: self.above, names.SWEEP_RUN_TAG: run.planned.fingerprint}
        with mlflow_errors("open a run of the sweep"):
            if interrupted is None:
                run_id = create_run(self.client, self.experiment_id, run.name, tags)
                # The process that trains into the run sets it to RUNNING.
                self.client.update_run(run_id, status="SCHEDULED")
            else:
                run_id = str(interrupted.info.run_id)
                # A sweep of another grid may have started it.
                self.client.set_tag(run_id, MLFLOW_PARENT_RUN_ID, self.above)
                self.client.update_run(run_id, name=run.name)
                self.resumed[run_id] = interrupted.data.tags.get(names.RESUMES_TAG, "0")
            others = [r for r in self._list_attempts(run) if r.info.run_id != run_id]
            if _find_settled(self.client, run, others, self.above):
                if interrupted is None:
                    end(self.client, run_id, "KILLED", "another sweep started the same run")
                    self.client.delete_run(run_id)
                return None
            for former in others:
                _trash(self.client, former, run_id)
        return replace(
            run, state=NOT_DONE, run_id=run_id, tries=run.tries + 1, error=None, note=note
        )

    def _list_attempts(self, run: SweptRun) -> list[Run]:
        """Return the stored attempts at a run, without what failed in a sweep that is live."""
        attempts = _children(self.client, self.experiment_id, run.planned.fingerprint)
        return [
            attempt
            for attempt in attempts
            if attempt.info.status != "FAILED"
            or not _is_in_live_sweep(self.client, attempt, self.above)
        ]

    def _find_interrupted(self, tries: list[Run]) -> tuple[Run | None, str | None]:
        """The try to resume, or why the one that measured something cannot be."""
        note = None
        for run in sorted(tries, key=lambda run: run.info.start_time, reverse=True):
            run_id = str(run.info.run_id)
            if run.info.status != "KILLED" and not is_expired(self.client, run):
                continue
            if not holds_rows(self.client, run_id):
                note = note or "from its beginning: it had ended before its first row"
                continue
            if (why := self.refused.get(run_id)) is None:
                try:
                    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
                        point = read_resume_point(self.client, run_id, Path(folder))
                except ClearError as error:
                    if isinstance(error, TrackingError) and error.__cause__ and not is_final(error):
                        raise  # the store is away, which says nothing of the run
                    why = str(error)
                else:
                    if point.records:
                        return run, f"resumed after row {max(point.records)}"
                    continue
            note = note or f"from its beginning: {why}"
        return None, note

    def _end(self, ended: Ended) -> None:
        place, since = self.under_way[ended.run_id]
        run = replace(self.runs[place], seconds=time.monotonic() - since)
        with mlflow_errors(f"read run {ended.run_id}"):
            stored = self.client.get_run(ended.run_id)
        resumed = self.resumed.pop(ended.run_id, None)
        error = (
            stored.data.tags.get(names.ERROR_TAG)
            or ended.error
            or f"its training ended with exit code {ended.exit_code}"
        )
        if is_done(stored):
            self.runs[place] = replace(run, state=DONE)
        elif ended.exit_code == 2 and _is_held(self.client, stored, self.above):
            self.runs[place] = replace(run, state=ELSEWHERE)
        elif ended.lost and run.tries <= self.retries and not self.stopping():
            # Only the engine knows yet that nobody trains into it any more.
            self._close_run(stored, error, "KILLED")
            self.runs[place] = replace(run, error=ended.error)
            self.waiting.append(place)
        elif self.stopping():
            self._close_run(stored, "the sweep was stopped", "KILLED")
            self.runs[place] = replace(run, state=NOT_DONE, error="stopped")
        elif resumed == stored.data.tags.get(names.RESUMES_TAG, "0") and not ended.lost:
            # It was to be resumed, and is as it was before.
            self.refused[ended.run_id] = ended.error or error
            self.runs[place] = replace(run, error=ended.error, tries=run.tries - 1)
            self.waiting.append(place)
        else:
            if ended.lost:
                error += f" ({run.tries} tries)"
            self._close_run(stored, error, "KILLED" if ended.lost else "FAILED")
            self.runs[place] = replace(run, state=FAILED, error=" ".join(error.split()))
        del self.under_way[ended.run_id]
        self.on_run(self.runs[place])

    def _close_run(self, run: Run, error: str, status: str) -> None:
        """Close a run whose own supervisor could not: it was killed, or had not begun."""
        if run.info.status not in ("RUNNING", "SCHEDULED"):
            return
        closed = end(self.client, run.info.run_id, status, error)
        # What its rows define is logged, as evaluate would.
        for _ in rescore_runs(self.client, [closed]):
            pass

    def _beat(self) -> None:
        if time.monotonic() - self.beaten > _HEARTBEAT_SECONDS:
            self.beaten = time.monotonic()
            with suppress(ClearError):
                Lease(self.client, self.above).renew()


def find_runs(client: MlflowClient, experiment_id: str, grid: Grid) -> list[SweptRun]:
    """Return the runs of a grid with their states."""
    attempts: dict[str, list[Run]] = {}
    for run in _children(client, experiment_id):
        attempts.setdefault(_fingerprint_of_run(run, grid), []).append(run)
    runs = map(SweptRun, grid.runs)
    return [
        _find_settled(client, run, attempts.get(run.planned.fingerprint, [])) or run for run in runs
    ]


def _find_settled(
    client: MlflowClient, run: SweptRun, attempts: Sequence[Run], parent_id: str | None = None
) -> SweptRun | None:
    """Return a run that is done or that another process works on, or None if it is neither."""
    is_held = partial(_is_held, client, parent_id=parent_id)
    for state, is_settled in ((DONE_BEFORE, is_done), (ELSEWHERE, is_held)):
        for attempt in reversed(attempts):  # the oldest first
            if is_settled(attempt):
                return replace(run, state=state, run_id=str(attempt.info.run_id), note=None)
    return None


def _is_held(client: MlflowClient, run: Run, parent_id: str | None = None) -> bool:
    """Return True if a process trains into a run or is about to, other than sweep *parent_id*."""
    if is_held(client, run) or is_claimed(run):
        return True
    # A live sweep starts what is scheduled, and resumes what was killed.
    is_open = run.info.status not in ("FINISHED", "FAILED")
    return is_open and _is_in_live_sweep(client, run, parent_id)


def _is_in_live_sweep(client: MlflowClient, run: Run, parent_id: str | None = None) -> bool:
    """Return True if a process works on the sweep of a run, other than sweep *parent_id*."""
    sweep_id = run.data.tags.get(MLFLOW_PARENT_RUN_ID)
    if sweep_id in (None, parent_id):
        return False
    (parent,) = select_runs(client, run_ids=[sweep_id])
    return isinstance(parent, Run) and is_held(client, parent)


def is_done(run: Run) -> bool:
    """Whether a run has ended well with all its rows; an ensemble, with all its members."""
    if run.info.status != "FINISHED":
        return False
    if run.data.tags.get(names.KIND_TAG) == names.KIND_ENSEMBLE:
        return names.MEMBERS_TAG in run.data.tags
    return run.data.tags.get(names.ROWS_TAG) == "complete"


def _fingerprint_of_run(run: Run, grid: Grid) -> str:
    """Return the fingerprint of a run's logged parameters, or its tag if it has not begun."""
    parameters = logged_parameters(run.data.params)
    # Code of a user's own that a store names is imported only if the grid names it, too.
    named = {(planned.config.strategy, planned.config.dataset) for planned in grid.runs}
    with suppress(ConfigError):
        config = TrainConfig.resolve(parameters)
        if parameters and (config.strategy, config.dataset) in named:
            return fingerprint(complete_arguments(config))
    return str(run.data.tags[names.SWEEP_RUN_TAG])


def _children(client: MlflowClient, experiment_id: str, only: str | None = None) -> list[Run]:
    """All runs of sweeps in an experiment, or those that were begun for one planned run."""
    wanted = "!= ''" if only is None else f"= '{only}'"
    return list(search_runs(client, [experiment_id], f"tags.`{names.SWEEP_RUN_TAG}` {wanted}"))


def _trash(client: MlflowClient, run: Run, successor: str) -> None:
    """Put a run where MLflow can restore it from, with its members."""
    run_id = run.info.run_id
    if run.info.status in ("RUNNING", "SCHEDULED"):
        status, why = "KILLED", "the process that trained it is gone"
    else:
        status, why = None, str(run.data.tags.get(names.ERROR_TAG, "it ended early"))
    end(client, run_id, status, f"{why}; done again as run {successor}")
    wanted = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'"
    for member in client.search_runs([run.info.experiment_id], wanted):
        client.delete_run(member.info.run_id)
    client.delete_run(run_id)


def _open(client: MlflowClient, experiment_id: str, grid: Grid, name: str | None) -> str:
    """The run above the runs of this sweep: one for the same grid, whenever it is worked on."""
    own, mine = get_project_run(client, names.KIND_SWEEP), None
    tags = {
        names.KIND_TAG: names.KIND_SWEEP,
        names.SWEEP_TAG: grid.digest,
        **lease_tags(),
        names.VERSION_TAG: __version__,
    }
    with mlflow_errors("open the run of the sweep"):
        above = _above(client, experiment_id, grid)
        if above is None:
            named = {**tags, MLFLOW_RUN_NAME: name or _name(grid)}
            if own is None:
                mine = create_run(client, experiment_id, None, named)
            else:
                mine = str(own.info.run_id)
                log_tags(client, mine, named)
            # Of several that begin at the same moment, all find the same one to be the first.
            above = _above(client, experiment_id, grid) or client.get_run(mine)
        run_id = str(above.info.run_id)
        if run_id != mine:
            if mine is not None and own is None:
                end(client, mine, "KILLED", f"run {run_id} is the same sweep")
                client.delete_run(mine)
            if is_held(client, above):
                raise TrackingError(
                    f"another process works on this sweep now (run {run_id}); wait for its end, "
                    "or stop it"
                )
            if own is not None:
                note = f"Went on with the sweep of run {run_id}."
                goes_on = {names.SWEEP_GOES_ON_TAG: run_id, MLFLOW_RUN_NOTE: note}
                log_tags(client, own.info.run_id, {names.KIND_TAG: names.KIND_SWEEP, **goes_on})
            tags[names.RESUMES_TAG] = str(claim(client, above))
        log_tags(client, run_id, tags)
        client.update_run(run_id, status="RUNNING")
        client.log_text(run_id, grid.text, names.SWEEP_GRID)
    return run_id


def _above(client: MlflowClient, experiment_id: str, grid: Grid) -> Run | None:
    found = client.search_runs(
        [experiment_id],
        f"tags.`{names.SWEEP_TAG}` = '{grid.digest}'",
        order_by=["attributes.start_time ASC"],  # then by its id
        max_results=1,
    )
    return found[0] if found else None


def _name(grid: Grid) -> str:
    strategies = list(dict.fromkeys(run.config.strategy for run in grid.runs))
    methods = ", ".join(strategies[:4]) + (", …" if strategies[4:] else "")
    return f"sweep {methods}: {len(grid.runs)} run{'s' if len(grid.runs) > 1 else ''}"


def _close(client: MlflowClient, result: SweepResult, *, stopped: bool) -> None:
    """Say what became of all runs, and set the status that is true."""
    status = "KILLED" if stopped else "FINISHED" if result.is_well else "FAILED"
    with mlflow_errors(f"close run {result.run_id}"):
        text = json.dumps([run.to_dict() for run in result.runs], indent=2) + "\n"
        client.log_text(result.run_id, text, names.SWEEP_RUNS_JSON)
        tags, metrics = {MLFLOW_RUN_NOTE: _note(result)}, []
        if result.comparison_run is not None:
            compared, now = result.comparison_run.data, get_current_time_millis()
            # Under the runs' own names, too: MLflow's list folds them below this one.
            metrics = [
                Metric(called, value, now, 0)
                for name, value in compared.metrics.items()
                if name.startswith(names.LEADER_METRICS)
                for called in (name, name.removeprefix(names.LEADER_METRICS))
            ]
            if names.LEADER_TAG in compared.tags:
                tags[names.LEADER_TAG] = compared.tags[names.LEADER_TAG]
        client.log_batch(
            result.run_id, metrics=metrics, tags=[RunTag(key, text) for key, text in tags.items()]
        )
        end(client, result.run_id, status)


def _note(result: SweepResult) -> str:
    """What became of the runs, then what the description of their comparison says."""
    counts = Counter("done" if run.state == DONE_BEFORE else run.state for run in result.runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [f"{len(result.runs)} runs: {states}. All of them: `{names.SWEEP_RUNS_JSON}`.", ""]
    failed = [run for run in result.runs if run.state == FAILED]
    if failed:
        lines += ["| failed | why |", "|---|---|"]
        rows = (
            f"| {escaped(run.planned.name, 200)} | {escaped(str(run.error), 300)} |"
            for run in failed
        )
        lines = [*filled(lines, rows, MAX_NOTE_BYTES // 2, "more"), ""]
    if result.comparison_run is not None:
        compared = result.comparison_run.data.tags.get(MLFLOW_RUN_NOTE, "")
        # Without its heading: MLflow's page folds a description after some four lines.
        compared = re.sub(r"\A### .*\n\n", "", compared)
        lines = filled(lines, compared.splitlines(), MAX_NOTE_BYTES, "more lines")
    return "\n".join(lines)


def _comparison_before(client: MlflowClient, run_id: str, digest: str) -> Run | None:
    """The comparison of the very same runs, if it is there."""
    with mlflow_errors(f"read run {run_id}"):
        before = read_sweep_comparison(client.get_run(run_id).data.tags)
    if before.get("of") != digest:
        return None
    (run,) = select_runs(client, run_ids=[str(before.get("run_id"))])
    return run if isinstance(run, Run) else None
