"""Learning without forgetting: distil the model of the previous bucket on new images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.learning.arguments import check_above_zero, check_not_negative
from clear_mlflow.learning.samples import Batch
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer


class Lwf(Strategy):
    r"""Distillation from the model before the bucket, on the bucket's images.

    Past images are not stored. The loss of a step is

    .. math:: CE(z, y) + \lambda \, CE(z / T, softmax(z^{old} / T))

    with the logits z, and the logits z_old of the model before the bucket (equations 1 to 3). Some
    implementations multiply the second term by T^2; the paper does not. In the paper, each task has
    its own head, and the old heads are distilled. Here all buckets share one head, and both terms
    include all classes. The old model is in evaluation mode.

    The paper computes the old logits once; here the old model computes them for each batch, since
    images may be cropped at random.

    Source:
        Li and Hoiem, Learning without Forgetting, arXiv:1606.09282.
    """

    @dataclass(frozen=True)
    class Arguments:
        """Weight and temperature of the distillation."""

        strength: float = 1.0  # lambda
        temperature: float = 2.0

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            check_above_zero(self, "temperature")

    supports_distributed = True
    temporary_attributes = ("_old",)

    def setup(self) -> None:
        """Start without an old model."""
        self._old: nn.Module | None = None  # the model before the bucket

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Train, from bucket 2 on while distilling the model before it."""
        if bucket_index > 0:
            self._old = copy.deepcopy(self.model).eval().requires_grad_(False)
        super().learn(bucket_index, trainer)
        self._old = None

    def compute_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return the cross-entropy plus the distillation loss."""
        logits = forward(batch.inputs)
        loss = self.criterion(logits, batch.labels)
        if self._old is None:
            return loss
        with torch.no_grad():
            old_logits = self._old(batch.inputs)
        own: Lwf.Arguments = self.arguments
        return loss + own.strength * compute_distillation_loss(
            logits, old_logits, temperature=own.temperature
        )


def compute_distillation_loss(logits: Tensor, old_logits: Tensor, *, temperature: float) -> Tensor:
    """Return the mean cross-entropy to the old model's predictions.

    logits, old_logits: (B, classes), which are divided by *temperature* before the softmax.
    """
    soft = (old_logits.float() / temperature).softmax(dim=1)
    return cross_entropy(logits.float() / temperature, soft)
