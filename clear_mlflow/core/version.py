"""The package's version: its one place, and those of what a run computes with."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

__version__ = "0.1.0"

# Of these, what a process loaded has a part in what it computes or records.
_PACKAGES = ("mlflow", "numpy", "torch", "torchvision", "timm", "transformers", "jax", "tensorflow")


def software(*used: str) -> str:
    """Versions of Python, of what is *used* and of what is loaded: "Python 3.12.3, numpy 2.4.1"."""
    packages = [name for name in _PACKAGES if name in used or name in sys.modules]
    return ", ".join(
        [f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]
    )
