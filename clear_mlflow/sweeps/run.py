"""Check the runs of a grid, and train those that are not done on an engine."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError, check_unused
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.session import check_files, check_parameters, complete_arguments
from clear_mlflow.store.client import resolve_store_uri
from clear_mlflow.store.lease import RENEW_SECONDS, Lease
from clear_mlflow.sweeps.grid import (
    DONE,
    DONE_BEFORE,
    FAILED,
    NOT_DONE,
    TRAINING,
    Grid,
    SweepRun,
    check_runs_differ,
    hash_config,
    read_grid,
)
from clear_mlflow.sweeps.local import LocalEngine, ProgramStarter, start_program
from clear_mlflow.sweeps.ray_cluster import LOCAL, RayEngine
from clear_mlflow.sweeps.store import SweepStore
from clear_mlflow.tracking.tracked_training import train_sweep_run

Engine: TypeAlias = LocalEngine | RayEngine

_POLL_SECONDS = 0.5
# A sweep takes days, and continues after a restart of the server as its trainings do.
_RETRY_SECONDS, _PAUSE_SECONDS = 600.0, 10.0


def read_checked_grid(grid: Mapping[str, Any] | str | Path | None, engine: str) -> Grid:
    """Read a grid and check the parameters of every run.

    engine: "local" or "ray"; with "local", data folders and weights must exist, too. Raises
    ConfigError if *grid* is None, a run is invalid, or two runs would train the same.
    """
    if grid is None:
        raise ConfigError(
            "grid is none; pass a YAML file, for example examples/sweep.yaml", parameter="grid"
        )
    checked_grid = read_grid(grid if isinstance(grid, Mapping) else Path(grid))
    check_and_hash_runs(checked_grid, engine)
    check_runs_differ(checked_grid.runs)
    return checked_grid


def check_and_hash_runs(grid: Grid, engine: str) -> None:
    """Check the parameters of every run, and set its final hash.

    Raises ConfigError if a run is invalid.
    """
    for run in grid.runs:
        try:
            check_parameters(run.config)
            if engine == "local":  # the machines of a cluster have their own files
                check_files(run.config)
            run.config_hash = hash_config(complete_arguments(run.config))
        except ClearError as error:
            raise ConfigError(f"a run of the sweep, {safe_repr(run.name)}: {error}") from None


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
    """Create the engine: processes on this machine, or a Ray cluster.

    "auto" for jobs is one process, or as many runs as the cluster has room for. See
    :func:`clear_mlflow.sweep` for the options. Raises ConfigError if one is invalid.

    start: starts a training process on this machine.
    """
    if isinstance(jobs, int) and jobs < 1:
        raise ConfigError(
            f"jobs is {jobs}; expected a whole number of at least 1, or auto", parameter="jobs"
        )
    for name, amount in (("cpus", cpus), ("gpus", gpus)):
        # Ray shares a core or GPU among runs; several must be an integer.
        if not isinstance(amount, str) and (amount < 0 or (amount > 1 and amount % 1)):
            message = f"{name} is {amount}; expected a number, for example 1, 2 or 0.5"
            raise ConfigError(message, parameter=name)
    if engine == "ray":
        needs_no_gpu = all(run.config.device == "cpu" for run in grid.runs)
        return RayEngine(
            train_sweep_run,
            address,
            cpus=cpus,
            gpus=float(gpus) if gpus != AUTO else 0.0 if needs_no_gpu else None,
            jobs=None if jobs == AUTO else int(jobs),
        )
    check_unused(
        {"address": (address, LOCAL), "cpus": (cpus, 1), "gpus": (gpus, AUTO)},
        ", which applies only to Ray; pass engine=ray as well, or leave it out",
    )
    return LocalEngine(1 if jobs == AUTO else int(jobs), start)


def train_runs(
    store: SweepStore,
    runs: Sequence[SweepRun],
    engine: Engine,
    retries: int,
    should_stop: Callable[[], bool],
) -> None:
    """Train runs that are not done until all end, and print events.

    Stops and waits for active runs if *should_stop* returns True. Renews the parent run's lease.
    """
    lease, renewed_at = Lease(store.client, str(store.parent_id)), time.monotonic()
    uri = resolve_store_uri(store.client.tracking_uri)
    queue = deque(run for run in runs if run.state != DONE_BEFORE)
    is_stopped = False
    while any(run.state == TRAINING for run in runs) or (queue and not should_stop()):
        while queue and not should_stop() and engine.count_free_slots() > 0:
            run = queue[0]
            _retry_while_unreachable(partial(store.claim, run), should_stop)
            queue.popleft()
            if run.state == TRAINING:
                engine.start(run, store.experiment_id, uri)
            _print_state(run, runs)
        if should_stop() and not is_stopped:
            is_stopped = True
            engine.stop()
        for run in engine.wait_for_ended_runs(_POLL_SECONDS):
            may_retry = run.num_tries <= retries
            step = partial(store.record_end, run, may_retry=may_retry, is_stopped=should_stop())
            _retry_while_unreachable(step, should_stop)
            if run.state == NOT_DONE:
                queue.append(run)
            _print_state(run, runs)
        if time.monotonic() - renewed_at > RENEW_SECONDS:
            renewed_at = time.monotonic()
            with suppress(ClearError):
                lease.renew()
    store.mark_done_elsewhere(runs)


def print_line(line: str) -> None:
    """Print a line to standard error, if it is still open."""
    with suppress(OSError):  # nobody may be reading any more
        print(line, file=sys.stderr, flush=True)


def _print_state(run: SweepRun, runs: Sequence[SweepRun]) -> None:
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
    print_line(f"[{num_ended}/{len(runs)}] {line}")


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
