"""Rehearsal: batches from a buffer, in addition to those of the current bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from clear_mlflow.learning.buffers import BufferArguments
from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.models import input_dtype
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import Batch, Samples, batches
from clear_mlflow.learning.strategies._base import Strategy, build_buffer

RESERVOIR = BufferArguments(buffer="reservoir")


class RehearsalStrategy(Strategy):
    """Trains on a bucket's images, with batches of a buffer (or a reservoir) as ``rehearsed``."""

    needs_memory = True
    several_processes = True
    keeps: ClassVar[tuple[str, ...]] = ("_buffer",)
    scratch: ClassVar[tuple[str, ...]] = ("_held",)

    def setup(self) -> None:
        """Build an empty buffer."""
        chosen = self.arguments if isinstance(self.arguments, BufferArguments) else RESERVOIR
        self._buffer = build_buffer(
            self.config, self.stream, chosen, extra_bytes=self._count_extra_bytes()
        )
        self._held: Samples | None = None  # the buffer's images

    def _count_extra_bytes(self) -> int:
        """Return how many bytes the strategy keeps with each image in the buffer."""
        return 0

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of images in a step."""
        return input_dtype(self.model, self.config.precision)

    def num_kept_images(self, position: int) -> int:
        """Return the number of images in the buffer."""
        return len(self._buffer)

    def training_set(self, position: int) -> Samples:
        """Return the bucket's own images, and load those of the buffer."""
        if len(self._buffer):
            self._held = self.stream.select(self._buffer.sample_indices)
        return self.stream.train(position)

    def rehearsal(self, position: int, epoch: int, num_steps: int) -> Iterable[tuple[Batch, ...]]:
        """Return the epoch's batches from the buffer, one per step."""
        if self._held is None:
            return super().rehearsal(position, epoch, num_steps)
        where = (self._held, num_steps, self.config, self.stream.device, position, epoch)
        return zip(rehearsal_batches(*where, group=self.group, dtype=self.input_dtype))

    def after_bucket(self, position: int) -> None:
        """Let the bucket's images compete for the buffer."""
        self._held = None
        self._buffer.offer(position, self.stream.labels(position))


def rehearsal_batches(
    held: Samples,
    num_steps: int,
    config: TrainConfig,
    device: torch.device,
    *where: int,
    group: ProcessGroup = ALONE,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Batch]:
    """Return a batch of the buffer per step. The buffer is used up before it is shuffled again."""
    draws = generator(config.seed, RngPurpose.MEMORY, *where)
    count = len(held)
    size = count if config.batch_size == "full" else min(config.batch_size, count)
    total = num_steps * size
    rounds = [torch.randperm(count, generator=draws) for _ in range(0, total, count)]
    return batches(
        held,
        torch.cat(rounds)[:total],
        [(start, start + size) for start in range(0, total, size)],
        device=device,
        draws=draws,
        group=group,
        dtype=dtype,
    )


def joint_logits(forward: Callable[[Tensor], Tensor], *parts: Batch) -> Sequence[Tensor]:
    """Return the logits of batches that pass together, so that normalisation sees the mixture."""
    joined = torch.cat([part.inputs for part in parts])
    return torch.split(forward(joined), [len(part.labels) for part in parts])
