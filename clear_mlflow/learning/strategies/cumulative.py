"""Cumulative: train on all buckets so far."""

from __future__ import annotations

from clear_mlflow.learning.samples.decoded import Samples
from clear_mlflow.learning.samples.photos import join_indices, whole_bucket
from clear_mlflow.learning.strategies._base import Strategy


class Cumulative(Strategy):
    """Keep training the model on all images of all buckets so far; bounded by no memory.

    The upper bound that other strategies are measured against. Epochs grow with the stream: bucket
    k costs k times as many steps as the first.

    Source:
        Lomonaco and Maltoni, CORe50, arXiv:1705.03550: the "cumulative" strategy.
    """

    several_processes = True

    def num_kept_images(self, position: int) -> int:
        """All so far."""
        return sum(self.stream.train_counts[: position + 1])

    def training_set(self, position: int) -> Samples:
        """The images of all buckets up to this one, in stream order."""
        counts = self.stream.train_counts[: position + 1]
        return self.stream.select(join_indices(*(whole_bucket(k, n) for k, n in enumerate(counts))))
