"""What images are, apart from where they lie: content hashes, the digest, disjoint buckets.

Every layout's reader ends in :func:`stream_of`, so that all data is proven the same way.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

from clear_mlflow.core.distributed import usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import measured_split
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES
from clear_mlflow.data.checking.hashes import RememberedHashes
from clear_mlflow.data.files import path_text, reason, regular_file
from clear_mlflow.data.splits import AUTO, IID, STREAMING, Listing, choose
from clear_mlflow.data.stream import Bucket, BucketStream

_FILES_IN_A_TASK = 32


class _Place(NamedTuple):
    split: str
    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket}'s {self.split} images"


class _Image(NamedTuple):
    place: _Place
    class_name: str
    path: Path
    content: str  # SHA-256 of the file's bytes, hexadecimal


def stream_of(
    listing: Listing,
    *,
    name: str,
    protocol: str = IID,
    split: str = AUTO,
    hashes_in: Path | None = None,
) -> BucketStream:
    """Hash what is trained and tested on, prove it disjoint, and compute the stream's digest.

    One photo in two buckets, or in a training and a test set, is a leak. Real collections have a
    few (the same picture uploaded twice), so a few are named in ``warnings``. Where more than half
    of a bucket's images are also in another one, the metadata lists the same images twice, and no
    score of that stream would mean anything: that is an error. Copies within one bucket, split and
    class are harmless and are not reported.
    """
    chosen = choose(listing, protocol=protocol, split=split)
    buckets = _hashed(chosen.buckets, listing.root, hashes_in)
    tested_on = measured_split(chosen.split)
    images = _images(buckets, listing.class_names, tested_on)
    # Where a bucket is tested on its training images, that is no finding.
    compared = [i for i in images if protocol != STREAMING or i.place.split == "train"]
    return BucketStream(
        name=name,
        class_names=listing.class_names,
        buckets=buckets,
        digest=_digest(images),
        warnings=(*listing.warnings, *chosen.warnings, *_shared_images(compared, tested_on)),
        layout=listing.layout,
        protocol=protocol,
        split=chosen.split,
        times=tuple(listing.times[bucket.key] for bucket in buckets) if listing.times else (),
    )


def stream_digest(buckets: Sequence[Bucket], class_names: Sequence[str], tested_on: str) -> str:
    """The digest of buckets whose contents are hashed; see :class:`BucketStream`."""
    return _digest(_images(buckets, class_names, tested_on))


def _images(buckets: Sequence[Bucket], class_names: Sequence[str], tested_on: str) -> list[_Image]:
    return [
        _Image(place, class_names[label], path, content)
        for bucket in buckets
        for place, images in (
            (_Place("train", bucket.key), bucket.train),
            (_Place(tested_on, bucket.key), bucket.test),
        )
        for path, label, content in zip(
            images.paths, images.labels.tolist(), images.contents, strict=True
        )
    ]


def _hashed(buckets: Sequence[Bucket], root: Path, hashes_in: Path | None) -> tuple[Bucket, ...]:
    """The buckets with the contents of all images; one image set stays one, and is hashed once."""
    unhashed = {
        id(images): images
        for bucket in buckets
        for images in (bucket.train, bucket.test)
        if not images.contents
    }
    paths = [path for images in unhashed.values() for path in images.paths]
    with RememberedHashes(hashes_in, root) as hashes:
        contents = iter(_contents(paths, root, hashes))
    done = {
        number: replace(images, contents=tuple(islice(contents, len(images))))
        for number, images in unhashed.items()
    }
    return tuple(
        replace(
            bucket,
            train=done.get(id(bucket.train), bucket.train),
            test=done.get(id(bucket.test), bucket.test),
        )
        for bucket in buckets
    )


def _contents(paths: Sequence[Path], root: Path, hashes: RememberedHashes) -> list[str]:
    """The hash of each file's content: the remembered one if the file is as it was."""
    blocks = [paths[i : i + _FILES_IN_A_TASK] for i in range(0, len(paths), _FILES_IN_A_TASK)]
    # More threads than cores: on a network file system most of the time is waiting for a reply.
    with ThreadPoolExecutor(max_workers=4 * usable_cores()) as pool:
        found = pool.map(lambda block: [_content(path, root, hashes) for path in block], blocks)
        return [content for block in found for content in block]


def _content(path: Path, root: Path, hashes: RememberedHashes) -> str:
    status = regular_file(path, root=root)
    if not 0 < status.st_size <= MAX_IMAGE_BYTES:
        raise DataError(
            f"{path_text(path)} has {status.st_size} bytes; expected an image of 1 to "
            f"{MAX_IMAGE_BYTES}; unpack the dataset again"
        )
    try:
        return hashes.of(path, status)
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None


def _digest(images: Sequence[_Image]) -> str:
    """``sha256:`` and the hash of all (split, bucket, class, content), sorted.

    Nothing in it depends on file names, folders or the order on disk. NUL separates the fields,
    for no class name can hold it.
    """
    lines = sorted(
        "\0".join((image.place.split, image.place.bucket, image.class_name, image.content))
        for image in images
    )
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _shared_images(images: Sequence[_Image], tested_on: str) -> tuple[str, ...]:
    """Warnings about images that are in two places; an error where two places are the same."""
    by_content: defaultdict[str, list[_Image]] = defaultdict(list)
    for image in images:
        by_content[image.content].append(image)
    doubles = [copies for copies in by_content.values() if len(copies) > 1]
    sizes = Counter(place for place, _ in {(image.place, image.content) for image in images})
    shared: defaultdict[tuple[_Place, _Place], list[tuple[_Image, ...]]] = defaultdict(list)
    for copies in doubles:
        for pair in combinations(_first_of_each(copies, lambda image: image.place), 2):
            shared[pair[0].place, pair[1].place].append(pair)
    for (place, other_place), pairs in shared.items():
        smaller = min(sizes[place], sizes[other_place])
        if 2 * len(pairs) > smaller:
            raise DataError(
                f"{place} and {other_place} share {len(pairs)} of {smaller} images, the first as "
                f"{_both(pairs[0])}; buckets and splits must be disjoint, so the metadata lists "
                "one set of images twice: unpack the dataset again"
            )

    def across_buckets(copies: Sequence[_Image]) -> list[_Image]:
        for is_train in (True, False):
            of_split = [image for image in copies if (image.place.split == "train") is is_train]
            firsts = _first_of_each(of_split, lambda image: image.place.bucket)
            if len(firsts) > 1:
                return firsts
        return []

    warnings = []
    for finding, look in (
        (
            f"in both a training and a {tested_on} set",
            lambda copies: _first_of_each(copies, lambda image: image.place.split),
        ),
        ("in more than one bucket of one split", across_buckets),
        (
            "under more than one class",
            lambda copies: _first_of_each(copies, lambda image: image.class_name),
        ),
    ):
        if found := [firsts for copies in doubles if len(firsts := look(copies)) > 1]:
            number = f"{len(found)} {'image is' if len(found) == 1 else 'images are'}"
            warnings.append(f"{number} {finding}; the first is {_both(found[0])}")
    return tuple(warnings)


def _first_of_each(copies: Sequence[_Image], kind: Callable[[_Image], Hashable]) -> list[_Image]:
    """The first image of each kind, in order."""
    return list({kind(image): image for image in reversed(copies)}.values())[::-1]


def _both(images: Sequence[_Image]) -> str:
    return f"{path_text(images[0].path)} and {path_text(images[1].path)}"
