"""Learning without forgetting: keep answering new images as the model did before them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.learning.arguments import check_above_zero, check_not_negative
from clear_mlflow.learning.samples.decoded import Batch
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer

_ANSWERED_AT_ONCE = 256


class Lwf(Strategy):
    r"""Distillation from the model as it was before the bucket, on the bucket's own images.

    No past image is kept. The loss of a step is

    .. math:: CE(z, y) + \lambda \, CE(z / T, softmax(z^{old} / T))

    with z the logits and z_old those of the model before the bucket (equations 1 to 3). Some
    implementations multiply the second term by T^2; the paper does not. It distils the heads of old
    tasks, and the new task has one of its own; here one head is asked for all buckets, and both
    terms are about all of its classes. The old model answers in evaluation mode.

    The paper writes the old answers down once; here the old model answers each batch anew, since
    images may be cropped at random.

    Source:
        Li and Hoiem, Learning without Forgetting, arXiv:1606.09282.
    """

    @dataclass(frozen=True)
    class Arguments:
        """How much the old answers count, and how soft they are."""

        strength: float = 1.0  # lambda
        temperature: float = 2.0

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            check_above_zero(self, "temperature")

    several_processes = True
    scratch = ("_old",)

    def setup(self) -> None:
        """No teacher yet."""
        self._old: nn.Module | None = None  # of the bucket in training

    def learn(self, position: int, trainer: Trainer) -> None:
        """Train with the current model as the teacher, and on the first bucket without one."""
        if position > 0:
            self._old = copy.deepcopy(self.model).eval().requires_grad_(False)
        super().learn(position, trainer)
        self._old = None

    def loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return the cross-entropy plus the distance to the predictions of the old model."""
        logits = forward(batch.inputs)
        learning = self.criterion(logits, batch.labels)
        if self._old is None:
            return learning
        with torch.no_grad():
            old = self._old(batch.inputs)
        own: Lwf.Arguments = self.arguments
        return learning + own.strength * distillation(logits, old, temperature=own.temperature)


def distillation(logits: Tensor, old: Tensor, *, temperature: float) -> Tensor:
    """Mean cross-entropy of (B, classes) with a teacher's answers of that shape, both softened."""
    soft = (old.float() / temperature).softmax(dim=1)
    return cross_entropy(logits.float() / temperature, soft)
