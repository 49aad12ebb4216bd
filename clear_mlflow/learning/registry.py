"""Which strategies there are, by name alone: nothing here imports one, since each brings torch."""

from __future__ import annotations

import pkgutil
from pathlib import Path

# What parameters mean nothing to, for what has no torch to ask their classes, which declare it.
WITHOUT_BUFFER = frozenset(
    {
        *("cumulative", "cwr", "ewc", "from_scratch", "joint", "linear", "lwf", "naive", "ncm"),
        *("si", "slda"),
    }
)
WITHOUT_STEPS = frozenset({"ncm", "slda"})

_FOLDER = Path(__file__).with_name("strategies")


def known_strategies() -> tuple[str, ...]:
    """The strategies of this package: one module each, named as the strategy is."""
    modules = pkgutil.iter_modules([str(_FOLDER)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))
