"""Names of the built-in strategies, without importing them, since each one imports torch."""

from __future__ import annotations

import pkgutil
from pathlib import Path

# For code without torch: strategies that ignore memory, and those that ignore OPTIMISATION.
WITHOUT_BUFFER = frozenset(
    {
        *("cumulative", "cwr", "ewc", "from_scratch", "joint", "linear", "lwf", "naive", "ncm"),
        *("si", "slda"),
    }
)
WITHOUT_STEPS = frozenset({"ncm", "slda"})

_FOLDER = Path(__file__).with_name("strategies")


def known_strategies() -> tuple[str, ...]:
    """Return the names of the built-in strategies, one module each."""
    modules = pkgutil.iter_modules([str(_FOLDER)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))
