"""Train a grid of runs: the declaration of function and command. Imports no MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.api._arguments import check_arguments
from clear_mlflow.core.disk import set_offline

if TYPE_CHECKING:
    from clear_mlflow.api.sweep_runs import SweepResult


def sweep(
    grid: Mapping[str, Any] | str | Path | None = None,
    *,
    experiment: str | None = None,
    run_name: str | None = None,
    engine: Literal["local", "ray"] = "local",
    jobs: int | Literal["auto"] = "auto",
    address: str = "local",
    cpus: float = 1,
    gpus: float | Literal["auto"] = "auto",
    retries: int = 2,
    group_by: str | Sequence[str] = "auto",
    rank_by: str = "auto",
    offline: bool | str | Path = False,
) -> SweepResult:
    """Train each combination of a grid as a child run of one parent run, and compare the runs.

    Runs that the experiment already contains are skipped, and interrupted ones are resumed, so the
    same call continues where it stopped. A run that fails does not stop the others.

    Args:
        grid: YAML file of strategies, seeds and parameters (docs/sweeps.md); in Python also its
            content, for example ``{"fixed": {...}, "grid": {"strategy": [...]}}``. Required.
        experiment: experiment of the runs, or None for the experiment of
            MLFLOW_EXPERIMENT_NAME, else Default.
        run_name: name of the parent run, or None for strategies and number of runs.
        engine: where to train: local, on this machine, or ray, on a Ray cluster.
        jobs: number of runs at a time. auto: one, and on Ray as many as the cluster has room for.
        address: address of a running Ray cluster, HOST:6379 or auto. local: start Ray on this
            machine.
        cpus: cores per run, on Ray.
        gpus: GPUs per run, on Ray; with 0.5, two runs share one. auto: one if the cluster has any.
        retries: number of times to resume a run that was killed or whose machine went down.
        group_by: parameters or tags that the seeds of one method share. auto: strategy, dataset
            and the parameters that the grid varies, except seeds.
        rank_by: metric that methods are ranked by and tested for differences. auto:
            ``clear/challenge_score`` where it is defined.
        offline: record offline; see :func:`clear_mlflow.track`.

    Returns:
        The runs with their states as ``runs``, and their comparison as ``compared``.

    Raises:
        ConfigError: a run of the grid cannot be trained.
        TrackingError: the store cannot be reached, or another process works on the same sweep.
        KeyboardInterrupt: Ctrl-C was pressed; active runs were scored. Another signal that stops
            the sweep raises SystemExit.
    """
    arguments = dict(locals())
    check_arguments(sweep, arguments)
    from clear_mlflow.api.sweep_runs import run_sweep

    set_offline(arguments.pop("offline"))
    result, signals = run_sweep(**arguments)
    signals.raise_received()
    return result
