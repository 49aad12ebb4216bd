"""Cumulative: train on all buckets so far."""

from __future__ import annotations

from clear_mlflow.learning.photos import list_indices
from clear_mlflow.learning.samples import Samples
from clear_mlflow.learning.strategies._base import Strategy


class Cumulative(Strategy):
    """Continue training on all images of all buckets so far.

    This is an upper bound for other strategies. Epochs grow with the stream: bucket k takes k times
    as many steps as the first.

    Source:
        Lomonaco and Maltoni, CORe50, arXiv:1705.03550: the "cumulative" strategy.
    """

    supports_distributed = True

    def count_stored_images(self, bucket_index: int) -> int:
        """Return the number of images in all buckets so far."""
        return sum(self.stream.train_counts[: bucket_index + 1])

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the images of all buckets so far, in stream order."""
        return self.stream.select(list_indices(self.stream.train_counts[: bucket_index + 1]))
