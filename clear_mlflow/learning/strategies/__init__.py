"""Strategies: one module each, named like the strategy."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clear_mlflow.learning.strategies._base import Strategy

__all__ = ["Strategy"]


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
    """Import ``Strategy``, the base class of custom strategies, when it is used: it needs torch."""
    if name == "Strategy":
        from clear_mlflow.learning.strategies._base import Strategy

        return Strategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
