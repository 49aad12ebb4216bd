"""Check a dataset: what is there, and everything that is wrong with it.

A loader stops at the first problem, because a training must not start then. Here its parser reports
every problem and continues; then every image is decoded, and contents are compared.
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

from clear_mlflow.core.distributed import usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES, hash_file
from clear_mlflow.data import own_listing
from clear_mlflow.data.checking.content import Image, doubles, stream_of
from clear_mlflow.data.decoding.decode import Resize, decode
from clear_mlflow.data.files import path_text, reason, regular_file
from clear_mlflow.data.layouts import find_layout, list_layout
from clear_mlflow.data.problems import KINDS, Problem, reported
from clear_mlflow.data.sources import CLEAR, stream_name
from clear_mlflow.data.splits import Listing
from clear_mlflow.data.stream import ImageSet

SCHEMA = 1

_FILES_IN_A_TASK = 16

OnImages = Callable[[str, int, "int | None"], None]


@dataclass(frozen=True)
class Count:
    """Images of one class in one bucket, as they lie on disk."""

    split: str  # train or test; all where the layout has no such folders
    bucket: str
    class_name: str
    images: int


@dataclass(frozen=True)
class Findings:
    """What is there, and what is wrong."""

    root: Path
    layout: str
    digest: str | None  # the stream's; None where the loader cannot read it
    buckets: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: tuple[Count, ...]
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs; docs/data-commands.md has the schema."""
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
                    "kind": p.kind,
                    "path": str(p.path),
                    "detail": p.detail,
                    "others": [str(path) for path in p.others],
                }
                for p in self.problems
            ],
        }


class _Survey:
    """What is found of a dataset: its images, and every problem once."""

    def __init__(self, root: Path, layout: str) -> None:
        self.root = root
        self.layout = layout
        self.listing: Listing | None = None
        self.harmless: tuple[str, ...] = ()  # kinds of problems that stop no loader
        self.images: list[Image] = []
        self.problems: list[Problem] = []
        # (split, bucket) in order, and the names of all classes.
        self.buckets: dict[tuple[str, str], None] = {}
        self.class_names: tuple[str, ...] = ()

    def report(self, kind: str, path: Path, error: DataError) -> None:
        """Messages begin with the path, which is shown beside the detail."""
        self.add(kind, path, str(error).removeprefix(f"{path_text(path)} "))

    def add(self, kind: str, path: Path, detail: str) -> None:
        """A problem."""
        self.problems.append(Problem(kind, path, detail))

    def take(self, listing: Listing) -> None:
        """The images that the parser listed."""
        self.class_names = listing.class_names
        released_test = listing.released_test
        self._take("all" if released_test is None else "train", listing.images)
        if released_test is not None:
            tests = released_test()
            self._take(TEST, tests)
            listing = dataclasses.replace(listing, released_test=lambda: tests)
        self.listing = listing

    def _take(self, split: str, images: Mapping[str, ImageSet]) -> None:
        for key, of_bucket in images.items():
            self.buckets[split, key] = None
            contents = of_bucket.contents or [""] * len(of_bucket)
            labels = of_bucket.labels.tolist()
            for path, label, content in zip(of_bucket.paths, labels, contents, strict=True):
                self.images.append(Image(split, key, self.class_names[label], path, content))

    def findings(self, name: str, on_progress: OnImages) -> Findings:
        """Decode the images, compare them, and see whether the loader takes the dataset."""
        seen = _looked_at(self.images, self.root, on_progress)
        files = (image.path for image in self.images if not image.content)
        gone = {path for path in files if not os.path.lexists(path)}
        for image, (_, wrong) in zip(self.images, seen, strict=True):
            if wrong:
                self.add("missing" if image.path in gone else "unreadable", image.path, wrong)
        digest = None
        parts = {image.path: image.split for image in self.images}
        refusal = None
        if self.listing is not None and all(
            p.kind in ("unreadable", *self.harmless) for p in self.problems
        ):
            try:
                stream = stream_of(self.listing, name=name)
            except DataError as error:
                refusal = error
            else:
                digest = stream.digest
                # Where folders do not show the test set, the loader names its images.
                for bucket in stream.buckets:
                    parts |= dict.fromkeys(bucket.train.paths, "train")
                    parts |= dict.fromkeys(bucket.test.paths, TEST)
        sound = (
            image._replace(split=parts[image.path], content=content)
            for image, (content, wrong) in zip(self.images, seen, strict=True)
            if not wrong
        )
        may_repeat = self.listing is not None and self.listing.may_repeat
        for kind, (first, *others) in () if may_repeat else doubles(sound):
            detail = f"{len(others) + 1} copies of one image"
            paths = tuple(image.path for image in others)
            self.problems.append(Problem(kind, first.path, detail, paths))
        if refusal is not None and all(p.kind == "within-bucket" for p in self.problems):
            self.report("structure", self.root, refusal)
        number = Counter(
            (i.split, i.bucket, i.class_name) for i in self.images if i.path not in gone
        )
        order = list(KINDS)
        return Findings(
            root=self.root,
            layout=self.layout,
            digest=digest,
            buckets=tuple(dict.fromkeys(key for _, key in self.buckets)),
            class_names=self.class_names,
            counts=tuple(
                Count(split, key, name, number[split, key, name])
                for split, key in self.buckets
                for name in self.class_names
            ),
            problems=tuple(
                sorted(self.problems, key=lambda problem: (order.index(problem.kind), problem.path))
            ),
        )


def _looked_at(images: Sequence[Image], root: Path, on_progress: OnImages) -> list[tuple[str, str]]:
    """The content of each image and why it cannot be decoded, in several threads; one is empty."""
    blocks = [images[i : i + _FILES_IN_A_TASK] for i in range(0, len(images), _FILES_IN_A_TASK)]
    seen: list[tuple[str, str]] = []
    on_progress("looking at images", 0, len(images))
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        for block in pool.map(lambda block: [_looked(i, root) for i in block], blocks):
            seen += block
            on_progress("looking at images", len(seen), len(images))
    return seen


def _looked(image: Image, root: Path) -> tuple[str, str]:
    path = image.path
    if image.content:  # a vector, which was read to be listed
        return image.content, ""
    try:
        num_bytes = regular_file(path, root=root).st_size
        if num_bytes > MAX_IMAGE_BYTES:
            return "", f"has {num_bytes} bytes; expected {MAX_IMAGE_BYTES} at most"
        # What training does: so that what passes here is what it can decode.
        decode(ImageSet(paths=(path,), labels=np.zeros(1, dtype=np.int64)), Resize(8))
        return hash_file(path), ""
    except (DataError, OSError) as error:
        return "", reason(error).removeprefix(f"{path_text(path)} ")


def check(root: Path, *, on_progress: OnImages = lambda what, done, total: None) -> Findings:
    """Look over the dataset of CLEAR at *root*; every problem is in the findings, once."""
    layout, folder = find_layout(root, names=CLEAR)
    survey = _Survey(folder.resolve(), layout)
    with reported(survey.report, "structure", survey.root):
        survey.take(list_layout(layout, survey.root, survey.report))
    return survey.findings("dataset", on_progress)


def check_own(
    dataset: str,
    data_root: str,
    arguments: Mapping[str, Any],
    *,
    cache_dir: Path,
    on_progress: OnImages,
) -> Findings:
    """Look over a stream of one's own; every problem is in the findings, once."""
    listing = own_listing(dataset, data_root, cache_dir=cache_dir, arguments=arguments)
    survey = _Survey(listing.root, listing.layout)
    survey.harmless = ("empty-class",)
    with reported(survey.report, "structure", survey.root):
        survey.take(listing)
    there = {(image.split, image.bucket, image.class_name) for image in survey.images}
    for split, key in survey.buckets:
        for name in listing.class_names:
            if (split, key, name) not in there:
                detail = f"has no images of class {name!r} in bucket {key!r} ({split})"
                survey.add("empty-class", listing.root, detail)
    return survey.findings(stream_name(dataset, data_root, arguments), on_progress)
