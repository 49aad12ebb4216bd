"""A run as a folder or a zip, to be kept in a repository or beside a paper, and read like a store.

Its files lie as a run's artifacts do, beside ``bundle.json``, which says what the run was and has
the SHA-256 of each file and of itself: what was changed since is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from mlflow import MlflowClient
from mlflow.entities import Param, Run, RunData, RunInfo, RunTag

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import (
    MAX_ANYTIME_FILES,
    MAX_METADATA_BYTES,
    MAX_PREDICTIONS_BYTES,
    converted,
    json_object,
    read_bytes,
    sha256_of,
)
from clear_mlflow.core.version import __version__
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors

BUNDLE_JSON = "bundle.json"
SCHEMA = {"name": "clear_mlflow/bundle", "version": "1.0"}
# In place of an experiment's id, of a run that no store holds.
NO_EXPERIMENT = "bundle"
_FOLDERS = {
    ROWS_FOLDER: r"row_\d{3,9}\.json",
    PREDICTIONS_FOLDER: r"(row_\d{3,9}|evaluation_set)\.safetensors",
    ANYTIME_FOLDER: r"bucket_\d{3,9}_test_\d{4,9}\.json",
    "": rf"{names.CONFIG_JSON}|own_loop\.json",
}


class _Was(msgspec.Struct):
    """What a run was in its store."""

    run_id: str
    name: str
    status: Literal["RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"]
    start_time: int
    end_time: int


class _About(msgspec.Struct):
    """The content of ``bundle.json``, beside schema, licence and digest."""

    run: _Was
    params: dict[str, str]
    tags: dict[str, str]
    files: dict[str, str]


def is_bundle(run: Run) -> bool:
    """Whether a run was read from a bundle."""
    return bool(run.info.experiment_id == NO_EXPERIMENT)


def bundles_in(path: Path) -> list[Path]:
    """The bundles that a path names: itself, or all that a folder holds; none: it is no bundle."""
    with suppress(OSError):  # text that no file can have as its name
        if (path / BUNDLE_JSON).is_file() or (path.suffix == ".zip" and path.is_file()):
            return [path]
        inside = sorted(path.iterdir()) if path.is_dir() else ()
        return [found for one in inside for found in bundles_in(one) if one == found]
    return []


def write_bundle(client: MlflowClient, run: Run, to: Path, *, licence: str) -> None:
    """Write a run's bundle, a zip where its name ends so; ConfigError where something is there."""
    if to.exists():
        raise ConfigError(f"{shown(str(to), 200)} is there already; name a new folder or zip")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=".bundle_") as scratch:
            folder = Path(scratch, "bundle")
            _fetch(client, run, folder)
            files = {name: sha256_of(folder / name) for name in sorted(_files(folder))}
            content = _described(run, licence, files)
            (folder / BUNDLE_JSON).write_text(_text(content), encoding="utf-8")
            if to.suffix == ".zip":
                _zip(folder, [BUNDLE_JSON, *files], Path(scratch, "zip")).rename(to)
            else:
                folder.rename(to)
    except OSError as error:
        raise ConfigError(f"cannot write {shown(str(to), 200)}: {error}") from None


def read_bundle(path: Path) -> Run:
    """A bundle as a run whose artifacts lie in it; RecordError where a byte of it was changed."""
    try:
        if path.is_file():
            # As long as the run is looked at, what was unpacked is there.
            unpacked = tempfile.TemporaryDirectory(prefix="clear_mlflow_")
            _unzip(path, Path(unpacked.name))
            run = _read(Path(unpacked.name))
            run.unpacked = unpacked  # type: ignore[attr-defined]
            return run
        return _read(path)
    except (RecordError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise RecordError(f"the bundle {shown(str(path), 200)} {error}") from None


def _described(run: Run, licence: str, files: Mapping[str, str]) -> dict[str, Any]:
    info, data = run.info, run.data
    name, start, end = info.run_name or info.run_id, info.start_time or 0, info.end_time or 0
    # MLflow's own tags are of the store that the run is taken from.
    tags = {k: v for k, v in data.tags.items() if not k.startswith("mlflow.")}
    was = _Was(info.run_id, name, info.status, start, end)
    content = {
        "schema": SCHEMA,
        "licence": licence,
        "written_by": f"clear_mlflow {__version__}",
        **msgspec.to_builtins(_About(was, dict(data.params), tags, dict(files))),
    }
    return {**content, "digest": _digest(content)}


def _digest(content: Mapping[str, Any]) -> str:
    return f"sha256:{hashlib.sha256(_text(content).encode()).hexdigest()}"


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _fetch(client: MlflowClient, run: Run, folder: Path) -> None:
    """Copy a run's files of rows, predictions and tests, and its configuration."""
    for place, pattern in _FOLDERS.items():
        stored = ArtifactFolder(client, run, place)
        with mlflow_errors(f"read the artifacts of run {run.info.run_id}"):
            wanted = [name for name in stored.sizes() if re.fullmatch(pattern, name)]
            (folder / place).mkdir(parents=True, exist_ok=bool(not place or wanted))
            for name in wanted:
                with stored.scratch() as scratch:
                    content = read_bytes(stored.file(name, scratch), MAX_PREDICTIONS_BYTES)
                (folder / place / name).write_bytes(content)
    if not _files(folder / ROWS_FOLDER):
        raise RecordError(f"run {run.info.run_id} holds no rows; a bundle is of some")


def _files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()]


def _zip(folder: Path, files: list[str], to: Path) -> Path:
    """The same files give the same bytes: times are left out."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files:
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), 8)
    return to


def _unzip(path: Path, folder: Path) -> None:
    """Unpack what a bundle may hold, and nothing else, no more than the files' own limits."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MAX_ANYTIME_FILES:
            raise RecordError(f"holds {len(members)} files; no run has so many")
        if (total := sum(member.file_size for member in members)) > MAX_PREDICTIONS_BYTES:
            raise RecordError(f"unpacks to {total} bytes; expected at most 1 GiB")
        for member in members:
            _check_name(member.filename)
            content = archive.open(member).read(member.file_size + 1)
            if len(content) != member.file_size:
                raise RecordError(f"says less of {shown(member.filename)} than it holds")
            (folder / member.filename).parent.mkdir(parents=True, exist_ok=True)
            (folder / member.filename).write_bytes(content)


def _check_name(name: str) -> None:
    place, _, last = name.rpartition("/")
    if name != BUNDLE_JSON and not (place in _FOLDERS and re.fullmatch(_FOLDERS[place], last)):
        raise RecordError(f"holds {shown(name)}, which is no file of a run")


def _read(folder: Path) -> Run:
    if (folder / BUNDLE_JSON).is_symlink() or not (folder / BUNDLE_JSON).is_file():
        raise RecordError(f"lacks {BUNDLE_JSON}")
    text = read_bytes(folder / BUNDLE_JSON, MAX_METADATA_BYTES)
    content = json_object(text, MAX_METADATA_BYTES)
    said = {name: part for name, part in content.items() if name != "digest"}
    if content.get("schema") != SCHEMA:
        raise RecordError(f"has schema {shown(content.get('schema'))}; expected {SCHEMA}")
    if text != _text(content).encode() or content.get("digest") != _digest(said):
        raise RecordError(f"was changed: {BUNDLE_JSON} is not what its digest says")
    about: _About = converted(content, _About, BUNDLE_JSON)
    files = about.files
    there = {name for name in _files(folder) if name != BUNDLE_JSON}
    for name in sorted(files.keys() | there):
        _check_name(name)
        is_linked = (folder / name).resolve() != folder.resolve() / name
        if name not in there or name not in files or is_linked:
            raise RecordError(f"was changed: {name} is not among both its files and its list")
        if sha256_of(folder / name) != files[name]:
            raise RecordError(f"was changed: {name} is not what its SHA-256 says")
    return _run(folder, about)


def _run(folder: Path, about: _About) -> Run:
    info = RunInfo(
        run_id=about.run.run_id,
        experiment_id=NO_EXPERIMENT,
        user_id="",
        status=about.run.status,
        start_time=about.run.start_time,
        end_time=about.run.end_time,
        lifecycle_stage="active",
        artifact_uri=folder.resolve().as_uri(),
        run_name=about.run.name,
    )
    params = [Param(*param) for param in about.params.items()]
    return Run(info, RunData(params=params, tags=[RunTag(*tag) for tag in about.tags.items()]))
