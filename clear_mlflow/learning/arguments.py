"""Named values as ``name=value,name=value``: a strategy's numbers, how a dataset is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.scenarios import ScenarioArguments
from clear_mlflow.data.sources import load_source, stream_name
from clear_mlflow.data.stream import DOMAIN
from clear_mlflow.learning.parameters.config import parse_parameter
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import Argument, argument_text
from clear_mlflow.learning.parameters.values import parse_arguments as split_arguments

T = TypeVar("T")

_EXPECTED = {int: "a whole number", float: "a finite number", str: "a text"}


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
        values[name] = value
        if isinstance(value, str):
            try:
                values[name] = _parse_value(hints[name], value)
            except ValueError as error:
                raise ConfigError(f"{parameter} has {name}={value}; expected {error}") from None
    arguments = kind(**values)
    for name in names:
        # A run is resumed from these texts, and compared by them.
        value = getattr(arguments, name)
        text = argument_text(value)
        with suppress(ValueError):
            is_plain = text and split_arguments(f"{name}={text}") == {name: text}
            if is_plain and _parse_value(hints[name], text) == value:
                continue
        raise ConfigError(
            f"{name} of {of} is {value!r}, which cannot be stored in {parameter} as a text and "
            "read back; expected bool, int, float, str without commas, Literal of these, or one of "
            "these with | None"
        )
    return arguments


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
    kind = load_source(dataset).Arguments
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


def _parse_value(hint: Any, text: str) -> Argument:
    """Return an argument's value, or raise ValueError with what its type expects."""
    options = get_args(hint)
    is_optional = get_origin(hint) in (Union, UnionType) and NoneType in options
    words: dict[str, Argument] = {"yes": True, "no": False} if hint is bool else {}
    if get_origin(hint) is Literal:
        words = {argument_text(option): option for option in options}
    elif is_optional and len(options) == 2:
        words, hint = {NONE: None}, options[options[0] is NoneType]
    if text in words:
        return words[text]
    if hint in _EXPECTED:
        with suppress(ValueError):
            value: Argument = hint(text)
            if not isinstance(value, float) or math.isfinite(value):
                return value
    expected = [*words, *([_EXPECTED[hint]] if hint in _EXPECTED else ())]
    raise ValueError(" or ".join(expected) or f"another type than {hint}")
