"""Strategies: one module each, named as the strategy is; learning/registry.py finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clear_mlflow.learning.strategies._base import Strategy

__all__ = ["Strategy"]


def __getattr__(name: str) -> Any:
    """Load ``Strategy``, the base of one's own, when first asked for: it brings torch."""
    if name == "Strategy":
        from clear_mlflow.learning.strategies._base import Strategy

        return Strategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
