"""Lists of a model's trained weights, for strategies with a quadratic penalty."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def list_trained_weights(model: nn.Module) -> list[Tensor]:
    """Return all weights that are not frozen, in the model's order."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def collect_gradients(weights: list[Tensor]) -> list[Tensor]:
    """Set missing gradients of weights to zero, and return all gradients."""
    weight_gradients = []
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight_gradients.append(weight.grad)
    return weight_gradients


def copy_weights(weights: list[Tensor]) -> list[Tensor]:
    """Return copies of the weights."""
    return [weight.detach().clone() for weight in weights]


@torch.no_grad()
def compute_penalty_gradients(
    weights: list[Tensor], anchor: list[Tensor], coefficients: list[Tensor]
) -> list[Tensor]:
    """Return the gradients of ``sum(coefficient * (weight - anchor) ** 2) / 2``."""
    result = torch._foreach_sub(weights, anchor)
    torch._foreach_mul_(result, coefficients)
    return list(result)


def compute_penalty_coefficients(
    importance: list[Tensor], strength: float, *, lr: float
) -> list[Tensor]:
    """Return strength times importance, at most ``1 / lr``.

    At that limit, one step of gradient descent ends at the minimum of the penalty.
    """
    result = torch._foreach_mul(importance, strength)
    torch._foreach_clamp_max_(result, 1 / lr)
    return list(result)
