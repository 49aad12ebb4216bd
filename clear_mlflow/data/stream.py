"""A stream of buckets: a table of images that is split, hashed and checked for copies."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from itertools import combinations, compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.matrix import TEST, VALIDATION, get_divided_split, get_measured_split
from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.data.cache import HashCache
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import TRAIN, ImageIndex, ImageTable, Rows

AUTO = "auto"
IID = "iid"
STREAMING = "streaming"
TEST_RATIO = 0.3
STORED_SPLITS = range(5)  # the seeds of the splits that the older layout stores
STREAM = "stream"  # the test set is drawn from the complete stream, whatever its buckets are
_NUMBER = f"({STREAM}:)?(0|[1-9][0-9]{{0,17}})"
_SPLIT = re.compile(f"{AUTO}|{_NUMBER}|{VALIDATION}(:{_NUMBER})?")

OnImage: TypeAlias = Callable[[int, int], None]  # receives how many images are done, of how many

DOMAIN = "domain"  # the scenario in which all buckets have the same classes
_FILES_PER_TASK = 32

# How copies of one image differ, worst first: the column and a phrase for messages.
DIFFERENCES = {
    "split": "in both a training and a {test} set",
    "bucket": "in more than one bucket of one split",
    "class_name": "under more than one class",
}


@dataclass(frozen=True, eq=False)
class BucketStream:
    """A dataset as buckets in time order, over the same classes."""

    dataset: DatasetDescription  # without what describe_stream adds; paths do not change its digest
    images: ImageTable  # of all buckets
    layout: str = ""  # how the files are stored, for people
    standardise: str = "none"  # of vectors: see ImageIndex
    time_stream: BucketStream | None = None  # in a scenario, the stream that it was made from

    @cached_property
    def train(self) -> tuple[ImageTable, ...]:
        """The training images of each bucket."""
        return self._divide(self.images.training_images)

    @cached_property
    def test(self) -> tuple[ImageTable, ...]:
        """The test images of each bucket, under ``streaming`` its training images."""
        is_streaming = self.dataset.protocol == STREAMING
        return self.train if is_streaming else self._divide(self.images.test_images)

    def _divide(self, images: ImageTable) -> tuple[ImageTable, ...]:
        groups = images.group_by_bucket(len(self.dataset.buckets))
        return tuple(images.take(rows) for rows in groups)

    @property
    def image_sets(self) -> tuple[ImageTable, ...]:
        """Each set of images once: first the training sets, bucket by bucket."""
        return self.train if self.test is self.train else self.train + self.test

    @property
    def has_vectors(self) -> bool:
        """True if the stream consists of vectors instead of images."""
        return self.images.vectors is not None

    def with_metadata(self, **changes: Any) -> BucketStream:
        """Return this stream with other fields of its description."""
        return replace(self, dataset=replace(self.dataset, **changes))

    def with_images(self, images: ImageTable, **changes: Any) -> BucketStream:
        """Return this stream with other, hashed images, and their digest."""
        stream = replace(self.with_metadata(**changes), images=images)
        return stream.with_metadata(digest=_compute_digest(stream))


def build_stream(
    index: ImageIndex,
    *,
    name: str,
    protocol: str = IID,
    split: str = AUTO,
    hash_folder: Path | None = None,
    on_image: OnImage = lambda done, total: None,
) -> BucketStream:
    """Apply a split and hash its images. Nothing is decoded.

    hash_folder: folder that keeps the hashes of files for later calls, or None to hash every file.
    on_image: called while images are hashed.

    Images that occur twice are warnings of the stream. Raises DataError if two sets share over half
    of the images of the smaller one, or lack a class that the index requires.
    """
    if get_divided_split(split).startswith(f"{STREAM}:"):  # contents decide
        training_images = _hash_images(index, index.images.training_images, hash_folder, on_image)
        index = replace(index, images=training_images)
    images, split, warnings = apply_split(index, protocol=protocol, split=split)
    if index.needs_all_classes:
        _check_all_classes(index.images.training_images, index)
        if split == "released":
            _check_all_classes(images.test_images, index)
    dataset = DatasetDescription(
        name=name,
        protocol=protocol,
        split=get_measured_split(split),
        buckets=index.buckets,
        class_names=index.class_names,
        source=index.source or path_text(index.root),
        division=split,
        times=tuple(date.fromisoformat(index.times[k]) for k in index.buckets if index.times),
    )
    stream = BucketStream(dataset, images, index.layout, index.standardise)
    stream = stream.with_images(_hash_images(index, images, hash_folder, on_image))
    if not index.may_repeat:
        warnings += _describe_copies(stream)
    return stream.with_metadata(warnings=(*index.warnings, *warnings))


def apply_split(
    index: ImageIndex, *, protocol: str, split: str
) -> tuple[ImageTable, str, tuple[str, ...]]:
    """Divide images by a split, and return them, its name and warnings.

    The name is released, N, none or a validation split's. Reads the lists of stored splits if they
    are used. Raises DataError if the released test images are used and invalid, or if a bucket has
    too few images to hold some out.
    """
    images = index.images.training_images
    warnings: tuple[str, ...] = ()
    if protocol == STREAMING:
        return images, "none", warnings
    name, validates = get_divided_split(split), get_measured_split(split) == VALIDATION
    if name.startswith(f"{STREAM}:"):
        images = _hold_out_by_content(images, index, int(name.partition(":")[2]))
    elif name != AUTO or not index.has_test_set:
        number = 0 if name == AUTO else int(name)
        name = str(number)
        images, warnings = _hold_out_test(images, index, number)
    elif validates:
        name = ""
    elif index.test_error is not None:
        raise index.test_error
    else:
        name, images = "released", index.images
    if validates:
        images = images.training_images
        is_test, advice = draw_validation_split(images), "pass split=auto, or more images"
        images = _hold_out(images, index, is_test, "would be held out for validation", advice)
        name = ":".join(filter(None, (VALIDATION, name)))
    return images, name, warnings


def _hold_out_test(
    images: ImageTable, index: ImageIndex, number: int
) -> tuple[ImageTable, tuple[str, ...]]:
    is_test = index.read_split and index.read_split(number)
    warnings: tuple[str, ...] = ()
    if is_test is None:
        is_test = np.zeros(len(images), dtype=np.bool_)
        for rows in images.group_by_bucket(len(index.buckets)):
            is_test[rows[draw_split(len(rows), number)]] = True
        if index.read_split is not None and number in STORED_SPLITS:
            warnings = (
                f"split {number} is not stored in {path_text(index.root)}; it was drawn again, and "
                "may differ from the published one",
            )
    purpose = f"would be held out as {TEST_RATIO:.0%} to test on"
    advice = "pass protocol=streaming, or at least 4 images of each bucket"
    return _hold_out(images, index, is_test, purpose, advice), warnings


def _hold_out_by_content(images: ImageTable, index: ImageIndex, seed: int) -> ImageTable:
    is_test = np.array([_is_drawn(content, seed) for content in images.contents], dtype=np.bool_)
    purpose = f"are in the test set of split={STREAM}:{seed}"
    return _hold_out(images, index, is_test, purpose, "pass wider borders, or another seed")


def _hold_out(
    images: ImageTable, index: ImageIndex, is_test: NDArray[np.bool_], purpose: str, advice: str
) -> ImageTable:
    for key, rows in zip(index.buckets, images.group_by_bucket(len(index.buckets)), strict=True):
        number = int(is_test[rows].sum())
        if not 0 < number < len(rows):
            raise DataError(
                f"bucket {key} of {path_text(index.root)} has {format_count(len(rows), 'image')}, "
                f"of which {number} {purpose}; expected some to train on and some to hold out: "
                f"{advice}"
            )
    return replace(images, is_test=is_test)


def _is_drawn(content: str, seed: int) -> bool:
    """Return whether an image is tested, in every division into buckets."""
    digest = hashlib.sha256(f"{seed}\0{content}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_RATIO * 2**64


def parse_split(text: str) -> str:
    """Return *text* if it names a split. Raises ValueError otherwise."""
    if not _SPLIT.fullmatch(text):
        raise ValueError(
            f"expected {AUTO}, a whole number of up to 18 digits, {STREAM}:N, {VALIDATION}, "
            f"{VALIDATION}:N for the validation split of split N, or {VALIDATION}:{STREAM}:N"
        )
    return text


def check_split(protocol: str, split: str) -> None:
    """Raise ConfigError if a protocol and a split contradict each other."""
    if split != AUTO and protocol == STREAMING:
        raise ConfigError(
            f"split is {split}, but under {STREAMING} a bucket is tested on its training images "
            f"and nothing is held out; pass protocol={IID}, or leave split at {AUTO}",
            parameter="split",
        )


def draw_split(num_images: int, seed: int) -> Rows:
    """Draw a bucket's int(0.3 n) test images, and return ascending indices.

    The last shuffled images are held out, as in CLEAR's prepare_training_folder.py.
    """
    indices = list(range(num_images))
    random.Random(seed).shuffle(indices)  # noqa: S311 (the published procedure, not a secret)
    return np.array(sorted(indices[num_images - int(TEST_RATIO * num_images) :]), dtype=np.int64)


def draw_validation_split(images: ImageTable) -> NDArray[np.bool_]:
    """Return which images are held out for validation: a tenth.

    These are a tenth of each bucket's images of each class, and at least one of each class that has
    two. The hash of an image's id decides, so the split is the same for all seeds.
    """
    held_out, ids = np.zeros(len(images), dtype=np.bool_), images.ids
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row, group in enumerate(zip(images.buckets.tolist(), images.labels.tolist(), strict=True)):
        groups[group].append(row)
    for (_, label), rows in groups.items():
        rows.sort(key=lambda row: _hash_id(label, ids[row]))
        held_out[rows[: max(1, (len(rows) + 5) // 10) if len(rows) > 1 else 0]] = True
    return held_out


def _hash_id(label: int, image_id: str) -> bytes:
    """Return a key to sort by, which depends on no other image."""
    return hashlib.sha256(os.fsencode(f"{VALIDATION}\0{label}\0{image_id}")).digest()


def _check_all_classes(images: ImageTable, index: ImageIndex) -> None:
    counts = images.count_classes(len(index.buckets), len(index.class_names))
    for bucket, label in np.argwhere(counts == 0).tolist():
        raise DataError(
            f"{path_text(index.root)} has no images of class "
            f"{safe_repr(index.class_names[label])} in a set of bucket "
            f"{index.buckets[bucket]}; expected images of every class in every bucket: "
            "unpack the dataset again"
        )


def _hash_images(
    index: ImageIndex, images: ImageTable, hash_folder: Path | None, on_image: OnImage
) -> ImageTable:
    """Return the images with contents, hashed where not known."""
    contents = list(images.contents or ("",) * len(images))
    unknown = [i for i, content in enumerate(contents) if not content]
    blocks = [unknown[i : i + _FILES_PER_TASK] for i in range(0, len(unknown), _FILES_PER_TASK)]
    # More threads than cores: on a network file system, most of the time is spent on waiting.
    with (
        HashCache(hash_folder, index.root) as hashes,
        ThreadPoolExecutor(max_workers=4 * count_usable_cores()) as pool,
    ):

        def hash_block(rows: Sequence[int]) -> None:
            for row in rows:
                contents[row] = hashes.hash_file(images.files[row])

        for num_blocks, _ in enumerate(pool.map(hash_block, blocks), 1):
            hashes.save_at_times()
            on_image(min(num_blocks * _FILES_PER_TASK, len(unknown)), len(unknown))
    return replace(images, contents=tuple(contents))


def _compute_digest(stream: BucketStream) -> str:
    """Hash split, bucket, class and content of all images, without paths."""
    images, dataset = stream.images, stream.dataset
    lines = []
    for is_test, split in ((False, TRAIN), (True, dataset.split)):
        rows = images.is_test == (is_test and dataset.protocol != STREAMING)
        for bucket, label, content in zip(
            images.buckets[rows].tolist(),
            images.labels[rows].tolist(),
            compress(images.contents, rows.tolist()),
            strict=True,
        ):
            names = (split, dataset.buckets[bucket], dataset.class_names[label], content)
            lines.append("\0".join(names))
    digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    if not dataset.scenario:
        return f"sha256:{digest}"
    # Scenarios are different tasks on the same images: their results are not comparable.
    scenario = f"{dataset.scenario['name']}\0sha256:{digest}"
    return f"sha256:{hashlib.sha256(scenario.encode()).hexdigest()}"


def find_copies(images: ImageTable) -> list[tuple[str, list[int]]]:
    """Group the rows of equal contents by what differs most.

    The column is a key of ``DIFFERENCES``, or empty for copies in one bucket, split and class.
    """
    counts = Counter(images.contents)
    copies: defaultdict[str, list[int]] = defaultdict(list)
    for row in np.lexsort((images.is_test, images.buckets)).tolist():
        if counts[images.contents[row]] > 1:
            copies[images.contents[row]].append(row)
    return [
        (next((c for c in DIFFERENCES if len(_select_distinct(images, rows, c)) > 1), ""), rows)
        for rows in copies.values()
    ]


def _select_distinct(images: ImageTable, rows: Sequence[int], *columns: str) -> list[int]:
    """Return the first row for each value of these keys of ``DIFFERENCES``."""
    arrays = {"split": images.is_test, "bucket": images.buckets, "class_name": images.labels}
    values = [tuple(arrays[column][row] for column in columns) for row in rows]
    return list(dict(zip(reversed(values), reversed(rows), strict=True)).values())[::-1]


def _describe_copies(stream: BucketStream) -> tuple[str, ...]:
    """Return warnings about copies, or raise DataError if sets share most images."""
    images, dataset = stream.images, stream.dataset
    noun = "row" if stream.has_vectors else "image"

    def format_pair(rows: Sequence[int]) -> str:
        return " and ".join(path_text(images.files[row]) for row in rows[:2])

    def describe_set(row: int) -> tuple[str, str]:
        split = dataset.split if images.is_test[row] else TRAIN
        return split, dataset.buckets[images.buckets[row]]

    copies = find_copies(images)
    shared: defaultdict[tuple[tuple[str, str], ...], list[tuple[int, ...]]] = defaultdict(list)
    for _, rows in copies:
        for pair in combinations(_select_distinct(images, rows, "split", "bucket"), 2):
            shared[tuple(map(describe_set, pair))].append(pair)
    sets = {(describe_set(row), images.contents[row]) for row in range(len(images)) if shared}
    sizes = Counter(key for key, _ in sets)
    for keys, pairs in shared.items():
        smaller = min(sizes[key] for key in keys)
        if 2 * len(pairs) > smaller:
            both = " and ".join(f"bucket {bucket}'s {split} {noun}s" for split, bucket in keys)
            advice = "if the metadata lists images twice, unpack the dataset again"
            if stream.has_vectors:
                advice = "pass more columns, or dataset_args=may_repeat=yes if rows may be equal"
            raise DataError(
                f"{both} share {len(pairs)} of {smaller} {noun}s, for example "
                f"{format_pair(pairs[0])}; buckets and splits must be disjoint: {advice}"
            )
    warnings = []
    for column, phrase in DIFFERENCES.items():
        if groups := [rows for difference, rows in copies if difference == column]:
            number = format_count(len(groups), f"{noun} is", f"{noun}s are")
            example = format_pair(_select_distinct(images, groups[0], column))
            warnings.append(f"{number} {phrase.format(test=dataset.split)}, for example {example}")
    return tuple(warnings)


def iter_with_progress(
    sets: Sequence[ImageTable], on_image: OnImage
) -> Iterator[tuple[ImageTable, Callable[[int], None]]]:
    """Yield each set of images, and a function to report progress.

    That function calls *on_image* with the number done in all sets, and their total.
    """
    total, num_before = sum(map(len, sets)), 0
    for images in sets:

        def on_ready(done: int, before: int = num_before) -> None:
            on_image(before + done, total)

        yield images, on_ready
        num_before += len(images)


def build_evaluation_set(stream: BucketStream) -> EvaluationSet:
    """Return all buckets' test images: labels, hashes and file names."""
    tests = stream.test
    contents = b"".join(bytes.fromhex(c)[:16] for images in tests for c in images.contents)
    return EvaluationSet(
        buckets=stream.dataset.buckets,
        class_names=stream.dataset.class_names,
        bucket=np.repeat(np.arange(len(tests)), [len(i) for i in tests]).astype(np.uint16),
        label=np.concatenate([images.labels for images in tests]).astype(np.uint16),
        content=np.frombuffer(contents, dtype=np.uint8).reshape(-1, 16).copy(),
        names=tuple(path_text(path.stem) for images in tests for path in images.paths),
    )


def describe_stream(stream: BucketStream) -> DatasetDescription:
    """Describe a stream, with a warning on missing training classes."""
    dataset, absent = stream.dataset, dict[str, dict[str, list[str]]]()
    expected = dataset.scenario.get("classes", [dataset.class_names] * len(dataset.buckets))
    for split, sets in ((TRAIN, stream.train), (TEST, stream.test)):
        for key, images, names in zip(dataset.buckets, sets, expected, strict=True):
            present = {dataset.class_names[label] for label in np.unique(images.labels).tolist()}
            if missing := [name for name in names if name not in present]:
                absent.setdefault(split, {})[key] = missing
    pairs = [(name, key) for key, names in absent.get(TRAIN, {}).items() for name in names]
    warnings = [
        f"{len(pairs)} (class, bucket) pairs have no training images, for example class "
        f"{safe_repr(name)} in bucket {safe_repr(key)}"
        for name, key in pairs[:1]
    ]
    return replace(
        dataset,
        num_test=tuple(map(len, stream.test)),
        num_train=tuple(map(len, stream.train)),
        warnings=(*(dataset.warnings or ()), *warnings),
        absent_classes=absent,
    )
