"""Offline folders: runs that are recorded without a tracking server, in a folder each.

The folder contains ``offline.json``, which states its format. It can be moved: paths that it
contains are never followed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote, unquote

from mlflow.entities import Run, RunInfo

from clear_mlflow.core.disk import OFFLINE_VARIABLE, write_durably
from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_MANIFEST_BYTES, parse_json_object, read_bytes

ARCHIVE = ".tar.xz"  # ending of a file with bundles
NO_EXPERIMENT = "bundle"  # in place of an experiment's id, for runs that are read from files
HEADER = "offline.json"
_SCHEME = "clear-offline://"  # of the entry point in pyproject.toml
_FORMAT = "2.0"


def is_bundle(run: Run) -> bool:
    """Return True if a run was read from files, not a store."""
    return bool(run.info.experiment_id == NO_EXPERIMENT)


def get_bundle_path(run: Run) -> Path | None:
    """Return the path that a run was read from, or None."""
    path: Path | None = getattr(run, "bundle_path", None)
    return path


def is_offline_folder(path: Path) -> bool:
    """Return True if a path is a folder with an ``offline.json``.

    Returns False if it cannot be looked up, for example because it is too long.
    """
    try:
        return (path / HEADER).is_file()
    except OSError:
        return False


def list_offline_folders(path: Path) -> list[Path]:
    """List the path, or its subfolders, that are offline folders."""
    if is_offline_folder(path):
        return [path]
    return sorted(folder for folder in path.glob("*") if is_offline_folder(folder))


def format_offline_uri(folder: Path) -> str:
    """Return the tracking URI of an offline folder."""
    return f"{_SCHEME}{quote(str(folder.absolute()))}"


def get_offline_folder(tracking_uri: str) -> Path | None:
    """Return the offline folder that a tracking URI names, or None."""
    if not tracking_uri.startswith(_SCHEME):
        return None
    return Path(unquote(tracking_uri.removeprefix(_SCHEME)))


def prepare_offline_folder(folder: Path, *, creates: bool) -> None:
    """Check a folder's ``offline.json``, or write a missing one if *creates*.

    Raises TrackingError if the folder has another format, or cannot be created.
    """
    try:
        if is_offline_folder(folder):
            check_format(folder)
        elif creates:
            write_durably(folder / HEADER, json.dumps({"format": _FORMAT}).encode())
    except OSError as error:
        raise TrackingError(
            f"the offline folder {folder} cannot be created: {error.strerror}; name another folder "
            f"with {OFFLINE_VARIABLE}"
        ) from error


def check_format(folder: Path) -> None:
    """Raise TrackingError unless this version can read an offline folder.

    Raises OSError if its ``offline.json`` is missing.
    """
    try:
        content = parse_json_object(
            read_bytes(folder / HEADER, MAX_MANIFEST_BYTES), MAX_MANIFEST_BYTES
        )
    except RecordError as error:
        raise TrackingError(f"{folder / HEADER} is damaged: {error}") from error
    if content.get("format") != _FORMAT:
        raise TrackingError(
            f"{folder} has format {safe_repr(content.get('format'), 40)}; this program reads "
            f"{_FORMAT}: use the version of clear_mlflow that recorded it"
        )


def locate_artifacts(folder: Path, run: Run) -> Run:
    """Return a copy of a run with artifacts in an offline folder.

    Raises TrackingError if its ids, which anybody can write, are not as MLflow writes them. The
    folder of the artifacts need not exist.
    """
    info = run.info
    if not re.fullmatch("[0-9]+/[0-9a-f]{32}", f"{info.experiment_id}/{info.run_id}"):
        raise TrackingError(f"{folder} contains a run with the id {safe_repr(info.run_id, 80)}")
    root = f"{folder.absolute().as_uri()}/{info.experiment_id}/{info.run_id}/artifacts"
    return replace_info(run, artifact_uri=root)


def replace_info(run: Run, **changes: str | None) -> Run:
    """Return a copy of a run with changed values of its RunInfo."""
    return Run(RunInfo(**{**dict(run.info), **changes}), run.data, run.inputs, run.outputs)
