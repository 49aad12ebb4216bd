"""Layouts of datasets on disk: one module each, with ``EXPECTED``, ``is_below`` and ``read``.

``EXPECTED`` says in a few words what the layout has; ``is_below(root)`` tells it from the others
by looking at the folder; ``read(root, name=...)`` gives the stream. A new module is found here.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from clear_mlflow.data.files import path_text, reason, shown
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.errors import DataError

_MAX_NAMES_SHOWN = 8


def read_any(root: Path, *, name: str) -> BucketStream:
    """Read the dataset at *root*, or at ``root/name``, in whichever known layout it has.

    Args:
        root: the folder that a user named; archives often unpack to a folder below it.
        name: the dataset's name.

    Raises:
        DataError: no known layout is there, or the dataset is damaged.
    """
    found = _names_in(root)
    modules = [
        import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    ]
    for folder in (root, root / name):
        for module in modules:
            if module.is_below(folder):
                stream: BucketStream = module.read(folder, name=name)
                return stream
    expected = ", or ".join(module.EXPECTED for module in modules)
    raise DataError(
        f"no known layout below {path_text(root)}: expected {expected}; found "
        f"{_listed(found)}; pass the folder that the dataset was unpacked to"
    )


def _names_in(root: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in root.iterdir())
    except FileNotFoundError:
        raise DataError(
            f"data root {path_text(root)} does not exist; pass the folder that the dataset was "
            "unpacked to"
        ) from None
    except NotADirectoryError:
        raise DataError(
            f"data root {path_text(root)} is not a folder; pass the folder that the dataset was "
            "unpacked to, not an archive"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"data root {path_text(root)} cannot be read: {reason(error)}") from None


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(shown(name) for name in names[:_MAX_NAMES_SHOWN]) + more
