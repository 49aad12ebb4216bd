"""``clear-mlflow train-distributed``: the same training in several processes, one per device."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import option
from clear_mlflow.cli.run_options import RUN, apply_run_options, run_options
from clear_mlflow.cli.train import asked_parameters, train_options
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import whole


@click.command(
    "train-distributed",
    cls=Command,
    examples=(
        "clear-mlflow train-distributed --dataset clear10 --data-root ~/clear10",
        "clear-mlflow train-distributed --processes 2 --strategy replay",
    ),
)
@train_options
@option(
    "--processes",
    "N",
    "Processes on this machine, which share every batch. auto: one per GPU, or 2 on CPUs.",
    default=AUTO,
    under=RUN,
    parse=whole(least=1),
)
@run_options
@click.pass_context
def train_distributed(
    context: click.Context,
    /,
    processes: int | None,
    config_file: str | None,
    experiment: str | None,
    run_name: str | None,
    tag: tuple[str, ...],
    **asked: str,
) -> None:
    """Train as `train` does, in several processes on this machine: one per GPU.

    Each takes its share of every batch, so that the matrix is that of one process, but for
    rounding. For several machines start `train` with torchrun: see docs/distributed.md.
    """
    from clear_mlflow.process.launch import launch, processes_to_start

    _, config = asked_parameters(context, config_file, asked)
    # Of these the processes that it starts hear by their environment; of the name by its option.
    apply_run_options(experiment, run_name, tag)
    arguments = [f"--run-name={run_name}"] if run_name else []
    # Handed on as they were given: a default must not go before a configuration file.
    for name, text in {**asked, "config": config_file}.items():
        parameter = "config_file" if name == "config" else name
        if text and context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            arguments += [f"--{name.replace('_', '-')}", text]
    sys.exit(launch(processes_to_start(processes, config), arguments))
