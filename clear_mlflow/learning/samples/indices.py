"""Which images: by bucket and place, so that remembering one costs two numbers and no pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SampleIndices:
    """Training images of a stream, in an order."""

    bucket: NDArray[np.int64]  # (N,), position in the stream
    index: NDArray[np.int64]  # (N,), place in that bucket's training images

    def __len__(self) -> int:
        return len(self.index)

    def equals(self, other: SampleIndices) -> bool:
        """Whether these are the same images in the same order."""
        return np.array_equal(self.bucket, other.bucket) and np.array_equal(self.index, other.index)

    def take(self, places: NDArray[np.int64]) -> SampleIndices:
        """Those at *places*, in that order."""
        return SampleIndices(self.bucket[places], self.index[places])


def whole_bucket(position: int, count: int) -> SampleIndices:
    """All *count* images of the bucket at a position, in their order."""
    return SampleIndices(np.full(count, position, dtype=np.int64), np.arange(count, dtype=np.int64))


def joined(*picks: SampleIndices) -> SampleIndices:
    """One after the other."""
    return SampleIndices(
        np.concatenate([p.bucket for p in picks]), np.concatenate([p.index for p in picks])
    )
