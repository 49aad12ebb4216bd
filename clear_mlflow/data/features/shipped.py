"""The features that a dataset brings: torch files beside its images, matched to them, not guessed.

Two layouts are read: the released one, whose index names a file for each bucket and class, and the
older one, whose arrays are in the order of a file list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH
from clear_mlflow.data.features.torch_files import holds_all, is_plain, load_torch_file_below
from clear_mlflow.data.files import (
    ALL_IMAGES,
    FILE_LISTS,
    IMAGE_FOLDER,
    TRAINING_FOLDER,
    expect_object,
    is_folder,
    list_entry,
    names_in,
    path_text,
    read_json_object,
    read_lines,
    stored_path,
)
from clear_mlflow.data.stream import BucketStream, ImageSet

if TYPE_CHECKING:
    from torch import Tensor

_RELEASED_FOLDER = "features"
_RELEASED_INDEX = "features.json"
_OLDER_FOLDER = Path(TRAINING_FOLDER, "features")
_OLDER_LISTS = Path(TRAINING_FOLDER, FILE_LISTS)
_OLDER_FILE = "all.pth"


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
    if IMAGE_FOLDER not in parts:
        return None
    at = len(parts) - 1 - parts[::-1].index(IMAGE_FOLDER)
    return Path(*parts[:at]), "/".join(parts[at:])


class ShippedFeatures:
    """The feature files of one type that lie beside the images, in the released or older layout."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._indices: dict[Path, dict[str, Any]] = {}

    def of(
        self, bucket: str, images: ImageSet, class_names: tuple[str, ...]
    ) -> NDArray[np.float32]:
        """The features of a bucket's images, (N, width), in their order."""
        by_base: defaultdict[Path, list[int]] = defaultdict(list)
        for i, path in enumerate(images.paths):
            split = _split(path)
            if split is None:
                raise DataError(
                    f"{path_text(path)} lies in no folder {IMAGE_FOLDER}, so it has no features "
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
                    "have none); pass split=0, split=validation or protocol=streaming, or extract "
                    "features of all images with 'clear-mlflow data features'"
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
            by_id = load_torch_file_below(file, root=base.resolve())
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
        list_path = base / _OLDER_LISTS / bucket / ALL_IMAGES
        listed = _read_filelist(list_path, len(class_names), root=base.resolve())
        pair = load_torch_file_below(file, root=base.resolve())
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
        image, label = list_entry(line, number, base=root, num_classes=num_classes, named_in=path)
        listed.append((image.relative_to(root).as_posix(), label))
    return listed


def _checked(value: Any, *, dims: int, what: str) -> Tensor:
    """A tensor of finite floating-point numbers with *dims* dimensions of sensible sizes."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise DataError(f"{what} is a {type(value).__name__}; expected a tensor of features")
    shape = tuple(value.shape)
    if len(shape) != dims or not 0 < shape[-1] <= MAX_FEATURES_WIDTH:
        wanted = "(width,)" if dims == 1 else "(images, width)"
        raise DataError(
            f"{what} has the shape {shape}; expected {wanted} with a width of 1 to "
            f"{MAX_FEATURES_WIDTH}"
        )
    if not is_plain(value) or not value.is_floating_point():
        raise DataError(
            f"{what} holds {value.dtype} in the layout {value.layout}; expected a plain tensor of "
            "floating-point numbers"
        )
    if not holds_all(value):
        raise DataError(f"{what} claims {value.numel()} numbers but does not hold them")
    if not bool(torch.isfinite(value).all()):
        raise DataError(f"{what} holds numbers that are not finite; unpack the dataset again")
    return value.detach()


def _labels(value: Any, *, count: int, what: str) -> list[int]:
    """Labels out of a torch file: a tensor of whole numbers, or a list of them."""
    import torch

    def is_whole(tensor: Tensor, dims: int) -> bool:
        # The dimensions first: a nested tensor has no shape to be asked for.
        return (
            is_plain(tensor)
            and tensor.dim() == dims
            and tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
            and holds_all(tensor)
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
