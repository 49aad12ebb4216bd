"""What images are, apart from where they lie: content hashes, the digest, disjoint buckets.

Every layout's reader ends in :func:`stream_of`, so that all data is proven the same way.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, combinations
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from clear_mlflow.core.distributed import usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import measured_split
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES
from clear_mlflow.data.cache import HashCache
from clear_mlflow.data.files import path_text, reason, regular_file
from clear_mlflow.data.splits import AUTO, IID, STREAMING, Listing, choose
from clear_mlflow.data.stream import DOMAIN, Bucket, BucketStream, ImageSet

_FILES_IN_A_TASK = 32


class Image(NamedTuple):
    """An image of a dataset: where it belongs, and what it is."""

    split: str
    bucket: str
    class_name: str
    path: Path
    content: str = ""  # SHA-256 of the file's bytes, hexadecimal


# The kinds of images that are there more than once, and what differs among the copies.
_DOUBLES = {"train-and-test": "split", "across-buckets": "bucket", "across-classes": "class_name"}


def stream_of(
    listing: Listing,
    *,
    name: str,
    protocol: str = IID,
    split: str = AUTO,
    hashes_in: Path | None = None,
) -> BucketStream:
    """Hash what is trained and tested on, prove it disjoint, compute the stream's digest."""
    unhashed, chosen_split, warnings = choose(listing, protocol=protocol, split=split)
    buckets = _hashed(unhashed, listing.root, hashes_in)
    tested_on = measured_split(chosen_split)
    images = _images(buckets, listing.class_names, tested_on)
    # Where a bucket is tested on its training images, that is no finding.
    compared = [i for i in images if protocol != STREAMING or i.split == "train"]
    what = "row" if buckets[0].train.vectors is not None else "image"
    shared = () if listing.may_repeat else _shared_images(compared, tested_on, what)
    return BucketStream(
        name=name,
        class_names=listing.class_names,
        buckets=buckets,
        digest=_digest(images),
        warnings=(*listing.warnings, *warnings, *shared),
        layout=listing.layout,
        protocol=protocol,
        split=chosen_split,
        times=tuple(listing.times[bucket.key] for bucket in buckets) if listing.times else (),
        standardise=listing.standardise,
    )


def stream_digest(
    buckets: Sequence[Bucket], class_names: Sequence[str], tested_on: str, scenario: str = DOMAIN
) -> str:
    """The digest of buckets whose contents are hashed; see :class:`BucketStream`."""
    digest = _digest(_images(buckets, class_names, tested_on))
    if scenario == DOMAIN:
        return digest
    # Scenarios ask different questions of the same images: results are never set side by side.
    return "sha256:" + hashlib.sha256(f"{scenario}\0{digest}".encode()).hexdigest()


def _images(buckets: Sequence[Bucket], class_names: Sequence[str], tested_on: str) -> list[Image]:
    return [
        Image(split, bucket.key, class_names[label], path, content)
        for bucket in buckets
        for split, images in (("train", bucket.train), (tested_on, bucket.test))
        for path, label, content in zip(
            images.paths, images.labels.tolist(), images.contents, strict=True
        )
    ]


def _hashed(buckets: Sequence[Bucket], root: Path, hashes_in: Path | None) -> tuple[Bucket, ...]:
    """The buckets with the contents of all images; one image set stays one, and is hashed once."""
    done: dict[int, ImageSet] = {}
    # More threads than cores: on a network file system most of the time is waiting for a reply.
    with (
        HashCache(hashes_in, root) as hashes,
        ThreadPoolExecutor(max_workers=4 * usable_cores()) as pool,
    ):
        for images in (images for bucket in buckets for images in (bucket.train, bucket.test)):
            if not images.contents and id(images) not in done:
                paths, size = images.paths, _FILES_IN_A_TASK
                blocks = [paths[i : i + size] for i in range(0, len(paths), size)]
                found = pool.map(lambda block: [_content(p, root, hashes) for p in block], blocks)
                done[id(images)] = replace(images, contents=tuple(chain.from_iterable(found)))
    return tuple(
        replace(
            bucket,
            train=done.get(id(bucket.train), bucket.train),
            test=done.get(id(bucket.test), bucket.test),
        )
        for bucket in buckets
    )


def _content(path: Path, root: Path, hashes: HashCache) -> str:
    status = regular_file(path, root=root)
    if not 0 < status.st_size <= MAX_IMAGE_BYTES:
        raise DataError(
            f"{path_text(path)} has {status.st_size} bytes; expected an image of 1 to "
            f"{MAX_IMAGE_BYTES}; unpack the dataset again"
        )
    try:
        return hashes.hash_file(path, status)
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None


def _digest(images: Sequence[Image]) -> str:
    """``sha256:`` and the hash of all (split, bucket, class, content), sorted."""
    lines = sorted(
        "\0".join((image.split, image.bucket, image.class_name, image.content)) for image in images
    )
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def doubles(images: Iterable[Image]) -> list[tuple[str, list[Image]]]:
    """Images of one content, where several are, and the worst that can be said of them."""
    by_content: defaultdict[str, list[Image]] = defaultdict(list)
    for image in images:
        by_content[image.content].append(image)
    return [(_kind(copies), copies) for copies in by_content.values() if len(copies) > 1]


def _kind(copies: Sequence[Image]) -> str:
    differs = (kind for kind, field in _DOUBLES.items() if len(_first_of_each(copies, field)) > 1)
    return next(differs, "within-bucket")


def _shared_images(images: Sequence[Image], tested_on: str, what: str) -> tuple[str, ...]:
    """Warnings about images that are in two places; an error where two places are the same."""
    found = doubles(images)
    sizes = Counter(place for place, _ in {((i.split, i.bucket), i.content) for i in images})
    shared: defaultdict[tuple[tuple[str, str], ...], list[tuple[Image, ...]]] = defaultdict(list)
    for _, copies in found:
        for pair in combinations(_first_of_each(copies, "split", "bucket"), 2):
            shared[tuple((i.split, i.bucket) for i in pair)].append(pair)
    for places, pairs in shared.items():
        smaller = min(sizes[place] for place in places)
        if 2 * len(pairs) > smaller:
            both = " and ".join(f"bucket {bucket}'s {split} {what}s" for split, bucket in places)
            advice = "unpack a dataset again whose metadata lists images twice"
            if what == "row":
                advice = "pass more columns, or dataset_args=may_repeat=yes if rows may be equal"
            raise DataError(
                f"{both} share {len(pairs)} of {smaller} {what}s, the first as {_both(pairs[0])}; "
                f"buckets and splits must be disjoint: {advice}"
            )
    warnings = []
    for kind, finding in (
        ("train-and-test", f"in both a training and a {tested_on} set"),
        ("across-buckets", "in more than one bucket of one split"),
        ("across-classes", "under more than one class"),
    ):
        if of_kind := [copies for its_kind, copies in found if its_kind == kind]:
            number = f"1 {what} is" if len(of_kind) == 1 else f"{len(of_kind)} {what}s are"
            first = _both(_first_of_each(of_kind[0], _DOUBLES[kind]))
            warnings.append(f"{number} {finding}; the first is {first}")
    return tuple(warnings)


def _first_of_each(copies: Sequence[Image], *fields: str) -> list[Image]:
    """The first image of each kind, in order."""
    kind = attrgetter(*fields)
    return list({kind(image): image for image in reversed(copies)}.values())[::-1]


def _both(images: Sequence[Image]) -> str:
    return f"{path_text(images[0].path)} and {path_text(images[1].path)}"
