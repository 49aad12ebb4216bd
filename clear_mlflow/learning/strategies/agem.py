"""A-GEM: avoid steps that would increase the loss on the buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clear_mlflow.learning.arguments import check_not_negative
from clear_mlflow.learning.buffers import BufferArguments
from clear_mlflow.learning.device import autocast
from clear_mlflow.learning.models import get_input_dtype
from clear_mlflow.learning.samples import Batch
from clear_mlflow.learning.strategies._base import compute_mean_share
from clear_mlflow.learning.strategies._rehearsal import RehearsalStrategy
from clear_mlflow.learning.strategies._weights import collect_gradients, list_trained_weights


class Agem(RehearsalStrategy):
    r"""Averaged gradient episodic memory: the buffer constrains each step's gradient.

    Each step draws a batch from the buffer. If its gradient g_ref and the gradient g of the
    bucket's batch have a negative dot product, g is projected (equation 11):

    .. math:: g \leftarrow g - \frac{\min(0, g \cdot g_{ref})}{g_{ref} \cdot g_{ref}} \, g_{ref}

    The buffer is updated after each bucket. Momentum and weight decay act on the projected g, so
    the step itself may still increase the loss on the buffer, as in every implementation. The
    buffer's batches pass through the model in training mode: they affect batch normalisation.

    Source:
        Chaudhry et al., Efficient Lifelong Learning with A-GEM, arXiv:1812.00420.
    """

    @dataclass(frozen=True)
    class Arguments(BufferArguments):
        """The buffer, and the number of its images in a step."""

        batch: int = 0  # images from the buffer in a step; 0: batch_size

        def __post_init__(self) -> None:
            super().__post_init__()
            check_not_negative(self, "batch")

    temporary_attributes = (*RehearsalStrategy.temporary_attributes, "_reference", "_weights")

    def setup(self) -> None:
        """Create the buffer."""
        super().setup()
        self._weights = list_trained_weights(self.model)
        self._reference: Batch | None = None  # batch from the buffer, in the current step

    @property
    def _precision(self) -> str:
        """The run's precision, but float32 for float16: losses are unscaled."""
        return "off" if self.config.precision == "fp16" else self.config.precision

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype of images from the buffer."""
        return get_input_dtype(self.model, self._precision)

    @property
    def rehearsal_batch_size(self) -> int | Literal["full"]:
        """Number of rehearsed images: ``batch``, or the run's batch size."""
        return self.arguments.batch or self.config.batch_size

    def compute_loss_share(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return the bucket's loss, and keep the buffer's batch."""
        (self._reference,) = batch.rehearsed or (None,)
        return super().compute_loss_share(forward, batch)

    def before_step(self) -> None:
        """Project the gradient with the buffer's gradient, as :func:`project_gradient` does.

        Without such a batch, the gradient stays as it is.
        """
        batch, self._reference = self._reference, None
        if batch is None:
            return
        with autocast(self.stream.device, self._precision):
            loss = compute_mean_share(batch, self.model(batch.inputs), self.criterion, batch.labels)
        share = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        # Both gradients must belong to complete batches before the projection.
        reference = [self.group.all_reduce(part) / self.group.size for part in share]
        project_gradient(collect_gradients(self._weights), reference)


def project_gradient(gradient: list[Tensor], reference: list[Tensor]) -> None:
    """Remove a gradient's component opposite to a reference, in place.

    A gradient whose dot product with the reference is not negative stays as it is. gradient,
    reference: a tensor per weight.
    """
    dot = _dot(gradient, reference)
    # If the reference is zero, the dot product is zero too, and any divisor is correct.
    squared_norm = _dot(reference, reference).clamp_min(torch.finfo(torch.float32).tiny)
    factor = dot.clamp_max(0.0) / squared_norm
    torch._foreach_sub_(gradient, torch._foreach_mul(reference, factor))


def _dot(first: list[Tensor], second: list[Tensor]) -> Tensor:
    products = torch._foreach_mul(first, second)
    return torch.stack([product.sum() for product in products]).sum()
