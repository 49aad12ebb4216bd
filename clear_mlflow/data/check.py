"""Check a dataset: list its contents and the problems of all its images.

A training stops at the first problem. Here all images are decoded, and their contents are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import format_count
from clear_mlflow.data import read_stream_index
from clear_mlflow.data.decode import Resize, UndecodableError, decode_file
from clear_mlflow.data.drift import LabelDrift, measure_distance, measure_label_drift
from clear_mlflow.data.files import path_text, stat_image
from clear_mlflow.data.images import NONE, TRAIN, ImageIndex, ImageTable
from clear_mlflow.data.stream import AUTO, DIFFERENCES, build_stream, find_copies

SCHEMA = 1

# Types of problems, in the order in which they are listed.
PROBLEM_TYPES = {
    "structure": "the dataset cannot be loaded for another reason",
    "missing": "a listed image does not exist",
    "unreadable": "a file cannot be decoded as an image",
    "empty-class": "a class has no images in a bucket",
    "duplicate": "an image is stored more than once",
    "dark": "all images of a bucket are nearly black",
}
_DARK = (
    "all images of bucket {key} are dark ({value} of 255); multiply by 16 if 12 of 16 bits are used"
)

_FILES_PER_TASK = 16

OnImages = Callable[[str, int, "int | None"], None]
# Number of images by split (train or test; all if the layout does not separate them), bucket and
# class.
Counts: TypeAlias = Mapping[tuple[str, str, str], int]


@dataclass(frozen=True)
class Problem:
    """One problem and the path that it concerns."""

    type: str  # a key of PROBLEM_TYPES
    path: Path
    detail: str
    others: tuple[Path, ...] = ()  # the further copies of a duplicate


@dataclass(frozen=True)
class Findings:
    """The contents of a dataset, and its problems."""

    root: Path
    layout: str
    digest: str | None  # of the stream; None if the loader cannot read the dataset
    buckets: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: Counts
    problems: tuple[Problem, ...]
    drifts: tuple[LabelDrift, ...] = ()  # of a dated stream, for each of the requested borders

    @property
    def distances(self) -> dict[tuple[str, str], float]:
        """How far two requested borders are apart, by the labels of their buckets."""
        return {
            (a.borders, b.borders): measure_distance(a.counts, b.counts)
            for a, b in combinations(self.drifts, 2)
        }

    def as_json(self) -> dict[str, Any]:
        """Return the findings for programs. Docs/data-commands.md has the schema."""
        return {
            "schema": SCHEMA,
            "root": str(self.root),
            "layout": self.layout,
            "loads": self.digest is not None,
            "digest": self.digest,
            "buckets": list(self.buckets),
            "classes": list(self.class_names),
            "counts": [
                {"split": split, "bucket": bucket, "class": class_name, "images": number}
                for (split, bucket, class_name), number in self.counts.items()
            ],
            "images": sum(self.counts.values()),
            "label_drift": [drift.as_json() for drift in self.drifts],
            "distances": [
                {"borders": list(pair), "distance": distance}
                for pair, distance in self.distances.items()
            ],
            "problems": [
                {
                    "kind": p.type,
                    "path": str(p.path),
                    "detail": p.detail,
                    "others": [str(path) for path in p.others],
                }
                for p in self.problems
            ],
        }


def check_dataset(
    data_root: str,
    dataset: str = AUTO,
    arguments: Mapping[str, Any] | None = None,
    *,
    borders: Sequence[str] = (),
    cache_dir: Path = Path(),
    on_progress: OnImages = lambda step, done, total: None,
) -> Findings:
    """Decode all images of a dataset, and return its contents and problems.

    dataset: of your own, or ``auto`` for one in a layout of CLEAR. arguments: as for
    training. borders: for each of them, the drift of the labels is measured; the first one, if any,
    divides the dataset that is checked. Raises DataError if the index cannot be read.
    """

    def read_index(borders: str) -> ImageIndex:
        return read_stream_index(
            dataset, data_root, cache_dir=cache_dir, arguments=arguments, borders=borders
        )

    index = read_index(borders[0] if borders else NONE)
    root = index.root
    splits = [TRAIN, TEST] if index.has_test_set else ["all"]
    problems: list[Problem] = []
    if index.test_error is not None:
        splits = [TRAIN]
        problems.append(_describe_error(index.test_error, root))
    images, errors, brightness = _decode_images(index.images, root, on_progress)
    is_readable = np.array([row not in errors for row in range(len(images))])
    missing = {row for row in errors if not os.path.lexists(images.files[row])}
    problems += [
        Problem("missing" if row in missing else "unreadable", Path(images.files[row]), error)
        for row, error in errors.items()
    ]
    groups = list(product(splits, index.buckets, index.class_names))
    shape = len(splits), len(index.buckets), len(index.class_names)
    codes = np.ravel_multi_index((images.is_test, images.buckets, images.labels), shape)
    numbers = np.bincount(np.delete(codes, list(missing)), minlength=len(groups)).tolist()
    counts = dict(zip(groups, numbers, strict=True))
    digest: str | None = None
    load_error: Problem | None = None
    try:
        stream = build_stream(replace(index, images=images), name=dataset)
    except DataError as error:
        load_error = _describe_error(error, root)
    else:
        # In a layout without a test folder, only the loader separates the test images.
        digest, images = stream.dataset.digest, stream.images
    decoded = images.take(np.flatnonzero(is_readable))
    is_explained = bool(problems)
    for difference, rows in () if index.may_repeat else find_copies(decoded):
        is_explained = is_explained or bool(difference)
        phrase = DIFFERENCES[difference].format(test=TEST) if difference else ""
        detail = f"{len(rows)} copies of one image{phrase and ', '}{phrase}"
        first, *others = (Path(decoded.files[row]) for row in rows)
        problems.append(Problem("duplicate", first, detail, tuple(others)))
    empty_classes = _list_empty_classes(counts, root)
    problems += empty_classes
    is_explained = is_explained or (index.needs_all_classes and bool(empty_classes))
    if load_error is not None and not is_explained:
        problems.append(load_error)
    groups_of_rows = decoded.group_by_bucket(len(index.buckets))
    for key, bucket_rows in zip(index.buckets, groups_of_rows, strict=True):
        value = brightness[is_readable][bucket_rows].max(initial=0)
        if len(bucket_rows) and value <= 15:  # as 12 bits are if they are stored in 16
            problems.append(Problem("dark", root, _DARK.format(key=key, value=value)))
    order = list(PROBLEM_TYPES)
    return Findings(
        root=root,
        layout=index.layout,
        digest=digest,
        buckets=index.buckets,
        class_names=index.class_names,
        counts=counts,
        problems=tuple(sorted(problems, key=lambda p: (order.index(p.type), p.path))),
        drifts=tuple(measure_label_drift(text, read_index) for text in borders),
    )


def _describe_error(error: DataError, root: Path) -> Problem:
    return Problem("structure", root, str(error).removeprefix(f"{path_text(root)} "))


def _list_empty_classes(counts: Counts, root: Path) -> list[Problem]:
    problems = []
    for split, noun in (("all", "images"), (TRAIN, "training images"), (TEST, "test images")):
        empty = [key for key, number in counts.items() if key[0] == split and not number]
        if empty:
            _, bucket, class_name = empty[0]
            pairs = format_count(
                len(empty), "(class, bucket) pair has", "(class, bucket) pairs have"
            )
            detail = f"{pairs} no {noun}, for example class {class_name!r} in bucket {bucket}"
            problems.append(Problem("empty-class", root, detail))
    return problems


def _decode_images(
    images: ImageTable, root: Path, on_progress: OnImages
) -> tuple[ImageTable, dict[int, str], NDArray[np.int64]]:
    """Return images with contents, why rows are unreadable, and brightest areas."""
    if images.vectors is not None:  # read already
        return images, {}, np.full(len(images), 255)
    starts = range(0, len(images), _FILES_PER_TASK)
    results: list[tuple[str, str, int]] = []
    on_progress("decoding images", 0, len(images))
    with ThreadPoolExecutor(max_workers=count_usable_cores()) as pool:
        blocks = [images.files[start : start + _FILES_PER_TASK] for start in starts]
        for block in pool.map(lambda block: [_check_image(file, root) for file in block], blocks):
            results += block
            on_progress("decoding images", len(results), len(images))
    contents, errors, brightness = zip(*results, strict=True)
    return (
        replace(images, contents=contents),
        {row: error for row, error in enumerate(errors) if error},
        np.array(brightness),
    )


def _check_image(file: str, root: Path) -> tuple[str, str, int]:
    """Return an image's hash, why it is unreadable, and brightest area."""
    try:
        stat_image(file, root=root)
        content, pixels = decode_file(file, Resize(8))
    except DataError as error:
        return "", str(error).removeprefix(f"{path_text(file)} "), 0
    if isinstance(pixels, UndecodableError):
        return content, f"cannot be decoded: {pixels}", 0
    return content, "", int(pixels.max())
