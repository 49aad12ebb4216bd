"""The layout of CLEAR's first releases, ``clear10_neurips2021`` and ``clear100_cvpr2022``.

``training_folder`` contains lists of each bucket's images and labels, and five splits of them.

Source:
    prepare_training_folder.py of the CLEAR authors (linzhiqiu/continual-learning on GitHub).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import (
    ALL_IMAGES,
    CLASS_LIST,
    FILE_LISTS,
    IMAGE_FOLDER,
    METADATA,
    TRAINING_FOLDER,
    check_image_folder,
    is_folder,
    parse_list_line,
    path_text,
    read_class_names,
    read_json_strings,
    read_lines,
    resolve_root,
)
from clear_mlflow.data.images import Entry, ImageIndex, build_index

EXPECTED = "class_names.txt and the folders training_folder and labeled_images"

_BUCKETS = "bucket_indices.json"
_SPLITS = "testset_ratio_0.3"


def matches(root: Path) -> bool:
    """Return True if *root* has ``training_folder``, or images, a class list and no metadata."""
    if is_folder(root / TRAINING_FOLDER):
        return True
    # Without training_folder, the tree is a damaged one of this layout.
    return (
        is_folder(root / IMAGE_FOLDER)
        and os.path.lexists(root / CLASS_LIST)
        and not os.path.lexists(root / METADATA)
    )


def read_index(root: Path) -> ImageIndex:
    """Read a dataset in the older layout."""
    real_root = resolve_root(root)
    class_names = read_class_names(real_root / CLASS_LIST, root=real_root)
    lists = real_root / TRAINING_FOLDER
    entries = [
        Entry(path, class_names[label], key)
        for key in read_json_strings(lists / _BUCKETS, root=real_root)
        for path, label in _read_list(
            lists / FILE_LISTS / key / ALL_IMAGES, key, class_names, root=real_root
        )
    ]
    index = build_index(
        entries,
        root=real_root,
        layout="older",
        source_name=path_text(lists / FILE_LISTS),
        class_names=class_names,
    )
    return replace(
        index, read_split=lambda number: _read_split(number, index), needs_all_classes=True
    )


def _read_list(
    file: Path, key: str, class_names: tuple[str, ...], *, root: Path
) -> list[tuple[Path, int]]:
    """Read the images and labels of a list file of the bucket *key*."""
    images = [
        parse_list_line(line, number, base=root, num_classes=len(class_names), list_file=file)
        for number, line in enumerate(read_lines(file, root=root), start=1)
    ]
    for folder, label in sorted({(path.parent, label) for path, label in images}):
        check_image_folder(
            folder, base=root, key=key, class_name=class_names[label], class_names=class_names
        )
    return images


def _read_split(number: int, index: ImageIndex) -> NDArray[np.bool_] | None:
    """Return the test images of a stored split, (N,), bool, or None if it is not stored."""
    lists = index.root / TRAINING_FOLDER
    folder = lists / _SPLITS / f"split_{number}"
    if not os.path.lexists(folder):
        return None
    is_test = np.zeros(len(index.images), dtype=np.bool_)
    groups = index.images.group_by_bucket(len(index.buckets))
    for key, rows in zip(index.buckets, groups, strict=True):
        listed = {index.images.files[row]: row for row in rows.tolist()}
        list_file = lists / FILE_LISTS / key / ALL_IMAGES
        parts: list[set[int]] = []
        for file in (folder / key / "train.txt", folder / key / "test.txt"):
            part = _read_list(file, key, index.class_names, root=index.root)
            for path, label in part:
                row = listed.get(str(path))
                if row is None or index.images.labels[row] != label:
                    raise DataError(
                        f"{path_text(file)} lists {path_text(path)} as class "
                        f"{safe_repr(index.class_names[label])}, which {path_text(list_file)} does "
                        "not; unpack the dataset again"
                    )
            parts.append({listed[str(path)] for path, _ in part})
        train, test = parts
        if train & test or len(train | test) != len(rows) or len(test) >= len(train):
            raise DataError(
                f"{path_text(folder / key)} has {len(train)} training and {len(test)} test images, "
                f"{len(train & test)} of them in both, and {path_text(list_file)} has {len(rows)}; "
                "expected each image once, and fewer to test on: unpack the dataset again"
            )
        is_test[sorted(test)] = True
    return is_test
