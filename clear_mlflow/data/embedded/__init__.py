"""The embedded datasets: a module each, written to the cache folder on first use.

A module is called as its dataset, with an underscore for a dash, and has ``FOLDER``, the folder's
name; ``DIGEST``, that of its stream; and ``write(root)``. An image's file name is the number of the
scan that it shows.
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

LICENCE = "CC BY 4.0"  # of the scans, as UCI's page of them says

EMBEDDED = tuple(
    sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    )
)


def embedded_root(dataset: str, cache_dir: Path) -> Path:
    """The folder of an embedded dataset, ``SPLIT/BUCKET/CLASS/*.bmp``, written at first use."""
    module = _module(dataset)
    root = cache_dir / str(module.FOLDER)
    try:
        if root.is_dir():
            return root
        cache_dir.mkdir(parents=True, exist_ok=True)
        # Within a private folder, so that the dataset itself gets the user's ordinary permissions.
        private = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=cache_dir))
        try:
            module.write(private / root.name)
            try:
                (private / root.name).rename(root)
            except OSError:
                if not root.is_dir():  # else another process was first, with the same files
                    raise
        finally:
            shutil.rmtree(private, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"cannot write the embedded dataset to {path_text(root)}: {reason(error)}; set "
            "CLEAR_MLFLOW_CACHE to a folder that can be written"
        ) from error
    return root


def embedded_digest(dataset: str) -> str:
    """The digest of an embedded dataset's stream under its own split."""
    return str(_module(dataset).DIGEST)


def _module(dataset: str) -> Any:
    return import_module(f"{__name__}.{dataset.replace('-', '_')}")
