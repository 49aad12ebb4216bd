"""Content hashes of images: the digest of a stream, and checks for images in several buckets."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, combinations
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import get_measured_split
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES
from clear_mlflow.data.cache import HashCache
from clear_mlflow.data.files import path_text, reason, stat_file
from clear_mlflow.data.image_index import TRAIN, ImageIndex
from clear_mlflow.data.splits import AUTO, IID, STREAMING, apply_split
from clear_mlflow.data.stream import DOMAIN, Bucket, BucketStream, ImageSet

_FILES_PER_TASK = 32

# How copies of one image differ, worst first: the field and a phrase for messages.
DIFFERENCES = {
    "split": "in both a training and a {test} set",
    "bucket": "in more than one bucket of one split",
    "class_name": "under more than one class",
}


class IndexedImage(NamedTuple):
    """An image of a dataset: its split, bucket and class, and the hash of its content."""

    split: str
    bucket: str
    class_name: str
    path: Path
    content: str = ""  # SHA-256 of the file's bytes, hexadecimal; empty if not hashed


def build_stream(
    index: ImageIndex,
    *,
    name: str,
    protocol: str = IID,
    split: str = AUTO,
    hash_folder: Path | None = None,
) -> BucketStream:
    """Apply a split and hash its images. Nothing is decoded.

    hash_folder: folder that keeps the hashes of files for later calls, or None to hash every file.

    Images that occur twice are warnings of the stream. Raises DataError if two sets share over half
    of the images of the smaller one, or lack a class that the index requires.
    """
    unhashed, split, warnings = apply_split(index, protocol=protocol, split=split)
    if index.needs_all_classes:
        tests = [(bucket.key, bucket.test) for bucket in unhashed if split == "released"]
        _check_all_classes([*index.images.items(), *tests], index)
    buckets = _hash_buckets(unhashed, index.root, hash_folder)
    test_split = get_measured_split(split)
    images = _list_images(buckets, index.class_names, test_split)
    if not index.may_repeat:
        # Under the streaming protocol, each bucket is tested on its training images.
        compared = [i for i in images if protocol != STREAMING or i.split == TRAIN]
        noun = "row" if buckets[0].train.vectors is not None else "image"
        warnings += _check_disjoint(compared, test_split, noun)
    return BucketStream(
        name=name,
        class_names=index.class_names,
        buckets=buckets,
        digest=_compute_digest(images),
        warnings=(*index.warnings, *warnings),
        layout=index.layout,
        protocol=protocol,
        split=split,
        times=tuple(index.times[bucket.key] for bucket in buckets) if index.times else (),
        standardise=index.standardise,
    )


def _check_all_classes(sets: Iterable[tuple[str, ImageSet]], index: ImageIndex) -> None:
    """Raise DataError if a class has no images in the set of a bucket."""
    for key, images in sets:
        for label in sorted(set(range(len(index.class_names))) - set(images.labels.tolist())):
            raise DataError(
                f"{path_text(index.root)} has no images of class "
                f"{safe_repr(index.class_names[label])} in a set of bucket {key}; expected images "
                "of every class in every bucket: unpack the dataset again"
            )


def compute_stream_digest(
    buckets: Sequence[Bucket], class_names: Sequence[str], test_split: str, scenario: str = DOMAIN
) -> str:
    """Return the digest of buckets whose images are hashed already.

    It is ``sha256:`` and a hash of each image's split, bucket, class and content, and of the
    scenario unless that is ``domain``. test_split: name of the split of the test images.
    """
    digest = _compute_digest(_list_images(buckets, class_names, test_split))
    if scenario == DOMAIN:
        return digest
    # Scenarios are different tasks on the same images: their results are not comparable.
    return "sha256:" + hashlib.sha256(f"{scenario}\0{digest}".encode()).hexdigest()


def _list_images(
    buckets: Sequence[Bucket], class_names: Sequence[str], test_split: str
) -> list[IndexedImage]:
    """Return the training and test images (which get *test_split*) of all buckets."""
    return [
        image
        for bucket in buckets
        for split, images in ((TRAIN, bucket.train), (test_split, bucket.test))
        for image in iter_images(images, split, bucket.key, class_names)
    ]


def iter_images(
    images: ImageSet, split: str, bucket: str, class_names: Sequence[str]
) -> Iterator[IndexedImage]:
    """Yield the images of one bucket's set."""
    contents = images.contents or ("",) * len(images)
    for path, label, content in zip(images.paths, images.labels.tolist(), contents, strict=True):
        yield IndexedImage(split, bucket, class_names[label], path, content)


def _hash_buckets(
    buckets: Sequence[Bucket], root: Path, hash_folder: Path | None
) -> tuple[Bucket, ...]:
    """Return the buckets with the contents of all images. Each set of images is hashed once."""
    hashed: dict[int, ImageSet] = {}
    # More threads than cores: on a network file system, most of the time is spent on waiting.
    with (
        HashCache(hash_folder, root) as hashes,
        ThreadPoolExecutor(max_workers=4 * count_usable_cores()) as pool,
    ):
        for images in (images for bucket in buckets for images in (bucket.train, bucket.test)):
            if not images.contents and id(images) not in hashed:
                paths, size = images.paths, _FILES_PER_TASK
                blocks = [paths[i : i + size] for i in range(0, len(paths), size)]
                contents = pool.map(lambda block: [_hash(p, root, hashes) for p in block], blocks)
                hashed[id(images)] = replace(images, contents=tuple(chain.from_iterable(contents)))
    return tuple(
        replace(
            bucket,
            train=hashed.get(id(bucket.train), bucket.train),
            test=hashed.get(id(bucket.test), bucket.test),
        )
        for bucket in buckets
    )


def _hash(path: Path, root: Path, hashes: HashCache) -> str:
    """Return the SHA-256 of an image file, from *hashes* if it is stored there."""
    status = stat_file(path, root=root)
    if not 0 < status.st_size <= MAX_IMAGE_BYTES:
        raise DataError(
            f"{path_text(path)} has {status.st_size} bytes; expected an image of 1 to "
            f"{MAX_IMAGE_BYTES}; unpack the dataset again"
        )
    try:
        return hashes.hash_file(path, status)
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None


def _compute_digest(images: Sequence[IndexedImage]) -> str:
    """Hash split, bucket, class and content of the images, whatever their paths and order."""
    lines = sorted(
        "\0".join((image.split, image.bucket, image.class_name, image.content)) for image in images
    )
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def find_duplicates(images: Collection[IndexedImage]) -> list[tuple[str, list[IndexedImage]]]:
    """Group the images that have the same content, with the worst field in which they differ.

    The field is a key of ``DIFFERENCES``, or empty for copies in one bucket, split and class.
    """
    counts = Counter(image.content for image in images)
    copies_by_content: defaultdict[str, list[IndexedImage]] = defaultdict(list)
    for image in images:
        if counts[image.content] > 1:
            copies_by_content[image.content].append(image)
    return [(_find_difference(copies), copies) for copies in copies_by_content.values()]


def _find_difference(copies: Sequence[IndexedImage]) -> str:
    """Return the first key of ``DIFFERENCES`` in which copies differ, or "" if there is none."""
    return next((name for name in DIFFERENCES if len(_select_distinct(copies, name)) > 1), "")


def _check_disjoint(images: Sequence[IndexedImage], test_split: str, noun: str) -> tuple[str, ...]:
    """Return a warning for each type of difference between copies of an image."""
    duplicates = find_duplicates(images)
    sizes = Counter(key for key, _ in {((i.split, i.bucket), i.content) for i in images})
    shared: defaultdict[tuple[tuple[str, str], ...], list[tuple[IndexedImage, ...]]] = defaultdict(
        list
    )
    for _, copies in duplicates:
        for pair in combinations(_select_distinct(copies, "split", "bucket"), 2):
            shared[tuple((i.split, i.bucket) for i in pair)].append(pair)
    for keys, pairs in shared.items():
        smaller = min(sizes[key] for key in keys)
        if 2 * len(pairs) > smaller:
            both = " and ".join(f"bucket {bucket}'s {split} {noun}s" for split, bucket in keys)
            advice = "if the metadata lists images twice, unpack the dataset again"
            if noun == "row":
                advice = "pass more columns, or dataset_args=may_repeat=yes if rows may be equal"
            raise DataError(
                f"{both} share {len(pairs)} of {smaller} {noun}s, for example "
                f"{_format_pair(pairs[0])}; buckets and splits must be disjoint: {advice}"
            )
    warnings = []
    for name, phrase in DIFFERENCES.items():
        if groups := [copies for difference, copies in duplicates if difference == name]:
            number = f"1 {noun} is" if len(groups) == 1 else f"{len(groups)} {noun}s are"
            example = _format_pair(_select_distinct(groups[0], name))
            warnings.append(f"{number} {phrase.format(test=test_split)}, for example {example}")
    return tuple(warnings)


def _select_distinct(copies: Sequence[IndexedImage], *fields: str) -> list[IndexedImage]:
    """Return the first image for each value of these fields of :class:`IndexedImage`."""
    get_fields = attrgetter(*fields)
    return list({get_fields(image): image for image in reversed(copies)}.values())[::-1]


def _format_pair(images: Sequence[IndexedImage]) -> str:
    return f"{path_text(images[0].path)} and {path_text(images[1].path)}"
