"""The layout in which CLEAR's authors released CLEAR-10 and CLEAR-100.

``train/`` (or ``train_image_only/``) and ``test/`` each hold ``class_names.txt``,
``labeled_metadata.json``, and the folders ``labeled_metadata`` and ``labeled_images``.

Source:
    Lin et al., The CLEAR Benchmark, arXiv:2201.06289, and the archives that its authors published.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np

from clear_mlflow.data.content import stream_of
from clear_mlflow.data.files import (
    expect_object,
    is_folder,
    path_text,
    read_class_names,
    read_json_object,
    reason,
    resolve_folder,
    shown,
    stored_path,
)
from clear_mlflow.data.stream import Bucket, BucketStream, ImageSet
from clear_mlflow.errors import DataError

EXPECTED = "the folders train (or train_image_only) and test, each with class_names.txt"

_TRAIN_FOLDERS = ("train", "train_image_only")
_TEST_FOLDER = "test"
_CLASS_LIST = "class_names.txt"
_METADATA = "labeled_metadata.json"
_METADATA_FOLDER = "labeled_metadata"
_IMAGE_FOLDER = "labeled_images"
_BUCKET_KEY = re.compile("[0-9]{1,9}")


def is_below(root: Path) -> bool:
    """Whether *root* has a folder that only this layout has."""
    return any(is_folder(root / folder) for folder in (*_TRAIN_FOLDERS, _TEST_FOLDER))


def read_released(root: Path, *, name: str) -> BucketStream:
    """Read a dataset in CLEAR's released layout; images are hashed, not decoded.

    Buckets are those of the training metadata, in the numeric order of their keys, each with the
    test set of the same key; a test set of another bucket (CLEAR-10 has one for bucket 0) is left
    alone. Images are in the order of bucket, class, image id.

    Args:
        root: the folder that holds ``train`` or ``train_image_only``, and ``test``.
        name: the dataset's name.

    Raises:
        DataError: something is missing, damaged, or not as the layout has it.
    """
    try:
        real_root = root.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"data root {path_text(root)} cannot be read: {reason(error)}") from None
    # From the resolved root on, so that the stream outlives a change of the working directory.
    train = _train_folder(real_root)
    test = real_root / _TEST_FOLDER
    class_names = read_class_names(train / _CLASS_LIST, root=real_root)
    test_class_names = read_class_names(test / _CLASS_LIST, root=real_root)
    if class_names != test_class_names:
        odd = sorted(set(class_names) ^ set(test_class_names))[0]
        raise DataError(
            f"{path_text(train / _CLASS_LIST)} and {path_text(test / _CLASS_LIST)} differ: "
            f"{shown(odd)} is in one of them only; expected the same classes in both"
        )
    train_metadata = read_json_object(train / _METADATA, root=real_root)
    test_metadata = read_json_object(test / _METADATA, root=real_root)
    keys = _in_stream_order(train_metadata, path=train / _METADATA)
    _in_stream_order(test_metadata, path=test / _METADATA)
    for key in keys:
        if key not in test_metadata:
            raise DataError(
                f"{path_text(test / _METADATA)} has no bucket {shown(key)}, but "
                f"{path_text(train / _METADATA)} has; expected a test set for every bucket"
            )
    buckets = [
        Bucket(
            key=key,
            train=_read_images(train, key, train_metadata[key], class_names, root=real_root),
            test=_read_images(test, key, test_metadata[key], class_names, root=real_root),
        )
        for key in keys
    ]
    return stream_of(buckets, name=name, class_names=class_names, root=real_root)


read = read_released


def _train_folder(root: Path) -> Path:
    folders = [root / folder for folder in _TRAIN_FOLDERS if is_folder(root / folder)]
    if not folders:
        raise DataError(
            f"{path_text(root)} has no folder {' or '.join(_TRAIN_FOLDERS)}; unpack the training "
            "archive there too"
        )
    return folders[0]


def _in_stream_order(metadata: dict[str, object], *, path: Path) -> list[str]:
    for key in metadata:
        if not _BUCKET_KEY.fullmatch(key):
            raise DataError(
                f"{path_text(path)} has a bucket {shown(key)}; expected whole numbers such as '1' "
                "or '10', for their order is the stream's"
            )
    keys = sorted(metadata, key=int)
    for before, key in pairwise(keys):
        if int(before) == int(key):
            raise DataError(
                f"{path_text(path)} has buckets {shown(before)} and {shown(key)}, which are one "
                "number; expected each bucket once"
            )
    return keys


def _read_images(
    base: Path, key: str, class_files: object, class_names: tuple[str, ...], *, root: Path
) -> ImageSet:
    metadata_path = base / _METADATA
    class_files = expect_object(class_files, what=f"{path_text(metadata_path)}, bucket {key},")
    unknown = sorted(set(class_files) - set(class_names))
    if unknown:
        raise DataError(
            f"{path_text(metadata_path)} has class {shown(unknown[0])} in bucket {key}, but "
            f"{path_text(base / _CLASS_LIST)} does not name it; expected the same classes in both"
        )
    paths: list[Path] = []
    labels: list[int] = []
    files_seen: dict[Path, str] = {}
    for label, class_name in enumerate(class_names):
        if class_name not in class_files:
            raise DataError(
                f"{path_text(base / _CLASS_LIST)} names class {shown(class_name)}, but "
                f"{path_text(metadata_path)} has no images of it in bucket {key}; expected images "
                "of every class in every bucket"
            )
        file = stored_path(
            class_files[class_name], base=base, below=_METADATA_FOLDER, named_in=metadata_path
        )
        if file in files_seen:
            raise DataError(
                f"{path_text(metadata_path)} gives classes {shown(files_seen[file])} and "
                f"{shown(class_name)} of bucket {key} one file, {path_text(file)}; expected a file "
                "of its own for each class"
            )
        files_seen[file] = class_name
        class_paths = _read_class(file, base=base, root=root)
        paths.extend(class_paths)
        labels.extend([label] * len(class_paths))
    label_array = np.array(labels, dtype=np.int64)
    label_array.setflags(write=False)
    return ImageSet(paths=tuple(paths), labels=label_array)


def _read_class(file: Path, *, base: Path, root: Path) -> list[Path]:
    """The image paths that one class file of one bucket names, in the order of image ids."""
    entries = read_json_object(file, root=root)
    paths: list[Path] = []
    folders: set[Path] = set()
    for image_id in sorted(entries):
        entry = expect_object(entries[image_id], what=f"{path_text(file)}, {shown(image_id)},")
        if "IMG_PATH" not in entry:
            raise DataError(
                f"{path_text(file)} has image {shown(image_id)} without IMG_PATH; unpack the "
                "dataset again"
            )
        path = stored_path(entry["IMG_PATH"], base=base, below=_IMAGE_FOLDER, named_in=file)
        # Resolving walks every folder above: once for a folder, not for each of its images.
        if path.parent not in folders:
            resolve_folder(path.parent, root=root)
            folders.add(path.parent)
        paths.append(path)
    return paths
