"""A stream of buckets: which image files belong to which bucket, split and class."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import measured_split
from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.data.files import check_place, path_text, resolve_folder
from clear_mlflow.data.problems import Report, reported

DOMAIN = "domain"  # the scenario in which all buckets hold the same classes


@dataclass(frozen=True, eq=False)
class Vectors:
    """Rows of an array, which may be a mapped file: they are read when they are asked for."""

    array: NDArray[np.float32]  # (all rows, width)
    rows: NDArray[np.int64]  # (N,), which of them

    @property
    def shape(self) -> tuple[int, int]:
        """(N, width)."""
        return len(self.rows), self.array.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """The chosen rows, (n, width), in memory."""
        return np.asarray(self.array[self.rows[index]])


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Image files, or vectors, and their labels, in a fixed order; nothing is decoded."""

    paths: tuple[Path, ...]  # of a vector, its row: ``FILE/row 17``
    labels: NDArray[np.int64]  # (len(paths),), an index into the stream's class names; read-only
    # SHA-256 of each file, or of a vector's bytes, hexadecimal; empty where not yet known.
    contents: tuple[str, ...] = ()
    vectors: Vectors | None = None  # in the place of files

    def __len__(self) -> int:
        return len(self.paths)

    def ids(self) -> list[str]:
        """What distinguishes images of a class: names of files, contents of vectors."""
        return [path.stem for path in self.paths] if self.vectors is None else [*self.contents]

    def take(self, indices: NDArray[np.int64]) -> ImageSet:
        """The images at *indices*, in that order."""
        labels = self.labels[indices]
        labels.setflags(write=False)
        order = indices.tolist()
        return ImageSet(
            paths=tuple(self.paths[i] for i in order),
            labels=labels,
            contents=tuple(self.contents[i] for i in order) if self.contents else (),
            vectors=self.vectors and Vectors(self.vectors.array, self.vectors.rows[indices]),
        )


def image_set(entries: Iterable[tuple[int, Path]]) -> ImageSet:
    """The images of one bucket, given as (label, path), in the order of label and file name."""
    ordered = sorted((label, path.stem, path.suffix, path) for label, path in entries)
    labels = np.array([label for label, *_ in ordered], dtype=np.int64)
    labels.setflags(write=False)
    return ImageSet(paths=tuple(path for *_, path in ordered), labels=labels)


def vector_set(
    entries: Iterable[tuple[int, int]], *, array: NDArray[np.float32], source: Path, first_row: int
) -> ImageSet:
    """The vectors of one bucket, given as (label, row), in the order of label and content."""
    found = []
    for label, row in entries:
        if not np.isfinite(array[row]).all():
            raise DataError(
                f"{path_text(source)} row {row + first_row} holds a number that is missing, "
                "infinite or beyond the range of 32-bit floats; expected finite ones, or of "
                "missing ones dataset_args=fill=NUMBER"
            )
        content = hashlib.sha256(array[row].astype("<f4", copy=False).tobytes()).hexdigest()
        found.append((label, content, row))
    labels, contents, rows = zip(*sorted(found), strict=True)
    of_labels = np.array(labels, dtype=np.int64)
    of_labels.setflags(write=False)
    paths = tuple(source / f"row {row + first_row}" for row in rows)
    return ImageSet(paths, of_labels, contents, Vectors(array, np.array(rows, dtype=np.int64)))


def placed_images(
    named: Iterable[tuple[Path, int, Path]],
    *,
    base: Path,
    key: str,
    class_names: Sequence[str],
    others_allowed: bool = False,
    root: Path,
    report: Report,
) -> ImageSet:
    """A bucket's images, each once, of (path, label, list); folders may have other names."""
    allowed = frozenset(class_names) if others_allowed else None
    labels: dict[Path, int] = {}
    folders: dict[tuple[str, int], bool] = {}
    for path, label, named_in in named:
        if path in labels:
            twice = f"{path_text(named_in)} lists {path_text(path)} twice; unpack the dataset again"
            report("metadata", named_in, DataError(twice))
            continue
        # Once for a folder, not for each of its images: resolving walks every folder above.
        place = (os.path.dirname(path), label)  # noqa: PTH120 (of each image)
        if place not in folders:
            folder, folders[place] = Path(place[0]), False
            with reported(report, "structure" if os.path.lexists(folder) else "missing", folder):
                check_place(
                    folder,
                    base=base,
                    key=key,
                    class_name=class_names[label],
                    class_names=allowed,
                    named_in=named_in,
                )
                resolve_folder(folder, root=root)
                folders[place] = True
        if folders[place]:
            labels[path] = label
    return image_set((label, path) for path, label in labels.items())


@dataclass(frozen=True, eq=False)
class Bucket:
    """One step of the stream: what is trained on, and the test or validation images."""

    key: str
    train: ImageSet
    test: ImageSet


@dataclass(frozen=True, eq=False)
class BucketStream:
    """A dataset as CLEAR has it: buckets in time order, over the same classes."""

    name: str
    class_names: tuple[str, ...]  # the index is the label
    buckets: tuple[Bucket, ...]
    digest: str  # of every image's content, class, bucket and split; not of where the files lie
    warnings: tuple[str, ...] = ()  # what is odd but does not stop a run; one line each
    layout: str = ""  # how the files lie, for people
    protocol: str = "iid"  # or "streaming": each bucket's test set is its training set
    split: str = "released"  # see splits.choose
    source: str = ""  # where it was read from, for people; never opened again
    times: tuple[str, ...] = ()  # a date for each bucket, as 2004-05-17; empty where not known
    licence: str = ""  # of the images, as whoever published them says; empty where not known
    standardise: str = "none"  # of vectors: see splits.Listing
    scenario: str = DOMAIN  # or "class" or "task": see scenarios.in_scenario
    dealt: tuple[tuple[str, ...], ...] = ()  # in a scenario, the classes that each bucket brings
    of_time: BucketStream | None = None  # and the stream that it was made of

    def classes_in(self, split: str) -> list[list[str]]:
        """The classes that each bucket has images of in ``train`` or ``test``."""
        sets = (np.unique(getattr(bucket, split).labels).tolist() for bucket in self.buckets)
        return [[self.class_names[label] for label in labels] for labels in sets]

    @property
    def absent_classes(self) -> dict[str, dict[str, list[str]]]:
        """Of training and test images, the buckets that lack classes of theirs, and which."""
        found: dict[str, dict[str, list[str]]] = {}
        expected = self.dealt or (self.class_names,) * len(self.buckets)
        for split in ("train", "test"):
            there = map(frozenset, self.classes_in(split))
            for bucket, names, seen in zip(self.buckets, expected, there, strict=True):
                if lacks := [name for name in names if name not in seen]:
                    found.setdefault(split, {})[bucket.key] = lacks
        return found

    @property
    def has_vectors(self) -> bool:
        """Whether it is of vectors, and not of images."""
        return self.buckets[0].train.vectors is not None

    @property
    def tested_on(self) -> str:
        """What a bucket's test images are: ``test``, or ``validation`` of its training images."""
        return measured_split(self.split)


def counted(
    sets: Sequence[ImageSet], on_image: Callable[[int, int], None]
) -> Iterator[tuple[ImageSet, Callable[[int], None]]]:
    """Each set of images, and what to call with the number of its images that are ready."""
    total, so_far = sum(map(len, sets)), 0
    for images in sets:

        def on_ready(done: int, before: int = so_far) -> None:
            on_image(before + done, total)

        yield images, on_ready
        so_far += len(images)


def image_sets(stream: BucketStream) -> Iterator[ImageSet]:
    """All sets of images of a stream, each once: training images first, bucket by bucket."""
    yield from (bucket.train for bucket in stream.buckets)
    yield from (bucket.test for bucket in stream.buckets if bucket.test is not bucket.train)


def evaluation_set(stream: BucketStream) -> EvaluationSet:
    """The test images of all buckets; their contents are those that the stream's digest is of."""
    tested = [bucket.test for bucket in stream.buckets]
    contents = b"".join(bytes.fromhex(c)[:16] for images in tested for c in images.contents)
    return EvaluationSet(
        buckets=tuple(bucket.key for bucket in stream.buckets),
        class_names=stream.class_names,
        bucket=np.repeat(np.arange(len(tested)), [len(i) for i in tested]).astype(np.uint16),
        label=np.concatenate([images.labels for images in tested]).astype(np.uint16),
        content=np.frombuffer(contents, dtype=np.uint8).reshape(-1, 16).copy(),
        names=tuple(path_text(Path(path.stem)) for images in tested for path in images.paths),
    )
