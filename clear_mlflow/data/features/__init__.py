"""The features of a stream's images, by name: computed, part of the dataset, or extracted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data.decode import DECODED_FOLDER, DecodedCache, Resize
from clear_mlflow.data.features.extracted import (
    ExtractedFeatures,
    Extraction,
    check_same_extraction,
    find_extracted,
    list_extracted_names,
)
from clear_mlflow.data.features.shipped import list_shipped_names, load_shipped_features
from clear_mlflow.data.images import ImageTable, Vectors
from clear_mlflow.data.sources import VECTORS
from clear_mlflow.data.stream import BucketStream, iter_with_progress

PIXELS = "pixels"  # the name of features that every dataset of images has
_SIDE = 16  # of the small image; a larger one makes covariances large without better results


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The features of all images of a stream, or its vectors."""

    name: str  # as passed by the user
    digest: str  # of the stream and of all features; paths do not change it
    width: int  # numbers per image
    # Per bucket (N, width), in the order of its images.
    train: tuple[NDArray[np.float32] | Vectors, ...]
    test: tuple[NDArray[np.float32] | Vectors, ...]  # the same object if the images are the same


def find_features(stream: BucketStream, name: str, *, cache_dir: Path) -> ExtractedFeatures | None:
    """Find extracted features, None for built-in ones, or raise DataError.

    Shipped features are part of the dataset. Raises DataError if no features have this name, or
    those extracted lack an image; and ConfigError if the stream has vectors and the name is another
    one.
    """
    if stream.has_vectors and name != VECTORS:
        raise ConfigError(
            f"dataset {stream.dataset.name} consists of vectors, and features is {name}; pass "
            "features=vectors"
        )
    if stream.has_vectors or name == PIXELS or name in list_shipped_names(stream):
        return None
    extracted = find_extracted(stream, name, cache_dir=cache_dir)
    if extracted is None:
        names = (PIXELS, *list_shipped_names(stream), *list_extracted_names(cache_dir))
        raise DataError(
            f"features {name} do not exist; expected one of {', '.join(dict.fromkeys(names))}: "
            f"extract others with 'clear-mlflow data features DIR --name {name}'"
        )
    return extracted


def load_features(
    stream: BucketStream,
    name: str,
    *,
    cache_dir: Path,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> StoredFeatures:
    """Load a stream's features: vectors, pixels, shipped or extracted.

    Raises the errors of :func:`find_features`, and DataError if the widths differ.
    """
    extracted = find_features(stream, name, cache_dir=cache_dir)
    in_time = stream.time_stream or stream  # with the buckets of the dataset's folders
    buckets = [in_time.dataset.buckets[bucket] for bucket in in_time.images.buckets.tolist()]
    bucket_by_file = dict(zip(in_time.images.files, buckets, strict=True))
    arrays: list[NDArray[np.float32] | Vectors] = []
    for images, on_ready in iter_with_progress(stream.image_sets, on_image):
        if images.vectors is not None:
            arrays.append(images.vectors)
        elif name == PIXELS:
            arrays.append(compute_pixel_features(images, cache_dir=cache_dir, on_image=on_ready))
        elif extracted is not None:
            arrays.append(extracted.load(images))
        else:
            names = stream.dataset.class_names
            arrays.append(load_shipped_features(name, bucket_by_file, images, names))
    num_buckets = len(stream.train)
    train = tuple(arrays[:num_buckets])
    test = tuple(arrays[num_buckets:]) or train  # under streaming, the same sets
    widths = sorted({array.shape[1] for array in arrays})
    if len(widths) > 1:
        raise DataError(
            f"features {name} have {widths[0]} numbers for some images and {widths[-1]} for "
            "others; expected one width for all: unpack or extract them again"
        )
    digest = _compute_digest(stream, [*train, *test])
    return StoredFeatures(name, digest, width=widths[0], train=train, test=test)


def compute_pixel_features(
    images: ImageTable, *, cache_dir: Path, on_image: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """Return (N, 768), float32: the central 16 x 16 pixels.

    Values are from -1/4 to 1/4, line by line. Decodes the images into the cache unless they are
    there.
    """
    cache = DecodedCache(cache_dir / DECODED_FOLDER)
    decoded = cache.load(images, Resize(_SIDE, square=True), on_image=on_image)
    features = decoded.pixels.reshape(len(images), _SIDE * _SIDE * 3).astype(np.float32)
    features -= np.float32(127.5)  # exact, like all such differences
    features /= np.float32(510)
    return features


def check_extraction_name(stream: BucketStream, extraction: Extraction, *, cache_dir: Path) -> None:
    """Raise ConfigError if other features have an extraction's name."""
    if extraction.name in (PIXELS, VECTORS, *list_shipped_names(stream)):
        raise ConfigError(
            f"name {extraction.name} is used by features that are built in or part of the dataset; "
            "pass another --name"
        )
    check_same_extraction(extraction, cache_dir=cache_dir)


def _compute_digest(stream: BucketStream, arrays: Sequence[NDArray[np.float32] | Vectors]) -> str:
    hasher = hashlib.sha256(f"{stream.dataset.digest}\0{stream.standardise}".encode())
    for array in arrays:
        if not isinstance(array, Vectors):  # which the digest of the dataset covers
            hasher.update(np.ascontiguousarray(array, dtype="<f4").data)
    return f"sha256:{hasher.hexdigest()}"
