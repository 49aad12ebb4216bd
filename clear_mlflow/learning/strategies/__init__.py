"""Strategies: one module each, named like the strategy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.version import import_custom
from clear_mlflow.learning.arguments import parse_arguments
from clear_mlflow.learning.buffers import Buffer, BufferArguments
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.conflicts import STRATEGY_CONFLICTS, check_conflicts
from clear_mlflow.learning.parameters.strategy_names import list_strategies
from clear_mlflow.learning.strategies._base import Strategy, build_buffer
from clear_mlflow.learning.strategies.replay import Replay

__all__ = [
    "Buffer",
    "BufferArguments",
    "Replay",
    "Strategy",
    "build_buffer",
    "list_strategies",
    "load_strategy",
    "parse_strategy_arguments",
]


def load_strategy(name: str) -> type[Strategy]:
    """Import and return a strategy's class: a built-in name, or package.module:Class.

    Raises ConfigError if it cannot be imported, or is not a subclass of Strategy.
    """
    if name in list_strategies():
        module = import_module(f"{__name__}.{name}")
        strategy = getattr(module, "".join(word.capitalize() for word in name.split("_")))
    else:
        strategy = import_custom("strategy", name, "Class", list_strategies())
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise ConfigError(
            f"strategy {name} is {strategy!r}; expected a subclass of "
            f"{Strategy.__module__}.Strategy"
        )
    return strategy


def parse_strategy_arguments(config: TrainConfig, num_processes: int = 1) -> Any:
    """Return the strategy's ``Arguments``, or raise ConfigError if invalid.

    Raises ConfigError if an argument is invalid, or if parameters do not fit the strategy.
    """
    strategy = load_strategy(config.strategy)
    arguments = parse_arguments(
        "strategy_args", f"strategy {config.strategy}", strategy.Arguments, config.strategy_args
    )
    check_conflicts(
        STRATEGY_CONFLICTS,
        **vars(config),
        strategy_class=strategy,
        num_epochs=strategy.count_epochs(config, arguments),
        num_processes=num_processes,
    )
    return arguments
