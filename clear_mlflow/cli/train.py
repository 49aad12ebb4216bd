"""``clear-mlflow train``: train on a stream of buckets, and score what was stored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from clear_mlflow.config import (
    NONE,
    TrainConfig,
    parameter_defaults,
    parameter_help,
    read_config_file,
)


def _train_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for each field of TrainConfig, all texts, as MLflow hands them over."""
    for name, default in reversed(parameter_defaults().items()):
        option = click.option(
            f"--{name.replace('_', '-')}",
            name,
            default=default,
            show_default=True,
            metavar="TEXT",
            help=parameter_help(name),
        )
        command = option(command)
    return command


@click.command()
@_train_options
@click.option(
    "--config",
    "config_file",
    default=NONE,
    show_default=True,
    metavar="FILE",
    help="config.json of an earlier run, to repeat it; other options that are given go before it.",
)
def train(config_file: str, **asked: str) -> None:
    """Train on one bucket after another and test on all buckets after each.

    Every row of the accuracy matrix is stored in MLflow the moment it is measured. However the run
    ends, the rows are read back from there and scored.
    """
    if config_file != NONE:
        defaults = parameter_defaults()
        given = {name: text for name, text in asked.items() if text != defaults[name]}
        asked = {**defaults, **read_config_file(Path(config_file)), **given}
    TrainConfig.resolve(asked)  # a wrong value is told at once, before anything is started

    from clear_mlflow.cli.output import print_outcome
    from clear_mlflow.tracking.preflight import bound_retries, quiet_mlflow
    from clear_mlflow.tracking.session import train_supervised

    bound_retries()
    quiet_mlflow()
    outcome = train_supervised(asked)
    print_outcome(outcome)
    sys.exit(outcome.exit_code)
