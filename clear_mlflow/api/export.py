"""Runs as bundles: folders or one archive, which are read like a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clear_mlflow.api._arguments import check_arguments
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr

if TYPE_CHECKING:
    from clear_mlflow.api.load import Runs


def export(
    runs: Runs,
    to: str | Path,
    *,
    filter: str | None = None,  # noqa: A002
    licence: str = "not stated",
) -> Path:
    """Write rows, predictions, tests, parameters, tags and metric histories of runs as bundles.

    load, show and compare read bundles like a store, and reject a bundle that was changed. The
    command ``clear-mlflow import`` makes runs of them.

    Args:
        runs: ids of runs, or at least their first six digits, or the name of an experiment: all
            its runs that have rows; in Python, run objects as well.
        to: new folder, or new file whose name ends with ``.tar.xz``.
        filter: condition in MLflow's search syntax, for example ``"params.strategy = 'replay'"``.
        licence: what others may do with the bundles, for example CC-BY-4.0.

    Returns:
        The path of what was written.

    Raises:
        ConfigError: no run is chosen, the path exists already, or it cannot be written.
        RecordError: a run that was named lacks rows.
        TrackingError: a run does not exist, or the store cannot be reached.
    """
    check_arguments(export, dict(locals()))
    from clear_mlflow.api.bundle import ARCHIVE, is_bundle, write_bundles
    from clear_mlflow.api.load import choose_runs, list_existing
    from clear_mlflow.store.client import open_store
    from clear_mlflow.store.rows import NO_ROWS, read_matrices

    if Path(to).suffix in {".gz", ".tar", ".tgz", ".zip"}:
        raise ConfigError(f"to is {safe_repr(str(to), 200)}; name a folder, or a file in {ARCHIVE}")
    client = open_store()
    selected, are_named = choose_runs(client, runs, filter=filter)
    stored_runs = list_existing(selected, "export")
    # Sweeps and comparisons of an experiment, and some trainings in an offline folder, lack rows.
    searched = [run for run in stored_runs if not are_named or is_bundle(run)]
    matrices = read_matrices(client, searched, metrics=())
    without_rows = [stored.run for stored in matrices if stored.problem == NO_ROWS]
    stored_runs = [run for run in stored_runs if run not in without_rows]
    if not stored_runs:
        raise ConfigError("none of the chosen runs has rows of an accuracy matrix")
    write_bundles(client, stored_runs, Path(to), licence=licence)
    return Path(to)
