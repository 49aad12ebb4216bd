"""Packages that only some functions need, and that may be missing."""

from importlib import import_module
from typing import Any

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr


def import_package(name: str, purpose: str) -> Any:
    """Import and return a module, or raise a ConfigError with what to install.

    purpose: subject of the message, for example "engine ray".
    """
    try:
        return import_module(name)
    # A library that PyTorch links to is missing (OSError), or its version is not torchvision's.
    except (ImportError, OSError, RuntimeError) as error:
        package = name.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {package}, which cannot be imported: "
            f"{safe_repr(str(error), 200)}; pip install {package}"
        ) from error
