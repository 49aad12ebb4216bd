"""A strategy's own numbers: declared beside it, written as ``name=value,name=value``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.config import NONE

T = TypeVar("T")

_YES_NO = {"yes": True, "no": False}


def parse_arguments(strategy: str, kind: type[T], text: str) -> T:
    """Read what ``strategy_args`` says.

    Args:
        strategy: its name, for messages.
        kind: a frozen dataclass whose fields are ``int``, ``float``, ``bool`` or ``str``, each with
            a default; its ``__post_init__`` may raise ConfigError.
        text: ``none``, or ``name=value`` joined by commas; booleans are yes and no.

    Raises:
        ConfigError: a name is unknown or stands twice, or a text is not a value of its type.
    """
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for part in [] if text == NONE else text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in names:
            known = f"known are {', '.join(names)}" if names else "it takes none"
            raise ConfigError(
                f"strategy_args holds {part.strip()!r}, which is no argument of strategy "
                f"{strategy}; {known}, as name=value,name=value"
            )
        if name in values:
            raise ConfigError(f"strategy_args holds {name} twice; pass it once")
        values[name] = _value(name, hints[name], value)
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


def arguments_as_text(arguments: object) -> Mapping[str, str]:
    """Every argument's name and the text that :func:`parse_arguments` reads back."""
    found = {}
    for f in dataclasses.fields(arguments):  # type: ignore[arg-type]
        value = getattr(arguments, f.name)
        found[f.name] = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return found


def _value(name: str, kind: type, text: str) -> Any:
    try:
        if kind is bool:
            return _YES_NO[text]
        value = kind(text)
    except (KeyError, ValueError):
        expected = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise ConfigError(f"strategy_args has {name}={text}; expected {expected}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"strategy_args has {name}={text}; expected a finite number")
    return value
