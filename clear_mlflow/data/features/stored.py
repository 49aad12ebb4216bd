"""The features of a stream's images, by name: computed, the dataset's own, or extracted ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data.decoding.decode import Resize
from clear_mlflow.data.decoding.decoded_cache import DECODED_FOLDER, DecodedCache
from clear_mlflow.data.features.extracted import (
    ExtractedFeatures,
    Extraction,
    extracted_names,
    find_extracted,
    refuse_other_extraction,
)
from clear_mlflow.data.features.shipped import own_names, shipped_features
from clear_mlflow.data.sources import VECTORS
from clear_mlflow.data.stream import BucketStream, ImageSet, Vectors, counted, image_sets

PIXELS = "pixels"  # the name of those that every dataset of images has; no others may have it
_SIDE = 16  # of the small image; wider would make a covariance of pixels large and no better


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The features of all images of a stream, or the vectors that it is of."""

    name: str  # as the user gave it
    digest: str  # of the stream and of all features; not of where they lie
    width: int  # numbers per image
    # Per bucket (N, width), in the order of its images.
    train: tuple[NDArray[np.float32] | Vectors, ...]
    test: tuple[NDArray[np.float32] | Vectors, ...]  # likewise; the same where the images are
    standardise: str = "none"  # how they become a model's input: see splits.Listing


def check_features(stream: BucketStream, name: str, *, cache_dir: Path) -> ExtractedFeatures | None:
    """Return extracted features or None for other ones, or raise an error if there are none."""
    if stream.has_vectors and name != VECTORS:
        raise ConfigError(
            f"dataset {stream.name} is of vectors and features is {name}; pass features=vectors"
        )
    if stream.has_vectors or name == PIXELS or name in own_names(stream):
        return None
    extracted = find_extracted(stream, name, cache_dir=cache_dir)
    if extracted is None:
        known = (PIXELS, *own_names(stream), *extracted_names(cache_dir))
        raise DataError(
            f"there are no features {name}; the built-in, the dataset's own and the extracted "
            f"ones are {', '.join(dict.fromkeys(known))}: extract some with 'clear-mlflow data "
            f"features DIR --name {name}'"
        )
    return extracted


def load_features(
    stream: BucketStream,
    name: str,
    *,
    cache_dir: Path,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> StoredFeatures:
    """Find the features of a stream's images: the dataset's own, else extracted ones."""
    load: Callable[[ImageSet], NDArray[np.float32] | Vectors]
    extracted = check_features(stream, name, cache_dir=cache_dir)
    if stream.has_vectors:

        def load(images: ImageSet) -> Vectors:
            return cast("Vectors", images.vectors)
    elif name == PIXELS:
        progress = {id(images): told for images, told in counted([*image_sets(stream)], on_image)}

        def load(images: ImageSet) -> NDArray[np.float32]:
            return pixel_features(images, cache_dir=cache_dir, on_image=progress[id(images)])
    elif extracted is None:
        buckets = {
            path: bucket.key
            for bucket in (stream.of_time or stream).buckets
            for images in (bucket.train, bucket.test)
            for path in images.paths
        }

        def load(images: ImageSet) -> NDArray[np.float32]:
            return shipped_features(name, buckets, images, stream.class_names)
    else:

        def load(images: ImageSet) -> NDArray[np.float32]:
            return extracted.of(images)

    train = [load(bucket.train) for bucket in stream.buckets]
    test = [
        features if bucket.test is bucket.train else load(bucket.test)
        for bucket, features in zip(stream.buckets, train, strict=True)
    ]
    widths = sorted({array.shape[1] for array in (*train, *test)})
    if len(widths) > 1:
        raise DataError(
            f"features {name} have {widths[0]} numbers for some images and {widths[-1]} for "
            "others; expected one width for all: unpack or extract them again"
        )
    return StoredFeatures(
        name=name,
        digest=_digest(stream, [*train, *test]),
        width=widths[0],
        train=tuple(train),
        test=tuple(test),
        standardise=stream.standardise,
    )


def pixel_features(
    images: ImageSet, *, cache_dir: Path, on_image: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """(N, 768), float32, from -1/4 to 1/4: the central square at 16 x 16 pixels, line by line."""
    cache = DecodedCache(cache_dir / DECODED_FOLDER)
    decoded = cache.load(images, Resize(_SIDE, square=True), on_image=on_image)
    features = decoded.pixels.reshape(len(images), _SIDE * _SIDE * 3).astype(np.float32)
    features -= np.float32(127.5)  # exact, as all such differences are
    features /= np.float32(510)
    return features


def refuse_taken_name(stream: BucketStream, extraction: Extraction, *, cache_dir: Path) -> None:
    """Make sure that one name means one way to compute features in all records."""
    if extraction.name in (PIXELS, VECTORS, *own_names(stream)):
        raise ConfigError(
            f"name {extraction.name} is that of features that are there without an extraction: "
            "built-in ones, or the dataset's own; pass another --name"
        )
    refuse_other_extraction(extraction, cache_dir=cache_dir)


def _digest(stream: BucketStream, arrays: Sequence[NDArray[np.float32] | Vectors]) -> str:
    """``sha256:`` and the hash of the stream's digest, which is of vectors, and of features."""
    hasher = hashlib.sha256(f"{stream.digest}\0{stream.standardise}".encode())
    for array in arrays:
        if not isinstance(array, Vectors):
            hasher.update(np.ascontiguousarray(array, dtype="<f4").data)
    return f"sha256:{hasher.hexdigest()}"
