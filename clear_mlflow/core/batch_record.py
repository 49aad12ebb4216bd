"""Batches of a stream that were predicted before they were trained on.

A run has one file, which grows with each row, in the format of its predictions: the counts of right
predictions, and the labels of all images. Windows and blind classifiers are computed from it.
docs/record-format.md describes it for authors of other programs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.predictions import (
    convert_file_errors,
    parse_texts,
    read_tensors,
    tensors_to_bytes,
)
from clear_mlflow.core.text import safe_repr

PREQUENTIAL_FILE = "prequential.safetensors"  # in the folder of predictions
DISTANCES = (0, 1, 10, 100, 1000)  # batches; 0: the next batch to train on

_ARRAYS = {
    "bucket": np.uint16,
    "size": np.int64,
    "first_time": np.int64,
    "last_time": np.int64,
    "label": np.uint16,
    "correct": np.int64,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class PrequentialRecord:
    """B batches of a stream, and how well a model predicted them.

    Args:
        distances: for D columns of ``correct``, how many batches after the next one to train on a
            batch came when it was predicted; ascending, from :data:`DISTANCES`.
        buckets: keys of all buckets, in stream order.
        bucket: (B,), index of each batch's bucket, ascending.
        size: (B,), number of images.
        first_time: (B,), time of the first image, seconds since 1970, UTC.
        last_time: (B,), time of the last image.
        label: (N,), class of each image, batch by batch.
        correct: (B, D), images predicted right; -1 if no model predicted the batch at a distance.
        num_rows: number of buckets trained, k; the last batch's if None.
    """

    distances: tuple[int, ...]
    buckets: tuple[str, ...]
    bucket: NDArray[np.uint16]
    size: NDArray[np.int64]
    first_time: NDArray[np.int64]
    last_time: NDArray[np.int64]
    label: NDArray[np.uint16]
    correct: NDArray[np.int64]
    num_rows: int | None = None

    def __post_init__(self) -> None:
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_ARRAYS, (self.size.size,))
        shapes |= {"label": (self.label.size,), "correct": (self.size.size, len(self.distances))}
        for name, dtype in _ARRAYS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shapes[name]:
                raise RecordError(
                    f"{name} is {array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} "
                    f"of shape {shapes[name]}"
                )
        valid_distances = sorted(set(self.distances) & set(DISTANCES))
        if not self.distances or list(self.distances) != valid_distances:
            raise RecordError(
                f"distances are {safe_repr(self.distances)}; expected some of {DISTANCES} in order"
            )
        count = len(self.label)
        has_sizes = len(self.size) > 0 and self.size.min() >= 1 and self.size.max() <= count
        if not has_sizes or self.size.sum() != count:
            raise RecordError(f"the sizes of the batches do not add up to {count} labels")
        steps = np.diff(self.bucket.astype(np.int64), prepend=-1)
        is_in_order = steps[0] == 1 and ((steps == 0) | (steps == 1)).all()
        is_in_order = is_in_order and (self.first_time <= self.last_time).all()
        if not is_in_order or self.bucket[-1] >= len(self.buckets):
            raise RecordError("the buckets or times of the batches are out of their order")
        if self.correct.min() < -1 or (self.correct > self.size[:, np.newaxis]).any():
            raise RecordError("a batch has more images predicted right than images, or below 0")

    @property
    def k(self) -> int:
        """Number of buckets trained."""
        return int(self.bucket[-1]) + 1 if self.num_rows is None else self.num_rows

    def check(self, matrix: AccuracyMatrix) -> None:
        """Raise RecordError if an accuracy matrix has other buckets."""
        if self.buckets != matrix.buckets:
            raise RecordError(
                f"the batches have buckets {safe_repr(self.buckets)}, but the rows have "
                f"{safe_repr(matrix.buckets)}"
            )

    def after(self, k: int) -> PrequentialRecord:
        """Return the batches of the first *k* buckets, at least one's."""
        count = int(np.searchsorted(self.bucket, max(k, 1)))
        arrays = {name: getattr(self, name)[:count] for name in _ARRAYS}
        arrays["label"] = self.label[: int(self.size[:count].sum())]
        return replace(self, **arrays, num_rows=k)

    def select_counts(self, distance: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Select correct predictions and batch sizes, predicted *distance* batches ahead.

        Raises UndefinedMetricError if a bucket's batches or predictions are not stored.
        """
        if not 0 < self.k <= int(self.bucket[-1]) + 1:
            raise UndefinedMetricError(f"needs the batches of all {self.k} buckets trained, k >= 1")
        if distance not in self.distances:
            raise UndefinedMetricError(f"needs prequential={distance}")
        correct = self.correct[distance:, self.distances.index(distance)]
        if len(correct) == 0:
            raise UndefinedMetricError(f"needs more than {distance} batches (has {len(self.size)})")
        if correct.min() < 0:
            raise UndefinedMetricError(f"a batch was not predicted at distance {distance}")
        return correct, self.size[distance:]

    def compute_windows(self, distance: int, num_images: int) -> NDArray[np.float64]:
        """Compute the accuracy over the last *num_images* after each batch, (n,).

        Windows consist of complete batches, so they have at least so many images; the first ones
        begin with the stream and have fewer. Raises UndefinedMetricError like
        :meth:`select_counts`.
        """
        correct, sizes = (np.cumsum([0, *counts]) for counts in self.select_counts(distance))
        starts = np.searchsorted(sizes, np.maximum(sizes[1:] - num_images, 0), side="right") - 1
        windows: NDArray[np.float64] = (correct[1:] - correct[starts]) / (sizes[1:] - sizes[starts])
        return windows

    def to_bytes(self) -> bytes:
        """Return the content of the run's file."""
        return tensors_to_bytes(
            {name: getattr(self, name) for name in _ARRAYS},
            distances=json.dumps(self.distances),
            buckets=json.dumps(self.buckets),
        )

    @classmethod
    def load(cls, path: Path) -> PrequentialRecord:
        """Read an untrusted file of :meth:`to_bytes`, or raise RecordError."""
        with convert_file_errors(path):
            arrays, metadata = read_tensors(path, _ARRAYS.keys())
            distances = untrusted.parse_json(metadata.get("distances", ""), 1000)
            fields: dict[str, Any] = dict(arrays)
            return cls(
                distances=untrusted.convert(distances, tuple[int, ...], "distances"),
                buckets=parse_texts(metadata, "buckets"),
                **fields,
            )
