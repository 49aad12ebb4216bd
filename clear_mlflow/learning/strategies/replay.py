"""Replay: train on the new bucket and on a sample of the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers import BufferArguments
from clear_mlflow.learning.photos import join_indices, list_bucket_indices
from clear_mlflow.learning.samples import Batch, Samples
from clear_mlflow.learning.strategies._base import compute_mean_share
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy, compute_joint_logits

SHUFFLED, BALANCED = "shuffled", "balanced"


class Replay(RehearsalStrategy):
    """Experience replay from a buffer of ``memory`` images.

    With ``batches=shuffled``, an epoch contains the images of the bucket and of the buffer once, in
    random order: (bucket + memory) / ``batch_size`` steps. With ``batches=balanced``, as in the
    paper and in Avalanche, an epoch contains the bucket once, and each step has another
    ``batch_size`` images from the buffer, or all of them; the loss is the mean over all images of
    the step. Images of a small buffer are then repeated many times.

    The buffer is updated after each bucket.

    Source:
        Chaudhry et al., On Tiny Episodic Memories in Continual Learning, arXiv:1902.10486.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """The buffer, and how its images are mixed with new ones."""

        batches: str = SHUFFLED

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.batches not in (SHUFFLED, BALANCED):
                raise ConfigError(
                    f"batches is {self.batches!r} in strategy_args; pass {SHUFFLED} or {BALANCED}"
                )

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the bucket's images, and the buffer's if they are shuffled together."""
        if len(self._buffer) == 0 or self.arguments.batches == BALANCED:
            return super().load_training_set(bucket_index)
        new = list_bucket_indices(bucket_index, self.stream.train_counts[bucket_index])
        return self.stream.select(join_indices(new, self._buffer.sample_indices))

    def compute_loss_share(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of the loss on both batches."""
        if not batch.rehearsed:
            return super().compute_loss_share(forward, batch)
        (old,) = batch.rehearsed
        new_logits, old_logits = compute_joint_logits(forward, batch, old)
        new = compute_mean_share(batch, new_logits, self.criterion, batch.labels)
        past = compute_mean_share(old, old_logits, self.criterion, old.labels)
        return (batch.total * new + old.total * past) / (batch.total + old.total)
