"""Offline folders: a private store for runs that are recorded without a tracking server.

The folder contains ``offline.json``, an sqlite database and the artifacts. Paths that its database
contains are never followed, since the folder may come from another machine.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from mlflow.entities import Run, RunInfo

from clear_mlflow.core.disk import OFFLINE_VARIABLE, write_durably
from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_MANIFEST_BYTES, json_object, read_bytes
from clear_mlflow.store.sqlite import lock_store_opening, name_sqlite_driver

_HEADER, _DATABASE, _ARTIFACTS = "offline.json", "mlflow.db", "artifacts"
_FORMAT = "1.0"


def is_offline_folder(path: Path) -> bool:
    """Return True if a path is a folder with an ``offline.json``.

    Returns False if it cannot be looked up, for example because it is too long.
    """
    try:
        return (path / _HEADER).is_file()
    except OSError:
        return False


def list_offline_folders(path: Path) -> list[Path]:
    """Return the path if it is an offline folder, or else the ones directly in it, sorted by name.

    Empty if there are none.
    """
    if is_offline_folder(path):
        return [path]
    return sorted(folder for folder in path.glob("*") if is_offline_folder(folder))


def format_offline_uri(folder: Path) -> str:
    """Return the tracking URI of an offline folder."""
    return name_sqlite_driver(f"sqlite:///{quote(str(folder.absolute() / _DATABASE))}")


def format_artifact_root(folder: Path) -> str:
    """Return the URI under which the runs of an offline folder store artifacts."""
    return (folder.absolute() / _ARTIFACTS).as_uri()


def prepare_offline_folder(folder: Path, *, creates: bool) -> None:
    """Create an offline folder unless it exists, and adapt its database if it was moved.

    Raises TrackingError if the folder is another store, has another format, or cannot be opened.
    creates: False to create nothing: a folder without an ``offline.json`` is left as it is, and one
    without a database is an error.
    """
    header, database = folder / _HEADER, folder / _DATABASE
    try:
        if not header.exists():
            if database.exists():
                raise TrackingError(
                    f"{folder} contains the {_DATABASE} of another store; name a new folder with "
                    f"{OFFLINE_VARIABLE}"
                )
            if not creates:
                return
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(header, json.dumps({"format": _FORMAT}).encode())
        check_format(folder, has_database=not creates)
        with lock_store_opening(format_offline_uri(folder)):
            _adapt_locations(database, format_artifact_root(folder))
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"the offline folder {folder} cannot be opened: {error}") from error


def check_format(folder: Path, *, has_database: bool = True) -> None:
    """Raise TrackingError unless this version can read an offline folder.

    Its file ``offline.json`` states the format of the folder. Raises OSError if it is missing.
    has_database: False if its database, which MLflow would create if it is opened, may be missing.
    """
    try:
        content = json_object(read_bytes(folder / _HEADER, MAX_MANIFEST_BYTES), MAX_MANIFEST_BYTES)
    except RecordError as error:
        raise TrackingError(f"{folder / _HEADER} is damaged: {error}") from error
    if content.get("format") != _FORMAT:
        raise TrackingError(
            f"{folder} has format {safe_repr(content.get('format'), 40)}; this program reads "
            f"{_FORMAT}: update it"
        )
    if has_database:
        uri = f"{(folder.absolute() / _DATABASE).as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, timeout=30, uri=True)) as connection:
                connection.execute("SELECT 1 FROM experiments LIMIT 1")
        except sqlite3.Error as error:
            raise TrackingError(
                f"the offline folder {folder} lacks a readable {_DATABASE}, which lists its runs "
                f"({error}); copy the complete folder again"
            ) from error


def locate_artifacts(folder: Path, run: Run) -> Run:
    """Return a copy of a run whose artifacts are those in FOLDER/EXPERIMENT_ID/RUN_ID/artifacts.

    Raises TrackingError if its ids, which anybody can write, are not as MLflow writes them. The
    folder of the artifacts need not exist.
    """
    info = run.info
    if not re.fullmatch("[0-9]+/[0-9a-f]{32}", f"{info.experiment_id}/{info.run_id}"):
        raise TrackingError(f"{folder} contains a run with the id {safe_repr(info.run_id, 80)}")
    root = f"{folder.absolute().as_uri()}/{info.experiment_id}/{info.run_id}/artifacts"
    return replace_info(run, artifact_uri=root)


def replace_info(run: Run, **changes: str | None) -> Run:
    """Return a copy of a run with changed values of its RunInfo, by name."""
    return Run(RunInfo(**{**dict(run.info), **changes}), run.data, run.inputs, run.outputs)


def _adapt_locations(database: Path, root: str) -> None:
    """Set all artifact locations in a database to folders under *root*."""
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        stored = connection.execute("SELECT experiment_id, artifact_location FROM experiments")
        for experiment_id, location in stored.fetchall():
            new_location = f"{root}/{experiment_id}"
            if location == new_location:
                continue
            for statement in (
                "UPDATE experiments SET artifact_location = ?1 WHERE experiment_id = ?2",
                "UPDATE runs SET artifact_uri = ?1 || '/' || run_uuid || '/artifacts' "
                "WHERE experiment_id = ?2",
                "UPDATE logged_models SET artifact_location = "
                "?1 || '/models/' || model_id || '/artifacts' WHERE experiment_id = ?2",
            ):
                connection.execute(statement, (new_location, experiment_id))
