"""Extracted features: arrays in the cache folder, found by the content of their images.

Beside each array lies what it is of: its images, and what decided the numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.cache import UnusableFileError, read_array, read_metadata, write_array
from clear_mlflow.data.decoding.decode import decoder_version
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import BucketStream, ImageSet, image_sets

_FOLDER = "features"
_DECIDING = ("backbone", "weights", "preprocessing", "arithmetic")


@dataclass(frozen=True)
class Extraction:
    """What decides extracted features, besides the images."""

    name: str
    backbone: str
    weights: str  # sha256: and the hash of the weights file, or random:SEED
    preprocessing: str
    arithmetic: str = "float32"
    # As the backbone's library calls its weights; of the hash above, so that it decides nothing.
    weights_tag: str = ""

    def folder(self, stream: BucketStream, *, cache_dir: Path) -> Path:
        """Where the features of a stream's images go."""
        key = hashlib.sha256()
        for text in (decoder_version(), *(getattr(self, field) for field in _DECIDING)):
            key.update(text.encode() + b"\0")
        for images in image_sets(stream):
            key.update("\n".join(images.contents).encode() + b"\0")
        return cache_dir / _FOLDER / self.name / key.hexdigest()[:32]

    def read(self, path: Path, images: ImageSet) -> NDArray[np.float32] | None:
        """The features of some images, (N, width); None where they have to be computed."""
        try:
            found = read_array(path, self._about(images))
        except (UnusableFileError, OSError):
            return None
        return None if found is None else found[0]

    def write(self, path: Path, images: ImageSet, array: NDArray[np.float32]) -> None:
        """Keep the features of some images, (N, width): whole, or not at all."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_array(path, self._about(images)) as file:
                np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise DataError(
                f"{path_text(path)} cannot be written: {reason(error)}; set CLEAR_MLFLOW_CACHE to "
                "a folder with room"
            ) from None

    def _about(self, images: ImageSet) -> dict[str, Any]:
        about = {**dataclasses.asdict(self), "decoder": decoder_version()}
        return {**about, "contents": list(images.contents)}


def array_file(folder: Path, number: int) -> Path:
    """The features of the set with this number in :func:`image_sets`."""
    return folder / f"{number:03d}.npy"


def extracted_names(cache_dir: Path) -> tuple[str, ...]:
    """The names of all features that were extracted into a cache folder, sorted."""
    return tuple(sorted({folder.parent.name for folder in _folders(cache_dir, "*")}))


def _folders(cache_dir: Path, name: str) -> list[Path]:
    return sorted((cache_dir / _FOLDER).glob(f"{name}/*/"))


def refuse_other_extraction(extraction: Extraction, *, cache_dir: Path) -> None:
    """Make sure that one name means one way to extract features."""
    for folder in _folders(cache_dir, extraction.name):
        for _, about in _described(folder):
            for field in _DECIDING:
                if about[field] != getattr(extraction, field):
                    raise ConfigError(
                        f"name {extraction.name} is taken by features with {field} "
                        f"{safe_repr(about[field])}, not {safe_repr(getattr(extraction, field))}; "
                        "pass another --name"
                    )


def _described(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Each array of a folder, and what it is of."""
    for path in sorted(folder.glob("*.json")):
        try:
            about = read_metadata(path)
        except (UnusableFileError, OSError) as error:
            raise _unusable(str(error), folder) from None
        if not {*_DECIDING, "contents", "decoder"} <= about.keys():
            raise _unusable(f"{path_text(path)} is not as it was written", folder)
        yield path.with_suffix(".npy"), about


def _unusable(why: str, folder: Path) -> DataError:
    return DataError(
        f"{why}; delete {path_text(folder)} and run 'clear-mlflow data features' again"
    )


class ExtractedFeatures:
    """The arrays of one extraction, by the content of the images."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = {
            path: about["contents"]
            for path, about in _described(folder)
            if about["decoder"] == decoder_version()  # others are of other pixels
        }
        self._places = {
            content: (path, row)
            for path, contents in self._contents.items()
            for row, content in enumerate(contents)
        }
        self._arrays: dict[Path, NDArray[np.float32]] = {}

    def covers(self, images: ImageSet) -> bool:
        """Whether all these images have features."""
        return all(content in self._places for content in images.contents)

    def of(self, images: ImageSet) -> NDArray[np.float32]:
        """The features of images, (N, width), in their order."""
        places = [self._places[content] for content in images.contents]
        arrays = {path: self._open(path) for path in sorted({path for path, _ in places})}
        for path, array in arrays.items():
            if self._contents[path] == list(images.contents):
                return array  # as it was extracted: the file itself, memory-mapped
        width = next(iter(arrays.values())).shape[1]
        gathered = np.empty((len(places), width), dtype=np.float32)
        for out, (path, row) in zip(gathered, places, strict=True):
            out[:] = arrays[path][row]
        return gathered

    def _open(self, path: Path) -> NDArray[np.float32]:
        if path not in self._arrays:
            try:
                found = read_array(path, {"contents": self._contents[path]})
            except (UnusableFileError, OSError) as error:
                raise _unusable(str(error), self._folder) from None
            if found is None:
                raise _unusable(f"{path_text(path)} is missing", self._folder)
            self._arrays[path] = found[0]
        return self._arrays[path]


def find_extracted(stream: BucketStream, name: str, *, cache_dir: Path) -> ExtractedFeatures | None:
    """The extraction of this name that has all of a stream's images; None where there is none."""
    found = _folders(cache_dir, name)
    for folder in found:
        extracted = ExtractedFeatures(folder)
        if all(extracted.covers(images) for images in image_sets(stream)):
            return extracted
    if found:
        raise DataError(
            f"features {name} were extracted, but not of all images of this dataset as it is now "
            "and with this version of Pillow; run 'clear-mlflow data features' on its folder again"
        )
    return None
