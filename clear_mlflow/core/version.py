"""Versions of this package and its libraries, and imports of custom code."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import one_line

__version__ = "0.1.0"

# Packages that can affect results, if a process has loaded them.
_PACKAGES = ("mlflow", "numpy", "torch", "torchvision", "timm", "transformers", "jax", "tensorflow")


def list_software_versions(*used: str) -> str:
    """Return the versions of Python and of packages: "Python 3.12.3, numpy 2.4.1".

    Of eight packages that can affect results, such as mlflow and torch, those that are loaded or in
    *used* are listed. Other names in *used* are ignored.
    """
    packages = [name for name in _PACKAGES if name in used or sys.modules.get(name)]
    return ", ".join(
        [f"Python {platform.python_version()}", *(f"{p} {_package_version(p)}" for p in packages)]
    )


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # mlflow-skinny and tensorflow-cpu install mlflow and tensorflow
        return str(getattr(sys.modules.get(name), "__version__", "unknown"))


def import_custom(
    option: str, reference: str, attribute: str, valid_names: Iterable[str] = ()
) -> Any:
    """Import what an option names, or raise ConfigError.

    attribute: "function" or "Class". valid_names: what else the option may be, for the error.
    """
    advice = f"; pass package.module:{attribute}, importable from here"
    if names := ", ".join(valid_names):
        advice += f", or one of {names}"
    with convert_custom_errors(f"{option} {reference} cannot be loaded", advice):
        return import_attribute(reference)


@contextmanager
def convert_custom_errors(problem: str, advice: str = "") -> Iterator[None]:
    """Convert errors of a user's code to a ConfigError of one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        raise ConfigError(f"{problem} ({reason}){advice}") from error


def import_attribute(reference: str) -> Any:
    """Import an attribute of a module, from the working folder first.

    reference: ``package.module:attribute``. The folder comes first, as with ``python -m``: other
    packages have an ``examples``, too. Errors of the import are raised.
    """
    module, _, attribute = reference.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return attrgetter(attribute)(import_module(module))
    finally:
        sys.path.remove(folder)
