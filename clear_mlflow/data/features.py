"""Stored features: the dataset's own files and extracted ones, matched to images, never guessed.

A dataset's own features are torch files, which are pickles: they are read with torch's loader for
weights only, which refuses every pickle that wants to run code. Extracted features are numpy files
in the cache folder, memory-mapped, and found by the content of the images that they are of.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.data.files import (
    expect_object,
    is_folder,
    list_entry,
    names_in,
    path_text,
    read_json_object,
    read_lines,
    reason,
    regular_file_size,
    resolve_folder,
    shown,
    stored_path,
)
from clear_mlflow.data.images import decoder_version
from clear_mlflow.data.pixels import PIXELS, pixel_features
from clear_mlflow.data.stream import BucketStream, ImageSet
from clear_mlflow.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

MAX_WIDTH = 16_384  # numbers per image; CLEAR's own features have 2,048
_MAX_FILE_BYTES = 2**31  # the largest of CLEAR-100's own is near 2**27

_IMAGE_FOLDER = "labeled_images"
_RELEASED_FOLDER = "features"
_RELEASED_INDEX = "features.json"
_OLDER_FOLDER = Path("training_folder", "features")
_OLDER_LISTS = Path("training_folder", "filelists")
_OLDER_FILE = "all.pth"

_EXTRACTED_FOLDER = "features"
_SIDECAR = "features.json"
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The features of all images of a stream.

    Args:
        name: as the user gave it.
        digest: of every image's content, bucket, split and features; not of where they lie.
        width: numbers per image.
        train: per bucket (N, width), float32, in the order of its training images.
        test: per bucket, likewise; where a bucket's test images are its training images, so are
            their features.
    """

    name: str
    digest: str
    width: int
    train: tuple[NDArray[np.float32], ...]
    test: tuple[NDArray[np.float32], ...]


def load_features(
    stream: BucketStream,
    name: str,
    *,
    cache_dir: Path,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> StoredFeatures:
    """Find the features of a stream's images: the dataset's own, else extracted ones.

    Args:
        stream: what is trained and tested on.
        name: ``pixels``, a feature type of the dataset, or the name given at extraction.
        cache_dir: where extracted features and decoded images lie.
        on_image: called with the numbers of images decoded and to be decoded, for ``pixels``.

    Raises:
        DataError: there are none of this name, some image has none, or a file is damaged.
    """
    load: Callable[[str, ImageSet], NDArray[np.float32]]
    if name == PIXELS:
        total = sum(len(images) for images in image_sets(stream))
        done = 0

        def load(bucket: str, images: ImageSet) -> NDArray[np.float32]:
            nonlocal done
            before, done = done, done + len(images)
            return pixel_features(
                images, cache_dir=cache_dir, on_image=lambda n: on_image(before + n, total)
            )
    elif name in own_names(stream):
        own = _OwnFeatures(name)

        def load(bucket: str, images: ImageSet) -> NDArray[np.float32]:
            return own.of(bucket, images, stream.class_names)
    else:
        extracted = _find_extracted(stream, name, cache_dir=cache_dir)

        def load(bucket: str, images: ImageSet) -> NDArray[np.float32]:
            return extracted.of(images)

    train = [load(bucket.key, bucket.train) for bucket in stream.buckets]
    test = [
        features if bucket.test is bucket.train else load(bucket.key, bucket.test)
        for bucket, features in zip(stream.buckets, train, strict=True)
    ]
    widths = sorted({array.shape[1] for array in (*train, *test)})
    if len(widths) > 1:
        raise DataError(
            f"features {name} have {widths[0]} numbers for some images and {widths[-1]} for "
            "others; expected one width for all: unpack or extract them again"
        )
    return StoredFeatures(
        name=name,
        digest=_digest(stream, train, test),
        width=widths[0],
        train=tuple(train),
        test=tuple(test),
    )


def own_names(stream: BucketStream) -> tuple[str, ...]:
    """The feature types that lie beside any of a stream's images, sorted.

    Raises:
        DataError: their folder cannot be read.
    """
    names: set[str] = set()
    for base in _bases(stream):
        for folder in (base / _RELEASED_FOLDER, base / _OLDER_FOLDER):
            if is_folder(folder):
                names.update(name for name in names_in(folder) if is_folder(folder / name))
    return tuple(sorted(names))


def extracted_names(cache_dir: Path) -> tuple[str, ...]:
    """The names of all features that were extracted into a cache folder, sorted."""
    folder = cache_dir / _EXTRACTED_FOLDER
    return tuple(sorted(path.parent.parent.name for path in folder.glob(f"*/*/{_SIDECAR}")))


def _bases(stream: BucketStream) -> list[Path]:
    """The folders that hold ``labeled_images``; usually one for each split."""
    folders = {
        path.parent
        for bucket in stream.buckets
        for images in (bucket.train, bucket.test)
        for path in images.paths
    }
    return sorted({split[0] for folder in folders if (split := _split(folder)) is not None})


def _split(path: Path) -> tuple[Path, str] | None:
    """The folder that holds ``labeled_images``, and the path from there on."""
    parts = path.parts
    if _IMAGE_FOLDER not in parts:
        return None
    at = len(parts) - 1 - parts[::-1].index(_IMAGE_FOLDER)
    return Path(*parts[:at]), "/".join(parts[at:])


def _digest(
    stream: BucketStream,
    train: Sequence[NDArray[np.float32]],
    test: Sequence[NDArray[np.float32]],
) -> str:
    """``sha256:`` and the hash of all (split, bucket, content, features), sorted."""
    lines = sorted(
        "\0".join((split, bucket.key, content, hashlib.sha256(row).hexdigest()))
        for i, bucket in enumerate(stream.buckets)
        for split, images, features in (
            ("train", bucket.train, train[i]),
            ("test", bucket.test, test[i]),
        )
        for content, row in zip(
            images.contents, np.ascontiguousarray(features, dtype="<f4"), strict=True
        )
    )
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


# --- the dataset's own files -------------------------------------------------------------------


class _OwnFeatures:
    """The feature files of one type that lie beside the images, in the released or older layout."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._indices: dict[Path, dict[str, Any]] = {}

    def of(
        self, bucket: str, images: ImageSet, class_names: tuple[str, ...]
    ) -> NDArray[np.float32]:
        by_base: defaultdict[Path, list[int]] = defaultdict(list)
        for i, path in enumerate(images.paths):
            split = _split(path)
            if split is None:
                raise DataError(
                    f"{path_text(path)} lies in no folder {_IMAGE_FOLDER}, so it has no features "
                    f"{self._name}; extract some with 'clear-mlflow data features'"
                )
            by_base[split[0]].append(i)
        rows: list[Tensor | None] = [None] * len(images)
        for base, chosen in by_base.items():
            if is_folder(base / _RELEASED_FOLDER / self._name):
                self._released(base, bucket, images, chosen, class_names, rows)
            elif is_folder(base / _OLDER_FOLDER / self._name):
                self._older(base, bucket, images, chosen, class_names, rows)
            else:
                raise DataError(
                    f"{path_text(base)} has no features {self._name} (CLEAR's released test sets "
                    "have none); pass split=0 or protocol=streaming, or extract features of all "
                    "images with 'clear-mlflow data features'"
                )
        return _stacked([row for row in rows if row is not None])

    def _released(
        self,
        base: Path,
        bucket: str,
        images: ImageSet,
        chosen: list[int],
        class_names: tuple[str, ...],
        rows: list[Tensor | None],
    ) -> None:
        index_path = base / _RELEASED_FOLDER / self._name / _RELEASED_INDEX
        if base not in self._indices:
            self._indices[base] = read_json_object(index_path, root=base.resolve())
        of_bucket = self._indices[base].get(bucket)
        what = f"{path_text(index_path)}, bucket {bucket},"
        of_classes = expect_object(of_bucket, what=what)
        files: dict[str, str] = {}
        for label in sorted({int(images.labels[i]) for i in chosen}):
            class_name = class_names[label]
            if class_name not in of_classes:
                raise DataError(f"{what} has no class {shown(class_name)}; unpack it again")
            file = stored_path(
                of_classes[class_name], base=base, below=_RELEASED_FOLDER, named_in=index_path
            )
            if str(file) in files:
                raise DataError(
                    f"{what} gives classes {shown(files[str(file)])} and {shown(class_name)} one "
                    f"file, {path_text(file)}; expected a file of its own for each class"
                )
            files[str(file)] = class_name
            by_id = _load(file, root=base.resolve())
            if not isinstance(by_id, dict):
                raise DataError(
                    f"{path_text(file)} holds a {type(by_id).__name__}; expected image ids and "
                    "their features: unpack it again"
                )
            by_id = {str(image_id): row for image_id, row in by_id.items()}
            width: int | None = None
            for i in chosen:
                if int(images.labels[i]) != label:
                    continue
                image_id = images.paths[i].stem
                if image_id not in by_id:
                    raise DataError(
                        f"{path_text(file)} has no features of image {shown(image_id)}, which "
                        "the metadata names; unpack the dataset again"
                    )
                row = _checked(
                    by_id[image_id], dims=1, what=f"{path_text(file)}, {shown(image_id)},"
                )
                width = int(row.shape[0]) if width is None else width
                if row.shape[0] != width:
                    raise DataError(
                        f"{path_text(file)}, {shown(image_id)}, has {row.shape[0]} numbers, others "
                        f"of that file {width}; expected one width for all"
                    )
                rows[i] = row

    def _older(
        self,
        base: Path,
        bucket: str,
        images: ImageSet,
        chosen: list[int],
        class_names: tuple[str, ...],
        rows: list[Tensor | None],
    ) -> None:
        file = base / _OLDER_FOLDER / self._name / bucket / _OLDER_FILE
        list_path = base / _OLDER_LISTS / bucket / "all.txt"
        listed = _read_filelist(list_path, len(class_names), root=base.resolve())
        pair = _load(file, root=base.resolve())
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DataError(
                f"{path_text(file)} holds a {type(pair).__name__}; expected a pair of features "
                "and labels: unpack it again"
            )
        features = _checked(pair[0], dims=2, what=f"{path_text(file)}, features,")
        labels = _labels(pair[1], count=len(features), what=path_text(file))
        if len(listed) != len(features):
            raise DataError(
                f"{path_text(file)} has features of {len(features)} images, "
                f"{path_text(list_path)} lists {len(listed)}; expected as many: unpack both again"
            )
        places = {}
        for row, ((tail, label), own_label) in enumerate(zip(listed, labels, strict=True)):
            if own_label != label:
                raise DataError(
                    f"{path_text(file)} has label {own_label} for image {row}, "
                    f"{path_text(list_path)} has {label}; expected the same images in the same "
                    "order: unpack both again"
                )
            places[tail] = row
        for i in chosen:
            split = _split(images.paths[i])
            place = places.get(split[1]) if split is not None else None
            if place is None:
                raise DataError(
                    f"{path_text(list_path)} does not list {path_text(images.paths[i])}, so its "
                    f"features {self._name} are not known; unpack the dataset again"
                )
            if listed[place][1] != int(images.labels[i]):
                raise DataError(
                    f"{path_text(list_path)} gives {path_text(images.paths[i])} label "
                    f"{listed[place][1]}, the dataset {int(images.labels[i])}; unpack it again"
                )
            rows[i] = features[place]


def _read_filelist(path: Path, num_classes: int, *, root: Path) -> list[tuple[str, int]]:
    """The lines of a file list: the path from ``labeled_images`` on, and the label."""
    listed = []
    for number, line in enumerate(read_lines(path, root=root), start=1):
        image, label = list_entry(
            line, number, base=root, below=_IMAGE_FOLDER, num_classes=num_classes, named_in=path
        )
        listed.append((image.relative_to(root).as_posix(), label))
    return listed


def load_torch_file(path: Path, *, max_bytes: int | None = None) -> Any:
    """Read a torch file that may hold tensors, numbers, texts, lists, tuples and dicts only.

    Args:
        path: the file.
        max_bytes: what it may unpack to; by default, what stored features may.

    Raises:
        DataError: it is no such file, is damaged, wants to run code, or is absurdly large.
    """
    import torch

    most = _MAX_FILE_BYTES if max_bytes is None else max_bytes
    try:
        # A zip file of some kilobytes may claim to hold gigabytes of zeros.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > most:
                raise DataError(
                    f"{path_text(path)} unpacks to {unpacked} bytes; expected {most} at most, so "
                    "it is not what its name says"
                )
        return torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except Exception as error:  # torch has no closed set of exceptions for damaged files
        first = (reason(error).split(". ") or [""])[0][:200]
        raise DataError(
            f"{path_text(path)} is refused: it is damaged, or it is a pickle that wants to run "
            f"code ({first}); expected tensors and nothing else: fetch the file again from where "
            "it was published"
        ) from None


def _load(path: Path, *, root: Path) -> Any:
    resolve_folder(path.parent, root=root)
    size = regular_file_size(path, root=root)
    if size > _MAX_FILE_BYTES:
        raise DataError(
            f"{path_text(path)} has {size} bytes; expected {_MAX_FILE_BYTES} at most, so it is "
            "not what its name says"
        )
    return load_torch_file(path)


def _checked(value: Any, *, dims: int, what: str) -> Tensor:
    """A tensor of finite floating-point numbers with so many dimensions, none of them absurd."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise DataError(f"{what} is a {type(value).__name__}; expected a tensor of features")
    shape = tuple(value.shape)
    if len(shape) != dims or not 0 < shape[-1] <= MAX_WIDTH:
        wanted = "(width,)" if dims == 1 else "(images, width)"
        raise DataError(
            f"{what} has the shape {shape}; expected {wanted} with a width of 1 to {MAX_WIDTH}"
        )
    if not _is_plain(value) or not value.is_floating_point():
        raise DataError(
            f"{what} holds {value.dtype} in the layout {value.layout}; expected a plain tensor of "
            "floating-point numbers"
        )
    if not _holds_all(value):
        raise DataError(f"{what} claims {value.numel()} numbers but does not hold them")
    if not bool(torch.isfinite(value).all()):
        raise DataError(f"{what} holds numbers that are not finite; unpack the dataset again")
    return value.detach()


def _is_plain(value: Tensor) -> bool:
    import torch

    return value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized


def _holds_all(value: Tensor) -> bool:
    # A tensor may repeat one number a billion times without any memory, until it is copied.
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _labels(value: Any, *, count: int, what: str) -> list[int]:
    """Labels out of a torch file: a tensor of whole numbers, or a list of them."""
    import torch

    def is_whole(tensor: Tensor, dims: int) -> bool:
        # The dimensions first: a nested tensor has no shape to be asked for.
        return (
            _is_plain(tensor)
            and tensor.dim() == dims
            and tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
            and _holds_all(tensor)
        )

    if isinstance(value, torch.Tensor) and is_whole(value, 1):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise DataError(
            f"{what} has features of {count} images and no such list of labels; unpack it again"
        )
    labels: list[int] = []
    for row, label in enumerate(value):
        if isinstance(label, torch.Tensor) and is_whole(label, 0):
            label = label.item()
        if isinstance(label, bool) or not isinstance(label, int):
            raise DataError(
                f"{what} has a {type(label).__name__} as the label of image {row}; expected a "
                "whole number: unpack it again"
            )
        labels.append(label)
    return labels


def _stacked(rows: Sequence[Tensor]) -> NDArray[np.float32]:
    import torch

    widths = sorted({int(row.shape[0]) for row in rows})
    if len(widths) > 1:
        raise DataError(
            f"the features of one bucket have {widths[0]} and {widths[-1]} numbers; expected one "
            "width for all images: unpack the dataset again"
        )
    stacked = torch.empty(len(rows), widths[0])
    for out, row in zip(stacked, rows, strict=True):
        out.copy_(row)
    array: NDArray[np.float32] = stacked.numpy()
    if not np.isfinite(array).all():  # a float64 beyond what a float32 holds
        raise DataError("features hold numbers beyond the range of 32-bit floats")
    return array


# --- extracted features ------------------------------------------------------------------------


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
        return cache_dir / _EXTRACTED_FOLDER / self.name / key.hexdigest()[:32]


def image_sets(stream: BucketStream) -> Iterator[ImageSet]:
    """All sets of images of a stream, each once: training images first, bucket by bucket."""
    yield from (bucket.train for bucket in stream.buckets)
    yield from (bucket.test for bucket in stream.buckets if bucket.test is not bucket.train)


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
    if array.ndim != 2 or array.dtype != np.float32 or not 0 < array.shape[1] <= MAX_WIDTH:
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


def refuse_taken_name(stream: BucketStream, extraction: Extraction, *, cache_dir: Path) -> None:
    """One name stands for one way to compute features, so that a record's name means something.

    Raises:
        ConfigError: the name is that of the built-in features or one of the dataset's own feature
            types, or was given to another backbone, other weights or other preprocessing.
    """
    if extraction.name == PIXELS:
        raise ConfigError(
            f"name {PIXELS} is that of the features that every dataset has; pass another --name"
        )
    if extraction.name in own_names(stream):
        raise ConfigError(
            f"name {extraction.name} is a feature type of the dataset's own; pass another --name"
        )
    for path in sorted((cache_dir / _EXTRACTED_FOLDER / extraction.name).glob(f"*/{_SIDECAR}")):
        there = _read_sidecar(path)
        for field in ("backbone", "weights", "preprocessing"):
            if there[field] != getattr(extraction, field):
                raise ConfigError(
                    f"name {extraction.name} is taken by features with {field} "
                    f"{shown(there[field])}, not {shown(getattr(extraction, field))}; pass another "
                    "--name"
                )


class _ExtractedFeatures:
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
        return all(content in self._places for content in images.contents)

    def of(self, images: ImageSet) -> NDArray[np.float32]:
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


def _find_extracted(stream: BucketStream, name: str, *, cache_dir: Path) -> _ExtractedFeatures:
    sidecars = sorted((cache_dir / _EXTRACTED_FOLDER / name).glob(f"*/{_SIDECAR}"))
    for path in sidecars:
        files = _read_sidecar(path)["files"]
        found = _ExtractedFeatures(
            path.parent, {file: entry["contents"] for file, entry in files.items()}
        )
        if all(found.covers(images) for images in image_sets(stream)):
            return found
    if sidecars:
        raise DataError(
            f"features {name} were extracted, but not of all images of this dataset as it is now; "
            "run 'clear-mlflow data features' on its folder again"
        )
    known = (PIXELS, *own_names(stream), *extracted_names(cache_dir))
    raise DataError(
        f"there are no features {name}; the built-in, the dataset's own and the extracted ones are "
        f"{', '.join(dict.fromkeys(known))}: extract some with 'clear-mlflow data "
        f"features DIR --name {name}'"
    )


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
