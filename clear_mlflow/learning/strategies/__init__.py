"""Strategies: one module each, named like the strategy."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clear_mlflow.learning.buffers import Buffer, BufferArguments
    from clear_mlflow.learning.strategies._base import Strategy, build_buffer
    from clear_mlflow.learning.strategies.replay import Replay

# What custom strategies and buffers take. Name to its module, which needs torch.
_LAZY_MODULES = {
    "Buffer": "buffers",
    "BufferArguments": "buffers",
    "Replay": "strategies.replay",
    "Strategy": "strategies._base",
    "build_buffer": "strategies._base",
}

__all__ = ["Buffer", "BufferArguments", "Replay", "Strategy", "build_buffer"]


# Strategies that ignore memory, and those that ignore OPTIMISATION; read without importing torch.
WITHOUT_BUFFER = frozenset(
    {
        *("cumulative", "cwr", "ewc", "from_scratch", "joint", "linear", "lwf", "naive", "ncm"),
        *("si", "slda"),
    }
)
WITHOUT_STEPS = frozenset({"ncm", "slda"})


def list_strategies() -> tuple[str, ...]:
    """Return the names of the built-in strategies, one module each."""
    modules = pkgutil.iter_modules(__path__)
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def __getattr__(name: str) -> Any:
    """Import a name for custom strategies from its module when it is first used."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clear_mlflow.learning.{_LAZY_MODULES[name]}"), name)
