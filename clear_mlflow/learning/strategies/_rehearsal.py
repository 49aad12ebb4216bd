"""Batches from a buffer, beside those of the bucket that is trained on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from clear_mlflow.learning.config import TrainConfig
from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.parallel.group import ALONE, Group
from clear_mlflow.learning.samples.decoded import Batch, Samples, batches


def rehearsal_batches(
    held: Samples,
    num_steps: int,
    config: TrainConfig,
    device: torch.device,
    *where: int,
    group: Group = ALONE,
) -> Iterator[Batch]:
    """One batch from a buffer for each step of an epoch; nothing is drawn in a step.

    The buffer is gone through in random order, and shuffled anew when all of it was used: each
    image is rehearsed as often as any other, give or take one.

    Args:
        held: what the buffer holds.
        num_steps: how many batches, each of ``batch_size`` samples or all that are held.
        config: the run's parameters.
        device: where the batches lie.
        where: the bucket's position, the epoch, and, where a step takes several batches, which of
            them; the draws follow from it.
        group: the processes that share every batch; the batches are this one's shares.
    """
    draws = generator(config.seed, RngPurpose.MEMORY, *where)
    count = len(held)
    size = rehearsal_size(config, count)
    total = num_steps * size
    rounds = [torch.randperm(count, generator=draws) for _ in range(0, total, count)]
    return batches(
        held,
        torch.cat(rounds)[:total],
        [(start, start + size) for start in range(0, total, size)],
        image_size=config.image_size,
        device=device,
        draws=draws,
        group=group,
    )


def rehearsal_size(config: TrainConfig, count: int) -> int:
    """Images in each batch from a buffer that holds *count*: ``batch_size``, or all of them."""
    return count if config.batch_size == "full" else min(config.batch_size, count)


def joined_inputs(*parts: Batch) -> Tensor:
    """Inputs of several batches as one, in the memory layout of the first.

    One pass through the model costs less than several, and its batch normalisation then sees the
    mix of old and new on which it is tested, and not each by itself.
    """
    return torch.cat([part.inputs for part in parts])
