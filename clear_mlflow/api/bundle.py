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
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
from mlflow import MlflowClient
from mlflow.entities import Param, Run, RunData, RunInfo, RunTag

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.text import nearest, safe_repr
from clear_mlflow.core.untrusted import (
    MAX_METADATA_BYTES,
    MAX_PREDICTIONS_BYTES,
    convert,
    json_object,
    read_bytes,
    sha256_of,
)
from clear_mlflow.core.version import __version__
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.rows import is_same_row, list_row_sizes, read_row_files
from clear_mlflow.store.search import MissingRun

BUNDLE_JSON = "bundle.json"
ARCHIVE = ".tar.xz"
SCHEMA = {"name": "clear_mlflow/bundle", "version": "1.0"}
# In place of an experiment's id, of a run that no store holds.
NO_EXPERIMENT = "bundle"
# Of an archive, unpacked: a few bytes of xz can stand for as many as a disk holds.
_MOST_BYTES = 8 * 2**30
_MOST_FILES = 100_000
_TAR: Literal[2] = tarfile.PAX_FORMAT
_XZ_MEMORY = 128 * 2**20  # the highest preset takes 65 MiB
_BLOCK = 2**20
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
    """Return the bundles that a path names: itself, or those directly in a folder."""
    with suppress(OSError):  # text that no file can have as its name
        if _is_bundle(path) or _is_archive(path.parent):
            return [path]
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if e.is_dir() or e.name.endswith(ARCHIVE))
        return [path / name for name in names if _is_bundle(path / name)]
    return []


def _is_bundle(path: Path) -> bool:
    return (path / BUNDLE_JSON).is_file() or _is_archive(path)


def _is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVE) and path.is_file()


def write_bundles(client: MlflowClient, runs: Sequence[Run], to: Path, *, licence: str) -> None:
    """Write runs to a new folder or archive: one at its root, several in a folder each."""
    if to.exists():
        raise ConfigError(
            f"{safe_repr(str(to), 200)} is there already; name a new folder or archive"
        )
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
        raise ConfigError(f"cannot write {safe_repr(str(to), 200)}: {error}") from None


def read_bundles(path: Path) -> list[Run]:
    """A bundle, all of an archive, or that named behind it, as runs whose artifacts lie in it.

    Raises:
        RecordError: a byte of it was changed, or the archive has none of this name.
    """
    archive = path.parent if _is_archive(path.parent) else path
    # As long as one of its runs is looked at, what was unpacked is there.
    unpacked = tempfile.TemporaryDirectory(prefix="clear_mlflow_") if archive.is_file() else None
    try:
        folders = [path]
        if unpacked is not None:
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
        raise RecordError(f"the bundle {safe_repr(str(path), 200)} {problem}") from None
    for run in runs:
        run.unpacked, run.bundle_path = unpacked, path  # type: ignore[attr-defined]
    return runs


def drop_copies(
    client: MlflowClient, runs: Iterable[Run | MissingRun]
) -> Iterator[Run | MissingRun]:
    """Keep the most complete copy of each run, whichever order they come in.

    Raises ConfigError if two copies have different rows.
    """
    copies: dict[str, list[Run | MissingRun]] = {}
    for run in runs:
        run_id = run.run_id if isinstance(run, MissingRun) else run.info.run_id
        copies.setdefault(run_id, []).append(run)
    for run_id, several in copies.items():
        found = [run for run in several if isinstance(run, Run)]
        if len(found) < 2:
            yield from found or several[:1]
            continue
        ranked = sorted(found, key=partial(_rank_copy, client), reverse=True)
        best, *others = (read_row_files(client, run) for run in ranked)
        for number, rows in enumerate(others, start=1):
            if not all(name in best and is_same_row(best[name], rows[name], name) for name in rows):
                raise ConfigError(
                    f"{_describe_source(ranked[0])} and {_describe_source(ranked[number])} have "
                    f"different rows of run {run_id}; pass one of them"
                )
        yield ranked[0]


def _rank_copy(client: MlflowClient, run: Run) -> tuple[Any, ...]:
    """Return a key that is higher for a more complete copy: rows, in a store, files, metadata."""
    folder = ArtifactFolder(client, run).local if is_bundle(run) else None
    num_files = 0 if folder is None else len(_files(folder))
    metadata = sorted(run.data.params.items()), sorted(run.data.tags.items())
    return len(list_row_sizes(client, run)), folder is None, num_files, metadata


def _describe_source(run: Run) -> str:
    path = getattr(run, "bundle_path", None)
    return "the tracking store" if path is None else safe_repr(str(path), 200)


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
            wanted = [name for name in stored.list_sizes() if re.fullmatch(pattern, name)]
            for name in wanted:
                (folder / place).mkdir(parents=True, exist_ok=True)
                with stored.open_scratch() as scratch:
                    content = read_bytes(stored.fetch_file(name, scratch), MAX_PREDICTIONS_BYTES)
                (folder / place / name).write_bytes(content)
    if not _files(folder / ROWS_FOLDER):
        raise RecordError(f"run {run.info.run_id} holds no rows; a bundle is of some")


def _files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()]


def _pack(root: Path, to: Path) -> Path:
    """The same files give the same bytes: times and owners are left out."""
    with tarfile.open(to, "w:xz", format=_TAR) as archive:
        for name in sorted(_files(root)):
            with (root / name).open("rb") as file:
                archive.addfile(_member(name, (root / name).stat().st_size), file)
    return to


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


class _XzReader:
    """Reads an xz stream, whose header may not demand more memory than its decoder may take."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        self.size = 0  # bytes read so far

    def read(self, size: int) -> bytes:
        """Read so many bytes, fewer only at the end; EOFError if the file ends before that."""
        parts = []
        while size > 0 and not self._decoder.eof:
            packed = self._file.read(2**16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("it is cut off")
            parts.append(self._decoder.decompress(packed, size))
            size -= len(parts[-1])
            self.size += len(parts[-1])
        return b"".join(parts)

    def is_followed(self) -> bool:
        """Return True if the file has bytes after the stream."""
        return bool(self._decoder.unused_data or self._file.read(1))


def _unpack(path: Path, root: Path) -> None:
    """Unpack an archive, which has to be byte for byte as :func:`_pack` writes it."""
    previous = ""
    with path.open("rb") as packed:
        tar = _XzReader(packed)
        for number in range(_MOST_FILES + 1):
            header = tar.read(tarfile.BLOCKSIZE)
            if header == bytes(tarfile.BLOCKSIZE):
                break
            # One block, whatever it announces: names of any length would be read into memory.
            member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            folder, _, name = member.name.partition("/")
            is_known = _is_of_a_run(member.name) or (
                re.fullmatch(_FOLDER, folder) is not None and _is_of_a_run(name)
            )
            if not is_known or not member.isreg():
                raise RecordError(f"holds {safe_repr(member.name)}, which is no file of a run")
            if number >= _MOST_FILES:
                raise RecordError(f"holds over {_MOST_FILES:,} files")
            if member.name <= previous or header != _member(member.name, member.size).tobuf(_TAR):
                raise RecordError(f"was changed: {member.name} is not as an export writes it")
            if tar.size + member.size > _MOST_BYTES:
                raise RecordError("unpacks to over 8 GiB; unpack it yourself, name the folder")
            previous = member.name
            (root / member.name).parent.mkdir(parents=True, exist_ok=True)
            with (root / member.name).open("wb") as file:
                for left in range(member.size, 0, -_BLOCK):
                    file.write(tar.read(min(left, _BLOCK)))
            padding = -member.size % tarfile.BLOCKSIZE
            if tar.read(padding) != bytes(padding):
                raise RecordError(f"was changed after {member.name}, or is cut off")
        # A second empty block, and what fills the last record.
        rest = tarfile.BLOCKSIZE + -(tar.size + tarfile.BLOCKSIZE) % tarfile.RECORDSIZE
        if tar.read(rest + 1) != bytes(rest) or tar.is_followed():
            raise RecordError("was changed: other bytes follow its last file")


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
        raise RecordError(f"has schema {safe_repr(content.get('schema'))}; expected {SCHEMA}")
    if text != _text(content).encode() or content.get("digest") != _digest(said):
        raise RecordError(f"was changed: {BUNDLE_JSON} is not what its digest says")
    about: _About = convert(content, _About, BUNDLE_JSON)
    files = about.files
    there = {name for name in _files(folder) if name != BUNDLE_JSON}
    for name in sorted(files.keys() | there):
        if not _is_of_a_run(name):
            raise RecordError(f"holds {safe_repr(name)}, which is no file of a run")
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
