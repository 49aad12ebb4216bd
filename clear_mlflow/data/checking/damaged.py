"""Images that cannot be decoded: found before anything is trained on, and reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.checking.content import stream_digest
from clear_mlflow.data.decoding.decode import Damaged, Resize, refusal
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.files import path_text
from clear_mlflow.data.stream import Bucket, BucketStream, ImageSet, counted, image_sets

LEAVE_OUT = "leave_out"
_MOST_LISTED = 100


def sound_stream(
    stream: BucketStream,
    *,
    cache: DecodedCache,
    resize: Resize,
    damaged: str,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[BucketStream, int]:
    """Decode every image into the cache: what of the stream can be, and how many are left out."""
    left: dict[int, ImageSet] = {}
    everything: list[Damaged] = []
    for images, on_ready in counted([*image_sets(stream)], on_image):
        found = cache.damaged(images, resize, on_image=on_ready)
        everything += found
        gone = [one.position for one in found]
        rest = images.take(np.delete(np.arange(len(images)), gone)) if gone else images
        left[id(images)] = rest
    if not everything:
        return stream, 0
    if damaged != LEAVE_OUT:
        raise refusal(everything, advice=", or pass damaged=leave_out to train without")
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
    listed = everything[:_MOST_LISTED]
    warnings = [
        f"{path_text(one.path)} is left out: it cannot be decoded: {one.why}" for one in listed
    ]
    if more := len(everything) - len(listed):
        warnings.append(f"{more} more images are left out, which cannot be decoded")
    sound = dataclasses.replace(
        stream,
        buckets=buckets,
        digest=stream_digest(buckets, stream.class_names, stream.tested_on, stream.scenario),
        warnings=(*stream.warnings, *warnings),
    )
    # A set without its damaged images is another one to the cache. It is decoded now, as the others
    # were, and not in the middle of the training.
    for images, on_ready in counted([*image_sets(sound)], on_image):
        cache.damaged(images, resize, on_image=on_ready)
    return sound, len(everything)
