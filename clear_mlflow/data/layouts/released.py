"""The layout in which CLEAR's authors released CLEAR-10 and CLEAR-100.

``train/`` (or ``train_image_only/``) and ``test/`` each contain ``class_names.txt``,
``labeled_metadata.json`` and the folders ``labeled_metadata`` and ``labeled_images``.

Source:
    Lin et al., The CLEAR Benchmark, arXiv:2201.06289, and the archives that its authors published.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data import files
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import (
    Entry,
    ImageIndex,
    ImageTable,
    build_index,
    check_test_buckets,
)

EXPECTED = "the folders train (or train_image_only) and test, each with class_names.txt"

TRAIN_FOLDERS = ("train", "train_image_only")
TEST_FOLDER = "test"


def matches(root: Path) -> bool:
    """Return True if *root* has a folder ``train``, ``train_image_only`` or ``test``."""
    return any(files.is_folder(root / folder) for folder in (*TRAIN_FOLDERS, TEST_FOLDER))


def read_index(root: Path) -> ImageIndex:
    """Read the released layout's training images, and valid test images.

    Raises DataError at the first problem of the training images.
    """
    real_root = files.resolve_root(root)
    train = next(
        (real_root / name for name in TRAIN_FOLDERS if files.is_folder(real_root / name)), None
    )
    if train is None:
        raise DataError(
            f"{path_text(real_root)} contains no folder {' or '.join(TRAIN_FOLDERS)}; unpack the "
            "training archive there too"
        )
    class_names = files.read_class_names(train / files.CLASS_LIST, root=real_root)
    index = replace(_read_images(train, class_names, root=real_root), needs_all_classes=True)
    try:
        return replace(index, images=index.images.join(_read_test(index, train)))
    except DataError as error:  # the images of the training archive are enough for split=0
        return replace(index, test_error=error)


def _read_test(index: ImageIndex, train: Path) -> ImageTable:
    """Read the test images of the index's buckets. Skips other buckets."""
    root, class_names = index.root, index.class_names
    test = root / TEST_FOLDER
    if not files.is_folder(test):
        raise DataError(
            f"{path_text(test)} is missing; unpack the test archive there too, or pass split=0 to "
            "hold out 30 % of each bucket's training images"
        )
    test_names = files.read_class_names(test / files.CLASS_LIST, root=root)
    if unmatched := sorted(set(class_names) ^ set(test_names)):
        raise DataError(
            f"{path_text(train / files.CLASS_LIST)} and {path_text(test / files.CLASS_LIST)} "
            f"differ: {safe_repr(unmatched[0])} is in one of them only; expected the same classes "
            "in both"
        )
    tests = _read_images(test, class_names, root=root)
    check_test_buckets(index.buckets, tests.buckets, path_text(test / files.METADATA))
    order = {key: bucket for bucket, key in enumerate(index.buckets)}
    buckets = np.array([order.get(key, -1) for key in tests.buckets])[tests.images.buckets]
    rows = np.flatnonzero(buckets >= 0)
    is_test = np.ones(len(rows), dtype=np.bool_)
    return replace(tests.images.take(rows), buckets=buckets[rows], is_test=is_test)


def _read_images(base: Path, class_names: tuple[str, ...], *, root: Path) -> ImageIndex:
    """Read one unpacked archive, train or test, as training images."""
    metadata_file = base / files.METADATA
    entries: list[Entry] = []
    for key, class_files in files.read_json_object(metadata_file, root=root).items():
        source = f"{path_text(metadata_file)}, bucket {safe_repr(key)},"
        for class_name, stored in files.require_object(class_files, source=source).items():
            file = files.join_stored_path(
                stored, base=base, below=files.METADATA_FOLDER, list_file=metadata_file
            )
            paths = _read_class_file(file, base=base, root=root)
            entries += [Entry(path, class_name, key) for path in paths]
    return build_index(
        entries,
        root=root,
        layout="released",
        source_name=path_text(metadata_file),
        class_names=class_names,
        listed_below=base,
    )


def _read_class_file(file: Path, *, base: Path, root: Path) -> list[Path]:
    paths = []
    for image_id, entry in files.read_json_object(file, root=root).items():
        if not isinstance(entry, dict) or "IMG_PATH" not in entry:
            raise DataError(
                f"{path_text(file)} has image {safe_repr(image_id)} as {safe_repr(entry)}; "
                "expected a JSON object with IMG_PATH: unpack the dataset again"
            )
        paths.append(
            files.join_stored_path(
                entry["IMG_PATH"], base=base, below=files.IMAGE_FOLDER, list_file=file
            )
        )
    return paths
