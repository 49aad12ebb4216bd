"""CLEAR's layouts on disk: one module each, with ``EXPECTED``, ``matches`` and ``read_index``.

``EXPECTED`` describes the layout for error messages. ``matches(root)`` returns True if a folder has
the layout. ``read_index(root)`` reads the index of its images, or raises a DataError. A new module
needs no registration.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import format_names, path_text, reason
from clear_mlflow.data.images import ImageIndex


def read_layout(root: Path, *, names: Collection[str]) -> ImageIndex:
    """Read the index of the dataset in a folder. See :func:`find_layout`."""
    layout, folder = find_layout(root, names=names)
    index: ImageIndex = _load_modules()[layout].read_index(folder)
    return index


def find_layout(root: Path, *, names: Collection[str]) -> tuple[str, Path]:
    """Find the dataset in *root*, or in a folder there.

    The folder has one of *names*. The folder's name may continue after ``_`` or ``-``. Returns the
    layout's module and the folder. Raises DataError if no folder has a layout, or several folders
    or layouts match.
    """
    try:
        entries = sorted(entry.name for entry in root.iterdir())
    except (OSError, ValueError) as error:
        raise DataError(
            f"data root {path_text(root)} cannot be read: {reason(error)}; pass the folder that "
            "the dataset was unpacked to, not an archive"
        ) from None
    modules = _load_modules()
    prefixes = tuple(f"{name}{mark}" for name in names for mark in "_-")
    subfolders = [root / n for n in entries if n in names or n.lower().startswith(prefixes)]
    for folders in ([root], subfolders):
        matches = [(f, layout) for f in folders for layout, m in modules.items() if m.matches(f)]
        if len({folder for folder, _ in matches}) > 1:
            raise DataError(
                f"there are several datasets below {path_text(root)}: "
                f"{format_names(sorted({folder.name for folder, _ in matches}))}; pass the folder "
                "of one of them"
            )
        if len(matches) > 1:
            layouts = " and ".join(f"{name} ({modules[name].EXPECTED})" for _, name in matches)
            raise DataError(
                f"{path_text(matches[0][0])} has files of {len(matches)} layouts, {layouts}; "
                "expected one: move all other files elsewhere"
            )
        for folder, layout in matches:
            return layout, folder
    expected = ", or ".join(module.EXPECTED for module in modules.values())
    raise DataError(
        f"no known layout below {path_text(root)}: expected {expected}; found "
        f"{format_names(entries)}; pass the folder that the dataset was unpacked to"
    )


def _load_modules() -> dict[str, Any]:
    return {
        module.name: import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    }
