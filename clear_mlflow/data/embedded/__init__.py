"""The embedded datasets: one module each, written to the cache folder on first use.

A module is named like its dataset, with underscores instead of dashes. It has ``FOLDER``, the name
of the folder; ``DIGEST``, the digest of its stream; and ``write(root)``. An image's file name is
the number of its scan.
"""

from __future__ import annotations

import pkgutil
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import path_text, reason

LICENCE = "CC BY 4.0"  # of the scans, according to UCI's page

EMBEDDED = tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__)))


def write_embedded(dataset: str, cache_dir: Path) -> Path:
    """Write an embedded dataset to the cache once, and return its folder.

    It has ``SPLIT/BUCKET/CLASS/*.bmp``, and is not checked if it exists. Raises DataError if it
    cannot be written.
    """
    module = _load_module(dataset)
    root = cache_dir / str(module.FOLDER)
    try:
        if root.is_dir():
            return root
        cache_dir.mkdir(parents=True, exist_ok=True)
        # In a private folder, so that the dataset itself has the user's default permissions.
        private = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=cache_dir))
        try:
            module.write(private / root.name)
            try:
                (private / root.name).rename(root)
            except OSError:
                if not root.is_dir():  # otherwise another process was first
                    raise
        finally:
            shutil.rmtree(private, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"cannot write the embedded dataset to {path_text(root)}: {reason(error)}; set "
            "CLEAR_MLFLOW_CACHE to a folder that can be written"
        ) from error
    return root


def get_embedded_digest(dataset: str) -> str:
    """Return the digest of an embedded dataset's stream under its released split."""
    return str(_load_module(dataset).DIGEST)


def _load_module(dataset: str) -> Any:
    return import_module(f"{__name__}.{dataset.replace('-', '_')}")
