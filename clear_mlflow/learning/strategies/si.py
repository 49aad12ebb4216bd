"""Synaptic intelligence: penalise changes of weights by their contribution to past losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clear_mlflow.learning.arguments import check_above_zero, check_not_negative
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.strategies._weights import (
    collect_gradients,
    compute_penalty_coefficients,
    compute_penalty_gradients,
    copy_weights,
    list_trained_weights,
)


class Si(Strategy):
    r"""A quadratic penalty with importances that are measured during training.

    The contribution of a weight to the decrease of the loss is the path integral of the gradient
    along the weight's trajectory (equation 3). Each step adds

    .. math:: \omega_i \leftarrow \omega_i - g_i \, (\theta_i^{after} - \theta_i^{before})

    where g is the gradient of the loss without the penalty. The change of the weight is the
    optimiser's, including momentum, weight decay, clipping and the penalty. After each bucket
    (equation 5),

    .. math:: \Omega_i \leftarrow \max(0, \Omega_i + \omega_i / (\Delta_i^2 + \xi))

    with Delta the change of the weight in that bucket. The penalty in later buckets is
    :math:`c \sum_i \Omega_i (\theta_i - \theta^*_i)^2`, with the weights theta* at the end of the
    newest bucket (equation 4). The paper does not limit Omega to 0 and more, but its authors' code
    does. As in that code, g is the gradient of a batch: its noise makes the integral too large.

    2 c Omega is limited to 1 / ``lr``, at which one step returns a weight to theta*. At more than
    twice this limit, gradient descent diverges.

    The penalty does not affect the running statistics of batch normalisation.

    Source:
        Zenke, Poole and Ganguli, Continual Learning Through Synaptic Intelligence,
        arXiv:1703.04200.
    """

    @dataclass(frozen=True)
    class Arguments:
        """Strength of the penalty."""

        strength: float = 3.0  # c; 0.1 in the paper for permuted MNIST
        damping: float = 0.1  # xi; limits Omega of weights that hardly changed

        def __post_init__(self) -> None:
            check_not_negative(self, "strength")
            check_above_zero(self, "damping")

    supports_distributed = True
    state_attributes = ("_anchor", "_importance", "_stiffness")
    # The path integral is 0 between two buckets.
    temporary_attributes = ("_weights", "_path", "_before", "_loss_gradients")

    def setup(self) -> None:
        """Create the importances and path integrals, which are zero."""
        self._weights = list_trained_weights(self.model)
        self._anchor = copy_weights(self._weights)
        self._importance = [torch.zeros_like(weight) for weight in self._weights]
        self._stiffness = self._importance  # coefficients of the penalty
        self._path = [torch.zeros_like(weight) for weight in self._weights]
        self._before = copy_weights(self._weights)
        self._loss_gradients: list[Tensor] = []

    def before_step(self) -> None:
        """Keep the loss's gradients and the weights, and add the penalty's gradients."""
        self._loss_gradients = collect_gradients(self._weights)
        with torch.no_grad():
            torch._foreach_copy_(self._before, self._weights)
        # The optimiser gets new tensors, so that the loss's gradients need not be copied.
        penalised = compute_penalty_gradients(self._weights, self._anchor, self._stiffness)
        torch._foreach_add_(penalised, self._loss_gradients)
        for weight, gradient in zip(self._weights, penalised, strict=True):
            weight.grad = gradient

    def after_step(self) -> None:
        """Add the step to the path integrals."""
        with torch.no_grad():
            torch._foreach_sub_(self._before, self._weights)
        torch._foreach_addcmul_(self._path, self._loss_gradients, self._before)

    def after_bucket(self, bucket_index: int) -> None:
        """Update the importances and the penalty after a bucket."""
        weights = copy_weights(self._weights)
        divisors = torch._foreach_sub(weights, self._anchor)
        torch._foreach_mul_(divisors, divisors)
        torch._foreach_add_(divisors, self.arguments.damping)
        torch._foreach_addcdiv_(self._importance, self._path, divisors)
        torch._foreach_clamp_min_(self._importance, 0.0)
        torch._foreach_zero_(self._path)
        self._anchor = weights
        # The paper's penalty lacks the factor 1/2.
        strength = 2 * self.arguments.strength
        self._stiffness = compute_penalty_coefficients(
            self._importance, strength, lr=self.config.lr
        )
