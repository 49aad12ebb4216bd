"""Runs as folders or one ``.tar.xz``, kept in a repository or beside a paper, read like a store.

A bundle is a run: its files lie as a run's artifacts do, beside ``bundle.json``, which says what
the run was and has the SHA-256 of each file and of itself: what was changed since is refused. An
archive of many is compressed as one text, so that what the runs have in common (keys, the test
images' names) is stored once.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, Literal, cast

import msgspec
from mlflow import MlflowClient
from mlflow.entities import Param, Run, RunData, RunInfo, RunTag

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.text import nearest, shown
from clear_mlflow.core.untrusted import (
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
ARCHIVE = ".tar.xz"
SCHEMA = {"name": "clear_mlflow/bundle", "version": "1.0"}
# In place of an experiment's id, of a run that no store holds.
NO_EXPERIMENT = "bundle"
# Of an archive, unpacked: a few bytes of xz can stand for as many as a disk holds.
_MOST_BYTES = 8 * 2**30
_MOST_FILES = 100_000
_FOLDER = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
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
        if (path / BUNDLE_JSON).is_file() or _is_archive(path) or _is_archive(path.parent):
            return [path]
        inside = sorted(path.iterdir()) if path.is_dir() else ()
        return [found for one in inside for found in bundles_in(one) if one == found]
    return []


def _is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVE) and path.is_file()


def write_bundles(client: MlflowClient, runs: Sequence[Run], to: Path, *, licence: str) -> None:
    """Write runs to a new folder or archive: one at its root, several in a folder each."""
    if to.exists():
        raise ConfigError(f"{shown(str(to), 200)} is there already; name a new folder or archive")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=".bundle_") as scratch:
            root = Path(scratch, "bundles")
            for run in runs:
                folder = root / _folder_name(run) if len(runs) > 1 else root
                folder.mkdir(parents=True)
                _fetch(client, run, folder)
                files = {name: sha256_of(folder / name) for name in sorted(_files(folder))}
                text = _text(_described(run, licence, files))
                (folder / BUNDLE_JSON).write_text(text, encoding="utf-8")
            if to.name.endswith(ARCHIVE):
                _pack(root, Path(scratch, "packed")).rename(to)
            else:
                root.rename(to)
    except OSError as error:
        raise ConfigError(f"cannot write {shown(str(to), 200)}: {error}") from None


def read_bundles(path: Path) -> list[Run]:
    """A bundle, all of an archive, or that named behind it, as runs whose artifacts lie in it.

    Raises:
        RecordError: a byte of it was changed, or the archive has none of this name.
    """
    archive = path.parent if _is_archive(path.parent) else path
    try:
        if not archive.is_file():
            return [_read(path)]
        # As long as one of its runs is looked at, what was unpacked is there.
        unpacked = tempfile.TemporaryDirectory(prefix="clear_mlflow_")
        root = Path(unpacked.name)
        _unpack(archive, root)
        folders = bundles_in(root) or [root]
        chosen = [folder for folder in folders if path == archive or folder.name == path.name]
        if not chosen:
            known = [folder.name for folder in folders]
            raise RecordError(
                f"is not in its archive; {nearest(path.name, known)}it has {len(known)}"
            )
        runs = [_read(folder) for folder in chosen]
    except (RecordError, OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        problem = error if isinstance(error, RecordError) else f"cannot be read: {error}"
        raise RecordError(f"the bundle {shown(str(path), 200)} {problem}") from None
    for run in runs:
        run.unpacked = unpacked  # type: ignore[attr-defined]
    return runs


def _folder_name(run: Run) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.info.run_name or "run").strip("-._")
    return f"{name[:80]}-{re.sub('[^0-9a-f]', '', run.info.run_id)[:8]}"


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
            for name in wanted:
                (folder / place).mkdir(parents=True, exist_ok=True)
                with stored.scratch() as scratch:
                    content = read_bytes(stored.file(name, scratch), MAX_PREDICTIONS_BYTES)
                (folder / place / name).write_bytes(content)
    if not _files(folder / ROWS_FOLDER):
        raise RecordError(f"run {run.info.run_id} holds no rows; a bundle is of some")


def _files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()]


def _pack(root: Path, to: Path) -> Path:
    """The same files give the same bytes: times and owners are left out."""
    with tarfile.open(to, "w:xz") as archive:
        for name in sorted(_files(root)):
            member = tarfile.TarInfo(name)
            member.size = (root / name).stat().st_size
            with (root / name).open("rb") as file:
                archive.addfile(member, file)
    return to


def _unpack(path: Path, root: Path) -> None:
    """Unpack what bundles may hold, and nothing else."""
    with tempfile.TemporaryFile() as plain:
        with lzma.open(path) as packed:
            while part := packed.read(2**20):
                plain.write(part)
                if plain.tell() > _MOST_BYTES:
                    raise RecordError("unpacks to over 8 GiB; unpack it yourself, name the folder")
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:") as archive:
            for number, member in enumerate(archive):
                folder, _, name = member.name.partition("/")
                is_known = _is_of_a_run(member.name) or (
                    re.fullmatch(_FOLDER, folder) is not None and _is_of_a_run(name)
                )
                if not is_known or not member.isreg() or member.issparse():
                    raise RecordError(f"holds {shown(member.name)}, which is no file of a run")
                if number >= _MOST_FILES:
                    raise RecordError(f"holds over {_MOST_FILES:,} files")
                (root / member.name).parent.mkdir(parents=True, exist_ok=True)
                content = cast(IO[bytes], archive.extractfile(member))  # of a plain file
                with (root / member.name).open("wb") as file:
                    copyfileobj(content, file)


def _is_of_a_run(name: str) -> bool:
    place, _, last = name.rpartition("/")
    known = place in _FOLDERS and re.fullmatch(_FOLDERS[place], last) is not None
    return known or name == BUNDLE_JSON


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
        if not _is_of_a_run(name):
            raise RecordError(f"holds {shown(name)}, which is no file of a run")
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
