"""The layout of CLEAR's first releases, ``clear10_neurips2021`` and ``clear100_cvpr2022``.

``training_folder`` has lists of each bucket's images and labels, and five splits of them.

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
    in_stream_order,
    is_folder,
    list_entry,
    path_text,
    read_class_names,
    read_json_texts,
    read_lines,
    resolve_root,
)
from clear_mlflow.data.problems import Report, reported, stop
from clear_mlflow.data.splits import Listing, Split
from clear_mlflow.data.stream import ImageSet, placed_images

EXPECTED = "class_names.txt and the folders training_folder and labeled_images"

_BUCKETS = "bucket_indices.json"
_SPLITS = "testset_ratio_0.3"


def is_below(root: Path) -> bool:
    """Whether *root* has what only this layout has."""
    if is_folder(root / TRAINING_FOLDER):
        return True
    # A tree that lost its training_folder is a damaged one of this layout, and not of another.
    return (
        is_folder(root / IMAGE_FOLDER)
        and os.path.lexists(root / CLASS_LIST)
        and not os.path.lexists(root / METADATA)
    )


def listing(root: Path, report: Report = stop) -> Listing:
    """List a dataset in the older layout."""
    real_root = resolve_root(root)
    class_names = read_class_names(real_root / CLASS_LIST, root=real_root)
    training = real_root / TRAINING_FOLDER
    keys = in_stream_order(
        read_json_texts(training / _BUCKETS, root=real_root), named_in=training / _BUCKETS
    )
    images: dict[str, ImageSet] = {}
    for key in keys:
        file = training / FILE_LISTS / key / ALL_IMAGES
        images[key] = _read_list(file, key, class_names, root=real_root, report=report)
        for label in sorted(set(range(len(class_names))) - set(images[key].labels.tolist())):
            error = DataError(
                f"{path_text(file)} has no images of class {safe_repr(class_names[label])}; "
                "expected images of every class in every bucket"
            )
            report("empty-class", real_root / IMAGE_FOLDER / key / class_names[label], error)
    return Listing(
        layout="older",
        root=real_root,
        class_names=class_names,
        images=images,
        stored_split=lambda number: _read_split(number, images, class_names, root=real_root),
    )


def _read_list(
    file: Path, key: str, class_names: tuple[str, ...], *, root: Path, report: Report
) -> ImageSet:
    """The images that one list of one bucket names."""

    def named() -> Iterator[tuple[Path, int, Path]]:
        lines: list[str] = []
        with reported(report, "metadata", file):
            lines = read_lines(file, root=root)
        for number, line in enumerate(lines, start=1):
            with reported(report, "metadata", file):
                path, label = list_entry(
                    line, number, base=root, num_classes=len(class_names), named_in=file
                )
                yield path, label, file

    return placed_images(
        named(), base=root, key=key, class_names=class_names, root=root, report=report
    )


def _read_split(
    number: int, images: Mapping[str, ImageSet], class_names: tuple[str, ...], *, root: Path
) -> Mapping[str, Split] | None:
    """The split of a number; None where it is not stored."""
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
    listed = root / TRAINING_FOLDER / FILE_LISTS / key / ALL_IMAGES
    index = {path: i for i, path in enumerate(images.paths)}
    parts: list[set[int]] = []
    for name in ("train.txt", "test.txt"):
        found = _read_list(folder / name, key, class_names, root=root, report=stop)
        for path, label in zip(found.paths, found.labels.tolist(), strict=True):
            if path not in index or images.labels[index[path]] != label:
                raise DataError(
                    f"{path_text(folder / name)} lists {path_text(path)} as class "
                    f"{safe_repr(class_names[label])}, which {path_text(listed)} does not; unpack "
                    "the dataset again"
                )
        parts.append({index[path] for path in found.paths})
    train, test = parts
    if train & test or len(train | test) != len(images) or len(test) >= len(train):
        raise DataError(
            f"{path_text(folder)} has {len(train)} training and {len(test)} test images, "
            f"{len(train & test)} of them in both, of the {len(images)} that {path_text(listed)} "
            "has; expected each image once, and fewer to test on: unpack the dataset again"
        )
    return np.array(sorted(train), dtype=np.int64), np.array(sorted(test), dtype=np.int64)
