"""import_runs, sync and download: what brings runs and datasets here. Imports no MLflow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.core.disk import OFFLINE_VARIABLE, find_offline_folder
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr

if TYPE_CHECKING:
    from clear_mlflow.scoring import ActionResult

_Paths = str | Path | Iterable[str | Path]


def import_runs(
    paths: _Paths = (),
    *,
    store: str | None = None,
    experiment: str | None = None,
    **options: Any,
) -> list[ActionResult]:
    """Import result files, bundles or another store's runs as runs.

    Args:
        paths: files, folders and bundles; with *store*, ids of runs and names of experiments, or
            nothing for all runs.
        store: tracking URI, offline folder or mlruns folder whose runs are copied, or None.
        experiment: experiment that gets the runs, created if it does not exist. None: the
            experiment of MLFLOW_EXPERIMENT_NAME, else Default; with *store*, each run's own.
        **options: options of the command ``clear-mlflow import``, such as ``strategy="replay"`` or
            ``scale="percent"`` (docs/import.md).

    Returns:
        What was done with each run or file. An error in a file is in its result.

    Raises:
        ConfigError: an option is not valid, or this process records offline.
        DataError: a folder contains more than 10,000 files.
        TrackingError: a store cannot be reached.
    """
    _check_online()
    from clear_mlflow.api import import_
    from clear_mlflow.api.import_options import ImportOptions

    names = _list_paths(paths)
    if store is None:
        import_options = ImportOptions(names, experiment=experiment, **options)
        return list(import_.import_runs(import_options))
    if options:
        raise ConfigError(
            f"{min(options)} is for files, and store copies runs; leave one of them out"
        )
    return list(import_.copy_runs(store, names, experiment))


def sync(folders: _Paths = (), *, experiment: str | None = None) -> list[ActionResult]:
    """Send runs recorded offline, or while their store was unreachable.

    Args:
        folders: offline folders and folders of runs. Without any, all of the cache folder, and
            unsent_rows and offline_runs in the working folder.
        experiment: experiment that gets the runs of offline folders, created if it does not exist.
            None: the one that each was recorded in.

    Returns:
        What was done with each run. An error of a run is in its result.

    Raises:
        ConfigError: this process records offline.
        TrackingError: a folder contains no runs, or the store cannot be reached.
    """
    _check_online()
    from clear_mlflow.store.client import set_up_mlflow
    from clear_mlflow.tracking.sync import copy_offline_folders, list_sync_folders, sync_folders

    names = _list_paths(folders)
    offline, waiting = list_sync_folders([Path(name) for name in names])
    set_up_mlflow()
    sent = sync_folders(waiting, use_recorded_store=not names)
    return [*copy_offline_folders(offline, experiment), *sent]


def download(
    dataset: Literal["clear10", "clear100"],
    folder: str | Path | None = None,
    *,
    revision: str = "main",
) -> Path:
    """Download CLEAR-10 or CLEAR-100, or continue a download, and return its folder.

    Args:
        dataset: name of the dataset.
        folder: folder to store it in. None: where ``data_root="auto"`` looks for it, below
            CLEAR_MLFLOW_DATA or the cache folder.
        revision: branch, tag or commit of the hub's repository.

    Raises:
        ConfigError: the dataset is not one of CLEAR's.
        DataError: the download failed, the disk is too small, or the folder has other files.
    """
    from clear_mlflow.core.disk import default_data_dir
    from clear_mlflow.data.download import RELEASES
    from clear_mlflow.data.download import download as fetch

    if dataset not in RELEASES:
        raise ConfigError(f"dataset is {safe_repr(dataset)}; expected {' or '.join(RELEASES)}")
    root = default_data_dir() / dataset if folder is None else Path(folder)
    fetch(RELEASES[dataset], root, revision=revision)
    return root


def _list_paths(paths: _Paths) -> list[str]:
    names = (
        [paths] if isinstance(paths, (str, Path)) or not isinstance(paths, Iterable) else [*paths]
    )
    for name in names:
        if not isinstance(name, (str, Path)) or name == "":
            raise ConfigError(f"got {safe_repr(name)}; expected a path, or the id of a run")
    return [str(name) for name in names]


def _check_online() -> None:
    """Raise ConfigError if this process records offline."""
    if folder := find_offline_folder():
        raise ConfigError(
            f"this process records in {folder} ({OFFLINE_VARIABLE}, or offline=True), so no "
            "other store is in use; call the function in another process, with "
            "MLFLOW_TRACKING_URI set"
        )
