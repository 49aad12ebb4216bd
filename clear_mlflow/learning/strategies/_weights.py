"""A model's trained weights as lists, for strategies that change each of them at every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def trained_weights(model: nn.Module) -> list[Tensor]:
    """Return all weights that are not frozen, in the model's order."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def gradients(weights: list[Tensor]) -> list[Tensor]:
    """Return the gradients of *weights* as the optimiser reads them, zeros if there are none."""
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
def pull(weights: list[Tensor], anchor: list[Tensor], stiffness: list[Tensor]) -> list[Tensor]:
    """Return the gradient of ``sum(stiffness * (weight - anchor) ** 2) / 2`` for each weight."""
    displaced = torch._foreach_sub(weights, anchor)
    torch._foreach_mul_(displaced, stiffness)
    return list(displaced)


def stiffness(importance: list[Tensor], strength: float, *, lr: float) -> list[Tensor]:
    """Return strength times importance, at most ``1 / lr``: a step then ends at the anchor."""
    result = torch._foreach_mul(importance, strength)
    torch._foreach_clamp_max_(result, 1 / lr)
    return list(result)
