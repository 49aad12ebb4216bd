"""The built-in strategies by name, and which parameters they ignore: read without torch."""

from __future__ import annotations

import pkgutil
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "strategies"

# Strategies that ignore memory, and those that ignore OPTIMISATION. A test compares them with the
# classes, which cannot be read without importing torch.
WITHOUT_BUFFER = frozenset(
    {
        *("cumulative", "cwr", "ewc", "from_scratch", "joint", "linear", "lwf", "naive", "ncm"),
        *("si", "slda"),
    }
)
WITHOUT_STEPS = frozenset({"ncm", "slda"})


def list_strategies() -> tuple[str, ...]:
    """Return the names of the built-in strategies, one module each."""
    modules = pkgutil.iter_modules([str(_FOLDER)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))
