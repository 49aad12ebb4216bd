"""Check a dataset: list its contents and all its problems.

A loader stops at the first problem. Here, the reader reports each problem and continues; then
all images are decoded, and their contents are compared.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, hash_file
from clear_mlflow.data import read_stream_index
from clear_mlflow.data.content import (
    DIFFERENCES,
    Image,
    build_stream,
    find_duplicates,
    iter_image_rows,
)
from clear_mlflow.data.decode import Resize, decode
from clear_mlflow.data.files import path_text, reason, report_errors, stat_file
from clear_mlflow.data.image_index import TRAIN, ImageIndex
from clear_mlflow.data.layouts import find_layout, read_layout
from clear_mlflow.data.sources import CLEAR, stream_name
from clear_mlflow.data.stream import ImageSet

SCHEMA = 1

# Types of problems, in the order in which they are listed.
PROBLEM_TYPES = {
    "structure": "the dataset cannot be read",
    "metadata": "a class list or another metadata file is not as expected",
    "missing": "a listed image does not exist",
    "unreadable": "a file cannot be decoded as an image",
    "empty-class": "a class has no images in a bucket",
    "duplicate": "an image is stored more than once",
}

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
    """Check a dataset in one of CLEAR's layouts."""
    layout, folder = find_layout(root, names=CLEAR)
    checker = _Checker(folder.resolve(), layout)
    with report_errors(checker.report, "structure", checker.root):
        checker.add_index(read_layout(layout, checker.root, checker.report))
    return checker.check_images("dataset", on_progress)


def check_stream(
    dataset: str,
    data_root: str,
    arguments: Mapping[str, Any],
    *,
    cache_dir: Path,
    on_progress: OnImages,
) -> Findings:
    """Check a user's own stream. Classes without images in a bucket are reported as a problem."""
    checker = _Checker()
    index = read_stream_index(
        dataset, data_root, cache_dir=cache_dir, arguments=arguments, report=checker.report
    )
    checker.root, checker.layout = index.root, index.layout
    with report_errors(checker.report, "structure", checker.root):
        checker.add_index(index)
    name = stream_name(dataset, data_root, arguments)
    return checker.check_images(name, on_progress, reports_empty_classes=True)


class _Checker:
    """Collects the images and problems of a dataset."""

    def __init__(self, root: Path = Path(), layout: str = "") -> None:
        self.root = root
        self.layout = layout
        self.index: ImageIndex | None = None  # set if the dataset could be read completely
        self.class_names: tuple[str, ...] = ()
        self.images: list[Image] = []
        self.problems: list[Problem] = []
        self.buckets: list[tuple[str, str]] = []  # (split, bucket)

    def report(self, problem_type: str, path: Path, error: DataError) -> None:
        """Add a problem. Its path, with which most messages begin, is printed separately."""
        detail = str(error).removeprefix(f"{path_text(path)} ")
        self.problems.append(Problem(problem_type, path, detail))

    def add_index(self, index: ImageIndex) -> None:
        """Add all images of an index."""
        self.class_names = index.class_names
        read_test = index.read_test
        self._add_images("all" if read_test is None else TRAIN, index.images)
        if read_test is not None:
            tests = read_test()
            self._add_images(TEST, tests)
            index = dataclasses.replace(index, read_test=lambda: tests)
        self.index = index

    def _add_images(self, split: str, sets: Mapping[str, ImageSet]) -> None:
        for key, images in sets.items():
            self.buckets.append((split, key))
            self.images += iter_image_rows(images, split, key, self.class_names)

    def check_images(
        self, name: str, on_progress: OnImages, *, reports_empty_classes: bool = False
    ) -> Findings:
        """Decode all images, search for duplicates, and try to load the dataset.

        The findings include the problems of earlier checks.
        """
        files = (image.path for image in self.images if not image.content)
        missing = {path for path in files if not os.path.lexists(path)}
        can_load = self.index is not None and not self.problems and not missing
        results = _decode_images(self.images, self.root, on_progress)
        for image, (_, error) in zip(self.images, results, strict=True):
            if error:
                problem_type = "missing" if image.path in missing else "unreadable"
                self.problems.append(Problem(problem_type, image.path, error))
        splits = {image.path: image.split for image in self.images}
        digest = load_error = None
        if self.index is not None and can_load:
            try:
                stream = build_stream(self.index, name=name)
            except DataError as error:
                load_error = error
            else:
                digest = stream.digest
                # In a layout without a test folder, only the loader separates the test images.
                for bucket in stream.buckets:
                    splits |= dict.fromkeys(bucket.train.paths, TRAIN)
                    splits |= dict.fromkeys(bucket.test.paths, TEST)
        is_explained = bool(self.problems)
        decoded = [
            image._replace(split=splits[image.path], content=content)
            for image, (content, error) in zip(self.images, results, strict=True)
            if not error
        ]
        may_repeat = self.index is not None and self.index.may_repeat
        for difference, copies in () if may_repeat else find_duplicates(decoded):
            detail = f"{len(copies)} copies of one image"
            if difference:
                detail += f", {DIFFERENCES[difference].format(test=TEST)}"
                is_explained = True
            paths = tuple(image.path for image in copies)
            self.problems.append(Problem("duplicate", paths[0], detail, paths[1:]))
        if load_error is not None and not is_explained:
            self.report("structure", self.root, load_error)
        numbers = Counter(
            (i.split, i.bucket, i.class_name) for i in self.images if i.path not in missing
        )
        counts = tuple(
            Count(split, key, name, numbers[split, key, name])
            for split, key in self.buckets
            for name in self.class_names
        )
        if reports_empty_classes:
            self._report_empty_classes(counts)
        order = list(PROBLEM_TYPES)
        return Findings(
            root=self.root,
            layout=self.layout,
            digest=digest,
            buckets=tuple(dict.fromkeys(key for _, key in self.buckets)),
            class_names=self.class_names,
            counts=counts,
            problems=tuple(sorted(self.problems, key=lambda p: (order.index(p.type), p.path))),
        )

    def _report_empty_classes(self, counts: Sequence[Count]) -> None:
        """Add one problem for each split in which classes lack images in a bucket."""
        for split, images in (("all", "images"), (TRAIN, "training images"), (TEST, "test images")):
            empty = [c for c in counts if c.split == split and not c.images]
            if len(empty) == 1:
                detail = (
                    f"class {empty[0].class_name!r} has no {images} in bucket {empty[0].bucket}"
                )
            elif empty:
                detail = (
                    f"{len(empty)} (class, bucket) pairs have no {images}, for example class "
                    f"{empty[0].class_name!r} in bucket {empty[0].bucket}"
                )
            else:
                continue
            self.problems.append(Problem("empty-class", self.root, detail))


def _decode_images(
    images: Sequence[Image], root: Path, on_progress: OnImages
) -> list[tuple[str, str]]:
    """Return the content of each image, or an empty text and the reason why it is unreadable."""
    blocks = [images[i : i + _FILES_PER_TASK] for i in range(0, len(images), _FILES_PER_TASK)]
    results: list[tuple[str, str]] = []
    on_progress("decoding images", 0, len(images))
    with ThreadPoolExecutor(max_workers=count_usable_cores()) as pool:
        for block in pool.map(lambda block: [_decode_image(i, root) for i in block], blocks):
            results += block
            on_progress("decoding images", len(results), len(images))
    return results


def _decode_image(image: Image, root: Path) -> tuple[str, str]:
    path = image.path
    if image.content:  # a vector, which was read already
        return image.content, ""
    try:
        num_bytes = stat_file(path, root=root).st_size
        if num_bytes > MAX_IMAGE_BYTES:
            return "", f"has {num_bytes} bytes; expected {MAX_IMAGE_BYTES} at most"
        # As in training, so that training can decode what passes here.
        decode(ImageSet(paths=(path,), labels=np.zeros(1, dtype=np.int64)), Resize(8))
        return hash_file(path), ""
    except (DataError, OSError) as error:
        return "", reason(error).removeprefix(f"{path_text(path)} ")
