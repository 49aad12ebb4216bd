"""Images that cannot be decoded: found before anything is trained on, and reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.checking.content import stream_digest
from clear_mlflow.data.decoding.decode import Damaged, Resize, refusal
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.files import path_text
from clear_mlflow.data.stream import Bucket, BucketStream, ImageSet, counted

LEAVE_OUT = "leave_out"
_MOST_LISTED = 100


@dataclass(frozen=True, eq=False)
class SoundStream:
    """A stream whose images can all be decoded, and what was left out to make it so."""

    stream: BucketStream
    left_out: tuple[str, ...] = ()  # paths below the root; the first 100
    num_left_out: int = 0


def sound_stream(
    stream: BucketStream,
    *,
    cache: DecodedCache,
    resize: Resize,
    damaged: str,
    root: Path,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> SoundStream:
    """Decode every image of a stream into the cache; see to those that cannot be decoded."""
    # Under the streaming protocol one set is both what is trained on and what is tested on.
    sets = {id(images): images for b in stream.buckets for images in (b.train, b.test)}
    found: dict[int, tuple[Damaged, ...]] = {}
    for images, on_ready in counted([*sets.values()], on_image):
        found[id(images)] = cache.damaged(images, resize, on_image=on_ready)
    everything = [one for damaged_images in found.values() for one in damaged_images]
    if not everything:
        return SoundStream(stream)
    if damaged != LEAVE_OUT:
        raise refusal(everything, advice=", or pass damaged=leave_out to train without")

    left = {identity: _without(images, found[identity]) for identity, images in sets.items()}
    buckets = tuple(
        Bucket(bucket.key, left[id(bucket.train)], left[id(bucket.test)])
        for bucket in stream.buckets
    )
    for bucket in buckets:
        for split, images in (("train", bucket.train), (stream.tested_on, bucket.test)):
            if not len(images):
                raise DataError(
                    f"none of bucket {bucket.key}'s {split} images can be decoded; the first "
                    f"damaged image is {path_text(everything[0].path)}: unpack the dataset again"
                )
    # A set without its damaged images is another one to the cache. It is decoded now, as the others
    # were, and not in the middle of the training; those that are ready count first.
    order = sorted(left, key=lambda identity: bool(found[identity]))
    for identity, (images, on_ready) in zip(
        order, counted([left[identity] for identity in order], on_image), strict=True
    ):
        if found[identity]:
            cache.damaged(images, resize, on_image=on_ready)
    listed = everything[:_MOST_LISTED]
    warnings = [
        f"{path_text(one.path)} is left out: it cannot be decoded: {one.why}" for one in listed
    ]
    if more := len(everything) - len(listed):
        warnings.append(f"{more} more images are left out, which cannot be decoded")
    sound = dataclasses.replace(
        stream,
        buckets=buckets,
        digest=stream_digest(buckets, stream.class_names, stream.tested_on),
        warnings=(*stream.warnings, *warnings),
    )
    paths = tuple(_below(one.path, root) for one in listed)
    return SoundStream(sound, paths, len(everything))


def _without(images: ImageSet, damaged: tuple[Damaged, ...]) -> ImageSet:
    if not damaged:
        return images
    gone = [one.position for one in damaged]
    return images.take(np.delete(np.arange(len(images)), gone))


def _below(path: Path, root: Path) -> str:
    for base in (root, root.resolve()):
        if path.is_relative_to(base):
            return path_text(path.relative_to(base))
    return path_text(path)
