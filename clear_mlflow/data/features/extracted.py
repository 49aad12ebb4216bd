"""Extracted features: numpy files in the cache folder, found by the content of their images.

They are memory-mapped, each sealed as what its images and its extraction are, and a sidecar beside
them says what they hold and marks them as whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.durable import write_durably
from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.decoding.decode import decoder_version
from clear_mlflow.data.files import path_text, read_json_object, reason
from clear_mlflow.data.sealed import SealedFiles, UnsealedFileError, sealed_file
from clear_mlflow.data.stream import BucketStream, ImageSet, image_sets

_FOLDER = "features"
_SIDECAR = "features.json"
_FORMAT = 2


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
        own = (self.backbone, self.weights, self.preprocessing, self.arithmetic)
        for text in (str(_FORMAT), decoder_version(), *own):
            key.update(text.encode() + b"\0")
        for images in image_sets(stream):
            key.update("\n".join(images.contents).encode() + b"\0")
        return cache_dir / _FOLDER / self.name / key.hexdigest()[:32]

    def subject(self, images: ImageSet) -> str:
        """What the features of some images are sealed as."""
        return _subject(dataclasses.asdict(self) | {"decoder": decoder_version()}, images.contents)


def _subject(about: Mapping[str, Any], contents: Sequence[str]) -> str:
    fields = ("backbone", "weights", "preprocessing", "arithmetic", "decoder")
    own = (str(about[field]) for field in fields)
    return "\n".join((*own, *contents))


def extracted_names(cache_dir: Path) -> tuple[str, ...]:
    """The names of all features that were extracted into a cache folder, sorted."""
    return tuple(path.parent.parent.name for path in sidecars(cache_dir))


def array_file(folder: Path, number: int) -> Path:
    """The features of the set with this number in :func:`image_sets`."""
    return folder / f"{number:03d}.npy"


def read_array(path: Path, subject: str, files: SealedFiles) -> NDArray[np.float32] | None:
    """Memory-map a file of features; None where there is none."""
    try:
        with files.open(path, subject) as (file, _):
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            return np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape)
    except FileNotFoundError:
        return None


def write_array(path: Path, array: NDArray[np.float32], subject: str) -> None:
    """Write a file of features, which is there sealed and whole or not at all."""
    with _written_to(path), sealed_file(path, subject) as file:
        np.save(file, array, allow_pickle=False)


def write_sidecar(
    folder: Path, extraction: Extraction, stream: BucketStream, *, width: int
) -> None:
    """Say what the files of a folder hold; this marks the folder as whole."""
    document = {
        "format": _FORMAT,
        "name": extraction.name,
        "backbone": extraction.backbone,
        "weights": extraction.weights,
        "weights_tag": extraction.weights_tag,
        "preprocessing": extraction.preprocessing,
        "arithmetic": extraction.arithmetic,
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
    with _written_to(folder / _SIDECAR):
        write_durably(folder / _SIDECAR, json.dumps(document).encode())


def is_extracted(folder: Path) -> bool:
    """Whether an extraction into this folder has come to its end."""
    return (folder / _SIDECAR).is_file()


def refuse_other_extraction(extraction: Extraction, *, cache_dir: Path) -> None:
    """Make sure that one name means one way to extract features."""
    for path in sidecars(cache_dir, extraction.name):
        there = _read_sidecar(path)
        for field in ("backbone", "weights", "preprocessing", "arithmetic"):
            if there[field] != getattr(extraction, field):
                raise ConfigError(
                    f"name {extraction.name} is taken by features with {field} "
                    f"{shown(there[field])}, not {shown(getattr(extraction, field))}; pass another "
                    "--name"
                )


class ExtractedFeatures:
    """The arrays of one extraction, by the content of the images."""

    def __init__(self, sidecar: Path) -> None:
        self._about = _read_sidecar(sidecar)
        self._folder = sidecar.parent
        self._contents: dict[str, list[str]] = {
            file: entry["contents"] for file, entry in self._about["files"].items()
        }
        self._places = {
            content: (file, row)
            for file, contents in self._contents.items()
            for row, content in enumerate(contents)
        }
        self._arrays: dict[str, NDArray[np.float32]] = {}
        self.files = SealedFiles()

    def covers(self, images: ImageSet) -> bool:
        """Whether all these images have features."""
        return all(content in self._places for content in images.contents)

    def of(self, images: ImageSet) -> NDArray[np.float32]:
        """The features of images, (N, width), in their order."""
        places = [self._places[content] for content in images.contents]
        files = sorted({file for file, _ in places})
        arrays = {file: self.open(file) for file in files}
        for file in files:
            if tuple(self._contents[file]) == images.contents:
                return arrays[file]  # as it was extracted: the file itself, memory-mapped
        gathered = np.empty((len(places), arrays[files[0]].shape[1]), dtype=np.float32)
        for out, (file, row) in zip(gathered, places, strict=True):
            out[:] = arrays[file][row]
        return gathered

    def open(self, file: str) -> NDArray[np.float32]:
        """One file's features."""
        if file not in self._arrays:
            path = self._folder / file
            why = "is missing"
            try:
                subject = _subject(self._about, self._contents[file])
                if (array := read_array(path, subject, self.files)) is not None:
                    self._arrays[file] = array
                    return array
            except UnsealedFileError as error:
                why = str(error)
            except OSError as error:
                why = f"cannot be read: {reason(error)}"
            raise DataError(
                f"{path_text(path)} {why}; delete {path_text(self._folder)} and run 'clear-mlflow "
                "data features' again"
            )
        return self._arrays[file]

    def names(self) -> tuple[str, ...]:
        """Its files."""
        return tuple(self._contents)


def sidecars(cache_dir: Path, name: str = "*") -> list[Path]:
    """What says that an extraction is whole, of each into a cache folder, sorted."""
    return sorted((cache_dir / _FOLDER).glob(f"{name}/*/{_SIDECAR}"))


def find_extracted(stream: BucketStream, name: str, *, cache_dir: Path) -> ExtractedFeatures | None:
    """The extraction of this name that has all of a stream's images; None where there is none."""
    found = sidecars(cache_dir, name)
    for path in found:
        extracted = ExtractedFeatures(path)
        if all(extracted.covers(images) for images in image_sets(stream)):
            return extracted
    if found:
        raise DataError(
            f"features {name} were extracted, but not of all images of this dataset as it is now; "
            "run 'clear-mlflow data features' on its folder again"
        )
    return None


def _read_sidecar(path: Path) -> dict[str, Any]:
    """A sidecar with all that is used of it checked."""
    document = read_json_object(path, root=path.parent.resolve())
    texts = ("name", "backbone", "weights", "preprocessing", "decoder", "arithmetic")
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


@contextmanager
def _written_to(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(
            f"{path_text(path)} cannot be written: {reason(error)}; set CLEAR_MLFLOW_CACHE to a "
            "folder with room"
        ) from None
