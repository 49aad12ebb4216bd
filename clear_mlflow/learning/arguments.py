"""Arguments of strategies, datasets and scenarios, which arrive as ``name=value,name=value``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.scenarios import ScenarioArguments
from clear_mlflow.data.sources import load_source, stream_name
from clear_mlflow.data.stream import DOMAIN
from clear_mlflow.learning.parameters.config import parse_parameter
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import Argument, format_argument, split_arguments

T = TypeVar("T")

_EXPECTED = {int: "a whole number", float: "a finite number", str: "a text"}


def parse_arguments(
    parameter: str, owner: str, arguments_class: type[T], values: Mapping[str, Argument]
) -> T:
    """Return an instance of *arguments_class* with values, others by default.

    parameter, owner: for messages, for example ``strategy_args`` and ``strategy ewc``.
    values: by name; a text is parsed as the type of its field, and other values are passed on.

    Raises ConfigError if an argument does not exist, or has a value that is empty, invalid, or not
    the same after :func:`format_argument` and parsing.
    """
    hints = get_type_hints(arguments_class)
    names = [f.name for f in dataclasses.fields(arguments_class)]  # type: ignore[arg-type]
    parsed: dict[str, Argument] = {}
    for name, value in values.items():
        if name not in names or value == "":
            raise ConfigError(
                f"{parameter} contains {safe_repr(f'{name}={value}')}, which is not an argument of "
                f"{owner}; expected {', '.join(names) or 'none'}, in the form name=value,name=value"
            )
        parsed[name] = value
        if isinstance(value, str):
            try:
                parsed[name] = _parse_value(hints[name], value)
            except ValueError as error:
                raise ConfigError(f"{parameter} has {name}={value}; expected {error}") from None
    arguments = arguments_class(**parsed)
    for name in names:
        # Runs are resumed and compared by these texts, which must therefore parse to the same.
        value = getattr(arguments, name)
        text = format_argument(value)
        with suppress(ValueError):
            is_storable = text and split_arguments(f"{name}={text}") == {name: text}
            if is_storable and _parse_value(hints[name], text) == value:
                continue
        raise ConfigError(
            f"{name} of {owner} is {safe_repr(value)}, which cannot be stored in {parameter} as a "
            "text and read back; expected bool, int, float, str without commas, Literal of these, "
            "or one of these with | None"
        )
    return arguments


def check_not_negative(arguments: object, *names: str) -> None:
    """Raise ConfigError unless the fields *names* of *arguments* are 0 or more."""
    for name in names:
        if (value := getattr(arguments, name)) < 0:
            raise ConfigError(f"{name} is {value} in strategy_args; pass 0 or more")


def check_above_zero(arguments: object, *names: str) -> None:
    """Raise ConfigError unless the fields *names* of *arguments* are above 0."""
    for name in names:
        if (value := getattr(arguments, name)) <= 0:
            raise ConfigError(f"{name} is {value} in strategy_args; pass a number above 0")


def complete_dataset_arguments(
    dataset: str, data_root: str, values: Mapping[str, Argument]
) -> dict[str, Argument]:
    """Return all arguments of a dataset as typed values, with defaults.

    ``name=auto`` of a user's own data becomes the name of its folder, file or function, which is
    imported.

    values: ``dataset_args``. Raises ConfigError if one is invalid.
    """
    arguments_class = load_source(dataset).Arguments
    arguments: Any = parse_arguments("dataset_args", f"dataset {dataset}", arguments_class, values)
    completed = dataclasses.asdict(arguments)
    if "name" in completed:
        completed["name"] = stream_name(dataset, data_root, completed)
        arguments_class(**completed)  # raises if the folder's name is not valid for a stream
    return completed


def complete_scenario_arguments(
    scenario: str, values: Mapping[str, Argument]
) -> dict[str, Argument]:
    """Return a scenario's arguments as typed values, with defaults.

    values: ``scenario_args``. Raises ConfigError if one is invalid, or if ``domain`` has one.
    """
    arguments_class: Any = ScenarioArguments
    if scenario == DOMAIN:
        arguments_class = dataclasses.make_dataclass("Arguments", [])
    return dataclasses.asdict(
        parse_arguments("scenario_args", f"scenario {scenario}", arguments_class, values)
    )


def parse_dataset_arguments(
    dataset: str, data_root: str, text: str
) -> tuple[str, dict[str, Argument]]:
    """Return a dataset's name and arguments, typed, with defaults.

    dataset, data_root, text: options ``dataset``, ``data_root`` and ``dataset_args`` as texts.
    Raises ConfigError if one is invalid.
    """
    name = parse_parameter("dataset", dataset)
    return name, complete_dataset_arguments(name, data_root, parse_parameter("dataset_args", text))


def _parse_value(hint: Any, text: str) -> Argument:
    """Parse a text as bool (yes, no), number, str, Literal or None."""
    options = get_args(hint)
    words: dict[str, Argument] = {}
    if get_origin(hint) in (Union, UnionType) and NoneType in options and len(options) == 2:
        words, hint = {NONE: None}, options[options[0] is NoneType]
    if hint is bool:
        words |= {"yes": True, "no": False}
    elif get_origin(hint) is Literal:
        words |= {format_argument(option): option for option in get_args(hint)}
    if text in words:
        return words[text]
    if hint in _EXPECTED:
        with suppress(ValueError):
            value: Argument = hint(text)
            if not isinstance(value, float) or math.isfinite(value):
                return value
    expected = [*words, *([_EXPECTED[hint]] if hint in _EXPECTED else ())]
    raise ValueError(" or ".join(expected) or f"another type than {hint}")
