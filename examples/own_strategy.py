"""A strategy of your own: pull the weights towards where the last bucket left them.

``Strategy`` documents all hooks; this one overrides two of them. From the folder that holds
``examples``, it is trained with like any other:

    clear-mlflow train --strategy examples.own_strategy:PullTowardsPast --strategy-args strength=2
    mlflow run . --env-manager local -P strategy=examples.own_strategy:PullTowardsPast

Run as a program, ``python examples/own_strategy.py``, it prints what a little of it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clear_mlflow.learning.strategies import Strategy


class PullTowardsPast(Strategy):
    """Add half of ``strength * (weight - past) ** 2`` to the loss: EWC that knows no importance."""

    @dataclass(frozen=True)
    class Arguments:
        """What --strategy-args may set, each with its default."""

        strength: float = 1.0

    past: list[Tensor] | None = None
    state_attributes = ("past",)  # what a resumed run continues with

    def before_step(self) -> None:
        """The gradients of the loss are there: add that of the pull."""
        if self.past is None:
            return
        with torch.no_grad():
            for weight, past in zip(self.model.parameters(), self.past, strict=True):
                if weight.grad is not None:  # as of a frozen one
                    weight.grad.add_(weight - past, alpha=self.arguments.strength)

    def after_bucket(self, bucket_index: int) -> None:
        """A bucket is done: this is the past now."""
        self.past = [weight.detach().clone() for weight in self.model.parameters()]


if __name__ == "__main__":
    from clear_mlflow import train

    for strategy in ("naive", "own_strategy:PullTowardsPast"):
        run = train(strategy=strategy, features="pixels", epochs=1)
        print(f"{strategy:30} forgetting {run.metrics['renate/forgetting'].text}")
