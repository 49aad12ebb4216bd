"""``clear-mlflow sweep``: train the runs of a grid that are not done, and compare all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import (
    WORK,
    comparison_options,
    dry_run_option,
    engine_options,
    json_option,
    option,
    wants_json,
)
from clear_mlflow.cli.output import (
    console,
    plain_table,
    print_comparison,
    print_json,
    print_links,
)
from clear_mlflow.cli.run_options import apply_run_options, run_options
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import one_line
from clear_mlflow.engines.local import start_program
from clear_mlflow.grids.grid import read_grid
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import number, whole

if TYPE_CHECKING:
    from rich.table import Table

    from clear_mlflow.api.sweep_runs import SweepResult, SweepRun

_MAX_LISTED = 50
_MIN_FORKED_RUNS = 3  # loading torch once saves about three seconds per run


def _amount(text: str) -> float:
    """Parse a number of cores or GPUs. Raises ValueError for 1.5: Ray shares at most one."""
    value = number(least=0)(text)
    if value > 1 and value != int(value):
        raise ValueError("expected a number, for example 1, 2 or 0.5")
    return value


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow sweep examples/sweep.yaml",
        "clear-mlflow sweep examples/sweep.yaml --jobs 2 --experiment replay-sizes",
        "clear-mlflow sweep examples/sweep.yaml --engine ray --gpus 0.5",
    ),
)
@click.argument("file", metavar="[GRID]", type=click.Path(path_type=Path), required=False)
@option(
    "--grid",
    "FILE",
    "YAML file of strategies, seeds and parameters; see docs/sweeps.md.",
    under="What to train",
    parse=Path,
)
@engine_options
@option("--cpus", "N", "Cores of each run, on Ray.", default="1", under=WORK, parse=_amount)
@option(
    "--gpus",
    "N",
    "GPUs of each run, on Ray; 0.5: two runs share one. auto: one where the cluster has any.",
    default=AUTO,
    under=WORK,
    parse=_amount,
)
@option(
    "--retries",
    "N",
    "How often a run is resumed that was killed or whose machine went down.",
    default="2",
    under=WORK,
    parse=whole(least=0),
)
@comparison_options
@run_options
@dry_run_option
@json_option
def sweep(
    file: Path | None,
    grid: Path | None,
    jobs: int | None,
    gpus: float | None,
    group_by: tuple[str, ...] | None,
    rank_by: str | None,
    experiment: str | None,
    tag: tuple[str, ...],
    dry_run: bool,
    **options: Any,
) -> None:
    """Train each combination of a grid as a child run of one parent run, and compare the runs.

    Runs that the experiment already contains are skipped, and interrupted ones are resumed, so the
    same command continues where it stopped. A run that fails does not stop the others.
    """
    files = [path for path in (file, grid) if path is not None]
    if len(files) != 1:
        problem = f"two files, {file} and {grid}" if files else "no file"
        raise ConfigError(f"grid names {problem}; pass one: clear-mlflow sweep FILE")
    (grid,) = files
    run_name = options.pop("run_name")
    apply_run_options(experiment, run_name, tag)
    options |= {"jobs": jobs or AUTO, "gpus": AUTO if gpus is None else gpus}

    # Imported here: an invalid file is reported before MLflow and torch are loaded.
    read_grid(grid)
    from clear_mlflow.api.sweep_runs import FAILED, plan_sweep, run_sweep

    if dry_run:
        del options["retries"]
        runs, plan = plan_sweep(grid, **options)
        _print_plan(runs, plan)
        return
    result, signals = run_sweep(
        grid,
        experiment=None,  # of the environment, as apply_run_options set it
        run_name=run_name,
        group_by=AUTO if group_by is None else group_by,
        rank_by=rank_by or AUTO,
        choose_program=_choose_program,
        **options,
    )
    if wants_json():
        print_json(result.to_dict())
    else:
        _print_result(result, is_stopped=bool(signals.received))
    for run in result.runs:
        if run.state == FAILED:
            line = one_line(f"{run.name}: {run.error} (run {run.run_id})")
            click.echo(f"error: {line}", err=True)
    for problem in result.problems:
        click.echo(f"error: {one_line(problem)}", err=True)
    if signals.received:
        sys.exit(128 + signals.received[0])
    if not result.is_complete:
        sys.exit(2)


def _choose_program(num_runs: int) -> Any:
    """Return how to start trainings: three or more are forked from one process with torch."""
    if sys.platform != "linux" or num_runs < _MIN_FORKED_RUNS:
        return start_program
    from clear_mlflow.cli.preloaded import PreloadedProgram

    return PreloadedProgram()


def _print_plan(runs: Sequence[SweepRun], plan: str) -> None:
    if wants_json():
        print_json({"runs": [run.to_dict() for run in runs]})
        return
    from clear_mlflow.api.sweep_runs import NOT_DONE

    console().print(_build_table(runs))
    num_waiting = sum(run.state == NOT_DONE for run in runs)
    click.echo(
        f"\n{len(runs)} runs, of which {num_waiting} would be started{plan and f', {plan}'}; "
        "nothing was written (dry run)"
    )


def _print_result(result: SweepResult, *, is_stopped: bool) -> None:
    from clear_mlflow.api.sweep_runs import DONE, DONE_BEFORE

    out = console()
    with suppress(OSError):  # the reader may be gone
        listed = [
            run
            for run in result.runs
            if len(result.runs) <= _MAX_LISTED or run.state not in (DONE, DONE_BEFORE)
        ]
        if listed:
            out.print(_build_table(listed))
        out.print(f"\n{result.summary}", highlight=False)
        if (compared := result.comparison) is not None:
            out.print()
            print_comparison(compared.comparison, out)
            out.print(f"\ncompared in run {compared.run_id}", highlight=False)
            print_links(compared.links)
        if is_stopped:
            out.print("stopped: the same command does the rest")


def _build_table(runs: Sequence[SweepRun]) -> Table:
    rows = ((run.name, run.state, run.run_id or "-") for run in runs[:_MAX_LISTED])
    return plain_table(("run", "state", "run id"), rows)
