"""Joint: train on the complete stream at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import list_indices
from clear_mlflow.learning.samples import Samples
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer


class Joint(Strategy):
    """Train on all buckets, including future ones, in the first bucket.

    Skips all others. This is impossible for a method that learns from a stream: it is an upper
    bound for the model and recipe. All rows except the untrained model's belong to one model, so
    they are equal, and metrics that compare rows are zero by definition. With
    ``protocol=streaming``, every test image was trained on.

    With the run's ``epochs``, it takes as many steps as naive learning on the complete stream. With
    T buckets, the cumulative strategy takes about T / 2 times as many. If few epochs do not train
    the model to the end, as on digits, pass ``epochs=N`` for a fair comparison.

    Source:
        "Joint training" or "offline", the upper bound throughout the literature, as in Van de Ven
        and Tolias, Three scenarios for continual learning, arXiv:1904.07734.
    """

    @dataclass(frozen=True)
    class Arguments:
        """How long to train."""

        epochs: int = 0  # passes over the stream; 0: the run's epochs

        def __post_init__(self) -> None:
            check_not_negative(self, "epochs")

    supports_distributed = True
    steps_in_every_bucket = False

    @classmethod
    def count_epochs(cls, config: TrainConfig, arguments: Any) -> int:
        """Return the epochs in ``strategy_args``, or the run's."""
        return int(arguments.epochs or config.epochs)

    def count_stored_images(self, bucket_index: int) -> int:
        """Return the number of images in the stream."""
        return sum(self.stream.train_counts)

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Train in the first bucket only."""
        if bucket_index == 0:
            super().learn(bucket_index, trainer)

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the images of all buckets, in stream order."""
        return self.stream.select(list_indices(self.stream.train_counts))
