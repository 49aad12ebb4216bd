"""Named values as ``name=value,name=value``: a strategy's numbers, how a dataset is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.scenarios import ScenarioArguments
from clear_mlflow.data.sources import source_of, stream_name
from clear_mlflow.data.stream import DOMAIN
from clear_mlflow.learning.parameters.config import parse_parameter
from clear_mlflow.learning.parameters.values import Argument

T = TypeVar("T")

_YES_NO = {"yes": True, "no": False}


def parse_arguments(parameter: str, of: str, kind: type[T], given: Mapping[str, Argument]) -> T:
    """What a parameter like ``strategy_args`` says, as *kind*, a dataclass with defaults."""
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Argument] = {}
    for name, value in given.items():
        if name not in names or value == "":
            known = f"known are {', '.join(names)}" if names else "it takes none"
            shown = f"{name}={value}" if value != "" else name
            raise ConfigError(
                f"{parameter} holds {shown!r}, which is no argument of {of}; {known}, as "
                "name=value,name=value"
            )
        typed = isinstance(value, str)
        values[name] = _value(parameter, name, hints[name], str(value)) if typed else value
    return kind(**values)


def check_not_negative(arguments: object, *names: str) -> None:
    """Raise ConfigError unless each of these arguments is 0 or more."""
    for name in names:
        if (value := getattr(arguments, name)) < 0:
            raise ConfigError(f"{name} is {value} in strategy_args; pass 0 or more")


def check_above_zero(arguments: object, *names: str) -> None:
    """Raise ConfigError unless each of these arguments is above 0."""
    for name in names:
        if (value := getattr(arguments, name)) <= 0:
            raise ConfigError(f"{name} is {value} in strategy_args; pass a number above 0")


def dataset_arguments(
    dataset: str, data_root: str, given: Mapping[str, Argument]
) -> dict[str, Argument]:
    """What ``dataset_args`` says, with all that it leaves out; a stream is called as its folder."""
    kind = source_of(dataset).Arguments
    arguments: Any = parse_arguments("dataset_args", f"dataset {dataset}", kind, given)
    values = dataclasses.asdict(arguments)
    if "name" in values:
        values["name"] = stream_name(dataset, data_root, values)
        kind(**values)  # a folder may be called as no stream can be
    return values


def scenario_arguments(scenario: str, given: Mapping[str, Argument]) -> dict[str, Argument]:
    """What ``scenario_args`` says, with all that it leaves out; of ``domain``, nothing."""
    kind: Any = dataclasses.make_dataclass("Arguments", [])
    if scenario != DOMAIN:
        kind = ScenarioArguments
    found = parse_arguments("scenario_args", f"scenario {scenario}", kind, given)
    return dataclasses.asdict(found)


def named_dataset(dataset: str, data_root: str, text: str) -> tuple[str, dict[str, Argument]]:
    """A dataset and its arguments from the texts of ``dataset`` and ``dataset_args``."""
    name = parse_parameter("dataset", dataset)
    return name, dataset_arguments(name, data_root, parse_parameter("dataset_args", text))


def _value(parameter: str, name: str, kind: type, text: str) -> Argument:
    try:
        if kind is bool:
            return _YES_NO[text]
        value: Argument = kind(text)
    except (KeyError, ValueError):
        expected = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise ConfigError(f"{parameter} has {name}={text}; expected {expected}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{parameter} has {name}={text}; expected a finite number")
    return value
