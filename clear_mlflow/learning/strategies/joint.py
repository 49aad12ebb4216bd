"""Joint: train on the whole stream at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import Samples
from clear_mlflow.learning.samples.photos import join_indices, whole_bucket
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer


class Joint(Strategy):
    """Train on all buckets, future ones included, at the first; at the others do nothing.

    No learner in a stream can do this: it is the upper bound of what model and recipe give. All
    rows but the untrained model's are of one model, so they are equal, and metrics that compare
    rows are zero by definition. Under the protocol ``streaming`` every test image was trained on.

    With the run's ``epochs`` it takes as many steps as naive learning does through the stream. The
    cumulative strategy takes half as many times as there are buckets: where few epochs leave a
    model half trained, as on digits, pass ``epochs=N`` to compare with that.

    Source:
        "Joint training" or "offline", the upper bound throughout the literature, as in Van de Ven
        and Tolias, Three scenarios for continual learning, arXiv:1904.07734.
    """

    @dataclass(frozen=True)
    class Arguments:
        """How long to train."""

        epochs: int = 0  # passes over the stream; 0 for the run's

        def __post_init__(self) -> None:
            check_not_negative(self, "epochs")

    several_processes = True
    steps_in_every_bucket = False

    @classmethod
    def epochs(cls, config: TrainConfig, arguments: Any) -> int:
        """Its own, or the run's."""
        return int(arguments.epochs or config.epochs)

    def num_kept_images(self, position: int) -> int:
        """All that there are, from the start."""
        return sum(self.stream.train_counts)

    def learn(self, position: int, trainer: Trainer) -> None:
        """Train once, on everything."""
        if position == 0:
            super().learn(position, trainer)

    def training_set(self, position: int) -> Samples:
        """The images of all buckets, in stream order."""
        counts = self.stream.train_counts
        return self.stream.select(join_indices(*(whole_bucket(k, n) for k, n in enumerate(counts))))
