"""The cache folder, checked: every file in it that results rest on. ``data check --cache``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.cached_arrays import CachedArrays, UnusableFileError
from clear_mlflow.data.decoding.decoded_cache import DECODED_FOLDER
from clear_mlflow.data.embedded import EMBEDDED, embedded_folder
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.splits import AUTO


@dataclass(frozen=True)
class CachePart:
    """One kind of files in the cache."""

    name: str
    files: int
    num_bytes: int
    wrong: tuple[str, ...] = ()


def check_cache(
    folder: Path, *, on_progress: Callable[[str, int, int | None], None]
) -> tuple[CachePart, ...]:
    """Check everything in a cache folder that results rest on, to the last byte."""
    return tuple(part for parts in (_arrays, _embedded) for part in parts(folder, on_progress))


_OnProgress = Callable[[str, int, "int | None"], None]


def _arrays(folder: Path, on_progress: _OnProgress) -> Iterator[CachePart]:
    for place in (folder / DECODED_FOLDER, *sorted(folder.glob("features/*/*/"))):
        name = path_text(place.relative_to(folder))
        files, wrong = sorted(place.glob("*.npy")), []
        for done, path in enumerate(files, start=1):
            try:
                if CachedArrays().open(path, {}) is None:
                    wrong.append(f"{path_text(path)} lacks what says of what it is")
            except UnusableFileError as error:
                wrong.append(str(error))
            except OSError as error:
                wrong.append(f"{path_text(path)} cannot be read: {reason(error)}")
            on_progress(f"cache: {name}", done, len(files))
        if files:
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


def _files_below(folder: Path) -> list[Path]:
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]


def _size(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())
