"""What runs log of a training's parameters, and how they are read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
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
    result_parameters,
)
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import argument_text

# In force with all their defaults, which who asks for a run need not name.
ARGUMENTS = ("strategy_args", "dataset_args", "scenario_args")
# A parameter of another program with one of these words in its name does not affect results.
_RUN_WORDS = {"seed", "seeds", "run", "experiment", "dir", "folder", "host", "hostname", "workers"}
_RUN_WORDS |= {"device", "devices", "gpu", "gpus", "asked"}
_TEST_SET = ("dataset", "protocol", "split", "score", "strategy", "local_rank")


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


def find_method_parameters(logged: Mapping[str, str], unused: str) -> dict[str, str]:
    """Return the logged parameters that affect results, those without effect as *unused*."""
    if not is_of_a_training(logged):
        words = {name: {*re.split(r"[^a-z0-9]+", name.lower())} for name in logged}
        return {
            name.removeprefix("used/"): logged[name]
            for name in sorted(logged, key=lambda name: name.startswith("used/"))
            if name not in _TEST_SET and not words[name] & _RUN_WORDS
        }
    texts = logged_parameters(logged)
    with suppress(ConfigError):  # a parameter of another version of this program
        config = TrainConfig.resolve(texts)
        texts = {**config.as_text(), **dict.fromkeys(config.without_role, unused)}
    arguments = tuple(f"{name.removesuffix('_args')}/" for name in ARGUMENTS)
    return {name: texts.get(name, unused) for name in result_parameters()} | {
        name: text for name, text in logged.items() if name.startswith(arguments)
    }


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
