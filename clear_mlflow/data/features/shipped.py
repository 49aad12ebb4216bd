"""The features in a dataset: torch files next to its images, matched to them by id or by list.

Two layouts are read: the released one, whose index names a file for each bucket and class, and the
older one, whose arrays are in the order of a file list. Torch files are pickles; they are read
without running code in them, and a tensor may still claim more numbers than it contains.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_FEATURES_BYTES, MAX_FEATURES_WIDTH
from clear_mlflow.data import files
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream

if TYPE_CHECKING:
    from torch import Tensor

_RELEASED_FOLDER = "features"
_RELEASED_INDEX = "features.json"
_OLDER_FOLDER = Path(files.TRAINING_FOLDER, "features")
_OLDER_LISTS = Path(files.TRAINING_FOLDER, files.FILE_LISTS)
_OLDER_FILE = "all.pth"

# Torch's message for a pickle that names a function or a class.
_RUNS_CODE = "(?s)WeightsUnpickler error: .*(GLOBAL|allowlisted|unrecognized function)"


def load_torch_file(path: Path, *, max_bytes: int = MAX_FEATURES_BYTES, advice: str = "") -> Any:
    """Read a torch file of tensors, numbers, texts, lists, tuples and dicts.

    Raises DataError for all other content, and never runs it. advice: end of its message.
    """
    import torch

    try:
        files.check_unpacked_size(path, max_bytes)
        return torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
    except Exception as error:  # torch may raise anything for damaged files
        runs_code = re.search(_RUNS_CODE, str(error))
        problem = "a pickle that wants to run code" if runs_code else "not a torch file, or damaged"
        detail = (reason(error).split(". ") or [""])[0][:200]
        raise DataError(
            f"{path_text(path)} is refused: it is {problem} ({detail}); expected a torch file that "
            f"contains only tensors{advice}"
        ) from None


def _load_torch_file_below(path: Path, *, root: Path) -> Any:
    files.check_file(path, root=root, limit=MAX_FEATURES_BYTES)
    return load_torch_file(path, advice=": download the file again from its publisher")


def is_dense_on_cpu(value: Tensor) -> bool:
    """Return True for a dense tensor on the CPU, not quantised."""
    import torch

    return value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized


def has_all_values(value: Tensor) -> bool:
    """Return True if a tensor's memory is as large as claimed."""
    # A tensor may repeat one number a billion times without any memory, until it is copied.
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def list_shipped_names(stream: BucketStream) -> tuple[str, ...]:
    """Return the sorted names of features next to a stream's images."""
    parents = {Path(os.path.dirname(file)) for file in stream.images.files}  # noqa: PTH120
    bases = {base for parent in parents if (base := _find_base(parent)) is not None}
    folders = (base / name for base in bases for name in (_RELEASED_FOLDER, _OLDER_FOLDER))
    return tuple(sorted({path.name for folder in folders for path in folder.glob("[!.]*/")}))


def _find_base(path: Path) -> Path | None:
    """Return the folder above ``labeled_images`` in a path, or None."""
    folders = (folder.parent for folder in path.parents if folder.name == files.IMAGE_FOLDER)
    return next(folders, None)


def load_shipped_features(
    name: str, bucket_by_file: Mapping[str, str], images: ImageTable, class_names: Sequence[str]
) -> NDArray[np.float32]:
    """Return the features of images, (N, width).

    name: name of the features. bucket_by_file: key of each image's bucket. Raises DataError if an
    image lacks them, or a file is invalid.
    """
    groups: defaultdict[tuple[Path, str], list[int]] = defaultdict(list)
    for i, path in enumerate(images.paths):
        groups[_find_base(path) or path.parent, bucket_by_file[images.files[i]]].append(i)
    rows: dict[int, Tensor] = {}
    for (base, bucket), indices in groups.items():
        if files.is_folder(base / _RELEASED_FOLDER / name):
            rows |= _load_released(base, name, bucket, images, indices, class_names)
        elif files.is_folder(base / _OLDER_FOLDER / name):
            rows |= _load_older(base, name, bucket, images, indices, len(class_names))
        else:
            raise DataError(
                f"{path_text(base)} contains no features {name}, like CLEAR's released test sets; "
                "pass split=0, split=validation or protocol=streaming, or extract features of all "
                "images with 'clear-mlflow data features'"
            )
    widths = sorted({int(row.shape[0]) for row in rows.values()})
    if len(widths) > 1:
        raise DataError(
            f"the features of one bucket have {widths[0]} and {widths[-1]} numbers; expected one "
            "width for all images: unpack the dataset again"
        )
    return np.stack([rows[i].numpy() for i in range(len(images))])


def _load_released(
    base: Path,
    name: str,
    bucket: str,
    images: ImageTable,
    indices: Collection[int],
    class_names: Sequence[str],
) -> dict[int, Tensor]:
    """Return features of images by index, found by their ids."""
    index = base / _RELEASED_FOLDER / name / _RELEASED_INDEX
    source = f"{path_text(index)}, bucket {bucket},"
    buckets = files.read_json_object(index, root=base.resolve())
    class_files = files.require_object(buckets.get(bucket), source=source)
    rows: dict[int, Tensor] = {}
    for label in sorted({int(images.labels[i]) for i in indices}):
        class_name = class_names[label]
        if class_name not in class_files:
            raise DataError(f"{source} contains no class {safe_repr(class_name)}; unpack it again")
        file = files.join_stored_path(
            class_files[class_name], base=base, below=_RELEASED_FOLDER, list_file=index
        )
        content = _load_torch_file_below(file, root=base.resolve())
        by_id = {str(k): row for k, row in content.items()} if isinstance(content, dict) else {}
        for i in indices:
            image_id = Path(images.files[i]).stem
            if images.labels[i] != label:
                continue
            if image_id not in by_id:
                raise DataError(
                    f"{path_text(file)} contains no features of image {safe_repr(image_id)}, which "
                    "the metadata names; unpack the dataset again"
                )
            row_source = f"{path_text(file)}, {safe_repr(image_id)},"
            rows[i] = _convert_tensor(by_id[image_id], dims=1, source=row_source)
    return rows


def _load_older(
    base: Path,
    name: str,
    bucket: str,
    images: ImageTable,
    indices: Collection[int],
    num_classes: int,
) -> dict[int, Tensor]:
    """Return features of images by index, found by their rows."""
    root = base.resolve()
    file = base / _OLDER_FOLDER / name / bucket / _OLDER_FILE
    list_file = base / _OLDER_LISTS / bucket / files.ALL_IMAGES
    listed = files.read_image_list(list_file, root=root, base=base, num_classes=num_classes)
    content = _load_torch_file_below(file, root=root)
    is_pair = isinstance(content, (tuple, list)) and len(content) == 2
    tensor, labels = content if is_pair else (content, None)
    features = _convert_tensor(tensor, dims=2, source=f"{path_text(file)}, features,")
    if len(features) != len(listed) or _convert_labels(labels) != [label for _, label in listed]:
        raise DataError(
            f"{path_text(file)} has features of {len(features)} images, and {path_text(list_file)} "
            f"lists {len(listed)}; expected the same images with the same labels in the same "
            "order: unpack both again"
        )
    rows_by_image = {(str(path), label): row for row, (path, label) in enumerate(listed)}
    rows = {}
    for i in indices:
        row = rows_by_image.get((images.files[i], int(images.labels[i])))
        if row is None:
            raise DataError(
                f"{path_text(list_file)} does not list {path_text(images.files[i])} with the "
                f"dataset's label, so its features {name} are unknown; unpack the dataset again"
            )
        rows[i] = features[row]
    return rows


def _convert_tensor(value: Any, *, dims: int, source: str) -> Tensor:
    """Convert a finite tensor of *dims* dimensions to float32, or raise DataError."""
    import torch

    if not (
        isinstance(value, torch.Tensor)
        and is_dense_on_cpu(value)
        and value.is_floating_point()
        and value.dim() == dims
        and 0 < value.shape[-1] <= MAX_FEATURES_WIDTH
        and has_all_values(value)
    ):
        raise DataError(
            f"{source} contains {getattr(value, 'dtype', type(value).__name__)}; expected a plain "
            f"tensor of {dims} dimensions, floating-point numbers that are all in the file, with a "
            f"width of 1 to {MAX_FEATURES_WIDTH}"
        )
    tensor = value.detach().float()
    if not bool(torch.isfinite(tensor).all()):
        raise DataError(
            f"{source} contains numbers that are not finite, or beyond the range of 32-bit floats; "
            "unpack the dataset again"
        )
    return tensor


def _convert_labels(value: Any) -> list[int]:
    """Return labels as integers from a tensor or list, else []."""
    import torch

    def convert(item: Any) -> Any:
        # Check the layout and dimensions first: a nested tensor lacks a shape.
        is_tensor = isinstance(item, torch.Tensor) and is_dense_on_cpu(item) and item.dim() < 2
        return item.tolist() if is_tensor and has_all_values(item) else item

    value = convert(value)
    labels = [convert(item) for item in value] if isinstance(value, (list, tuple)) else []
    return labels if all(type(label) is int for label in labels) else []
