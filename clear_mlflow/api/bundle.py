"""Runs as folders or one ``.tar.xz``, for a repository or a paper, read like a store.

A bundle is a run's folder (:mod:`clear_mlflow.journal.run_folder`) whose header also contains the
SHA-256 of each file and of itself, so that a changed bundle is rejected. An archive of many bundles
is compressed as one stream, so that what the runs have in common (keys, names of test images) is
stored once.
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
from mlflow.entities import Metric, Run

from clear_mlflow.core.anytime import ANYTIME_FOLDER
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.record import ROWS_FOLDER, assemble
from clear_mlflow.core.text import safe_repr, suggest_nearest
from clear_mlflow.core.untrusted import (
    MAX_METADATA_BYTES,
    MAX_PREDICTIONS_BYTES,
    convert,
    hash_file,
    parse_json_object,
    read_bytes,
)
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.reading import pack_input, read_run
from clear_mlflow.journal.run_folder import (
    ARTIFACTS,
    FORMAT,
    HEADER_JSON,
    INFO_JSON,
    INPUTS_JSON,
    METRICS_JSON,
    PARAMS_JSON,
    TAGS_JSON,
    RunFolder,
    StoredInfo,
)
from clear_mlflow.scoring.run_record import read_predictions, read_test_matrix
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import (
    MAX_POINTS,
    mlflow_errors,
    set_up_mlflow,
    split_into_batches,
)
from clear_mlflow.store.offline import (
    ARCHIVE,
    NO_EXPERIMENT,
    check_format,
    format_offline_uri,
    get_bundle_path,
    is_bundle,
    is_offline_folder,
)
from clear_mlflow.store.rows import is_same_row, list_row_sizes, parse_rows, read_row_files
from clear_mlflow.store.search import MissingRun, expand_run_id, select_runs
from clear_mlflow.tracking.run_sources import RunSource

# Limits of an archive when it is unpacked: a few bytes of xz can expand to fill a disk.
_MAX_BYTES = 8 * 2**30
_MAX_FILES = 100_000
_MAX_DECODER_BYTES = 128 * 2**20  # the highest preset of xz takes 65 MiB
_BLOCK_BYTES = 2**20
_TAR_FORMAT: Literal[2] = tarfile.PAX_FORMAT
_FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
_ENTRY = rf"\d{{8}}-({INFO_JSON}|{PARAMS_JSON}|{TAGS_JSON}|{INPUTS_JSON}|{METRICS_JSON})"
# Artifacts in a bundle: folder to a pattern of file names.
_ARTIFACTS = {
    "": rf"{names.CONFIG_JSON}|own_loop\.json",
    ROWS_FOLDER: r"row_\d{3,9}\.json",
    PREDICTIONS_FOLDER: r"(row_\d{3,9}|evaluation_set|prequential)\.safetensors",
    ANYTIME_FOLDER: r"bucket_\d{3,9}_test_\d{4,9}\.json",
}


class _Header(msgspec.Struct, kw_only=True):
    """Metadata of an exported run, as JSON with its own hash."""

    format: str
    run_id: str
    licence: str
    written_by: str
    files: dict[str, str]  # path of each other file in the folder to its SHA-256


def list_bundles(path: Path) -> list[Path]:
    """Return the paths of bundles and offline folders at a path.

    That is the path itself if it is one of them, or names a run in one; otherwise those directly in
    the folder, in order of their names, or nothing.
    """
    if is_bundle_path(path):
        return [path]
    with suppress(OSError):
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if e.is_dir() or e.name.endswith(ARCHIVE))
        return [path / name for name in names if is_bundle_path(path / name)]
    return []


def is_bundle_path(path: Path) -> bool:
    """Return True for a bundle, an offline folder, or a name inside.

    It is not checked that an archive or offline folder contains the named run.
    """
    with suppress(OSError):  # a string that cannot be the name of a file
        is_member = _is_archive(path.parent) or _is_in_offline_folder(path)
        return (
            is_member
            or _is_archive(path)
            or is_offline_folder(path)
            or (path / HEADER_JSON).is_file()
        )
    return False


def write_bundles(client: MlflowClient, runs: Sequence[Run], to: Path, *, licence: str) -> None:
    """Write runs to a new folder, or to an archive .tar.xz.

    A single run is written to the root of it, several runs to a folder each. Missing parent folders
    are created. licence: text that is stored with each run's metadata.

    Raises ConfigError if the path exists or cannot be written, RecordError if a run lacks rows, and
    TrackingError if the store cannot be read; then *to* is not created.
    """
    if to.exists():
        raise ConfigError(
            f"{safe_repr(str(to), 200)} exists already; name a new folder or a new archive"
        )
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=".bundle_") as scratch:
            root = Path(scratch, "bundles")
            for run in runs:
                path = root / _build_folder_name(run) if runs[1:] else root
                _write_bundle(client, run, path, licence)
            if to.name.endswith(ARCHIVE):
                _pack_archive(root, Path(scratch, "packed")).rename(to)
            else:
                root.rename(to)
    except OSError as error:
        problem = error.strerror or error
        raise ConfigError(f"cannot write {safe_repr(str(to), 200)}: {problem}") from None


def read_bundles(path: Path) -> list[Run]:
    """Read the runs of a bundle: folder, archive, or ARCHIVE/NAME.

    An archive is unpacked to a temporary folder, which is deleted when the last of the returned
    runs is garbage-collected. The path may also be an offline folder, or one run of it as
    FOLDER/RUN.

    Raises:
        RecordError: a bundle was changed since the export or cannot be read, or the path does not
            name a run.
        TrackingError: an offline folder has a format that this version cannot read.
    """
    if is_offline_folder(path) or _is_in_offline_folder(path):
        return _read_offline_runs(path)
    archive = path.parent if _is_archive(path.parent) else path
    scratch = tempfile.TemporaryDirectory(prefix="clear_mlflow_")
    try:
        folders = [path]
        if archive.is_file():
            packed = Path(scratch.name, "packed")
            _unpack_archive(archive, packed)
            folders = list_bundles(packed) or [packed]
        selected = [folder for folder in folders if path == archive or folder.name == path.name]
        if not selected:
            stored = [folder.name for folder in folders]
            raise RecordError(
                f"is not in its archive; {suggest_nearest(path.name, stored)}it has {len(stored)}"
            )
        runs = [_read_bundle(folder) for folder in selected]
    except (ClearError, OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        problem = error if isinstance(error, ClearError) else f"cannot be read: {error}"
        raise RecordError(f"the bundle {safe_repr(str(path), 200)} {problem}") from None
    for run, folder in zip(runs, selected, strict=True):
        run.scratch = scratch  # type: ignore[attr-defined]
        run.bundle_path = path if len(runs) == 1 else path / folder.name  # type: ignore[attr-defined]
    return runs


def _read_offline_runs(path: Path) -> list[Run]:
    """Read an offline folder's runs, newest first, or one, FOLDER/RUN.

    RUN is an id or at least its first six digits. Without it, sweeps and comparisons are left out.
    Raises RecordError if it finds none, and TrackingError if the folder's format is unknown or RUN
    matches several runs.
    """
    folder, prefix = (path, None) if is_offline_folder(path) else (path.parent, path.name)
    set_up_mlflow()
    check_format(folder)
    client = MlflowClient(format_offline_uri(folder))
    run_ids = () if prefix is None else (expand_run_id(client, prefix),)
    runs = [
        read_run(folder / run.info.run_id, run.info.run_id, NO_EXPERIMENT)
        for run in select_runs(client, run_ids=run_ids)
        if isinstance(run, Run)
    ]
    if not runs:
        raise RecordError(f"{safe_repr(str(folder), 200)} contains no run {prefix or ''}".rstrip())
    for run in runs:
        run.bundle_path = folder / run.info.run_id[:8]  # type: ignore[attr-defined]
    return runs


class BundleSource(RunSource):
    """A run of a bundle, to be copied to a store."""

    def read_rows(self) -> dict[str, bytes]:
        """Return the row files. Raises RecordError if predictions or tests contradict them."""
        files = super().read_rows()
        record = assemble(parse_rows(files))
        read_predictions(self.client, self.run, record)
        read_test_matrix(self.client, self.run, record)
        return files


def drop_copies(
    client: MlflowClient, runs: Iterable[Run | MissingRun]
) -> Iterator[Run | MissingRun]:
    """Yield each run's most complete copy, or raise ConfigError if rows differ.

    A run may be in the store and in bundles. The source is the run that a copy was made of. A
    MissingRun is yielded only if the run lacks a copy. Reads all runs first. Raises ConfigError if
    a copy has a row that the yielded one lacks or has with other numbers.
    """
    copies: dict[str, list[Run | MissingRun]] = {}
    for run in runs:
        run_id = run.run_id if isinstance(run, MissingRun) else RunSource(client, run).run_id
        copies.setdefault(run_id, []).append(run)
    for run_id, copies_of_run in copies.items():
        existing = [run for run in copies_of_run if isinstance(run, Run)]
        if len(existing) < 2:
            yield from existing or copies_of_run[:1]
            continue
        ranked = sorted(existing, key=partial(_rank_copy, client), reverse=True)
        best, *others = (read_row_files(client, run) for run in ranked)
        for number, rows in enumerate(others, start=1):
            if not all(name in best and is_same_row(best[name], rows[name], name) for name in rows):
                raise ConfigError(
                    f"{_describe_source(ranked[0])} and {_describe_source(ranked[number])} have "
                    f"different rows of run {run_id}; pass one of them"
                )
        yield ranked[0]


def read_metric_points(client: MlflowClient, run: Run) -> list[Metric]:
    """Return all values of a run's metrics by metric, step, time.

    client: client of the store, which is not used for a run of a bundle or an offline folder.
    """
    points = RunSource(client, run).read_histories()
    return sorted(points, key=lambda p: (p.key, p.step, p.timestamp))


def _rank_copy(client: MlflowClient, run: Run) -> tuple[Any, ...]:
    """Return a sort key: more rows, then the store, then more files."""
    folder = ArtifactFolder(client, run).local if is_bundle(run) else None
    num_files = 0 if folder is None else len(_list_files(folder))
    metadata = sorted(run.data.params.items()), sorted(run.data.tags.items())
    return len(list_row_sizes(client, run)), folder is None, num_files, metadata


def _describe_source(run: Run) -> str:
    """Say where a run was read from: "the tracking store", or path."""
    path = get_bundle_path(run)
    return "the tracking store" if path is None else safe_repr(str(path), 200)


def _build_folder_name(run: Run) -> str:
    """Return a folder name of at most 49 characters for a run."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.info.run_name or "").strip("-._")
    return f"{name[:40] or 'run'}-{re.sub('[^0-9a-f]', '', run.info.run_id)[:8]}"


def _is_in_offline_folder(path: Path) -> bool:
    return len(path.parts) > 1 and is_offline_folder(path.parent)


def _is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVE) and path.is_file()


def _list_files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()]


def _write_bundle(client: MlflowClient, run: Run, path: Path, licence: str) -> None:
    path.mkdir(parents=True)
    info, data = run.info, run.data
    folder = RunFolder(path, is_durable=False)
    try:
        folder.append_json(PARAMS_JSON, dict(sorted(data.params.items())))
        # MLflow's own tags belong to the store that the run comes from.
        tags = {k: v for k, v in sorted(data.tags.items()) if not k.startswith("mlflow.")}
        folder.append_json(TAGS_JSON, tags)
        inputs = run.inputs.dataset_inputs if run.inputs else []
        folder.append_json(INPUTS_JSON, [pack_input(dataset_input) for dataset_input in inputs])
        stored_info = StoredInfo(
            name=info.run_name or info.run_id,
            status=info.status,
            start_time=info.start_time or 0,
            end_time=info.end_time,
        )
        folder.append_json(INFO_JSON, stored_info)
        for batch in split_into_batches(read_metric_points(client, run), MAX_POINTS):
            folder.append_metrics(batch)
        for artifact_folder, pattern in _ARTIFACTS.items():
            stored = ArtifactFolder(client, run, artifact_folder)
            with mlflow_errors(f"read the artifacts of run {info.run_id}"):
                files = sorted(n for n in stored.list_sizes() if re.fullmatch(pattern, n))
                if artifact_folder == ROWS_FOLDER and not files:
                    raise RecordError(
                        f"run {info.run_id} contains no rows; a bundle needs at least one"
                    )
                for name in files:
                    with stored.open_scratch() as scratch:
                        file = stored.fetch_file(name, scratch)
                        content = read_bytes(file, MAX_PREDICTIONS_BYTES)
                    folder.append(f"{artifact_folder}/{name}".lstrip("/"), content)
    finally:
        folder.close()
    (path / "lock").unlink()
    header = _Header(
        format=FORMAT,
        run_id=info.run_id,
        licence=licence,
        written_by=f"clear_mlflow {__version__}",
        files={name: hash_file(path / name) for name in sorted(_list_files(path))},
    )
    content = msgspec.to_builtins(header)
    content["digest"] = _hash_header(content)
    (path / HEADER_JSON).write_text(_format_json(content), encoding="utf-8")


def _hash_header(content: Mapping[str, Any]) -> str:
    """Return "sha256:..." of a bundle's metadata. content: the metadata without this hash."""
    return f"sha256:{hashlib.sha256(_format_json(content).encode()).hexdigest()}"


def _format_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _read_bundle(folder: Path) -> Run:
    header = _read_header(folder)
    for name, sha256 in sorted(header.files.items()):
        file = folder / name
        if file.is_symlink() or not file.is_file():
            raise RecordError(f"was changed: {name} is not a regular file")
        content = read_bytes(file, MAX_PREDICTIONS_BYTES)
        if hashlib.sha256(content).hexdigest() != sha256.removeprefix("sha256:"):
            raise RecordError(f"was changed: {name} does not have the SHA-256 in its header")
    return read_run(folder, header.run_id, NO_EXPERIMENT)


def _read_header(folder: Path) -> _Header:
    """Read the metadata of a bundle, which must list exactly its files."""
    file = folder / HEADER_JSON
    if file.is_symlink() or not file.is_file():
        raise RecordError(f"lacks {HEADER_JSON}")
    text = read_bytes(file, MAX_METADATA_BYTES)
    content = parse_json_object(text, MAX_METADATA_BYTES)
    if content.get("format") != FORMAT:
        raise RecordError(f"has format {safe_repr(content.get('format'))}; expected {FORMAT}")
    digest = content.get("digest")
    if digest is None:
        raise RecordError("was not exported: what it contains waits for 'clear-mlflow sync'")
    hashed = {name: value for name, value in content.items() if name != "digest"}
    if text != _format_json(content).encode() or digest != _hash_header(hashed):
        raise RecordError(f"was changed: {HEADER_JSON} does not have its own digest")
    header: _Header = convert(content, _Header, HEADER_JSON)
    existing = set(_list_files(folder)) - {HEADER_JSON}
    for name in sorted(header.files.keys() | existing):
        if not _is_bundle_file(name):
            raise RecordError(f"contains {safe_repr(name)}, which is not a file of a run")
        if name not in existing or name not in header.files:
            raise RecordError(f"was changed: {name} is not both in the folder and in its header")
    return header


def _is_bundle_file(path: str) -> bool:
    """Return True if a bundle may contain this path, such as 00000003-params.json."""
    if path == HEADER_JSON or re.fullmatch(_ENTRY, path):
        return True
    root, _, artifact = path.partition("/")
    folder, _, name = artifact.rpartition("/")
    return root == ARTIFACTS and bool(re.fullmatch(_ARTIFACTS.get(folder, "(?!)"), name))


def _pack_archive(root: Path, to: Path) -> Path:
    """Write a folder to a .tar.xz that depends only on files."""
    with tarfile.open(to, "w:xz", format=_TAR_FORMAT) as archive:
        for name in sorted(_list_files(root)):
            with (root / name).open("rb") as file:
                archive.addfile(_build_tar_entry(name, (root / name).stat().st_size), file)
    return to


def _build_tar_entry(name: str, size: int) -> tarfile.TarInfo:
    """Return a tar header without a file's time, owner or mode."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member


class _XzReader:
    """Reads an xz file in parts, within 128 MiB of memory.

    Raises LZMAError if decoding needs more.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DECODER_BYTES)
        self.size = 0  # bytes read so far

    def read(self, size: int) -> bytes:
        """Return *size* decompressed bytes, fewer at the end, or raise EOFError."""
        parts = []
        while size > 0 and not self._decoder.eof:
            packed = self._file.read(2**16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("it is cut off")
            parts.append(self._decoder.decompress(packed, size))
            size -= len(parts[-1])
            self.size += len(parts[-1])
        return b"".join(parts)

    def has_trailing_bytes(self) -> bool:
        """Return True if the file has bytes after the compressed data."""
        return bool(self._decoder.unused_data or self._file.read(1))


def _unpack_archive(path: Path, root: Path) -> None:
    """Unpack an archive into a folder, as long as it is valid.

    It must be, byte for byte, as :func:`_pack_archive` writes it. EOFError and LZMAError pass.
    """
    previous = ""
    with path.open("rb") as packed:
        tar = _XzReader(packed)
        for number in range(_MAX_FILES + 1):
            header = tar.read(tarfile.BLOCKSIZE)
            if header == bytes(tarfile.BLOCKSIZE):
                break
            # Only one block of the header: a name may announce any length.
            member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            folder, _, name = member.name.partition("/")
            is_valid = _is_bundle_file(member.name) or (
                re.fullmatch(_FOLDER_NAME, folder) and _is_bundle_file(name)
            )
            if not is_valid or not member.isreg():
                raise RecordError(
                    f"contains {safe_repr(member.name)}, which is not a file of a run"
                )
            if number >= _MAX_FILES:
                raise RecordError(f"contains over {_MAX_FILES:,} files")
            expected = _build_tar_entry(member.name, member.size).tobuf(_TAR_FORMAT)
            if member.name <= previous or header != expected:
                raise RecordError(f"was changed: {member.name} is not as an export writes it")
            if tar.size + member.size > _MAX_BYTES:
                raise RecordError("unpacks to over 8 GiB; unpack it yourself, name the folder")
            previous = member.name
            (root / member.name).parent.mkdir(parents=True, exist_ok=True)
            with (root / member.name).open("wb") as file:
                for remaining in range(member.size, 0, -_BLOCK_BYTES):
                    file.write(tar.read(min(remaining, _BLOCK_BYTES)))
            padding = -member.size % tarfile.BLOCKSIZE
            if tar.read(padding) != bytes(padding):
                raise RecordError(f"was changed after {member.name}, or is cut off")
        # A second empty block, and what fills the last record.
        rest = tarfile.BLOCKSIZE + -(tar.size + tarfile.BLOCKSIZE) % tarfile.RECORDSIZE
        if tar.read(rest + 1) != bytes(rest) or tar.has_trailing_bytes():
            raise RecordError("was changed: other bytes follow its last file")
