"""Runs as bundles: folders or one archive, which are read like a store."""

from __future__ import annotations

from pathlib import Path

from clear_mlflow.api.bundle import ARCHIVE, write_bundles
from clear_mlflow.api.load import Runs, choose_runs, list_existing, open_store
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.store.matrices import NO_ROWS, read_matrices


def export(
    runs: Runs,
    to: str | Path,
    *,
    filter: str | None = None,  # noqa: A002
    licence: str = "not stated",
) -> Path:
    """Write runs' rows, predictions, tests, configuration and tags as bundles.

    :func:`clear_mlflow.load` and :func:`clear_mlflow.compare` read them like a store, and refuse
    one of which a byte was changed since.

    Args:
        runs: a run, its id, several of them, or an experiment's name: all its runs that hold rows.
        to: a new folder, or a new file that ends in ``.tar.xz``.
        filter: of an experiment's runs, in MLflow's search syntax.
        licence: what others may do with them, as ``CC-BY-4.0``.

    Raises:
        ConfigError: no run is chosen, there is something of that name, or it cannot be written.
        RecordError: a run that was named holds no rows.
        TrackingError: there is no such run, or the store does not answer.
    """
    if Path(to).suffix in {".gz", ".tar", ".tgz", ".zip"}:
        raise ConfigError(f"to is {safe_repr(str(to), 200)}; name a folder, or a file in {ARCHIVE}")
    client = open_store()
    found, named = choose_runs(client, runs, filter=filter)
    there = list_existing(found, "export")
    if (
        not named
    ):  # of an experiment, a sweep and its comparison are none of the runs that are meant
        stored = read_matrices(client, there, metrics=())
        there = [one.run for one in stored if str(one.problem) != NO_ROWS]
    if not there:
        raise ConfigError("none of the chosen runs holds rows of an accuracy matrix")
    write_bundles(client, there, Path(to), licence=licence)
    return Path(to)
