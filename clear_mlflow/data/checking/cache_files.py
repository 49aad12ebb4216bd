"""The cache folder, checked: every file in it that results rest on. ``data check --cache``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.checking.hashes import FILE_NAME, wrongly_remembered
from clear_mlflow.data.decoding.decoded_cache import DECODED_FOLDER
from clear_mlflow.data.embedded import EMBEDDED, embedded_folder
from clear_mlflow.data.features.extracted import ExtractedFeatures, sidecars
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.sealed import SealedFiles, UnsealedFileError
from clear_mlflow.data.splits import AUTO

_OF_EARLIER_VERSIONS = ("decoded-v1", "decoded-v2")


@dataclass(frozen=True)
class CachePart:
    """One kind of files in the cache."""

    name: str
    files: int
    num_bytes: int
    wrong: tuple[str, ...] = ()
    is_read: bool = True


def check_cache(
    folder: Path, *, on_progress: Callable[[str, int, int | None], None]
) -> tuple[CachePart, ...]:
    """Check everything in a cache folder that results rest on, to the last byte."""
    return tuple(
        part
        for parts in (_decoded, _features, _embedded, _hashes, _earlier)
        for part in parts(folder, on_progress)
    )


_OnProgress = Callable[[str, int, "int | None"], None]


def _decoded(folder: Path, on_progress: _OnProgress) -> Iterator[CachePart]:
    kept = folder / DECODED_FOLDER
    files = sorted(path for path in kept.glob("*") if path.suffix in (".npy", ".json"))
    wrong, sealed = [], SealedFiles()
    for done, path in enumerate(files, start=1):
        try:
            with sealed.open(path, path.name):
                pass
        except UnsealedFileError as error:
            wrong.append(f"{path_text(path)} {error}")
        except OSError as error:
            wrong.append(f"{path_text(path)} cannot be read: {reason(error)}")
        on_progress(f"cache: {DECODED_FOLDER}", done, len(files))
    if files:
        yield CachePart(DECODED_FOLDER, len(files), _size(files), tuple(wrong))


def _features(folder: Path, on_progress: _OnProgress) -> Iterator[CachePart]:
    for sidecar in sidecars(folder):
        name = path_text(sidecar.parent.relative_to(folder))
        wrong, files = [], [sidecar]
        try:
            extracted = ExtractedFeatures(sidecar)
        except DataError as error:
            wrong.append(str(error))
        else:
            names = extracted.names()
            files += [sidecar.parent / file for file in names]
            for done, file in enumerate(names, start=1):
                try:
                    extracted.open(file)
                except DataError as error:
                    wrong.append(str(error))
                on_progress(f"cache: {name}", done, len(names))
        yield CachePart(name, len(files), _size(files), tuple(wrong))


def _embedded(folder: Path, on_progress: _OnProgress) -> Iterator[CachePart]:
    for dataset in EMBEDDED:
        name = embedded_folder(dataset)
        if files := _files_below(folder / name):
            wrong = []
            try:
                load_stream(dataset, AUTO, cache_dir=folder)
            except DataError as error:
                wrong.append(str(error))
            on_progress(f"cache: {name}", len(files), len(files))
            yield CachePart(name, len(files), _size(files), tuple(wrong))


def _hashes(folder: Path, on_progress: _OnProgress) -> Iterator[CachePart]:
    file = folder / FILE_NAME
    if file.is_file():
        wrong = wrongly_remembered(
            file, on_file=lambda done, total: on_progress(f"cache: {FILE_NAME}", done, total)
        )
        yield CachePart(FILE_NAME, 1, _size([file]), tuple(wrong))


def _earlier(folder: Path, on_progress: _OnProgress) -> Iterator[CachePart]:
    for name in _OF_EARLIER_VERSIONS:
        if files := _files_below(folder / name):
            yield CachePart(name, len(files), _size(files), is_read=False)


def _files_below(folder: Path) -> list[Path]:
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]


def _size(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())
