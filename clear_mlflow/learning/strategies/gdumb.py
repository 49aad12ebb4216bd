"""GDumb: keep a balanced memory, and train a new model on it alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.buffers import BUFFERS, AuthorsReservoir, BufferArguments
from clear_mlflow.learning.loop import fresh_model
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import Samples
from clear_mlflow.learning.strategies._base import Strategy, build_buffer
from clear_mlflow.learning.training.trainer import Trainer


class Gdumb(Strategy):
    """Greedy sampler and dumb learner: at each bucket, a fresh model learns the memory by heart.

    The bucket's images pass through the sampler into the memory; then a model is trained from
    scratch on what the memory holds, and on nothing else. A question to other strategies: what does
    all that they do give beyond this?

    The paper's sampler, :class:`.greedy_balanced.GreedyBalanced`, was made for streams that bring
    new classes; where every bucket brings all classes, a memory no larger than the first bucket is
    never renewed, and later rows are as the first. ``buffer=class_balanced`` renews it, as
    Avalanche's does. Optimiser and schedule are the run's, and so are the epochs unless
    ``epochs=N`` says otherwise: a memory smaller than a bucket gives fewer steps in each, and the
    model starts anew. The paper trains for 256 epochs, with warm restarts of a cosine and CutMix.

    ``update=authors`` follows the program of CLEAR's authors with ``buffer=biased_reservoir``: new
    images replace the newest ones in the buffer, on which the model is fine-tuned. They then test
    the epoch of the best training accuracy; here, as always, the last one is tested.

    Source:
        Prabhu, Torr and Dokania, GDumb: A Simple Approach that Questions Our Progress in Continual
        Learning, ECCV 2020.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """Which images are kept, and how long they are trained on."""

        buffer: str = "greedy_balanced"
        epochs: int = 0  # passes over the memory; 0 for the run's
        update: str = "paper"  # or authors

        def __post_init__(self) -> None:
            super().__post_init__()
            check_not_negative(self, "epochs")
            fitting = ("biased_reservoir",) if self.update == "authors" else tuple(BUFFERS)
            if self.update not in ("paper", "authors") or self.buffer not in fitting:
                raise ConfigError(
                    f"strategy_args has update={self.update},buffer={self.buffer}; expected "
                    "update=paper, or authors with buffer=biased_reservoir"
                )

    needs_memory = True
    several_processes = True
    supports_realtime = False
    keeps = ("_buffer",)

    @classmethod
    def epochs(cls, config: TrainConfig, arguments: Any) -> int:
        """Its own, or the run's."""
        return int(arguments.epochs or config.epochs)

    def setup(self) -> None:
        """The memory."""
        buffer_class = AuthorsReservoir if self.arguments.update == "authors" else None
        self._buffer = build_buffer(self.config, self.stream, self.arguments, buffer_class)

    def learn(self, position: int, trainer: Trainer) -> None:
        """Sample the bucket, then train a model on the memory, by default a fresh one."""
        self._buffer.offer(position, self.stream.labels(position))
        if position > 0 and self.arguments.update == "paper":
            trainer.restart(fresh_model(self.stream, self.config, position))
        super().learn(position, trainer)

    def num_kept_images(self, position: int) -> int:
        """Return the number of images in the buffer."""
        return len(self._buffer)

    def training_set(self, position: int) -> Samples:
        """The memory."""
        return self.stream.select(self._buffer.sample_indices)
