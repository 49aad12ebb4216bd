"""How much the labels of a dated stream change from bucket to bucket, for one or more borders.

All numbers are total variations of label shares, from 0 (the same) to 1 (no label in common): half
the sum over classes of the absolute difference of two shares. Nothing is trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.data.borders import CoarseTimeError
from clear_mlflow.data.images import ImageIndex

SHIFTS = (0.1, 0.25)  # of a bucket


@dataclass(frozen=True, eq=False)
class LabelDrift:
    """The labels of one stream in the buckets of some borders.

    Args:
        borders: text of the option ``borders``.
        buckets: keys of the T buckets.
        counts: (T, C) images of each class.
        sensitivity: fraction of a bucket to the distance from the buckets whose borders are moved
            by it, the mean of both directions; {} unless the borders are a year, half, quarter or
            month and all times have a day.
    """

    borders: str
    buckets: tuple[str, ...]
    counts: NDArray[np.int64]
    sensitivity: Mapping[float, float]

    @property
    def from_previous(self) -> NDArray[np.float64]:
        """(T - 1,), change of labels from bucket t - 1 to t."""
        shares = _divide(self.counts)
        return measure_total_variation(shares[1:], shares[:-1])

    @property
    def from_all_before(self) -> NDArray[np.float64]:
        """(T - 1,), change of labels from all buckets before t to t."""
        before = _divide(self.counts.cumsum(axis=0))
        return measure_total_variation(_divide(self.counts)[1:], before[:-1])

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for programs. The first bucket has none."""
        return {
            "borders": self.borders,
            "buckets": list(self.buckets),
            "from_previous": [None, *self.from_previous.tolist()],
            "from_all_before": [None, *self.from_all_before.tolist()],
            "sensitivity": {f"{shift:g}": value for shift, value in self.sensitivity.items()},
        }


def measure_label_drift(borders: str, read_index: Callable[[str], ImageIndex]) -> LabelDrift:
    """Read a stream with some borders, and with shifted ones, and measure its labels.

    read_index: reads the stream with the borders that it gets.
    """
    index = read_index(borders)
    counts, sensitivity = _count_labels(index), {}
    if re.fullmatch("year|half|quarter|month", borders):
        with suppress(CoarseTimeError):  # shifted borders need a day
            for shift in SHIFTS:
                texts = [f"shift:{borders}:{sign}{shift:g}" for sign in ("", "-")]
                sensitivity[shift] = fmean(
                    measure_distance(counts, _count_labels(read_index(text))) for text in texts
                )
    return LabelDrift(borders, index.buckets, counts, sensitivity)


def measure_distance(counts: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """Return how far two divisions of a stream are apart.

    That is the mean over images of the total variation between the labels of its bucket in one
    division and in the other.

    counts, others: (T, C) and (U, C) images of each class.

    >>> measure_distance(np.array([[2, 0], [0, 2]]), np.array([[2, 2]]))
    0.5
    """
    # Both divide one order of time: how many images two buckets share follows from their numbers.
    ends, other_ends = (table.sum(axis=1).cumsum() for table in (counts, others))
    starts, other_starts = (np.append(0, e[:-1]) for e in (ends, other_ends))
    shared = np.minimum.outer(ends, other_ends) - np.maximum.outer(starts, other_starts)
    variations = measure_total_variation(_divide(counts)[:, np.newaxis], _divide(others))
    return float((shared.clip(0) * variations).sum() / ends[-1])


def measure_total_variation(
    shares: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return half the sum of absolute differences over the last axis."""
    variation: NDArray[np.float64] = np.abs(shares - others).sum(axis=-1) / 2
    return variation


def _count_labels(index: ImageIndex) -> NDArray[np.int64]:
    """Return (T, C), the images of each bucket and class, in training and test sets."""
    if index.test_error is not None:
        raise index.test_error
    return index.images.count_classes(len(index.buckets), len(index.class_names))


def _divide(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of each class in a bucket."""
    shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return shares
