"""Layouts of datasets on disk: one module each, with ``EXPECTED``, ``is_below`` and ``listing``.

``EXPECTED`` says in a few words what the layout has; ``is_below(root)`` looks at the folder and
says whether it has this layout; ``listing(root, report)`` gives its images and reports what is
wrong, for a loader or for a check. A new module needs no registration.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import names_of, path_text, reason
from clear_mlflow.data.problems import Report, stop
from clear_mlflow.data.splits import Listing


def find_listing(root: Path, *, name: str) -> Listing:
    """List the dataset at *root*, or in its folder of the dataset's name."""
    return list_layout(*find_layout(root, names=(name,)))


def list_layout(layout: str, folder: Path, report: Report = stop) -> Listing:
    """List the dataset in a folder that has a layout; each problem is reported."""
    listing: Listing = _modules()[layout].listing(folder, report)
    return listing


def find_layout(root: Path, *, names: Collection[str]) -> tuple[str, Path]:
    """Find the one dataset at *root*, and say which layout it has; nothing in it is read."""
    found = _names_in(root)
    modules = _modules()
    releases = tuple(f"{name}{mark}" for name in names for mark in "_-")
    below = [root / n for n in found if n in names or n.lower().startswith(releases)]
    for folders in ([root], below):
        fitting = [(f, layout) for f in folders for layout, m in modules.items() if m.is_below(f)]
        if len({folder for folder, _ in fitting}) > 1:
            raise DataError(
                f"several datasets lie below {path_text(root)}: "
                f"{names_of(sorted({folder.name for folder, _ in fitting}))}; pass one's folder"
            )
        if len(fitting) > 1:
            several = ", and of ".join(f"{name} ({modules[name].EXPECTED})" for _, name in fitting)
            raise DataError(
                f"{path_text(fitting[0][0])} has files of {len(fitting)} layouts, of {several}; "
                "expected one: move what is not the dataset's elsewhere"
            )
        for folder, layout in fitting:
            return layout, folder
    expected = ", or ".join(module.EXPECTED for module in modules.values())
    raise DataError(
        f"no known layout below {path_text(root)}: expected {expected}; found "
        f"{names_of(found)}; pass the folder that the dataset was unpacked to"
    )


def _modules() -> dict[str, Any]:
    return {
        module.name: import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    }


def _names_in(root: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in root.iterdir())
    except (OSError, ValueError) as error:
        raise DataError(
            f"data root {path_text(root)} cannot be read: {reason(error)}; pass the folder that "
            "the dataset was unpacked to, not an archive"
        ) from None
