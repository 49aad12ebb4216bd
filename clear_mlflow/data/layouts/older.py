"""The layout of CLEAR's first releases, ``clear10_neurips2021`` and ``clear100_cvpr2022``.

``training_folder`` contains lists of each bucket's images and labels, and five splits of them.

Source:
    prepare_training_folder.py of the CLEAR authors (linzhiqiu/continual-learning on GitHub).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.files import (
    ALL_IMAGES,
    CLASS_LIST,
    FILE_LISTS,
    IMAGE_FOLDER,
    METADATA,
    TRAINING_FOLDER,
    Report,
    is_folder,
    parse_list_line,
    path_text,
    raise_error,
    read_class_names,
    read_json_strings,
    read_lines,
    report_errors,
    resolve_root,
    sort_bucket_keys,
)
from clear_mlflow.data.image_index import ImageIndex, Split, build_listed_set
from clear_mlflow.data.stream import ImageSet

EXPECTED = "class_names.txt and the folders training_folder and labeled_images"

_BUCKETS = "bucket_indices.json"
_SPLITS = "testset_ratio_0.3"


def matches(root: Path) -> bool:
    """Return True if *root* has what only this layout has."""
    if is_folder(root / TRAINING_FOLDER):
        return True
    # Without training_folder, the tree is a damaged one of this layout.
    return (
        is_folder(root / IMAGE_FOLDER)
        and os.path.lexists(root / CLASS_LIST)
        and not os.path.lexists(root / METADATA)
    )


def read_index(root: Path, report: Report = raise_error) -> ImageIndex:
    """Read a dataset in the older layout."""
    real_root = resolve_root(root)
    class_names = read_class_names(real_root / CLASS_LIST, root=real_root)
    key_file = real_root / TRAINING_FOLDER / _BUCKETS
    keys = sort_bucket_keys(read_json_strings(key_file, root=real_root), source=key_file)
    images: dict[str, ImageSet] = {}
    for key in keys:
        file = real_root / TRAINING_FOLDER / FILE_LISTS / key / ALL_IMAGES
        images[key] = _read_list(file, key, class_names, root=real_root, report=report)
        for label in sorted(set(range(len(class_names))) - set(images[key].labels.tolist())):
            error = DataError(
                f"{path_text(file)} contains no images of class {safe_repr(class_names[label])}; "
                "expected images of every class in every bucket"
            )
            report("empty-class", real_root / IMAGE_FOLDER / key / class_names[label], error)
    return ImageIndex(
        layout="older",
        root=real_root,
        class_names=class_names,
        images=images,
        read_split=lambda number: _read_split(number, images, class_names, root=real_root),
    )


def _read_list(
    file: Path, key: str, class_names: tuple[str, ...], *, root: Path, report: Report
) -> ImageSet:
    """Read the images and labels of a list file of the bucket *key*.

    A line that is invalid is skipped, and its error passed to *report*, which may raise it.
    """

    def parse_lines() -> Iterator[tuple[Path, int, Path]]:
        lines: list[str] = []
        with report_errors(report, "metadata", file):
            lines = read_lines(file, root=root)
        for number, line in enumerate(lines, start=1):
            with report_errors(report, "metadata", file):
                path, label = parse_list_line(
                    line, number, base=root, num_classes=len(class_names), list_file=file
                )
                yield path, label, file

    return build_listed_set(
        parse_lines(), base=root, key=key, class_names=class_names, root=root, report=report
    )


def _read_split(
    number: int, images: Mapping[str, ImageSet], class_names: tuple[str, ...], *, root: Path
) -> Mapping[str, Split] | None:
    """Read the split of a number, or return None if it is not stored."""
    folder = root / TRAINING_FOLDER / _SPLITS / f"split_{number}"
    if not os.path.lexists(folder):
        return None
    return {
        key: _read_bucket_split(folder / key, key, all_images, class_names, root=root)
        for key, all_images in images.items()
    }


def _read_bucket_split(
    folder: Path, key: str, images: ImageSet, class_names: tuple[str, ...], *, root: Path
) -> Split:
    list_file = root / TRAINING_FOLDER / FILE_LISTS / key / ALL_IMAGES
    index = {path: i for i, path in enumerate(images.paths)}
    parts: list[set[int]] = []
    for name in ("train.txt", "test.txt"):
        part = _read_list(folder / name, key, class_names, root=root, report=raise_error)
        for path, label in zip(part.paths, part.labels.tolist(), strict=True):
            if path not in index or images.labels[index[path]] != label:
                raise DataError(
                    f"{path_text(folder / name)} lists {path_text(path)} as class "
                    f"{safe_repr(class_names[label])}, which {path_text(list_file)} does not; "
                    "unpack the dataset again"
                )
        parts.append({index[path] for path in part.paths})
    train, test = parts
    if train & test or len(train | test) != len(images) or len(test) >= len(train):
        raise DataError(
            f"{path_text(folder)} has {len(train)} training and {len(test)} test images, "
            f"{len(train & test)} of them in both, and {path_text(list_file)} has {len(images)}; "
            "expected each image once, and fewer to test on: unpack the dataset again"
        )
    return np.array(sorted(train), dtype=np.int64), np.array(sorted(test), dtype=np.int64)
