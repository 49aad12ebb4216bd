"""``clear-mlflow train`` and ``train-distributed``: train on a stream, and score the rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from clear_mlflow.cli.from_function import command
from clear_mlflow.cli.help import describe_auto
from clear_mlflow.cli.options import RUN, apply_run_options, option, run_options
from clear_mlflow.core.distributed import DistributedEnv, read_dist_env
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    TrainConfig,
    check_memory,
    parameter_defaults,
)
from clear_mlflow.learning.parameters.logged import read_config_file
from clear_mlflow.process.parent import TrainingProcess
from clear_mlflow.process.rank_worker import run_rank
from clear_mlflow.process.signals import StoppingSignals


def train_options(command_function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with --config and an option for each training parameter, all text."""
    command_function = option(
        "--config",
        "FILE",
        "config.json of an earlier run, to repeat it. Options that are passed override the file.",
        heading=RUN,
        parameter="config_file",
    )(command_function)
    for name, parameter in reversed(PARAMETERS.items()):
        choices = parameter["choices"]
        command_function = option(
            f"--{name.replace('_', '-')}",
            f"[{'|'.join(choices)}]" if choices else "VALUE",
            " ".join(filter(None, (parameter["help"], describe_auto(name)))),
            default=parameter["default"],
            heading=parameter["group"],
            type=str,
        )(command_function)
    return command_function


@command(
    headings={RUN: ("resume", "assume_dead", "if_held")},
    examples=(
        "clear-mlflow train",
        "clear-mlflow train --strategy replay --memory 0.1 --seed 1",
        "clear-mlflow train --dataset clear10 --data-root ~/clear10 --experiment first",
        "clear-mlflow train --features pixels --seeds 0,1,2 --run-name baseline --tag paper=draft",
        "mlflow run . --env-manager local -P strategy=replay",
    ),
)
@train_options
@run_options
def train(
    resume: str | None = None,
    assume_dead: bool = False,
    if_held: Literal["wait", "leave"] = "wait",
    *,
    config_file: str | None,
    experiment: str | None,
    run_name: str | None,
    tag: tuple[str, ...],
    **parameters: str,
) -> None:
    """Train on one bucket after another, and test on all buckets after each.

    Every row of the accuracy matrix is stored in MLflow as soon as it is measured, or kept on local
    disk while the store is unreachable. However the run ends, the rows are read back and scored.

    Args:
        resume: id of an interrupted run, to resume it with its parameters.
        assume_dead: with --resume, do not wait until the lease of the process that trained the run
            has expired; you know that the process is dead. If it lives after all, it loses the run.
        if_held: what to do if a process on another machine may still train into the run: wait until
            its lease has expired, 3 minutes at most, or leave with exit code 75, to be started
            again later.
        config_file: path of a configuration file.
        experiment: name of the experiment.
        run_name: name of the run.
        tag: tags of the run.
        **parameters: parameters of the training as text.
    """
    if assume_dead and not resume:
        raise ConfigError(
            "assume_dead is 'yes' and resume is 'none'; assume_dead applies to a run to resume: "
            "name that run, or leave assume_dead out"
        )
    apply_run_options(experiment, run_name, tag, resume=resume)
    dist_env = read_dist_env()
    # With several processes, the others would give up before the lease has expired.
    can_wait = if_held == "wait" and dist_env.size == 1
    with StoppingSignals(print_message=dist_env.keeps_record) as signals:
        if resume:
            _check_resume(resume, config_file, dist_env)
        passed = _select_passed(parameters)
        requested, config = _resolve_parameters(config_file, parameters)
        check_memory(config, {} if resume else passed)
        if not dist_env.keeps_record:
            sys.exit(run_rank(dist_env, config, signals))

        # This process loads torch while MLflow is loaded below.
        process = None if resume else TrainingProcess(config)

        from clear_mlflow.cli.output import print_run_result
        from clear_mlflow.store.client import set_up_mlflow
        from clear_mlflow.tracking.tracked_training import resume_supervised, train_supervised

        set_up_mlflow()
        if resume:
            outcome = resume_supervised(
                resume, passed, signals, assume_dead=assume_dead, can_wait=can_wait
            )
        elif process:
            outcome = train_supervised(
                process, requested, signals, run_name=run_name, can_wait=can_wait
            )
        print_run_result(outcome)
    sys.exit(outcome.exit_code)


@command(
    headings={RUN: ("processes",)},
    examples=(
        "clear-mlflow train-distributed --dataset clear10 --data-root ~/clear10",
        "clear-mlflow train-distributed --processes 2 --strategy replay",
    ),
)
@train_options
@run_options
def train_distributed(
    processes: int | Literal["auto"] = "auto",
    *,
    config_file: str | None,
    experiment: str | None,
    run_name: str | None,
    tag: tuple[str, ...],
    **parameters: str,
) -> None:
    """Train as `train` does, in several processes on this machine: one per GPU.

    Each process takes its share of every batch, so the matrix is that of one process except for
    rounding. For several machines, start `train` with torchrun: see docs/distributed.md.

    Args:
        processes: number of processes on this machine, which share every batch. auto: one per GPU,
            or 2 on CPUs.
        config_file: path of a configuration file.
        experiment: name of the experiment.
        run_name: name of the run.
        tag: tags of the run.
        **parameters: parameters of the training as text.
    """
    from clear_mlflow.process.launch import launch, processes_to_start

    if processes != "auto" and processes < 1:
        raise ConfigError(f"processes is {processes}; expected a whole number of at least 1")
    _, config = _resolve_parameters(config_file, parameters)
    # The started processes read experiment and tags from the environment, and the name here.
    apply_run_options(experiment, run_name, tag)
    arguments = [f"--run-name={run_name}"] if run_name else []
    if config_file:
        arguments += ["--config", config_file]
    # Only passed options: a default would override the configuration file.
    for name, value in _select_passed(parameters).items():
        arguments += [f"--{name.replace('_', '-')}", value]
    sys.exit(
        launch(processes_to_start(None if processes == "auto" else processes, config), arguments)
    )


def _resolve_parameters(
    config_file: str | None, parameters: dict[str, str]
) -> tuple[dict[str, str], TrainConfig]:
    """Return parameters as text, and the resolved configuration.

    config_file: path of a config.json, which passed options override, or None. Raises ConfigError
    if a value is invalid.
    """
    if config_file:
        from_file = read_config_file(Path(config_file))
        parameters = {**parameter_defaults(), **from_file, **_select_passed(parameters)}
    return parameters, TrainConfig.resolve(parameters)


def _check_resume(resume: str, config_file: str | None, dist_env: DistributedEnv) -> None:
    """Raise ConfigError if a run is resumed with --config, or by one of several processes."""
    if config_file:
        raise ConfigError(
            f"config is {config_file} and resume is {resume}; a resumed run keeps its parameters: "
            "leave config out"
        )
    if dist_env.size > 1:
        raise ConfigError(
            f"resume is {resume} and this is one of {dist_env.size} processes, of which only one "
            "knows the run's parameters; pass the same parameters as before, and set MLFLOW_RUN_ID "
            "to the run's id instead"
        )


def _select_passed(parameters: dict[str, str]) -> dict[str, str]:
    """Return the parameters that were passed on the command line, without defaults."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in parameters.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
