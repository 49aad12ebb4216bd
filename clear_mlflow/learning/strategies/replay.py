"""Replay: train on the new bucket and on a sample of the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers import BufferArguments
from clear_mlflow.learning.samples.decoded import Batch, Samples
from clear_mlflow.learning.samples.photos import join_indices, whole_bucket
from clear_mlflow.learning.strategies._base import share_of_mean
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy, joint_logits

SHUFFLED, BALANCED = "shuffled", "balanced"


class Replay(RehearsalStrategy):
    """Experience replay from a buffer of ``memory`` images.

    With ``batches=shuffled`` a bucket's images and the buffer's are shuffled into one epoch, so
    each counts once, and an epoch has (bucket + memory) / ``batch_size`` steps. With
    ``batches=balanced``, as in the paper and in Avalanche, an epoch goes through the bucket alone,
    and each step has ``batch_size`` images from the buffer, or all of them, beside those of the
    bucket; the loss is the mean over both. An image of a small buffer then counts many times.

    When the bucket is done, its images compete for the buffer.

    Source:
        Chaudhry et al., On Tiny Episodic Memories in Continual Learning, arXiv:1902.10486.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """Which images are kept, and how they are mixed with new ones."""

        batches: str = SHUFFLED

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.batches not in (SHUFFLED, BALANCED):
                raise ConfigError(
                    f"batches is {self.batches!r} in strategy_args; pass {SHUFFLED} or {BALANCED}"
                )

    def training_set(self, position: int) -> Samples:
        """The new bucket's images, followed by the buffer's where they are shuffled together."""
        if len(self._buffer) == 0 or self.arguments.batches == BALANCED:
            return super().training_set(position)
        new = whole_bucket(position, self.stream.train_counts[position])
        return self.stream.select(join_indices(new, self._buffer.sample_indices))

    def share_of_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of the mean over the batches of bucket and buffer."""
        if not batch.rehearsed:
            return super().share_of_loss(forward, batch)
        (old,) = batch.rehearsed
        new_logits, old_logits = joint_logits(forward, batch, old)
        new = share_of_mean(batch, new_logits, self.criterion, batch.labels)
        past = share_of_mean(old, old_logits, self.criterion, old.labels)
        return (batch.total * new + old.total * past) / (batch.total + old.total)
