"""What runs log of a training's parameters, and what the stored ones of any version mean today."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, json_texts, read_bytes
from clear_mlflow.data.sources import is_own_function
from clear_mlflow.learning.parameters.config import (
    TrainConfig,
    names_of_first_version,
    parameter_defaults,
    stored_parameters,
)
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import argument_text

# Only the training process knows their values, so what was asked for distinguishes two runs.
_OF_THE_MACHINE = frozenset({"device", "precision"})


def parameters_to_log(
    config: TrainConfig,
    asked: Mapping[str, str],
    there: Mapping[str, str],
    *,
    of_project: bool = False,
) -> dict[str, str]:
    """The parameters to log to a run beside those that it holds already, which stay.

    A parameter's own name (``lr``) has the value in force. What was asked for is ``asked/lr``,
    where it does not name that value. A parameter that plays no role is logged only where it was
    asked for, as ``asked/lr``. Where the run already holds ``lr`` and that is not the value in
    force, this value is ``used/lr``: MLflow changes no parameter, and ``mlflow run`` logs each as
    it was asked for.

    Args:
        config: the parameters in force.
        asked: parameters as text, as the user gave them.
        there: all that the run holds.
        of_project: ``mlflow run`` opened it; then every parameter that may be ``auto`` is given
            as used, so that such runs have the same columns.
    """
    defaults, found = parameter_defaults(), {}
    for name, text in config.as_text().items():
        told = asked.get(name, defaults[name])
        plays_a_role = name not in config.without_role
        if name in there:
            is_told = config.is_said_by(name, there[name])
            if of_project and defaults[name] == AUTO:
                is_told = False
            if plays_a_role and not is_told:
                found[f"used/{name}"] = text
        elif plays_a_role:
            found[name] = text
            if not config.is_said_by(name, told):
                found[f"asked/{name}"] = told
        elif told != defaults[name]:
            found[f"asked/{name}"] = told
    # Before this was recorded, off was TF32 on most GPUs.
    found["used/arithmetic"] = config.arithmetic
    # One name per argument: a column of its own to sort and compare runs by.
    for name, value in config.strategy_args.items():
        found[f"strategy/{name}"] = argument_text(value)
    for name, value in config.dataset_args.items():
        found[f"dataset/{name}"] = argument_text(value)
    # MLflow's page lists them in this order: what was asked for comes last.
    ordered = sorted(found.items(), key=lambda item: item[0].startswith("asked/"))
    return {name: text for name, text in ordered if name not in there}


def logged_parameters(logged: Mapping[str, str]) -> dict[str, str]:
    """What a run logged of what it was trained with; where ``auto`` was asked for, what that was.

    Runs of before logged what was asked for under a parameter's own name, always.

    Args:
        logged: all parameters of the run.
    """
    found = {}
    for name, default in parameter_defaults().items():
        used, asked = f"used/{name}", f"asked/{name}"
        order = (
            (used, name, asked)
            if default == AUTO and name not in _OF_THE_MACHINE
            else (asked, name)
        )
        for key in order:
            if key in logged:
                found[name] = logged[key]
                break
    return found


def is_of_a_training(logged: Mapping[str, str]) -> bool:
    """Whether parameters were logged by a training of this program."""
    return not logged.keys().isdisjoint({"used/arithmetic", "used/epochs"})


def dataset_runs_code(parameters: Mapping[str, str]) -> bool:
    """Whether the dataset is a function of your own: loading it runs that code.

    >>> dataset_runs_code({"dataset": "lab.streams:seasons"}), dataset_runs_code({})
    (True, False)
    """
    return is_own_function(parameters.get("dataset", parameter_defaults()["dataset"]))


def read_config_file(path: Path) -> dict[str, str]:
    """Read the parameters in a ``config.json`` that an earlier run logged.

    Raises:
        ConfigError: the file cannot be read, or is not a JSON object of texts.
    """
    try:
        content = json_texts(read_bytes(path, MAX_CONFIG_BYTES), MAX_CONFIG_BYTES)
    except (OSError, RecordError) as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error}; expected a JSON object of texts, as "
            "config.json of a run is"
        ) from error
    # A run's own names all parameters that there were; what a user wrote may leave out any.
    is_of_a_run = content.keys() >= names_of_first_version()
    return stored_parameters(content) if is_of_a_run else content
