"""``clear-mlflow train``: train on a stream of buckets, and score what was stored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from clear_mlflow.cli.help import Command, auto_text
from clear_mlflow.cli.options import option, yes_or_no
from clear_mlflow.cli.run_options import RUN, apply_run_options, run_options
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


def train_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for each field of TrainConfig, all texts, as MLflow gives them; and a file."""
    command = option(
        "--config",
        "FILE",
        "config.json of an earlier run, to repeat it. Options that are passed override the file.",
        under=RUN,
        to="config_file",
    )(command)
    for name, about in reversed(PARAMETERS.items()):
        choices = about["choices"]
        command = option(
            f"--{name.replace('_', '-')}",
            f"[{'|'.join(choices)}]" if choices else "VALUE",
            " ".join(filter(None, (about["help"], auto_text(name)))),
            default=about["default"],
            under=about["group"],
            type=str,
        )(command)
    return command


def asked_parameters(
    context: click.Context, config_file: str | None, asked: dict[str, str]
) -> tuple[dict[str, str], TrainConfig]:
    """What the options and the file that they name ask for: as text, and resolved."""
    if config_file:
        from_file = read_config_file(Path(config_file))
        asked = {**parameter_defaults(), **from_file, **_given(context, asked)}
    # Here and nowhere else: a wrong value is refused at once, before anything is started.
    return asked, TrainConfig.resolve(asked)


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow train",
        "clear-mlflow train --strategy replay --memory 0.1 --seed 1",
        "clear-mlflow train --dataset clear10 --data-root ~/clear10 --experiment first",
        "clear-mlflow train --features pixels --seeds 0,1,2 --run-name baseline --tag paper=draft",
        "mlflow run . --env-manager local -P strategy=replay",
    ),
)
@train_options
@option("--resume", "RUN_ID", "An interrupted run: resume it, with its parameters.", under=RUN)
@yes_or_no(
    "--assume-dead",
    "With --resume: do not wait until the lease of the process that trained the run has expired; "
    "you know that the process is dead. If it lives after all, it loses the run.",
    under=RUN,
)
@option(
    "--if-held",
    ["wait", "leave"],
    "If a process on another machine may still train into the run: wait until its lease has "
    "expired, 3 minutes at most, or leave with exit code 75, to be started again later.",
    under=RUN,
)
@run_options
@click.pass_context
def train(
    context: click.Context,
    /,
    resume: str | None,
    assume_dead: bool,
    if_held: str,
    config_file: str | None,
    experiment: str | None,
    run_name: str | None,
    tag: tuple[str, ...],
    **asked: str,
) -> None:
    """Train on one bucket after another and test on all buckets after each.

    Every row of the accuracy matrix is stored in MLflow as soon as it is measured; it waits on
    local disk while the store is away. However the run ends, the rows are read back and scored.
    """
    if assume_dead and not resume:
        raise ConfigError(
            "assume_dead is 'yes' and resume is 'none'; it is said of a run to resume: name that "
            "run, or leave it out"
        )
    apply_run_options(experiment, run_name, tag, resume=resume)
    place = read_dist_env()
    # With several processes, the others would give up before the lease has expired.
    can_wait = if_held == "wait" and place.size == 1
    with StoppingSignals(tell=place.keeps_record) as signals:
        given = _given_to_resume(context, resume, config_file, asked, place)
        requested = {} if resume else _given(context, asked)
        asked, config = asked_parameters(context, config_file, asked)
        check_memory(config, requested)
        if not place.keeps_record:
            sys.exit(run_rank(place, config, signals))

        # Its torch is loaded while MLflow is loaded here.
        process = None if resume else TrainingProcess(config)

        from clear_mlflow.cli.output import print_outcome
        from clear_mlflow.store.client import set_up_mlflow
        from clear_mlflow.tracking.tracked_training import resume_supervised, train_supervised

        set_up_mlflow()
        if resume:
            outcome = resume_supervised(
                resume,
                given,
                signals,
                num_processes=place.size,
                assume_dead=assume_dead,
                can_wait=can_wait,
            )
        elif process:
            outcome = train_supervised(
                process,
                asked,
                signals,
                num_processes=place.size,
                run_name=run_name,
                can_wait=can_wait,
            )
        print_outcome(outcome)
    sys.exit(outcome.exit_code)


def _given_to_resume(
    context: click.Context,
    resume: str | None,
    config_file: str | None,
    asked: dict[str, str],
    place: DistributedEnv,
) -> dict[str, str]:
    """The parameters that a user names beside the run to resume."""
    if not resume:
        return {}
    if config_file:
        raise ConfigError(
            f"config is {config_file} and resume is {resume}; a run that is resumed has the "
            "parameters that it has: leave config out"
        )
    if place.size > 1:
        raise ConfigError(
            f"resume is {resume} and this is one of {place.size} processes, of which one knows the "
            "run's parameters; pass the same parameters as before, and set MLFLOW_RUN_ID to the "
            "run's id instead"
        )
    return _given(context, asked)


def _given(context: click.Context, asked: dict[str, str]) -> dict[str, str]:
    """Return the parameters that a user passed."""
    return {
        name: text
        for name, text in asked.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
