"""The parameters of a training that a run logs, and how they are read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.record import is_training
from clear_mlflow.core.text import truncate
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, parse_json_texts, read_bytes
from clear_mlflow.data.files import reason
from clear_mlflow.data.sources import is_custom_function
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    REPLACED,
    TrainConfig,
    is_tuned,
    list_parameter_defaults,
    list_result_parameters,
    parse_parameter,
)
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import OFF, format_argument

# Options whose arguments are all in force with their defaults, also if no argument was passed.
ARGUMENTS = ("strategy_args", "dataset_args", "scenario_args")

# Parameters that are logged only if they differ from this value.
_UNLOGGED = {name: text for name, text in list_parameter_defaults().items() if text in (NONE, OFF)}


def select_parameters_to_log(
    config: TrainConfig, requested: Mapping[str, str], stored: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameters that a run should log, without those in *stored*.

    ``lr`` is the value in force, ``asked/lr`` the text that was passed if it does not name that
    value or has no effect, and ``used/lr`` the value in force if the run has another ``lr``.
    What the strategy replaces is logged as "set by" the strategy.
    Skips parameters that are left at none or off; :func:`list_unlogged_defaults` returns them.
    Adds ``used/arithmetic``, and each argument of strategy, dataset and scenario under its own
    name, for example ``strategy/alpha``.

    requested: texts that the user passed, by name.
    """
    parameters, ignored = {}, config.ignored_parameters - config.replaced
    for name, text in config.format_record().items():
        option = PARAMETERS[name]
        passed = requested.get(name, option.default)
        if name in ignored:
            if name not in stored and passed != option.default:
                parameters[f"asked/{name}"] = passed
        elif name in stored:
            if not _is_in_force(config, name, stored[name]):
                parameters[f"used/{name}"] = text
        elif not text == passed == _UNLOGGED.get(name):
            parameters[name] = text
            # A resume on another machine needs to know that the device was auto.
            if not _is_in_force(config, name, passed) and (
                passed != option.default or option.resolved_by_process
            ):
                parameters[f"asked/{name}"] = passed
    parameters["used/arithmetic"] = config.arithmetic
    # Each argument has its own name: a column in MLflow, to sort and compare runs by.
    for option_name in ARGUMENTS:
        owner = option_name.removesuffix("_args")
        for name, value in getattr(config, option_name).items():
            parameters[f"{owner}/{name}"] = format_argument(value)
    # MLflow's page shows them in this order: requested texts come last.
    ordered = sorted(parameters.items(), key=lambda item: item[0].startswith("asked/"))
    return {name: text for name, text in ordered if name not in stored}


def _is_in_force(config: TrainConfig, name: str, text: str) -> bool:
    """Return True if a text parses to the parameter's current value."""
    if name in config.replaced:
        return text == config.format_record()[name]
    try:
        requested = parse_parameter(name, text)
    except ConfigError:
        return False
    value = getattr(config, name)
    if isinstance(value, Mapping):  # texts if requested, typed values if in force
        value = {key: format_argument(argument) for key, argument in value.items()}
    return bool(requested == value)


def select_training_parameters(logged: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a run was trained with, from logged parameters.

    ``device`` and ``precision`` are as they were requested, possibly ``auto``, and so is what the
    strategy replaces. Options that were not logged are missing, and so are names that are not
    options.
    """
    parameters = {}
    for name, option in PARAMETERS.items():
        keys = [f"used/{name}", name, f"asked/{name}"]
        if option.resolved_by_process:
            keys = [f"asked/{name}", name]
        for key in keys:
            if key in logged and not logged[key].startswith(REPLACED):
                parameters[name] = logged[key]
                break
    return parameters


def list_unlogged_defaults(logged: Mapping[str, str]) -> dict[str, str]:
    """Return the values none and off that trainings do not log.

    Returns all of them with that value, also those that *logged* contains: let *logged* override
    them. Returns {} for a run of another program.
    """
    return dict(_UNLOGGED) if is_training(logged) else {}


def describe_parameters(config: TrainConfig) -> str:
    """Return JSON by which any version groups runs of one method.

    ``tuned`` and ``method`` contain the parameters that affect results, name to the text in force,
    or null for one without effect: those that are usually chosen by their results, and others.
    ``unlogged`` contains further parameters that a run does not log.
    """
    without_effect = dict.fromkeys(config.ignored_parameters - config.replaced)
    texts: dict[str, str | None] = {**config.format_record(), **without_effect}
    described: dict[str, dict[str, str | None]] = {"tuned": {}, "method": {}}
    for name in list_result_parameters():
        text = texts.pop(name)
        # A tag has room for 8,000 characters.
        value = None if text is None else truncate(text, 200)
        described["tuned" if is_tuned(name) else "method"][name] = value
    described["unlogged"] = {n: text for n, text in texts.items() if text == _UNLOGGED.get(n, "")}
    return json.dumps(described, separators=(",", ":"), ensure_ascii=False)


def list_custom_code(parameters: Mapping[str, str]) -> list[str]:
    """Return the options that name a user's code.

    >>> list_custom_code({"dataset": "lab.streams:seasons", "model": "mlp:64"})
    ['dataset']
    """
    options = ("strategy", "dataset", "model")
    return [name for name in options if is_custom_function(parameters.get(name, ""))]


def read_config_file(path: Path) -> dict[str, str]:
    """Read a ``config.json`` whose values are texts.

    Checks neither names nor values. Raises ConfigError if the file is missing or too large, or is
    not a JSON object of texts.
    """
    try:
        return parse_json_texts(read_bytes(path, MAX_CONFIG_BYTES), MAX_CONFIG_BYTES)
    except (OSError, RecordError) as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {reason(error)}; expected a JSON object of "
            "texts, like the config.json of a run"
        ) from error
