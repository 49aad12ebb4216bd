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
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.data import files
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import Entry, ImageIndex, build_index

EXPECTED = "class_names.txt and the folders training_folder and labeled_images"

_BUCKETS = "bucket_indices.json"
_SPLITS = "testset_ratio_0.3"


def matches(root: Path) -> bool:
    """Return True for ``training_folder``, or images and classes without metadata."""
    if files.is_folder(root / files.TRAINING_FOLDER):
        return True
    # Without training_folder, the tree is a damaged one of this layout.
    return (
        files.is_folder(root / files.IMAGE_FOLDER)
        and os.path.lexists(root / files.CLASS_LIST)
        and not os.path.lexists(root / files.METADATA)
    )


def read_index(root: Path) -> ImageIndex:
    """Read a dataset in the older layout."""
    real_root = files.resolve_root(root)
    class_names = files.read_class_names(real_root / files.CLASS_LIST, root=real_root)
    lists = real_root / files.TRAINING_FOLDER
    entries = [
        Entry(path, class_names[label], key)
        for key in files.read_json_strings(lists / _BUCKETS, root=real_root)
        for path, label in files.read_image_list(
            lists / files.FILE_LISTS / key / files.ALL_IMAGES,
            root=real_root,
            base=real_root,
            num_classes=len(class_names),
        )
    ]
    index = build_index(
        entries,
        root=real_root,
        layout="older",
        source_name=path_text(lists / files.FILE_LISTS),
        class_names=class_names,
        listed_below=real_root,
    )
    return replace(
        index, read_split=lambda number: _read_split(number, index), needs_all_classes=True
    )


def _read_split(number: int, index: ImageIndex) -> NDArray[np.bool_] | None:
    lists = index.root / files.TRAINING_FOLDER
    folder = lists / _SPLITS / f"split_{number}"
    if not os.path.lexists(folder):
        return None
    is_test = np.zeros(len(index.images), dtype=np.bool_)
    groups = index.images.group_by_bucket(len(index.buckets))
    for key, rows in zip(index.buckets, groups, strict=True):
        listed = {index.images.files[row]: row for row in rows.tolist()}
        list_file = lists / files.FILE_LISTS / key / files.ALL_IMAGES
        parts: list[set[int]] = []
        for file in (folder / key / "train.txt", folder / key / "test.txt"):
            part = files.read_image_list(
                file, root=index.root, base=index.root, num_classes=len(index.class_names)
            )
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
                f"{path_text(folder / key)} has {len(train)} training and "
                f"{format_count(len(test), 'test image')}, "
                f"{len(train & test)} of them in both, and {path_text(list_file)} has {len(rows)}; "
                "expected each image once, and fewer to test on: unpack the dataset again"
            )
        is_test[sorted(test)] = True
    return is_test
