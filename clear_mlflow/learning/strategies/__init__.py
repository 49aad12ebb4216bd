"""Strategies: one module each, named as the strategy is."""

from __future__ import annotations

import pkgutil


def strategy_names() -> tuple[str, ...]:
    """All strategies' names, found without importing them (they import torch)."""
    return tuple(
        sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    )
