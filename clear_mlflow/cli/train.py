"""``clear-mlflow train`` and ``train-distributed``: train on a stream, and score the rows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from clear_mlflow.cli import output
from clear_mlflow.cli.command import build_option, command
from clear_mlflow.core.disk import OFFLINE_VARIABLE, find_offline_folder
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    TrainConfig,
    list_auto_values,
    list_parameter_defaults,
)
from clear_mlflow.learning.parameters.logged import read_config_file
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.process.ranks import run_rank
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.process.training_process import TrainingProcess

# What MLproject declares. MLflow logs their defaults, which are in force whatever else is passed.
PROJECT_PARAMETERS = ("dataset", "data_root", "strategy", "seed")

_HEADINGS = {"Run": "config experiment run_name tag offline resume if_held processes"}
for _name, _option in PARAMETERS.items():
    _HEADINGS[_option.group] = f"{_HEADINGS.get(_option.group, '')} {_name}"


def _describe_parameter(name: str) -> str:
    """Return a parameter's help, with the values of ``auto``.

    >>> _describe_parameter("epochs")[-90:]
    'auto: 24 on digits; 18 on digits-writers; 100 on clear10, clear100, own streams, features.'
    """
    datasets: dict[str, list[str]] = {}  # by value
    for dataset, value in list_auto_values(name).items():
        datasets.setdefault(value, []).append(dataset)
    parts = [f"{value} on {', '.join(names)}" for value, names in datasets.items()]
    text = PARAMETERS[name].help
    return f"{text} {AUTO}: {'; '.join(parts)}." if parts else text


# Their values are text, which TrainConfig checks, since configuration files contain them, too.
_TRAINING_OPTIONS = [
    build_option(
        name,
        type=str,
        default=option.default,
        metavar=f"[{'|'.join(option.choices)}]" if option.choices else "VALUE",
        help=_describe_parameter(name),
    )
    for name, option in PARAMETERS.items()
]


@command(
    headings=_HEADINGS,
    options=_TRAINING_OPTIONS,
    examples=(
        "clear-mlflow train",
        "clear-mlflow train --strategy replay --memory 0.1 --seed 1",
        "clear-mlflow train --dataset clear10 --data-root ~/clear10 --experiment first",
        "clear-mlflow train --features pixels --seeds 0,1,2 --tag paper=draft",
        "mlflow run . --env-manager local -P strategy=replay",
    ),
)
def train(
    *,
    config: Path | None = None,
    experiment: str | None = None,
    run_name: str | None = None,
    tag: tuple[str, ...] = (),
    offline: bool = False,
    resume: str | None = None,
    if_held: Literal["wait", "leave"] = "wait",
    **parameters: str,
) -> None:
    """Train on one bucket after another, and test on all buckets after each.

    Every row of the accuracy matrix is stored in MLflow as soon as it is measured, or kept on local
    disk while the store is unreachable. However the run ends, the rows are read back and scored.

    Args:
        config: path of the config.json of an earlier run, to repeat it. Options that are passed
            override the file.
        experiment: MLflow experiment; created if it does not exist. Without it, the experiment of
            MLFLOW_EXPERIMENT_NAME, else Default.
        run_name: name of the run. Without it, a name with strategy, dataset and seed.
        tag: tag of the run, KEY=TEXT; may be given several times.
        offline: record the run in the folder offline_runs, or the folder that CLEAR_MLFLOW_OFFLINE
            names, without any tracking store; "clear-mlflow sync" copies it to one later.
        resume: id of an interrupted run, to resume it with its parameters; or an offline folder
            with one interrupted run.
        if_held: what to do if a process on another machine may still be training this run. wait:
            wait up to 3 minutes for its lease to expire. leave: exit with code 75 at once.
        **parameters: parameters of the training as text.
    """
    if resume is not None and not resume.strip():  # such as "$RUN", which was never set
        raise ConfigError("resume is empty; expected the id of a run", parameter="resume")
    apply_run_options(experiment, run_name, tag, resume=resume, offline=offline)
    dist_env = read_dist_env()
    # With several processes, the other ranks would stop waiting before the lease expires.
    can_wait = if_held == "wait" and dist_env.size == 1
    with StoppingSignals(print_message=dist_env.keeps_record) as signals:
        if resume and config:
            raise ConfigError(
                f"config is {config} and resume is {resume}; a resumed run keeps its parameters: "
                "leave config out",
                parameter="config",
            )
        if resume and dist_env.size > 1:
            raise ConfigError(
                f"resume is {resume} and this is one of {dist_env.size} processes, of which only "
                "one knows the run's parameters; pass the same parameters as before, and set "
                "MLFLOW_RUN_ID to the run's id instead",
                parameter="resume",
            )
        passed = _select_passed(parameters)
        if resume:
            _check_entry_point(passed)
        requested = _read_parameters(config, parameters)
        train_config = TrainConfig.resolve(requested, passed=() if resume else passed)
        if not dist_env.keeps_record:
            sys.exit(run_rank(dist_env, train_config, signals))

        # This process loads torch while MLflow is loaded below.
        process = None if resume else TrainingProcess(train_config)

        from clear_mlflow.store.client import set_up_mlflow
        from clear_mlflow.tracking.tracked_training import resume_supervised, train_supervised

        set_up_mlflow()
        if process is None:
            outcome = resume_supervised(str(resume), passed, signals, can_wait=can_wait)
        else:
            outcome = train_supervised(
                process, requested, signals, run_name=run_name, can_wait=can_wait
            )
        output.print_run_result(outcome)
    sys.exit(outcome.exit_code)


@command(
    headings=_HEADINGS,
    options=[
        option
        for option in train.params
        if isinstance(option, click.Option) and option.name not in ("resume", "if_held")
    ],
    examples=(
        "clear-mlflow train-distributed --dataset clear10 --data-root ~/clear10",
        "clear-mlflow train-distributed --processes 2 --strategy replay",
    ),
)
def train_distributed(*, processes: int | Literal["auto"] = "auto", **values: Any) -> None:
    """Train as `train` does, in several processes: one per GPU.

    Each process takes its share of every batch, so the matrix equals the one of one process except
    for rounding. For several machines, start `train` with torchrun: see docs/distributed.md.

    Args:
        processes: number of processes on this machine, which share every batch. auto: one per GPU,
            or 2 on CPUs.
        **values: the other options of :func:`train`.
    """
    from clear_mlflow.process.ranks import launch, resolve_num_processes

    if processes != "auto" and processes < 1:
        raise ConfigError(
            f"processes is {processes}; expected a whole number of at least 1",
            parameter="processes",
        )
    config, run_name = values.pop("config"), values.pop("run_name")
    run_options = {name: values.pop(name) for name in ("experiment", "tag", "offline")}
    passed = _select_passed(values)
    train_config = TrainConfig.resolve(_read_parameters(config, values), passed=passed)
    # The started processes read experiment and tags from the environment, and the name here.
    apply_run_options(run_name=run_name, **run_options)
    arguments = [f"--run-name={run_name}"] if run_name else []
    if config:
        arguments += ["--config", str(config)]
    # Only passed options: a default would override the configuration file.
    for name, value in passed.items():
        arguments += [f"--{name.replace('_', '-')}", value]
    num_processes = resolve_num_processes(None if processes == "auto" else processes, train_config)
    sys.exit(launch(num_processes, arguments))


def _read_parameters(config_file: Path | None, parameters: dict[str, str]) -> dict[str, str]:
    """Return all parameters as text: passed ones, the file's, or defaults.

    config_file: path of a config.json, or None for no file. parameters: all parameters of the
    command, with their defaults. Raises ConfigError if the file is not a JSON object of texts.
    """
    if config_file is None:
        return parameters
    passed = _select_passed(parameters)
    _check_entry_point(passed)
    return {**list_parameter_defaults(), **read_config_file(config_file), **passed}


def _check_entry_point(passed: Collection[str]) -> None:
    """Raise ConfigError if mlflow run passed a new run's defaults elsewhere."""
    if {*PROJECT_PARAMETERS}.issubset(passed):
        raise ConfigError(
            "the entry point main of mlflow run sets the data, method and seed of a new run; pass "
            "-e resume to resume a run, or -e repeat to repeat one"
        )


def _select_passed(parameters: dict[str, str]) -> dict[str, str]:
    """Return the parameters that were passed on the command line, without defaults."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in parameters.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def apply_run_options(
    experiment: str | None,
    run_name: str | None,
    tag: Sequence[str],
    *,
    resume: str | None = None,
    offline: bool = False,
) -> None:
    """Set store, experiment and tags of later runs, in os.environ.

    run_name is only checked. tag: KEY=TEXT each. resume: id of the run that is resumed, or None.
    Raises ConfigError if experiment, run_name or tag is passed although a run is continued (that in
    *resume* or MLFLOW_RUN_ID), or if a tag is not KEY=TEXT or has a reserved key.
    """
    if offline and find_offline_folder() is None:
        os.environ[OFFLINE_VARIABLE] = "1"
    existing_run_id = resume or os.environ.get("MLFLOW_RUN_ID", "").strip()
    passed = {"experiment": experiment, "run_name": run_name, "tag": " ".join(tag) or None}
    for name, text in passed.items():
        if text is not None and not text.strip():  # such as "$NAME", which was never set
            raise ConfigError(f"{name} is {text!r}; expected a name", parameter=name)
        if text and existing_run_id:
            raise ConfigError(
                f"{name} is {text!r}, but run {existing_run_id} exists already and keeps its "
                "experiment, name and tags; leave the option out",
                parameter=name,
            )
    tags = {}
    for text in tag:
        key, sign, value = text.partition("=")
        if not key.strip() or not sign:
            raise ConfigError(
                f"tag is {text!r}; expected KEY=TEXT, for example paper=draft", parameter="tag"
            )
        if key.startswith(("mlflow.", "clear_mlflow.")):
            raise ConfigError(
                f"tag is {text!r}; names that begin with mlflow. or clear_mlflow. are reserved",
                parameter="tag",
            )
        tags[key.strip()] = value
    # MLflow's own variables: every run that is opened from here on follows them.
    if tags:
        os.environ["MLFLOW_RUN_CONTEXT"] = json.dumps({**_read_run_context(), **tags})
    if experiment:
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
        os.environ["MLFLOW_EXPERIMENT_NAME"] = experiment


def _read_run_context() -> dict[str, object]:
    text = os.environ.get("MLFLOW_RUN_CONTEXT", "").strip()
    try:
        return dict(json.loads(text or "{}"))
    except (TypeError, ValueError):
        raise ConfigError(
            f"MLFLOW_RUN_CONTEXT is {safe_repr(text, 200)}; expected tags as a JSON object, for "
            'example {"paper": "draft"}, or unset it'
        ) from None
