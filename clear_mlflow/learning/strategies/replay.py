"""Replay: train on the new bucket and on a sample of the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from clear_mlflow.learning.buffers._base import BufferArguments
from clear_mlflow.learning.config import TrainConfig
from clear_mlflow.learning.samples.decoded import Samples
from clear_mlflow.learning.samples.feature_stream import TrainingStream
from clear_mlflow.learning.samples.indices import joined, whole_bucket
from clear_mlflow.learning.strategies._base import Strategy, new_buffer


class Replay(Strategy):
    """Experience replay from a buffer of ``memory`` images.

    While a bucket is trained on, its images and the buffer's are shuffled into one epoch, so each
    counts once. When the bucket is done, its images compete for the buffer.

    Source:
        Chaudhry et al., On Tiny Episodic Memories in Continual Learning, arXiv:1902.10486.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """Which images are kept."""

    needs_memory = True
    several_processes = True

    def __init__(
        self, config: TrainConfig, stream: TrainingStream, model: nn.Module, arguments: Any
    ) -> None:
        super().__init__(config, stream, model, arguments)
        self._buffer = new_buffer(config, stream, arguments)

    def training_set(self, position: int) -> Samples:
        """The new bucket's images, then the buffer's."""
        if len(self._buffer) == 0:
            return self.stream.train(position)
        new = whole_bucket(position, self.stream.train_counts[position])
        return self.stream.select(joined(new, self._buffer.picks))

    def after_bucket(self, position: int) -> None:
        """Let the bucket's images compete for the buffer."""
        self._buffer.offer(position, self.stream.labels(position))
