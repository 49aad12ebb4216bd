"""``clear-mlflow sweep``: train the runs of a grid that are not done, and compare all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clear_mlflow.api.verbs import sweep as sweep_runs
from clear_mlflow.cli import output
from clear_mlflow.cli.command import COMPARISON, WORK, command
from clear_mlflow.cli.train import apply_run_options
from clear_mlflow.core.errors import require_package
from clear_mlflow.core.text import format_count
from clear_mlflow.sweeps.grid import DONE, DONE_BEFORE, FAILED, SweepRun, read_grid
from clear_mlflow.sweeps.local import start_program
from clear_mlflow.sweeps.study import read_study

if TYPE_CHECKING:
    from clear_mlflow.api.sweep import SweepResult

_MAX_LISTED = 50
_MIN_FORKED_RUNS = 3  # loading torch once saves about three seconds per run


@command(
    sweep_runs,
    arguments={"grid": "[GRID]"},
    headings={
        "What to train": "grid",
        "Run": "experiment run_name tag offline",
        WORK: "engine jobs address cpus gpus retries dry_run",
        COMPARISON: "group_by rank_by regret",
    },
    examples=(
        "clear-mlflow sweep examples/sweep.yaml",
        "clear-mlflow sweep examples/sweep.yaml --jobs 2 --experiment replay-sizes",
        "clear-mlflow sweep examples/sweep.yaml --engine ray --gpus 0.5",
    ),
    options=[output.JSON_OPTION],
    omit=("offline",),
    is_entry_point=True,
)
def sweep(
    grid: Path | None,
    *,
    experiment: str | None,
    run_name: str | None,
    tag: tuple[str, ...] = (),
    offline: bool = False,
    dry_run: bool = False,
    **options: Any,
) -> None:
    """Train and compare the runs of a grid, and print the result.

    Args:
        grid: YAML file.
        experiment: experiment of the runs.
        run_name: name of the parent run.
        tag: tag of each run that is opened, KEY=TEXT; may be given several times.
        offline: record the runs in the folder offline_runs, or the folder that CLEAR_MLFLOW_OFFLINE
            names, without any tracking store; "clear-mlflow sync" copies them to one later.
        dry_run: report what would be done, and write nothing.
        **options: other options of :func:`clear_mlflow.sweep`.
    """
    apply_run_options(experiment, run_name, tag, offline=offline)
    # An invalid file is reported before MLflow and torch are loaded.
    num_runs = 0
    if grid is not None:
        study = read_study(grid)
        num_runs = len(read_grid(grid).runs) if study is None else study.num_tuning_runs
    with require_package("torch", "training"):
        from clear_mlflow.api.sweep import plan_sweep, run_sweep

    if dry_run:
        for name in ("retries", "group_by", "rank_by", "regret"):
            del options[name]
        planned, plan = plan_sweep(grid, **options)
        if output.wants_json():
            output.print_json({"runs": [run.to_dict() for run in planned.runs]})
            return
        _print_runs(planned.runs)
        click.echo(
            f"\n{format_count(len(planned.runs), 'run')}, of which {planned.num_waiting} would be "
            "started"
            f"{plan and f', {plan}'}; nothing was written (dry run)"
        )
        return
    from clear_mlflow.cli.preloaded import start_forked_program

    is_forked = sys.platform == "linux" and num_runs >= _MIN_FORKED_RUNS
    start = start_forked_program if is_forked else start_program
    # The experiment is in the environment, as apply_run_options set it.
    result, signals = run_sweep(grid, experiment=None, run_name=run_name, start=start, **options)
    if output.wants_json():
        output.print_json(result.to_dict())
    else:
        _print_result(result, is_stopped=bool(signals.received))
    for run in result.runs:
        if run.state == FAILED:
            output.print_error(f"{run.name}: {run.error} (run {run.run_id})")
    for problem in result.problems:
        output.print_error(problem)
    if signals.received:
        sys.exit(128 + signals.received[0])
    if not result.is_complete:
        sys.exit(2)


def _print_result(result: SweepResult, *, is_stopped: bool) -> None:
    """Print the runs with their states, and the comparison.

    Of over 50 runs, omits those done.

    is_stopped: True if the sweep ended early.
    """
    listed = result.runs
    if len(listed) > _MAX_LISTED:
        listed = tuple(run for run in listed if run.state not in (DONE, DONE_BEFORE))
    with suppress(OSError):  # the reader may be gone
        if listed:
            _print_runs(listed)
        click.echo(f"\n{result.summary}")
        if (compared := result.comparison) is not None:
            click.echo()
            output.print_comparison(compared.comparison)
            if result.study is not None:
                click.echo(f"\n{result.study}")
            click.echo(f"\ncompared in run {compared.run_id}")
            output.print_links(compared.links)
        if is_stopped:
            click.echo("stopped: the same command does the rest")


def _print_runs(runs: Sequence[SweepRun]) -> None:
    """Print name, state and id of the first 50 runs."""
    rows = ((run.name, run.state, run.run_id or "-") for run in runs[:_MAX_LISTED])
    output.print_table(("run", "state", "run id"), rows)
