"""The layout in which CLEAR's authors released CLEAR-10 and CLEAR-100.

``train/`` (or ``train_image_only/``) and ``test/`` each hold ``class_names.txt``,
``labeled_metadata.json``, and the folders ``labeled_metadata`` and ``labeled_images``.

Source:
    Lin et al., The CLEAR Benchmark, arXiv:2201.06289, and the archives that its authors published.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.files import (
    CLASS_LIST,
    IMAGE_FOLDER,
    METADATA,
    METADATA_FOLDER,
    check_place,
    expect_object,
    in_stream_order,
    is_folder,
    path_text,
    read_class_names,
    read_json_object,
    resolve_folder,
    resolve_root,
    stored_path,
)
from clear_mlflow.data.splits import Listing
from clear_mlflow.data.stream import ImageSet, image_set

EXPECTED = "the folders train (or train_image_only) and test, each with class_names.txt"

_TRAIN_FOLDERS = ("train", "train_image_only")
_TEST_FOLDER = "test"


def is_below(root: Path) -> bool:
    """Whether *root* has a folder that only this layout has."""
    return any(is_folder(root / folder) for folder in (*_TRAIN_FOLDERS, _TEST_FOLDER))


def listing(root: Path) -> Listing:
    """List a dataset in CLEAR's released layout.

    Buckets are those of the training metadata, in the numeric order of their keys, each with the
    test set of the same key; a test set of another bucket (CLEAR-10 has one for bucket 0) is left
    alone.
    """
    real_root = resolve_root(root)
    train = _train_folder(real_root)
    class_names = read_class_names(train / CLASS_LIST, root=real_root)
    metadata = read_json_object(train / METADATA, root=real_root)
    keys = in_stream_order(metadata, named_in=train / METADATA)
    return Listing(
        layout="released",
        root=real_root,
        class_names=class_names,
        images={
            key: _read_images(train, key, metadata[key], class_names, root=real_root)
            for key in keys
        },
        released_test=lambda: _read_test(keys, class_names, train=train, root=real_root),
    )


def _read_test(
    keys: list[str], class_names: tuple[str, ...], *, train: Path, root: Path
) -> Mapping[str, ImageSet]:
    test = root / _TEST_FOLDER
    if not is_folder(test):
        raise DataError(
            f"{path_text(test)} is missing; unpack the test archive there too, or pass split=0 to "
            "hold out 30 % of each bucket's training images"
        )
    test_class_names = read_class_names(test / CLASS_LIST, root=root)
    if class_names != test_class_names:
        odd = sorted(set(class_names) ^ set(test_class_names))[0]
        raise DataError(
            f"{path_text(train / CLASS_LIST)} and {path_text(test / CLASS_LIST)} differ: "
            f"{shown(odd)} is in one of them only; expected the same classes in both"
        )
    metadata = read_json_object(test / METADATA, root=root)
    in_stream_order(metadata, named_in=test / METADATA)
    for key in keys:
        if key not in metadata:
            raise DataError(
                f"{path_text(test / METADATA)} has no bucket {shown(key)}, but "
                f"{path_text(train / METADATA)} has; expected a test set for every bucket"
            )
    return {key: _read_images(test, key, metadata[key], class_names, root=root) for key in keys}


def _train_folder(root: Path) -> Path:
    folders = [root / folder for folder in _TRAIN_FOLDERS if is_folder(root / folder)]
    if not folders:
        raise DataError(
            f"{path_text(root)} has no folder {' or '.join(_TRAIN_FOLDERS)}; unpack the training "
            "archive there too"
        )
    return folders[0]


def _read_images(
    base: Path, key: str, class_files: object, class_names: tuple[str, ...], *, root: Path
) -> ImageSet:
    metadata_path = base / METADATA
    class_files = expect_object(class_files, what=f"{path_text(metadata_path)}, bucket {key},")
    unknown = sorted(set(class_files) - set(class_names))
    if unknown:
        raise DataError(
            f"{path_text(metadata_path)} has class {shown(unknown[0])} in bucket {key}, but "
            f"{path_text(base / CLASS_LIST)} does not name it; expected the same classes in both"
        )
    entries: list[tuple[int, Path]] = []
    files_seen: dict[Path, str] = {}
    known_names = frozenset(class_names)
    for label, class_name in enumerate(class_names):
        if class_name not in class_files:
            raise DataError(
                f"{path_text(base / CLASS_LIST)} names class {shown(class_name)}, but "
                f"{path_text(metadata_path)} has no images of it in bucket {key}; expected images "
                "of every class in every bucket"
            )
        file = stored_path(
            class_files[class_name], base=base, below=METADATA_FOLDER, named_in=metadata_path
        )
        if file in files_seen:
            raise DataError(
                f"{path_text(metadata_path)} gives classes {shown(files_seen[file])} and "
                f"{shown(class_name)} of bucket {key} one file, {path_text(file)}; expected a file "
                "of its own for each class"
            )
        files_seen[file] = class_name
        paths = _read_class(file, base=base, root=root)
        # Once for a folder, not for each of its images: resolving walks every folder above.
        for folder in sorted({os.path.dirname(path) for path in paths}):  # noqa: PTH120 (of each image)
            check_place(
                Path(folder),
                base=base,
                key=key,
                class_name=class_name,
                class_names=known_names,
                named_in=file,
            )
            resolve_folder(Path(folder), root=root)
        entries.extend((label, path) for path in paths)
    return image_set(entries)


def _read_class(file: Path, *, base: Path, root: Path) -> list[Path]:
    """The image paths that one class file of one bucket names."""
    paths: list[Path] = []
    texts: set[str] = set()  # which are kept by the paths, and quicker to compare
    for image_id, value in read_json_object(file, root=root).items():
        if not isinstance(value, dict):
            raise DataError(
                f"{path_text(file)} has image {shown(image_id)} as {shown(value)}; expected a JSON "
                "object with IMG_PATH"
            )
        if "IMG_PATH" not in value:
            raise DataError(
                f"{path_text(file)} has image {shown(image_id)} without IMG_PATH; unpack the "
                "dataset again"
            )
        path = stored_path(value["IMG_PATH"], base=base, below=IMAGE_FOLDER, named_in=file)
        if (text := str(path)) in texts:
            raise DataError(
                f"{path_text(file)} lists {path_text(path)} twice; unpack the dataset again"
            )
        texts.add(text)
        paths.append(path)
    return paths
