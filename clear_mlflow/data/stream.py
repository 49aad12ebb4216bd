"""A stream of buckets: which image files belong to which bucket, split and class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.matrix import get_measured_split
from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.data.files import path_text

DOMAIN = "domain"  # the scenario in which all buckets have the same classes


@dataclass(frozen=True, eq=False)
class Vectors:
    """Rows of an array, which may be a mapped file. They are read when they are indexed."""

    array: NDArray[np.float32]  # (all rows, width)
    rows: NDArray[np.int64]  # (N,), indices into the array

    @property
    def shape(self) -> tuple[int, int]:
        """(N, width)."""
        return len(self.rows), self.array.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the chosen rows, (n, width), in memory."""
        return np.asarray(self.array[self.rows[index]])


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Image files, or vectors, and their labels, in a fixed order. Nothing is decoded."""

    paths: tuple[Path, ...]  # of a vector, its row: ``FILE/row 17``
    labels: NDArray[np.int64]  # (len(paths),), an index into the stream's class names; read-only
    # SHA-256 of each file, or of a vector's bytes, hexadecimal; empty if not hashed yet.
    contents: tuple[str, ...] = ()
    vectors: Vectors | None = None  # instead of files

    def __len__(self) -> int:
        return len(self.paths)

    def ids(self) -> list[str]:
        """Return what distinguishes images of a class: names of files, contents of vectors."""
        return [path.stem for path in self.paths] if self.vectors is None else [*self.contents]

    def take(self, indices: NDArray[np.int64]) -> ImageSet:
        """Return the images at *indices*, in that order."""
        labels = self.labels[indices]
        labels.setflags(write=False)
        order = indices.tolist()
        return ImageSet(
            paths=tuple(self.paths[i] for i in order),
            labels=labels,
            contents=tuple(self.contents[i] for i in order) if self.contents else (),
            vectors=self.vectors and Vectors(self.vectors.array, self.vectors.rows[indices]),
        )


@dataclass(frozen=True, eq=False)
class Bucket:
    """One step of the stream: the training images, and the test or validation images."""

    key: str
    train: ImageSet
    test: ImageSet


@dataclass(frozen=True, eq=False)
class BucketStream:
    """A dataset as a sequence of buckets in time order, over the same classes."""

    name: str
    class_names: tuple[str, ...]  # the index is the label
    buckets: tuple[Bucket, ...]
    digest: str  # of every image's content, class, bucket and split; paths do not change it
    warnings: tuple[str, ...] = ()  # one line each
    layout: str = ""  # how the files are stored, for people
    protocol: str = "iid"  # or "streaming": each bucket's test set is its training set
    split: str = "released"  # see splits.apply_split
    source: str = ""  # place that it was read from, for people; never opened again
    times: tuple[str, ...] = ()  # a date for each bucket, such as 2004-05-17; empty if not known
    licence: str = ""  # of the images, as stated by their publisher; empty if not known
    standardise: str = "none"  # of vectors: see ImageIndex
    scenario: str = DOMAIN  # or "class" or "task": see scenarios.apply_scenario
    new_classes: tuple[tuple[str, ...], ...] = ()  # in a scenario, the classes of each bucket
    time_stream: BucketStream | None = None  # in a scenario, the stream that it was made from

    def list_classes(self, split: str) -> list[list[str]]:
        """Return the classes that each bucket has images of in ``train`` or ``test``."""
        sets = (np.unique(getattr(bucket, split).labels).tolist() for bucket in self.buckets)
        return [[self.class_names[label] for label in labels] for labels in sets]

    @property
    def absent_classes(self) -> dict[str, dict[str, list[str]]]:
        """Classes without images, by split (``train``, ``test``) and bucket."""
        absent: dict[str, dict[str, list[str]]] = {}
        expected = self.new_classes or (self.class_names,) * len(self.buckets)
        for split in ("train", "test"):
            for bucket, names, present in zip(
                self.buckets, expected, map(frozenset, self.list_classes(split)), strict=True
            ):
                if missing := [name for name in names if name not in present]:
                    absent.setdefault(split, {})[bucket.key] = missing
        return absent

    @property
    def has_vectors(self) -> bool:
        """True if the stream consists of vectors instead of images."""
        return self.buckets[0].train.vectors is not None

    @property
    def tested_on(self) -> str:
        """The split that is tested on: ``test``, or ``validation`` of the training images."""
        return get_measured_split(self.split)


def iter_with_progress(
    sets: Sequence[ImageSet], on_image: Callable[[int, int], None]
) -> Iterator[tuple[ImageSet, Callable[[int], None]]]:
    """Yield each set of images, and a function to report how many of them are done.

    That function calls *on_image* with the number done in all sets, and their total.
    """
    total, num_before = sum(map(len, sets)), 0
    for images in sets:

        def on_ready(done: int, before: int = num_before) -> None:
            on_image(before + done, total)

        yield images, on_ready
        num_before += len(images)


def iter_image_sets(stream: BucketStream) -> Iterator[ImageSet]:
    """Yield each set of images of a stream once: first the training sets, bucket by bucket."""
    yield from (bucket.train for bucket in stream.buckets)
    yield from (bucket.test for bucket in stream.buckets if bucket.test is not bucket.train)


def build_evaluation_set(stream: BucketStream) -> EvaluationSet:
    """Return the test images of all buckets: labels, content hashes and names of files."""
    tests = [bucket.test for bucket in stream.buckets]
    contents = b"".join(bytes.fromhex(c)[:16] for images in tests for c in images.contents)
    return EvaluationSet(
        buckets=tuple(bucket.key for bucket in stream.buckets),
        class_names=stream.class_names,
        bucket=np.repeat(np.arange(len(tests)), [len(i) for i in tests]).astype(np.uint16),
        label=np.concatenate([images.labels for images in tests]).astype(np.uint16),
        content=np.frombuffer(contents, dtype=np.uint8).reshape(-1, 16).copy(),
        names=tuple(path_text(Path(path.stem)) for images in tests for path in images.paths),
    )
