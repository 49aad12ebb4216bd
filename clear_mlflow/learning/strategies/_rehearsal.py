"""Rehearsal: batches from a buffer, in addition to the batches of the current bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clear_mlflow.learning.buffers import Buffer, BufferArguments
from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.models import get_input_dtype
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.samples import Batch, Samples, iter_batches
from clear_mlflow.learning.strategies._base import Strategy, build_buffer

RESERVOIR = BufferArguments(buffer="reservoir")


class RehearsalStrategy(Strategy):
    """Trains on a bucket, and has batches from a buffer in ``batch.rehearsed``."""

    # For each rehearsed batch of a step, the numbers that seed its draws with bucket and epoch.
    rehearsal_seeds: ClassVar[tuple[tuple[int, ...], ...]] = ((),)
    buffer_class: ClassVar[type[Buffer] | None] = None  # or None for the one in the arguments
    needs_memory = True
    supports_distributed = True
    state_attributes: ClassVar[tuple[str, ...]] = ("_buffer",)
    temporary_attributes: ClassVar[tuple[str, ...]] = ("_buffer_samples",)

    def setup(self) -> None:
        """Build an empty buffer."""
        arguments = self.arguments if isinstance(self.arguments, BufferArguments) else RESERVOIR
        self._buffer = build_buffer(
            self.config,
            self.stream,
            arguments,
            self.buffer_class,
            extra_bytes=self._count_extra_bytes(),
        )
        self._buffer_samples: Samples | None = None  # the buffer's images

    def _count_extra_bytes(self) -> int:
        """Return the bytes stored with each image in the buffer."""
        return 0

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype of images in a step."""
        return get_input_dtype(self.model, self.config.precision)

    @property
    def rehearsal_batch_size(self) -> int | Literal["full"]:
        """Number of images in a rehearsed batch, by default ``batch_size``."""
        return self.config.batch_size

    def count_stored_images(self, bucket_index: int) -> int:
        """Return the number of images in the buffer."""
        return len(self._buffer)

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the bucket's images, and load the buffer's to rehearse."""
        if len(self._buffer):
            self._buffer_samples = self.stream.select(self._buffer.sample_indices)
        return self.stream.train(bucket_index)

    def load_rehearsal_batches(
        self, bucket_index: int, epoch: int, num_steps: int
    ) -> Iterable[tuple[Batch, ...]]:
        """Return a tuple of buffer batches for each step."""
        if self._buffer_samples is None:
            return super().load_rehearsal_batches(bucket_index, epoch, num_steps)
        config = replace(self.config, batch_size=self.rehearsal_batch_size)
        samples, device = self._buffer_samples, self.stream.device
        draw = partial(draw_buffer_batches, group=self.group, dtype=self.input_dtype)
        batches = (
            draw(samples, num_steps, config, device, bucket_index, epoch, *numbers)
            for numbers in self.rehearsal_seeds
        )
        return zip(*batches, strict=True)

    def after_bucket(self, bucket_index: int) -> None:
        """Update the buffer with the bucket's images."""
        self._buffer_samples = None
        self._buffer.update(bucket_index, self.stream.labels(bucket_index))


def draw_buffer_batches(
    samples: Samples,
    num_steps: int,
    config: TrainConfig,
    device: torch.device,
    *seed_indices: int,
    group: ProcessGroup = SINGLE_PROCESS,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Batch]:
    """Yield a batch from the buffer for each step.

    samples: images in the buffer. All of them are used before they are shuffled again.
    seed_indices: numbers that seed the draws together with the run's seed.
    """
    draws = build_generator(config.seed, RngPurpose.MEMORY, *seed_indices)
    count = len(samples)
    size = count if config.batch_size == "full" else min(config.batch_size, count)
    total = num_steps * size
    rounds = [torch.randperm(count, generator=draws) for _ in range(0, total, count)]
    return iter_batches(
        samples,
        torch.cat(rounds)[:total],
        [(start, start + size) for start in range(0, total, size)],
        device=device,
        generator=draws,
        group=group,
        dtype=dtype,
    )


def compute_joint_logits(forward: Callable[[Tensor], Tensor], *parts: Batch) -> Sequence[Tensor]:
    """Return each batch's logits from one pass, with one batch norm."""
    joined = torch.cat([part.inputs for part in parts])
    return torch.split(forward(joined), [len(part.labels) for part in parts])
