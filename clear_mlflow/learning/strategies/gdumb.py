"""GDumb: keep a class-balanced memory, and train a new model only on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.buffers import BUFFERS, AuthorsReservoir, BufferArguments
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples import Samples
from clear_mlflow.learning.strategies._base import Strategy, build_buffer, build_untrained_model
from clear_mlflow.learning.training.trainer import Trainer


class Gdumb(Strategy):
    """Greedy sampler, dumb learner: trains a new model on the memory.

    The sampler updates the memory with the bucket's images. Then an untrained model is trained on
    the memory only. A strategy that is not better than GDumb does not benefit from its method.

    The paper's sampler, :class:`~clear_mlflow.learning.buffers.GreedyBalanced`, is designed for
    streams with new classes in each bucket. If every bucket contains all classes, a memory that is
    not larger than the first bucket never changes, and all rows are like the first one.
    ``buffer=class_balanced`` renews the memory, as in Avalanche. Optimiser, schedule and epochs are
    the run's, unless ``epochs=N`` is passed: an epoch on a small memory has few steps. The paper
    trains for 256 epochs, with a cosine schedule with warm restarts and CutMix.

    ``update=authors`` with ``buffer=biased_reservoir`` follows the program of CLEAR's authors: new
    images replace the newest ones in the buffer, and the model is fine-tuned on the buffer. The
    authors test the epoch with the best training accuracy; here the last epoch is tested.

    Source:
        Prabhu, Torr and Dokania, GDumb: A Simple Approach that Questions Our Progress in Continual
        Learning, ECCV 2020.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """The buffer, and how the model is trained on it."""

        buffer: str = "greedy_balanced"
        epochs: int = 0  # passes over the memory; 0: the run's epochs
        update: str = "paper"  # or authors

        def __post_init__(self) -> None:
            super().__post_init__()
            check_not_negative(self, "epochs")
            valid_buffers = ("biased_reservoir",) if self.update == "authors" else tuple(BUFFERS)
            if self.update not in ("paper", "authors") or self.buffer not in valid_buffers:
                raise ConfigError(
                    f"strategy_args has update={self.update},buffer={self.buffer}; expected "
                    "update=paper, or authors with buffer=biased_reservoir"
                )

    needs_memory = True
    supports_distributed = True
    supports_realtime = False
    state_attributes = ("_buffer",)

    @classmethod
    def count_epochs(cls, config: TrainConfig, arguments: Any) -> int:
        """Return the epochs in ``strategy_args``, or the run's."""
        return int(arguments.epochs or config.epochs)

    def setup(self) -> None:
        """Create an empty buffer."""
        buffer_class = AuthorsReservoir if self.arguments.update == "authors" else None
        self._buffer = build_buffer(self.config, self.stream, self.arguments, buffer_class)

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Update the buffer, then train a model on it, usually untrained."""
        self._buffer.update(bucket_index, self.stream.labels(bucket_index))
        if bucket_index > 0 and self.arguments.update == "paper":
            trainer.restart(
                build_untrained_model(type(self), self.stream, self.config, bucket_index)
            )
        super().learn(bucket_index, trainer)

    def count_stored_images(self, bucket_index: int) -> int:
        """Return the number of images in the buffer."""
        return len(self._buffer)

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the images in the buffer."""
        return self.stream.select(self._buffer.sample_indices)
