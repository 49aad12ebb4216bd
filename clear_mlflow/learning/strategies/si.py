"""Synaptic intelligence: hold each weight as firmly as its moves have lowered past losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clear_mlflow.learning.arguments import check_above_zero, check_not_negative
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.strategies._weights import (
    copy_weights,
    gradients,
    pull,
    stiffness,
    trained_weights,
)


class Si(Strategy):
    r"""A quadratic penalty whose stiffness is measured while a bucket is trained on, at no cost.

    How much a weight has lowered the loss is the path integral of the loss's gradient along the
    way that the weight really went (equation 3): step by step,

    .. math:: \omega_i \leftarrow \omega_i - g_i \, (\theta_i^{after} - \theta_i^{before})

    where g is the gradient of the loss alone. The step is whatever the optimiser made of it, with
    momentum, weight decay, clipping and the penalty. When a bucket is done (equation 5),

    .. math:: \Omega_i \leftarrow \max(0, \Omega_i + \omega_i / (\Delta_i^2 + \xi))

    with Delta the weight's whole way in that bucket, and the penalty of the buckets to come is
    :math:`c \sum_i \Omega_i (\theta_i - \theta^*_i)^2` around where the newest bucket left the
    weights (equation 4). That nothing is held with negative stiffness is not in the paper, but in
    its authors' code. Their g is of a batch, as here: its noise makes the integral an overestimate.

    No weight is held more firmly than so that one step takes it all the way back: 2 c Omega is at
    most 1 / ``lr``. Beyond twice that, gradient descent diverges.

    Batch normalisation's running statistics are no weights, and nothing holds them.

    Source:
        Zenke, Poole and Ganguli, Continual Learning Through Synaptic Intelligence,
        arXiv:1703.04200.
    """

    @dataclass(frozen=True)
    class Arguments:
        """How firmly."""

        strength: float = 3.0  # c; the paper's is 0.1 for permuted MNIST
        damping: float = 0.1  # xi; keeps weights that hardly moved from being held without limit

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            check_above_zero(self, "damping")

    several_processes = True
    keeps = ("_anchor", "_importance", "_stiffness")
    # The path is at 0 between two buckets.
    scratch = ("_weights", "_path", "_before", "_of_loss")

    def setup(self) -> None:
        """The weights, and what is measured of each."""
        self._weights = trained_weights(self.model)
        self._anchor = copy_weights(self._weights)
        self._importance = [torch.zeros_like(weight) for weight in self._weights]
        self._stiffness = self._importance
        self._path = [torch.zeros_like(weight) for weight in self._weights]
        self._before = copy_weights(self._weights)
        self._of_loss: list[Tensor] = []

    def before_step(self) -> None:
        """Keep the loss's gradient and the weights, and add the penalty's gradient."""
        self._of_loss = gradients(self._weights)
        with torch.no_grad():
            torch._foreach_copy_(self._before, self._weights)
        # The optimiser gets other tensors, so that the loss's gradient stays without a copy.
        penalised = pull(self._weights, self._anchor, self._stiffness)
        torch._foreach_add_(penalised, self._of_loss)
        for weight, gradient in zip(self._weights, penalised, strict=True):
            weight.grad = gradient

    def after_step(self) -> None:
        """Go one step along the path integral."""
        with torch.no_grad():
            torch._foreach_sub_(self._before, self._weights)
        torch._foreach_addcmul_(self._path, self._of_loss, self._before)

    def after_bucket(self, position: int) -> None:
        """Turn the bucket's path integral into stiffness, and hold the weights where they are."""
        here = copy_weights(self._weights)
        way = torch._foreach_sub(here, self._anchor)
        torch._foreach_mul_(way, way)
        torch._foreach_add_(way, self.arguments.damping)
        torch._foreach_addcdiv_(self._importance, self._path, way)
        torch._foreach_clamp_min_(self._importance, 0.0)
        torch._foreach_zero_(self._path)
        self._anchor = here
        # The paper's penalty has no half in it.
        strength = 2 * self.arguments.strength
        self._stiffness = stiffness(self._importance, strength, lr=self.config.lr)
