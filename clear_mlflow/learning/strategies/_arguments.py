"""Bounds of a strategy's own numbers, which it looks at in its arguments' ``__post_init__``."""

from __future__ import annotations

from clear_mlflow.core.errors import ConfigError


def check_not_negative(arguments: object, *names: str) -> None:
    """Raise ConfigError unless each of these arguments is 0 or more."""
    for name in names:
        if getattr(arguments, name) < 0:
            raise ConfigError(
                f"{name} is {getattr(arguments, name)} in strategy_args; pass 0 or more"
            )


def check_above_zero(arguments: object, *names: str) -> None:
    """Raise ConfigError unless each of these arguments is above 0."""
    for name in names:
        if getattr(arguments, name) <= 0:
            raise ConfigError(
                f"{name} is {getattr(arguments, name)} in strategy_args; pass a number above 0"
            )
