"""A strategy's own numbers: declared beside it, written as ``name=value,name=value``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TypeVar, get_type_hints

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.config import Argument

T = TypeVar("T")

_YES_NO = {"yes": True, "no": False}


def parse_arguments(strategy: str, kind: type[T], given: Mapping[str, Argument]) -> T:
    """What ``strategy_args`` says, as values of their types; those that have theirs stay.

    Args:
        strategy: its name, for messages.
        kind: a frozen dataclass whose fields are ``int``, ``float``, ``bool`` or ``str``, each with
            a default; its ``__post_init__`` may raise ConfigError.
        given: name to value, or to the text of it; booleans are yes and no.

    Raises:
        ConfigError: a name is unknown, or a text is not a value of its type.
    """
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Argument] = {}
    for name, value in given.items():
        if name not in names or value == "":
            known = f"known are {', '.join(names)}" if names else "it takes none"
            shown = f"{name}={value}" if value != "" else name
            raise ConfigError(
                f"strategy_args holds {shown!r}, which is no argument of strategy "
                f"{strategy}; {known}, as name=value,name=value"
            )
        values[name] = _value(name, hints[name], value) if isinstance(value, str) else value
    return kind(**values)


def check_not_negative(arguments: object, *names: str) -> None:
    """Check that each of these arguments is 0 or more.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        if getattr(arguments, name) < 0:
            raise ConfigError(
                f"{name} is {getattr(arguments, name)} in strategy_args; pass 0 or more"
            )


def check_above_zero(arguments: object, *names: str) -> None:
    """Check that each of these arguments is above 0.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        if getattr(arguments, name) <= 0:
            raise ConfigError(
                f"{name} is {getattr(arguments, name)} in strategy_args; pass a number above 0"
            )


def _value(name: str, kind: type, text: str) -> Argument:
    try:
        if kind is bool:
            return _YES_NO[text]
        value: Argument = kind(text)
    except (KeyError, ValueError):
        expected = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise ConfigError(f"strategy_args has {name}={text}; expected {expected}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"strategy_args has {name}={text}; expected a finite number")
    return value
