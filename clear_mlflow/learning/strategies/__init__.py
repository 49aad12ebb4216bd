"""Strategies: one module each, named as the strategy is."""

from __future__ import annotations

import pkgutil
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clear_mlflow.learning.strategies._base import Strategy

__all__ = ["ENTRY_POINTS", "Strategy", "known_strategies", "strategy_names"]

ENTRY_POINTS = "clear_mlflow.strategies"


def strategy_names() -> tuple[str, ...]:
    """The strategies of this package, found without importing them (they import torch)."""
    return tuple(
        sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    )


def known_strategies() -> tuple[str, ...]:
    """Every name that a strategy can be asked for by: ours, and other packages' entry points."""
    others = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*strategy_names(), *sorted(others - set(strategy_names())))


def __getattr__(name: str) -> Any:
    """Load ``Strategy``, the base of one's own, when first asked for: it brings torch."""
    if name == "Strategy":
        from clear_mlflow.learning.strategies._base import Strategy

        return Strategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
