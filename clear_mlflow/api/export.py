"""A run as a bundle: a folder or a zip that is read like a store."""

from __future__ import annotations

from pathlib import Path

from clear_mlflow.api.bundle import write_bundle
from clear_mlflow.api.load import chosen, open_store, those_there
from clear_mlflow.api.run import Run


def export(run: str | Run, to: str | Path, *, licence: str = "not stated") -> Path:
    """Write a run's rows, predictions, tests, configuration and tags as a bundle.

    :func:`clear_mlflow.load` and :func:`clear_mlflow.compare` read it like a store, and refuse it
    when a byte was changed since.

    Args:
        run: the run, or its id.
        to: a new folder, or a new file that ends in ``.zip``.
        licence: what others may do with it, as ``CC-BY-4.0``.

    Raises:
        ConfigError: there is something of that name, or it cannot be written.
        RecordError: the run holds no rows.
        TrackingError: there is no such run, or the store does not answer.
    """
    client = open_store()
    (found,) = those_there(chosen(client, [run])[0], "export")
    write_bundle(client, found, Path(to), licence=licence)
    return Path(to)
