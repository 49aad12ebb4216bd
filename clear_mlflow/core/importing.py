"""Custom code, named as ``package.module:attribute``."""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any


def import_attribute(reference: str) -> Any:
    """Import an attribute of a module in the working folder or of an installed package.

    The folder comes first, as with ``python -m``: other packages have an ``examples``, too. Errors
    of the import are raised.
    """
    module, _, attribute = reference.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return attrgetter(attribute)(import_module(module))
    finally:
        sys.path.remove(folder)
