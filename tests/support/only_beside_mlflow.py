"""Run code as if nothing but MLflow, what MLflow requires, and this package were installed.

``python only_beside_mlflow.py EXTRA,EXTRA CODE``: packages beyond MLflow's own, and the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires

from packaging.requirements import Requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required_by(names: Iterable[str]) -> set[str]:
    """Distributions that pip installs with those named, extras left out."""
    found: set[str] = set()
    waiting = [_plain(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [
                _plain(wanted.name)
                for wanted in map(Requirement, requires(name) or [])
                if wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            ]
    return found


class Refusal:
    """Nothing of other distributions can be imported: an import hook, before all others."""

    def __init__(self, installed: set[str]) -> None:
        self._refused = {
            module
            for module, distributions in packages_distributions().items()
            if not any(_plain(name) in installed for name in distributions)
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    extras = [name for name in sys.argv[1].split(",") if name]
    installed = {*required_by(["mlflow", *extras]), "clear-mlflow"}
    assert "torch" not in installed
    sys.meta_path.insert(0, Refusal(installed))
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        exec(sys.argv[2], {"__name__": "__main__"})
    else:
        raise SystemExit("torch can be imported: nothing is refused")
