"""Tables and streams of images for tests, without a dataset's reader."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream


def build_table(
    paths: Iterable[Path], labels: Sequence[int] = (), contents: Iterable[str] = ()
) -> ImageTable:
    """Return the training images of one bucket, of class 0 unless there are labels."""
    files = tuple(map(str, paths))
    zeros = np.zeros(len(files), dtype=np.int64)
    codes = np.asarray(labels, dtype=np.int64) if len(labels) else zeros
    return ImageTable(files, codes, zeros, zeros == 1, tuple(contents))


def build_test_stream(
    name: str,
    class_names: tuple[str, ...],
    sets: Mapping[str, tuple[ImageTable, ...]],
    **fields: Any,
) -> BucketStream:
    """Return a stream of training and test images by bucket, or of training images alone."""
    tables = [
        ImageTable(
            images.files,
            images.labels,
            np.full(len(images), bucket),
            np.full(len(images), n == 1),
            images.contents,
        )
        for bucket, parts in enumerate(sets.values())
        for n, images in enumerate(parts)
    ]
    joined = tables[0]
    for table in tables[1:]:
        joined = joined.join(table)
    if all(len(parts) == 1 for parts in sets.values()):
        fields = {"protocol": "streaming", **fields}
    fields = {"warnings": (), "digest": "sha256:0", **fields}
    dataset = DatasetDescription(name=name, class_names=class_names, buckets=tuple(sets), **fields)
    return BucketStream(dataset, joined)


def add_times(stream: BucketStream, *, days: int = 90, seed: int = 0) -> BucketStream:
    """Return a stream with a random day for each image, some of which are the same."""
    images = stream.images
    draws = np.random.default_rng(seed).integers(0, days, len(images))
    return replace(stream, images=replace(images, times=86_400 * (days * images.buckets + draws)))
