"""Linear heads on stored features that take each step together: one batched layer, one optimiser.

The loss of each head is its own and so is its gradient; the optimisers treat each number by itself.
So what is done to each head is what would be done to it alone, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.learning.descent import GradientDescent
from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import Batch, Samples, batch_bounds
from clear_mlflow.learning.strategies._base import Strategy


class Stack(nn.Module):
    """Heads of one shape as two tensors, of which the weights of each head become parts."""

    def __init__(self, heads: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([head.weight.detach() for head in heads]))
        self.bias = nn.Parameter(torch.stack([head.bias.detach() for head in heads]))
        for head, weight, bias in zip(heads, self.weight.data, self.bias.data, strict=True):
            head.weight.data, head.bias.data = weight, bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(heads, B, width) to logits (heads, B, classes)."""
        return torch.baddbmm(self.bias[:, None], inputs, self.weight.mT)


class HeadsDescent(GradientDescent):
    """Trains heads through the stream, a step of all of them at a time.

    The order of each head's images follows from its seed as it would alone; the curve is the mean.
    """

    def __init__(
        self,
        heads: Sequence[nn.Linear],
        seeds: Sequence[int],
        config: TrainConfig,
        *,
        keys: tuple[str, ...],
        progress: TrainingProgress,
    ) -> None:
        stack = Stack(heads)
        super().__init__(stack, config, keys=keys, progress=progress, seeds=seeds)
        self._steps = _PlainSteps(config, None, stack, None)  # type: ignore[arg-type]
        self._of_heads: Sequence[Samples] = ()

    def run_all(self, samples: Sequence[Samples], *, position: int) -> None:
        """Train for all epochs of a bucket on as many samples for each head."""
        self._of_heads = samples
        self.run(samples[0], position=position, hooks=self._steps)

    def _batches(self, samples: Samples, position: int, epoch: int) -> Iterator[Batch]:
        orders = [
            torch.randperm(
                len(samples),
                generator=generator(cast("int", seed), RngPurpose.ORDER, position, epoch),
            ).to(samples.labels.device)
            for seed in self._seeds
        ]
        for start, stop in batch_bounds(len(samples), self._config.batch_size):
            chosen = torch.stack([order[start:stop] for order in orders])
            pairs = list(zip(self._of_heads, chosen, strict=True))
            features = cast("Tensor", samples.images)
            inputs = features.new_empty(*chosen.shape, features.shape[1])
            for room, (own, which) in zip(inputs, pairs, strict=True):
                torch.index_select(cast("Tensor", own.images), 0, which, out=room)
            labels = torch.stack([own.labels[which] for own, which in pairs])
            yield Batch(
                inputs.to(self._device), labels.to(self._device), chosen, total=chosen.numel()
            )

    def _clip(self, optimizer: torch.optim.Optimizer, norm: float) -> None:
        """Each head's gradient by its own norm, as torch's ``clip_grad_norm_`` does with one."""
        grads = [cast("Tensor", p.grad).flatten(1) for p in self._model.parameters()]
        factor = norm / (torch.cat(grads, dim=1).norm(dim=1, keepdim=True) + 1e-6)
        for grad in grads:
            grad.mul_(factor.clamp(max=1))


class _PlainSteps(Strategy):
    """Plain gradient descent, whose loss is one number for each head."""

    def share_of_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """(heads,), each the mean cross-entropy over the head's batch."""
        of_images = cross_entropy(
            forward(batch.inputs).flatten(0, 1),
            batch.labels.flatten(),
            label_smoothing=self.config.label_smoothing,
            reduction="none",
        )
        return of_images.view_as(batch.labels).mean(dim=1)
