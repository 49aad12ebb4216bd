"""What runs log of a training's parameters, and how they are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, json_texts, read_bytes
from clear_mlflow.data.sources import is_own_function
from clear_mlflow.learning.anytime.schedule import OFF
from clear_mlflow.learning.parameters.config import (
    TrainConfig,
    parameter_defaults,
    parameters_with,
    parse_parameter,
)
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import argument_text

# In force with all their defaults, which who asks for a run need not name.
ARGUMENTS = ("strategy_args", "dataset_args", "scenario_args")


# Parameters that are logged only if they differ from this value.
_UNLOGGED = {name: text for name, text in parameter_defaults().items() if text in (NONE, OFF)}


def parameters_to_log(
    config: TrainConfig, asked: Mapping[str, str], there: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameters to log to a run in addition to those that it has already.

    ``lr`` is the value in force, ``asked/lr`` the text that was passed if it does not name that
    value or has no effect, and ``used/lr`` the value in force if the run has another ``lr``.
    Skips parameters that are left at none or off; :func:`unlogged_parameters` returns them.
    """
    defaults, found, unused = parameter_defaults(), {}, config.without_role
    of_machine = parameters_with("of_machine")
    for name, text in config.as_text().items():
        asked_for = asked.get(name, defaults[name])
        if name in unused:
            if name not in there and asked_for != defaults[name]:
                found[f"asked/{name}"] = asked_for
        elif name in there:
            if not _names(config, name, there[name]):
                found[f"used/{name}"] = text
        elif not text == asked_for == _UNLOGGED.get(name):
            found[name] = text
            # A resume on another machine needs to know that the device was left to the machine.
            if not _names(config, name, asked_for) and (
                asked_for != defaults[name] or name in of_machine
            ):
                found[f"asked/{name}"] = asked_for
    found["used/arithmetic"] = config.arithmetic
    # One name per argument: a column of its own to sort and compare runs by.
    for of in ("strategy", "dataset", "scenario"):
        for name, value in getattr(config, f"{of}_args").items():
            found[f"{of}/{name}"] = argument_text(value)
    # MLflow's page lists them in this order: what was asked for comes last.
    ordered = sorted(found.items(), key=lambda item: item[0].startswith("asked/"))
    return {name: text for name, text in ordered if name not in there}


def _names(config: TrainConfig, name: str, text: str) -> bool:
    """Whether a text, as it was asked for, names the value in force; ``auto`` does not."""
    try:
        value = parse_parameter(name, text)
    except ConfigError:
        return False
    in_force = getattr(config, name)
    if isinstance(value, Mapping):  # of texts here, and of values of their types there
        in_force = {key: argument_text(one) for key, one in in_force.items()}
    return bool(value == in_force)


def logged_parameters(logged: Mapping[str, str]) -> dict[str, str]:
    """Of all parameters that a run logged, what it was trained with, whatever ``auto`` was."""
    of_machine, found = parameters_with("of_machine"), {}
    for name in parameter_defaults():
        used, asked = f"used/{name}", f"asked/{name}"
        for key in (asked, name) if name in of_machine else (used, name, asked):
            if key in logged:
                found[name] = logged[key]
                break
    return found


def unlogged_parameters(logged: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a training that are not logged because they are none or off."""
    return dict(_UNLOGGED) if is_of_a_training(logged) else {}


def is_of_a_training(logged: Mapping[str, str]) -> bool:
    """Whether parameters were logged by a training of this program."""
    return "used/arithmetic" in logged


def dataset_runs_code(parameters: Mapping[str, str]) -> bool:
    """Whether the dataset is a function of your own: loading it runs that code.

    >>> dataset_runs_code({"dataset": "lab.streams:seasons"}), dataset_runs_code({})
    (True, False)
    """
    return is_own_function(parameters.get("dataset", parameter_defaults()["dataset"]))


def read_config_file(path: Path) -> dict[str, str]:
    """The parameters, as text, in a ``config.json`` of a run or one that a user wrote."""
    try:
        return json_texts(read_bytes(path, MAX_CONFIG_BYTES), MAX_CONFIG_BYTES)
    except (OSError, RecordError) as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error}; expected a JSON object of texts, as "
            "config.json of a run is"
        ) from error
