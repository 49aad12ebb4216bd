"""A-GEM: take no step that would raise the loss on what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.buffers import BufferArguments
from clear_mlflow.learning.device import autocast
from clear_mlflow.learning.models import input_dtype
from clear_mlflow.learning.samples.decoded import Batch
from clear_mlflow.learning.strategies._base import share_of_mean
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy, rehearsal_batches
from clear_mlflow.learning.strategies._weights import gradients, trained_weights


class Agem(RehearsalStrategy):
    r"""Averaged gradient episodic memory: the buffer is not trained on, it limits each step.

    Each step takes a batch from the buffer. Where the step's gradient g and that batch's, g_ref,
    point apart, what points apart is taken from g (equation 11):

    .. math:: g \leftarrow g - \frac{\min(0, g \cdot g_{ref})}{g_{ref} \cdot g_{ref}} \, g_{ref}

    When a bucket is done, its images compete for the buffer. Momentum and weight decay act on what
    is left of g, so the step itself may still point apart, as in every implementation. The buffer's
    batches pass through the model in training mode: batch normalisation sees them, too.

    Source:
        Chaudhry et al., Efficient Lifelong Learning with A-GEM, arXiv:1812.00420.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """Which images are kept, and how many of them limit a step."""

        batch: int = 0  # images of the buffer in a step; 0 for as many as batch_size

        def __post_init__(self) -> None:
            super().__post_init__()
            check_not_negative(self, "batch")

    scratch = (*RehearsalStrategy.scratch, "_reference", "_weights")

    def setup(self) -> None:
        """The weights, and the batch that limits a step."""
        super().setup()
        self._weights = trained_weights(self.model)
        self._reference: Batch | None = None  # of the step

    @property
    def _precision(self) -> str:
        """That of steps, but float32 for float16, in which a loss that is not scaled vanishes."""
        return "off" if self.config.precision == "fp16" else self.config.precision

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of images in the batch that limits a step."""
        return input_dtype(self.model, self._precision)

    def rehearsal(self, position: int, epoch: int, num_steps: int) -> Iterable[tuple[Batch, ...]]:
        """The epoch's batches from the buffer, of a size of their own."""
        if self._held is None:
            return super().rehearsal(position, epoch, num_steps)
        config = replace(self.config, batch_size=self.arguments.batch or self.config.batch_size)
        where = (self._held, num_steps, config, self.stream.device, position, epoch)
        return zip(rehearsal_batches(*where, group=self.group, dtype=self.input_dtype))

    def share_of_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return the loss of the bucket's batch, and keep the buffer's batch for before_step."""
        (self._reference,) = batch.rehearsed or (None,)
        return super().share_of_loss(forward, batch)

    def before_step(self) -> None:
        """Take from the gradient what would raise the loss on a batch of the buffer."""
        batch, self._reference = self._reference, None
        if batch is None:
            return
        with autocast(self.stream.device, self._precision):
            loss = share_of_mean(batch, self.model(batch.inputs), self.criterion, batch.labels)
        share = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        # Both gradients are those of whole batches before one limits the other.
        reference = [self.group.all_reduce(part) / self.group.size for part in share]
        project(gradients(self._weights), reference)


def project(gradient: list[Tensor], reference: list[Tensor]) -> None:
    """Take from a gradient, in place and without waiting, its part against a reference."""
    along = _dot(gradient, reference)
    # A reference of zeros has along = 0, too: what it is divided by does not matter.
    length = _dot(reference, reference).clamp_min(torch.finfo(torch.float32).tiny)
    against = along.clamp_max(0.0) / length
    torch._foreach_sub_(gradient, torch._foreach_mul(reference, against))


def _dot(left: list[Tensor], right: list[Tensor]) -> Tensor:
    products = torch._foreach_mul(left, right)
    return torch.stack([product.sum() for product in products]).sum()
