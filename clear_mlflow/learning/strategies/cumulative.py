"""Cumulative: train on all buckets so far."""

from __future__ import annotations

from clear_mlflow.learning.images import Samples
from clear_mlflow.learning.strategies._base import Strategy


class Cumulative(Strategy):
    """Go on training the model on all images of all buckets so far; bounded by no memory.

    The upper bound that other strategies are measured against. Epochs grow with the stream: bucket
    k costs k times as many steps as the first.

    Source:
        Lomonaco and Maltoni, CORe50, arXiv:1705.03550: the "cumulative" strategy.
    """

    _seen: Samples | None = None  # room for the whole stream, filled as far as it was seen

    def training_set(self, position: int) -> Samples:
        """The images of all buckets up to this one, in stream order."""
        new = self.stream.train(position)
        if self._seen is None:
            # Allocated once: growing by joining would hold everything twice for a while. Main
            # memory that is not yet written to costs nothing.
            self._seen = self.stream.room_for(sum(self.stream.train_counts))
        start = sum(self.stream.train_counts[:position])
        stop = start + len(new)
        self._seen.images[start:stop] = new.images
        self._seen.labels[start:stop] = new.labels
        return Samples(self._seen.images[:stop], self._seen.labels[:stop])
