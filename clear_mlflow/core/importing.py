"""Code of a user's own, named as ``package.module:attribute``."""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any


def imported(reference: str) -> Any:
    """What is named, of an installed package or from the working folder; raises as imports do.

    As with ``python -m`` the folder comes first: other packages bring an ``examples``, too.
    """
    module, _, attribute = reference.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return attrgetter(attribute)(import_module(module))
    finally:
        sys.path.remove(folder)
