"""Extracted features: numpy files in the cache folder, found by the content of their images.

They are memory-mapped, and a sidecar beside them says what they hold and marks them as whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH
from clear_mlflow.data.decoding.decode import decoder_version
from clear_mlflow.data.files import path_text, read_json_object, reason
from clear_mlflow.data.stream import BucketStream, ImageSet, image_sets

_FOLDER = "features"
_SIDECAR = "features.json"
_FORMAT = 1


@dataclass(frozen=True)
class Extraction:
    """What decides extracted features, besides the images."""

    name: str
    backbone: str
    weights: str  # sha256: and the hash of the weights file, or random:SEED
    preprocessing: str

    def folder(self, stream: BucketStream, *, cache_dir: Path) -> Path:
        """Where the features of a stream's images go."""
        key = hashlib.sha256()
        own = (self.backbone, self.weights, self.preprocessing)
        for text in (str(_FORMAT), decoder_version(), *own):
            key.update(text.encode() + b"\0")
        for images in image_sets(stream):
            key.update("\n".join(images.contents).encode() + b"\0")
        return cache_dir / _FOLDER / self.name / key.hexdigest()[:32]


def extracted_names(cache_dir: Path) -> tuple[str, ...]:
    """The names of all features that were extracted into a cache folder, sorted."""
    folder = cache_dir / _FOLDER
    return tuple(sorted(path.parent.parent.name for path in folder.glob(f"*/*/{_SIDECAR}")))


def array_file(folder: Path, number: int) -> Path:
    """The features of the set with this number in :func:`image_sets`."""
    return folder / f"{number:03d}.npy"


def read_array(path: Path) -> NDArray[np.float32] | None:
    """Memory-map a file of features; None where there is no whole one."""
    try:
        array: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    # numpy reads a header as Python's literals, and has no closed set of exceptions for damage.
    except Exception:
        return None
    if array.ndim != 2 or array.dtype != np.float32 or not 0 < array.shape[1] <= MAX_FEATURES_WIDTH:
        return None
    return array


def write_array(path: Path, array: NDArray[np.float32]) -> None:
    """Write a file of features under another name, and rename it when it is whole.

    Raises:
        DataError: the folder cannot be written.
    """
    _write_atomically(path, lambda file: np.save(file, array, allow_pickle=False))


def write_sidecar(
    folder: Path, extraction: Extraction, stream: BucketStream, *, width: int
) -> None:
    """Say what the files of a folder hold; this marks the folder as whole.

    Raises:
        DataError: the folder cannot be written.
    """
    document = {
        "format": _FORMAT,
        "name": extraction.name,
        "backbone": extraction.backbone,
        "weights": extraction.weights,
        "preprocessing": extraction.preprocessing,
        "decoder": decoder_version(),
        "width": width,
        "dataset": {"name": stream.name, "digest": stream.digest},
        "files": {
            array_file(folder, number).name: {
                "shape": [len(images), width],
                "contents": images.contents,
            }
            for number, images in enumerate(image_sets(stream))
        },
    }
    text = json.dumps(document).encode()
    _write_atomically(folder / _SIDECAR, lambda file: file.write(text))


def is_extracted(folder: Path) -> bool:
    """Whether an extraction into this folder has come to its end."""
    return (folder / _SIDECAR).is_file()


def refuse_other_extraction(extraction: Extraction, *, cache_dir: Path) -> None:
    """One name stands for one way to extract features.

    Raises:
        ConfigError: it was given to another backbone, other weights or other preprocessing.
    """
    for path in sorted((cache_dir / _FOLDER / extraction.name).glob(f"*/{_SIDECAR}")):
        there = _read_sidecar(path)
        for field in ("backbone", "weights", "preprocessing"):
            if there[field] != getattr(extraction, field):
                raise ConfigError(
                    f"name {extraction.name} is taken by features with {field} "
                    f"{shown(there[field])}, not {shown(getattr(extraction, field))}; pass another "
                    "--name"
                )


class ExtractedFeatures:
    """The arrays of one extraction, by the content of the images."""

    def __init__(self, folder: Path, files: Mapping[str, Sequence[str]]) -> None:
        self._places = {
            content: (file, row)
            for file, contents in files.items()
            for row, content in enumerate(contents)
        }
        self._contents = files
        self._folder = folder
        self._arrays: dict[str, NDArray[np.float32]] = {}

    def covers(self, images: ImageSet) -> bool:
        """Whether all these images have features."""
        return all(content in self._places for content in images.contents)

    def of(self, images: ImageSet) -> NDArray[np.float32]:
        """The features of images, (N, width), in their order.

        Raises:
            DataError: a file of them is damaged.
        """
        places = [self._places[content] for content in images.contents]
        files = sorted({file for file, _ in places})
        for file in files:
            self._open(file)
        for file in files:
            if tuple(self._contents[file]) == images.contents:
                return self._arrays[file]  # as it was extracted: the file itself, memory-mapped
        gathered = np.empty((len(places), self._arrays[files[0]].shape[1]), dtype=np.float32)
        for out, (file, row) in zip(gathered, places, strict=True):
            out[:] = self._arrays[file][row]
        return gathered

    def _open(self, file: str) -> None:
        if file not in self._arrays:
            path = self._folder / file
            array = read_array(path)
            if array is None or len(array) != len(self._contents[file]):
                raise DataError(
                    f"{path_text(path)} is not the features that it was; delete "
                    f"{path_text(self._folder)} and run 'clear-mlflow data features' again"
                )
            if not np.isfinite(array).all():
                raise DataError(
                    f"{path_text(path)} holds numbers that are not finite; delete "
                    f"{path_text(self._folder)} and run 'clear-mlflow data features' again"
                )
            self._arrays[file] = array


def find_extracted(stream: BucketStream, name: str, *, cache_dir: Path) -> ExtractedFeatures | None:
    """The extraction of this name that has all of a stream's images; None where there is none.

    Raises:
        DataError: there are some, of other images or damaged.
    """
    sidecars = sorted((cache_dir / _FOLDER / name).glob(f"*/{_SIDECAR}"))
    for path in sidecars:
        files = _read_sidecar(path)["files"]
        found = ExtractedFeatures(
            path.parent, {file: entry["contents"] for file, entry in files.items()}
        )
        if all(found.covers(images) for images in image_sets(stream)):
            return found
    if sidecars:
        raise DataError(
            f"features {name} were extracted, but not of all images of this dataset as it is now; "
            "run 'clear-mlflow data features' on its folder again"
        )
    return None


def _read_sidecar(path: Path) -> dict[str, Any]:
    """A sidecar with all that is used of it checked."""
    document = read_json_object(path, root=path.parent.resolve())
    texts = ("name", "backbone", "weights", "preprocessing")
    files = document.get("files")
    whole = (
        document.get("format") == _FORMAT
        and all(isinstance(document.get(text), str) for text in texts)
        and isinstance(files, dict)
        and all(
            file == Path(file).name
            and file.endswith(".npy")
            and isinstance(entry, dict)
            and isinstance(entry.get("contents"), list)
            and all(isinstance(content, str) for content in entry["contents"])
            for file, entry in files.items()
        )
    )
    if not whole:
        raise DataError(
            f"{path_text(path)} is no description of extracted features that this clear_mlflow "
            "reads; delete its folder and run 'clear-mlflow data features' again"
        )
    return document


def _write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    # Not by tempfile, whose files nobody but their owner may read: caches are shared.
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path_text(path)} cannot be written: {reason(error)}; set CLEAR_MLFLOW_CACHE to a "
            "folder with room"
        ) from None
