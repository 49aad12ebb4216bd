"""Joint: train on the whole stream at once."""

from __future__ import annotations

from clear_mlflow.learning.descent import GradientDescent
from clear_mlflow.learning.images import Samples
from clear_mlflow.learning.picks import joined, whole_bucket
from clear_mlflow.learning.strategies._base import Strategy


class Joint(Strategy):
    """Train on all buckets, future ones included, at the first; at the others do nothing.

    No learner in a stream can do this: it is the upper bound of what model and recipe give. All
    rows but the untrained model's are of one model, so they are equal, and metrics that compare
    rows are zero by definition. Under the protocol ``streaming`` every test image was trained on.

    Source:
        "Joint training" or "offline", the upper bound throughout the literature, as in Van de Ven
        and Tolias, Three scenarios for continual learning, arXiv:1904.07734.
    """

    def learn(self, position: int, descent: GradientDescent) -> None:
        """Train once, on everything."""
        if position == 0:
            super().learn(position, descent)

    def training_set(self, position: int) -> Samples:
        """The images of all buckets, in stream order."""
        counts = self.stream.train_counts
        return self.stream.select(joined(*(whole_bucket(k, n) for k, n in enumerate(counts))))
