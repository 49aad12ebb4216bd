"""The features that a dataset brings: torch files beside its images, matched to them, not guessed.

Two layouts are read: the released one, whose index names a file for each bucket and class, and the
older one, whose arrays are in the order of a file list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
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
from clear_mlflow.data.stream import BucketStream, ImageSet, image_sets

if TYPE_CHECKING:
    from torch import Tensor

_RELEASED_FOLDER = "features"
_RELEASED_INDEX = "features.json"
_OLDER_FOLDER = Path(TRAINING_FOLDER, "features")
_OLDER_LISTS = Path(TRAINING_FOLDER, FILE_LISTS)
_OLDER_FILE = "all.pth"


def own_names(stream: BucketStream) -> tuple[str, ...]:
    """The feature types that lie beside any of a stream's images, sorted."""
    parents = {path.parent for images in image_sets(stream) for path in images.paths}
    bases = {base for parent in parents if (base := _base(parent)) is not None}
    folders = (base / name for base in bases for name in (_RELEASED_FOLDER, _OLDER_FOLDER))
    found = [folder for folder in folders if is_folder(folder)]
    names = {name for folder in found for name in names_in(folder) if is_folder(folder / name)}
    return tuple(sorted(names))


def _base(path: Path) -> Path | None:
    """The folder that holds ``labeled_images``, in which a path lies."""
    folders = (folder.parent for folder in path.parents if folder.name == IMAGE_FOLDER)
    return next(folders, None)


def shipped_features(
    name: str, buckets: Mapping[Path, str], images: ImageSet, class_names: Sequence[str]
) -> NDArray[np.float32]:
    """The features of one type of some images, (N, width), in their order; the bucket of each."""
    by_place: defaultdict[tuple[Path, str], list[int]] = defaultdict(list)
    for i, path in enumerate(images.paths):
        by_place[_base(path) or path.parent, buckets[path]].append(i)
    rows: dict[int, Tensor] = {}
    for (base, bucket), chosen in by_place.items():
        if is_folder(base / _RELEASED_FOLDER / name):
            rows |= _released(base, name, bucket, images, chosen, class_names)
        elif is_folder(base / _OLDER_FOLDER / name):
            rows |= _older(base, name, bucket, images, chosen, len(class_names))
        else:
            raise DataError(
                f"{path_text(base)} has no features {name} (CLEAR's released test sets have none); "
                "pass split=0, split=validation or protocol=streaming, or extract features of all "
                "images with 'clear-mlflow data features'"
            )
    return _stacked([rows[i] for i in range(len(images))])


def _released(
    base: Path,
    name: str,
    bucket: str,
    images: ImageSet,
    chosen: Collection[int],
    class_names: Sequence[str],
) -> dict[int, Tensor]:
    """The features of the chosen images, each by its id in the file of its class."""
    index = base / _RELEASED_FOLDER / name / _RELEASED_INDEX
    what = f"{path_text(index)}, bucket {bucket},"
    of_bucket = read_json_object(index, root=base.resolve()).get(bucket)
    of_classes = expect_object(of_bucket, what=what)
    rows: dict[int, Tensor] = {}
    files: dict[Path, str] = {}
    for label in sorted({int(images.labels[i]) for i in chosen}):
        class_name = class_names[label]
        if class_name not in of_classes:
            raise DataError(f"{what} has no class {safe_repr(class_name)}; unpack it again")
        file = stored_path(
            of_classes[class_name], base=base, below=_RELEASED_FOLDER, named_in=index
        )
        if (other := files.setdefault(file, class_name)) != class_name:
            raise DataError(
                f"{what} gives classes {safe_repr(other)} and {safe_repr(class_name)} one file, "
                f"{path_text(file)}; expected a file of its own for each class"
            )
        by_id = load_torch_file_below(file, root=base.resolve())
        if not isinstance(by_id, dict):
            raise DataError(
                f"{path_text(file)} holds a {type(by_id).__name__}; expected image ids and their "
                "features: unpack it again"
            )
        by_id = {str(image_id): row for image_id, row in by_id.items()}
        for i in chosen:
            image_id = images.paths[i].stem
            if images.labels[i] != label:
                continue
            if image_id not in by_id:
                raise DataError(
                    f"{path_text(file)} has no features of image {safe_repr(image_id)}, which the "
                    "metadata names; unpack the dataset again"
                )
            what_row = f"{path_text(file)}, {safe_repr(image_id)},"
            rows[i] = _checked(by_id[image_id], dims=1, what=what_row)
    return rows


def _older(
    base: Path,
    name: str,
    bucket: str,
    images: ImageSet,
    chosen: Collection[int],
    num_classes: int,
) -> dict[int, Tensor]:
    """The features of the chosen images, each by its place in the file list, whose labels agree."""
    root = base.resolve()
    file = base / _OLDER_FOLDER / name / bucket / _OLDER_FILE
    lists = base / _OLDER_LISTS / bucket / ALL_IMAGES
    listed = [
        list_entry(line, number, base=base, num_classes=num_classes, named_in=lists)
        for number, line in enumerate(read_lines(lists, root=root), start=1)
    ]
    pair = load_torch_file_below(file, root=root)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise DataError(
            f"{path_text(file)} holds a {type(pair).__name__}; expected a pair of features and "
            "labels: unpack it again"
        )
    features = _checked(pair[0], dims=2, what=f"{path_text(file)}, features,")
    if len(features) != len(listed) or _labels(pair[1]) != [label for _, label in listed]:
        raise DataError(
            f"{path_text(file)} has features of {len(features)} images, and {path_text(lists)} "
            f"lists {len(listed)}; expected the same images with the same labels in the same "
            "order: unpack both again"
        )
    places = {(path, label): row for row, (path, label) in enumerate(listed)}
    rows = {}
    for i in chosen:
        place = places.get((images.paths[i], int(images.labels[i])))
        if place is None:
            raise DataError(
                f"{path_text(lists)} does not list {path_text(images.paths[i])} with the "
                f"dataset's label, so its features {name} are not known; unpack the dataset again"
            )
        rows[i] = features[place]
    return rows


def _checked(value: Any, *, dims: int, what: str) -> Tensor:
    """A tensor of finite floating-point numbers with *dims* dimensions of sensible sizes."""
    import torch

    if not isinstance(value, torch.Tensor) or not is_plain(value) or not value.is_floating_point():
        kind = getattr(value, "dtype", type(value).__name__)
        layout = getattr(value, "layout", None)
        raise DataError(
            f"{what} holds {kind}, layout {layout}; expected a plain tensor of floating-point "
            "numbers"
        )
    shape = tuple(value.shape)
    if len(shape) != dims or not 0 < shape[-1] <= MAX_FEATURES_WIDTH:
        wanted = "(width,)" if dims == 1 else "(images, width)"
        raise DataError(
            f"{what} has the shape {shape}; expected {wanted} with a width of 1 to "
            f"{MAX_FEATURES_WIDTH}"
        )
    if not holds_all(value):
        raise DataError(f"{what} claims {value.numel()} numbers but does not hold them")
    found = value.detach().float()
    if not bool(torch.isfinite(found).all()):
        raise DataError(
            f"{what} holds numbers that are not finite, or beyond the range of 32-bit floats; "
            "unpack the dataset again"
        )
    return found


def _labels(value: Any) -> list[int]:
    """Labels out of a torch file, a tensor of whole numbers or a list of them; none if neither."""
    import torch

    def plain(one: Any) -> Any:
        # The layout and dimensions first: a nested tensor has no shape to be asked for.
        is_tensor = isinstance(one, torch.Tensor) and is_plain(one) and one.dim() < 2
        return one.tolist() if is_tensor and holds_all(one) else one

    value = plain(value)
    labels = [plain(one) for one in value] if isinstance(value, (list, tuple)) else []
    return labels if all(type(label) is int for label in labels) else []


def _stacked(rows: Sequence[Tensor]) -> NDArray[np.float32]:
    widths = sorted({int(row.shape[0]) for row in rows})
    if len(widths) > 1:
        raise DataError(
            f"the features of one bucket have {widths[0]} and {widths[-1]} numbers; expected one "
            "width for all images: unpack the dataset again"
        )
    return np.stack([row.numpy() for row in rows])
