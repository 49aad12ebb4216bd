"""``clear-mlflow sweep``: all runs of a grid, those that are done left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

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
from clear_mlflow.engines.local import LocalEngine, Process, start_program
from clear_mlflow.grids.grid import read_grid
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import number, whole
from clear_mlflow.process.signals import StoppingSignals

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from clear_mlflow.api.sweep import SweepResult, SweptRun

_ALL_SHOWN = 50
_FEWEST_FORKED = 3


def _amount(text: str) -> float:
    """Cores or GPUs: Ray shares one among runs, and counts in whole ones beyond."""
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
    engine: str,
    jobs: int | None,
    address: str,
    cpus: float,
    gpus: float | None,
    retries: int,
    group_by: tuple[str, ...] | None,
    rank_by: str | None,
    experiment: str | None,
    run_name: str | None,
    tag: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Train every combination of a grid, each as a run of its own below one run, and compare them.

    Runs of the experiment that are done are left alone and interrupted ones are resumed, so the
    same command continues where it stopped, and does nothing when all is done. A run that
    fails does not stop the others; it is named at the end.
    """
    files = [path for path in (file, grid) if path is not None]
    if len(files) != 1:
        problem = f"two files, {file} and {grid}" if files else "no file"
        raise ConfigError(f"grid names {problem}; pass one: clear-mlflow sweep FILE")
    (grid,) = files
    apply_run_options(experiment, run_name, tag)

    # Imported here: what is wrong with the file shows before MLflow and torch are loaded.
    read_grid(grid)
    from clear_mlflow.api import sweep as api

    out = console()
    if dry_run:
        planned = api.read_checked_grid(grid, engine)
        engine_of = api.engine_named(planned, engine, jobs, address, cpus=cpus, gpus=gpus)
        found = api.plan_runs(planned)
    else:
        planned, engine_of, client, experiment_id = api.prepared(
            grid, engine, jobs, address, cpus=cpus, gpus=gpus
        )
        found = api.find_runs(client, experiment_id, planned)
    waiting = sum(run.state == api.NOT_DONE for run in found)
    # Where nothing is left to train, no cluster is started or asked for.
    if engine == "local" or not waiting:
        engine_of = LocalEngine(jobs or 1, _program(waiting))
    if dry_run and wants_json():
        print_json({"runs": [run.to_dict() for run in found]})
        return
    if dry_run:
        with engine_of:
            plan = f", {engine_of.plan()}" if waiting else ""
        out.print(_table(found))
        click.echo(
            f"\n{len(found)} runs, of which {waiting} would be started{plan}; "
            "nothing was written (dry run)"
        )
        return
    # Entered first: Ray takes the signals for itself when it starts.
    with engine_of, StoppingSignals() as signals:
        if waiting:
            click.echo(f"{waiting} of {len(found)} runs to train, {engine_of.plan()}", err=True)
        result = api.Sweep(
            grid=planned,
            retries=retries,
            group_by=group_by,
            rank_by=rank_by,
            stopping=lambda: bool(signals.received),
            on_run=api.reporter(len(planned.runs)),
            name=run_name,
        ).over(client, experiment_id, engine_of)
    if wants_json():
        print_json(result.to_dict())
    else:
        _show(out, result, stopped=bool(signals.received))
    _show_failures(result)
    if signals.received:
        sys.exit(128 + signals.received[0])
    if not result.is_well:
        sys.exit(2)


def _program(runs: int) -> Callable[[Sequence[str], Mapping[str, str], str], Process]:
    # Loading once saves each further run what it costs the first: three seconds.
    if sys.platform != "linux" or runs < _FEWEST_FORKED:
        return start_program
    from clear_mlflow.cli.preloaded import PreloadedProgram

    return PreloadedProgram()


def _table(runs: Sequence[SweptRun]) -> Table:
    lines = ((run.planned.name, run.state, run.run_id or "-") for run in runs[:_ALL_SHOWN])
    return plain_table(("run", "state", "of run"), lines)


def _show(out: Console, result: SweepResult, *, stopped: bool) -> None:
    from clear_mlflow.api.sweep import DONE, DONE_BEFORE

    with suppress(OSError):  # whoever reads this may have gone
        shown = [
            run
            for run in result.runs
            if len(result.runs) <= _ALL_SHOWN or run.state not in (DONE, DONE_BEFORE)
        ]
        if shown:
            out.print(_table(shown))
        out.print(f"\n{result.summary}", highlight=False)
        if (compared := result.comparison) is not None:
            out.print()
            print_comparison(compared.comparison, out)
            out.print(f"\ncompared in run {compared.run_id}", highlight=False)
            print_links(compared.links)
        if stopped:
            out.print("stopped: the same command does the rest")


def _show_failures(result: SweepResult) -> None:
    from clear_mlflow.api.sweep import FAILED

    for run in result.runs:
        if run.state == FAILED:
            line = one_line(f"{run.planned.name}: {run.error} (run {run.run_id})")
            click.echo(f"error: {line}", err=True)
    for problem in result.problems:
        click.echo(f"error: {one_line(problem)}", err=True)
