"""Check a dataset: list its contents and the problems of all its images.

A training stops at the first problem. Here all images are decoded, and their contents are compared.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, hash_file
from clear_mlflow.data import read_stream_index
from clear_mlflow.data.content import (
    DIFFERENCES,
    IndexedImage,
    build_stream,
    find_duplicates,
    iter_images,
)
from clear_mlflow.data.decode import Resize, UndecodableError, decode_file
from clear_mlflow.data.files import path_text, reason, stat_file
from clear_mlflow.data.image_index import TRAIN, ImageIndex
from clear_mlflow.data.layouts import find_layout, read_layout
from clear_mlflow.data.sources import CLEAR, stream_name

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


@dataclass(frozen=True)
class Problem:
    """One problem and the path that it concerns."""

    type: str  # a key of PROBLEM_TYPES
    path: Path
    detail: str
    others: tuple[Path, ...] = ()  # the further copies of a duplicate


@dataclass(frozen=True)
class Count:
    """The number of images of one class in one bucket."""

    split: str  # train or test; all if the layout does not separate them
    bucket: str
    class_name: str
    images: int


@dataclass(frozen=True)
class Findings:
    """The contents of a dataset, and its problems."""

    root: Path
    layout: str
    digest: str | None  # of the stream; None if the loader cannot read the dataset
    buckets: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: tuple[Count, ...]
    problems: tuple[Problem, ...]

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
                {"split": c.split, "bucket": c.bucket, "class": c.class_name, "images": c.images}
                for c in self.counts
            ],
            "images": sum(c.images for c in self.counts),
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


def check_layout(root: Path, *, on_progress: OnImages = lambda step, done, total: None) -> Findings:
    """Check a dataset in one of CLEAR's layouts, and return its contents and problems.

    Raises DataError if its index cannot be read.
    """
    index = read_layout(*find_layout(root, names=CLEAR))
    return _check_index(index, "dataset", on_progress)


def check_stream(
    dataset: str,
    data_root: str,
    arguments: Mapping[str, Any],
    *,
    cache_dir: Path,
    on_progress: OnImages,
) -> Findings:
    """Check a custom stream, and return its contents and problems.

    arguments: ``dataset_args``. Raises DataError if its index cannot be read.
    """
    index = read_stream_index(dataset, data_root, cache_dir=cache_dir, arguments=arguments)
    return _check_index(index, stream_name(dataset, data_root, arguments), on_progress)


def _check_index(index: ImageIndex, name: str, on_progress: OnImages) -> Findings:
    """Decode all images, search for duplicates, and report what the stream does not load."""
    root = index.root
    problems: list[Problem] = []
    sets = {("all" if index.read_test is None else TRAIN): index.images}
    if index.read_test is not None:
        try:
            sets[TEST] = index.read_test()
        except DataError as error:
            problems.append(_describe_error(error, root))
    images = [
        image
        for split, bucket_sets in sets.items()
        for key, image_set in bucket_sets.items()
        for image in iter_images(image_set, split, key, index.class_names)
    ]
    missing = {i.path for i in images if not i.content and not os.path.lexists(i.path)}
    results = _decode_images(images, root, on_progress)
    problems += [
        Problem("missing" if image.path in missing else "unreadable", image.path, error)
        for image, (_, error, _) in zip(images, results, strict=True)
        if error
    ]
    splits = {image.path: image.split for image in images}
    digest: str | None = None
    load_error: Problem | None = None
    try:
        stream = build_stream(index, name=name)
    except DataError as error:
        load_error = _describe_error(error, root)
    else:
        digest = stream.digest
        # In a layout without a test folder, only the loader separates the test images.
        for bucket in stream.buckets:
            splits |= dict.fromkeys(bucket.train.paths, TRAIN)
            splits |= dict.fromkeys(bucket.test.paths, TEST)
    decoded = [
        image._replace(split=splits[image.path], content=content)
        for image, (content, error, _) in zip(images, results, strict=True)
        if not error
    ]
    is_explained = bool(problems)
    for difference, copies in () if index.may_repeat else find_duplicates(decoded):
        is_explained = is_explained or bool(difference)
        phrase = DIFFERENCES[difference].format(test=TEST) if difference else ""
        detail = f"{len(copies)} copies of one image{phrase and ', '}{phrase}"
        paths = tuple(image.path for image in copies)
        problems.append(Problem("duplicate", paths[0], detail, paths[1:]))
    numbers = Counter((i.split, i.bucket, i.class_name) for i in images if i.path not in missing)
    counts = tuple(
        Count(split, key, class_name, numbers[split, key, class_name])
        for split, bucket_sets in sets.items()
        for key in bucket_sets
        for class_name in index.class_names
    )
    empty_classes = _list_empty_classes(counts, root)
    if index.needs_all_classes and empty_classes:
        is_explained = True
    problems += empty_classes
    if load_error is not None and not is_explained:
        problems.append(load_error)
    brightest: dict[str, int] = {}
    for image, (content, _, value) in zip(images, results, strict=True):
        if content:
            brightest[image.bucket] = max(value, brightest.get(image.bucket, 0))
    for key, value in brightest.items():
        if value <= 15:  # as 12 bits are if they are stored in 16
            problems.append(Problem("dark", root, _DARK.format(key=key, value=value)))
    order = list(PROBLEM_TYPES)
    return Findings(
        root=root,
        layout=index.layout,
        digest=digest,
        buckets=tuple(dict.fromkeys(key for bucket_sets in sets.values() for key in bucket_sets)),
        class_names=index.class_names,
        counts=counts,
        problems=tuple(sorted(problems, key=lambda p: (order.index(p.type), p.path))),
    )


def _describe_error(error: DataError, root: Path) -> Problem:
    """Return a problem of type ``structure`` with the message of an error, without the root."""
    return Problem("structure", root, str(error).removeprefix(f"{path_text(root)} "))


def _list_empty_classes(counts: Sequence[Count], root: Path) -> list[Problem]:
    """Return one problem for each split in which classes lack images in a bucket."""
    problems = []
    for split, noun in (("all", "images"), (TRAIN, "training images"), (TEST, "test images")):
        empty = [count for count in counts if count.split == split and not count.images]
        if empty:
            detail = (
                f"{len(empty)} (class, bucket) pairs have no {noun}, for example class "
                f"{empty[0].class_name!r} in bucket {empty[0].bucket}"
            )
            problems.append(Problem("empty-class", root, detail))
    return problems


def _decode_images(
    images: Sequence[IndexedImage], root: Path, on_progress: OnImages
) -> list[tuple[str, str, int]]:
    """Return what :func:`_decode_image` returns for each image. Images are decoded in threads."""
    blocks = [images[i : i + _FILES_PER_TASK] for i in range(0, len(images), _FILES_PER_TASK)]
    results: list[tuple[str, str, int]] = []
    on_progress("decoding images", 0, len(images))
    with ThreadPoolExecutor(max_workers=count_usable_cores()) as pool:
        for block in pool.map(lambda block: [_decode_image(i, root) for i in block], blocks):
            results += block
            on_progress("decoding images", len(results), len(images))
    return results


def _decode_image(image: IndexedImage, root: Path) -> tuple[str, str, int]:
    """Return an image's hash (or ""), why it is unreadable (or ""), and its brightest area."""
    path = image.path
    if image.content:  # a vector, which was read already
        return image.content, "", 255
    try:
        num_bytes = stat_file(path, root=root).st_size
        if num_bytes > MAX_IMAGE_BYTES:
            return "", f"has {num_bytes} bytes; expected {MAX_IMAGE_BYTES} at most", 0
        pixels = decode_file(path, None, Resize(8))  # as in training
        return hash_file(path), "", int(pixels.max())
    except UndecodableError as error:
        return "", f"cannot be decoded: {error}", 0
    except (DataError, OSError) as error:
        return "", reason(error).removeprefix(f"{path_text(path)} "), 0
