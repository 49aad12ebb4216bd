"""Extracted features: arrays in the cache folder, found by the content of their images.

The metadata next to each array lists its images, and the settings that the numbers depend on.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.cache import (
    UnusableFileError,
    lock_folder,
    read_array,
    read_metadata,
    write_array,
)
from clear_mlflow.data.decode import get_decoder_version
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream

_FOLDER = "features"
_SETTINGS = ("backbone", "weights", "preprocessing", "arithmetic")


@dataclass(frozen=True)
class Extraction:
    """The settings that extracted features depend on in addition to the images."""

    name: str
    backbone: str
    weights: str  # sha256: and the hash of the weights file, or random:SEED
    preprocessing: str
    arithmetic: str = "float32"
    # The library's name of the weights. They are identified by the hash above.
    weights_tag: str = ""

    def folder(self, stream: BucketStream, *, cache_dir: Path) -> Path:
        """Return the folder for features of a stream's images.

        It may not exist yet. Its name depends on the settings, the decoder and the contents of all
        images.
        """
        key = hashlib.sha256()
        for value in (get_decoder_version(), *(getattr(self, field) for field in _SETTINGS)):
            key.update(value.encode() + b"\0")
        for images in stream.image_sets:
            key.update("\n".join(images.contents).encode() + b"\0")
        return cache_dir / _FOLDER / self.name / key.hexdigest()[:32]

    def is_stored(self, path: Path, images: ImageTable) -> bool:
        """Return True unless the file is missing, damaged, or has other metadata."""
        with suppress(UnusableFileError, OSError):
            return read_array(path, self._describe(images)) is not None
        return False

    def write(self, path: Path, images: ImageTable, array: NDArray[np.float32]) -> None:
        """Store the features of images, (N, width), completely or not at all.

        Raises DataError if the file cannot be written.
        """
        try:
            # The lock also deletes what writers that were killed left behind.
            with lock_folder(path.parent), write_array(path, self._describe(images)) as file:
                np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise DataError(
                f"{path_text(path)} cannot be written: {reason(error)}; set CLEAR_MLFLOW_CACHE to "
                "a folder with enough space"
            ) from None

    def _describe(self, images: ImageTable) -> dict[str, Any]:
        metadata = {**dataclasses.asdict(self), "decoder": get_decoder_version()}
        return {**metadata, "contents": list(images.contents)}


def get_array_path(folder: Path, number: int) -> Path:
    """Return the file for features of one of ``stream.image_sets``."""
    return folder / f"{number:03d}.npy"


def list_extracted_names(cache_dir: Path) -> tuple[str, ...]:
    """Return the sorted names of all features extracted into a cache."""
    return tuple(sorted({folder.parent.name for folder in _list_folders(cache_dir, "*")}))


def _list_folders(cache_dir: Path, name: str) -> list[Path]:
    return sorted((cache_dir / _FOLDER).glob(f"{name}/*/"))


def check_same_extraction(extraction: Extraction, *, cache_dir: Path) -> None:
    """Raise ConfigError if features of this name were extracted with other settings.

    Raises DataError if their metadata are damaged.
    """
    for folder in _list_folders(cache_dir, extraction.name):
        for _, metadata in _iter_arrays(folder):
            for field in _SETTINGS:
                if metadata[field] != getattr(extraction, field):
                    raise ConfigError(
                        f"name {extraction.name} is used by features with {field} "
                        f"{safe_repr(metadata[field])}, not "
                        f"{safe_repr(getattr(extraction, field))}; pass another --name"
                    )


def _iter_arrays(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the path and the metadata of each array in a folder."""
    for path in sorted(folder.glob("*.json")):
        try:
            metadata = read_metadata(path)
        except (UnusableFileError, OSError) as error:
            raise _build_error(str(error), folder) from None
        if not {*_SETTINGS, "contents", "decoder"} <= metadata.keys():
            raise _build_error(f"{path_text(path)} was changed after it was written", folder)
        yield path.with_suffix(".npy"), metadata


def _build_error(problem: str, folder: Path) -> DataError:
    return DataError(
        f"{problem}; delete {path_text(folder)} and run 'clear-mlflow data features' again"
    )


class ExtractedFeatures:
    """The arrays of one extraction, found by the content of the images."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = {
            path: metadata["contents"]
            for path, metadata in _iter_arrays(folder)
            if metadata["decoder"] == get_decoder_version()  # other versions decode other pixels
        }
        self._rows = {
            content: (path, row)
            for path, contents in self._contents.items()
            for row, content in enumerate(contents)
        }

    def covers(self, images: ImageTable) -> bool:
        """Return True if all these images have features."""
        return all(content in self._rows for content in images.contents)

    def load(self, images: ImageTable) -> NDArray[np.float32]:
        """Return the features of images, (N, width), in their order.

        :meth:`covers` must be true. Raises DataError if an array is missing or damaged.
        """
        rows = [self._rows[content] for content in images.contents]
        arrays = {path: self._read_array(path) for path in sorted({path for path, _ in rows})}
        for path, array in arrays.items():
            if self._contents[path] == list(images.contents):
                return array  # the file itself, memory-mapped
        return np.stack([arrays[path][row] for path, row in rows])

    def _read_array(self, path: Path) -> NDArray[np.float32]:
        try:
            stored = read_array(path, {"contents": self._contents[path]})
        except (UnusableFileError, OSError) as error:
            raise _build_error(str(error), self._folder) from None
        if stored is None:
            raise _build_error(f"{path_text(path)} is missing", self._folder)
        return stored[0]


def find_extracted(stream: BucketStream, name: str, *, cache_dir: Path) -> ExtractedFeatures | None:
    """Find a name's features for all images of a stream, or None.

    Raises DataError if features of this name exist, but not for all images.
    """
    folders = _list_folders(cache_dir, name)
    for folder in folders:
        extracted = ExtractedFeatures(folder)
        if all(extracted.covers(images) for images in stream.image_sets):
            return extracted
    if folders:
        raise DataError(
            f"features {name} were extracted, but not of all images that this dataset has now and "
            "with this version of Pillow; run 'clear-mlflow data features' on its folder again"
        )
    return None
