"""Where what can be computed or downloaded again, and what waits for a store, is kept."""

from __future__ import annotations

import os
from pathlib import Path

from clear_mlflow.core.errors import DataError


def default_cache_dir() -> Path:
    """CLEAR_MLFLOW_CACHE, else clear_mlflow in XDG_CACHE_HOME, else ~/.cache/clear_mlflow."""
    try:
        if named := os.environ.get("CLEAR_MLFLOW_CACHE"):
            return Path(named).expanduser().absolute()
        # The XDG specification says to ignore a relative path.
        caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (caches if caches.is_absolute() else Path.home() / ".cache") / "clear_mlflow"
    except RuntimeError as error:
        raise DataError(
            f"there is no cache folder: {error}; set CLEAR_MLFLOW_CACHE to one"
        ) from None


def default_data_dir() -> Path:
    """CLEAR_MLFLOW_DATA, else ``data`` in the cache folder: datasets that were downloaded."""
    named = os.environ.get("CLEAR_MLFLOW_DATA")
    return Path(named).expanduser().absolute() if named else default_cache_dir() / "data"
