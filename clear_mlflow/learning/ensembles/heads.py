"""Linear heads on stored features, one or many at once, without what a network needs.

Of one layer the gradient is two matrix products, written out here: for a layer so small, autograd
costs more than the arithmetic. Many heads are one optimiser's two tensors, of which each head's
weights are a part; what is done to each is what would be done to it alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from clear_mlflow.core.errors import DivergedError
from clear_mlflow.learning.anytime.inside_tests import InsideTests
from clear_mlflow.learning.curve import LossCurve
from clear_mlflow.learning.descent import (
    GradientDescent,
    Hooks,
    build_optimizer,
    kept_optimizer_state,
    learning_rate,
    restored_optimizer,
)
from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import Samples, batch_bounds
from clear_mlflow.learning.strategies._base import Strategy


class Stack(nn.Module):
    """Heads of one shape as two tensors.

    Args:
        heads: E layers, (classes, width); from here on their weights are parts of this module's.
    """

    def __init__(self, heads: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.heads = tuple(heads)  # a tuple, so that torch does not count their weights twice
        self.weight = nn.Parameter(torch.stack([head.weight.detach() for head in heads]))
        self.bias = nn.Parameter(torch.stack([head.bias.detach() for head in heads]))
        for head, weight, bias in zip(heads, self.weight.data, self.bias.data, strict=True):
            head.weight.data = weight
            head.bias.data = bias


class HeadsDescent:
    """Trains linear heads through the stream, a step of all of them at a time.

    Args:
        heads: of one shape, on one device.
        seeds: of each head's run; the order of its images follows from it as it would alone.
        config: the parameters that the runs share.
        keys: of all buckets, in stream order.
        progress: what shows each step, and is given the curve: the mean over all heads.
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
        self.stack = Stack(heads)
        self._seeds = tuple(seeds)
        self._config = config
        self._keys = keys
        self._progress = progress
        self._device = self.stack.weight.device
        self.curve = LossCurve(progress, self._device, num_models=len(heads))
        self._optimizer: torch.optim.Optimizer | None = None

    def forget_steps(self) -> None:
        """Let go of the optimiser's state."""
        self._optimizer = None

    def optimizer_state(self) -> tuple[tuple[str, ...], dict[str, Any]] | None:
        """See :meth:`GradientDescent.optimizer_state`."""
        return kept_optimizer_state(self._optimizer, self.stack, self._config)

    def restore_optimizer(self, names: Sequence[str], state: dict[str, Any]) -> None:
        """See :meth:`GradientDescent.restore_optimizer`."""
        self._optimizer = restored_optimizer(self.stack, self._config, names, state)

    @torch.no_grad()
    def run(
        self,
        samples: Sequence[Samples],
        *,
        position: int,
        epochs: int | None = None,
        tests: InsideTests | None = None,
    ) -> None:
        """Train for all epochs of a bucket; see :meth:`GradientDescent.run`.

        Args:
            samples: what an epoch of each head goes through; equally many for all, and often the
                same object.
            position: of the bucket in the stream.
            epochs: how many, where they are not those of the parameters.
            tests: that are due inside the bucket; of a single head.

        Raises:
            DivergedError: the loss of a head is no longer a finite number.
        """
        config = self._config if epochs is None else replace(self._config, epochs=epochs)
        stack = self.stack
        count = len(samples[0])
        bounds = batch_bounds(count, config.batch_size)
        num_steps = config.epochs * len(bounds)
        self._progress.steps_planned(num_steps)
        self.curve.begin(num_steps)
        if tests is not None:
            tests.begin(position, epochs=config.epochs, steps_an_epoch=len(bounds))
        if self._optimizer is None or config.optimizer_state == "reset":
            self._optimizer = build_optimizer(stack, config)
        stack.weight.grad = torch.empty_like(stack.weight)
        stack.bias.grad = torch.empty_like(stack.bias)
        batches = _Batches(samples, max(stop - start for start, stop in bounds), self._device)
        for epoch in range(config.epochs):
            lr = learning_rate(config, epoch)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self.curve.begin_epoch(lr)
            batches.order(
                [
                    torch.randperm(
                        count, generator=generator(seed, RngPurpose.ORDER, position, epoch)
                    )
                    for seed in self._seeds
                ]
            )
            for start, stop in bounds:
                self._gradients(batches, start, stop)
                if config.clip_norm:
                    self._clip()
                self._optimizer.step()
                self.curve.step_done(len(self._seeds) * (stop - start))
                self._progress.step_done()
                if tests is not None:
                    tests.step_done()
            for seed, loss in zip(self._seeds, self.curve.end_epoch(), strict=True):
                if not math.isfinite(loss):
                    raise DivergedError(
                        f"the loss{self._whose(seed)} is no longer a finite number in epoch "
                        f"{epoch + 1} of {config.epochs} on bucket {self._keys[position]}; pass a "
                        f"lr below {config.lr}",
                        seed if len(self._seeds) > 1 else None,
                    )

    def _gradients(self, batches: _Batches, start: int, stop: int) -> None:
        loss, count = self.curve.loss, stop - start
        weight, bias = self.stack.weight, self.stack.bias
        weight_grad, bias_grad = cast("Tensor", weight.grad), cast("Tensor", bias.grad)
        smoothing = self._config.label_smoothing
        if self._device.type == "cpu":
            # One after another: a batch of one head stays in the processor's cache between its two
            # products, those of all do not.
            for e in range(len(self._seeds)):
                rows, labels = batches.of_one(e, start, stop)
                found = _gradient(
                    weight[e], bias[e], rows, labels, smoothing, weight_grad[e], bias_grad[e]
                )
                loss[e].sub_(found, alpha=1 / count)
        else:
            rows, labels = batches.of_all(start, stop)
            found = _gradient(weight, bias, rows, labels, smoothing, weight_grad, bias_grad)
            loss.sub_(found, alpha=1 / count)

    def _clip(self) -> None:
        """Each head's gradient by its own norm, as torch's ``clip_grad_norm_`` does with one."""
        grads = [cast("Tensor", p.grad) for p in self.stack.parameters()]
        squares = [grad.flatten(1).square().sum(dim=1) for grad in grads]
        norm = (squares[0] + squares[1]).sqrt()
        factor = (self._config.clip_norm / (norm + 1e-6)).clamp(max=1)
        for grad in grads:
            grad.mul_(factor.view(-1, *[1] * (grad.dim() - 1)))

    def _whose(self, seed: int) -> str:
        return f" of seed {seed}" if len(self._seeds) > 1 else ""


class HeadDescent(GradientDescent):
    """The same for one head, where a strategy expects gradient descent on a model."""

    def __init__(
        self,
        model: nn.Linear,
        config: TrainConfig,
        *,
        keys: tuple[str, ...],
        progress: TrainingProgress,
    ) -> None:
        super().__init__(model, config, keys=keys, progress=progress)
        self._heads = HeadsDescent([model], [config.seed], config, keys=keys, progress=progress)
        self.curve = self._heads.curve

    def restart(self, fresh: nn.Module) -> None:
        """Continue with other weights, as if nothing had been learned."""
        super().restart(fresh)
        self._heads.forget_steps()

    def optimizer_state(self) -> tuple[tuple[str, ...], dict[str, Any]] | None:
        """The state that the next bucket's steps continue from."""
        return self._heads.optimizer_state()

    def restore_optimizer(self, names: Sequence[str], state: dict[str, Any]) -> None:
        """Continue from what :meth:`optimizer_state` gave."""
        self._heads.restore_optimizer(names, state)

    def run(
        self, samples: Samples, *, position: int, hooks: Hooks, epochs: int | None = None
    ) -> None:
        """Train for all epochs of a bucket; the hooks are plain, see :class:`.Strategy`."""
        self._heads.run([samples], position=position, epochs=epochs, tests=self.tests)


def descent_for(
    strategy: Strategy,
    model: nn.Module,
    config: TrainConfig,
    *,
    keys: tuple[str, ...],
    progress: TrainingProgress,
    group: ProcessGroup = ALONE,
) -> GradientDescent:
    """Gradient descent on a model, by the shortest way that there is for it."""
    if (
        type(model) is nn.Linear
        and strategy.has_plain_steps(strategy.arguments)
        and config.precision == "off"
        and config.compile == "off"
        and group.size == 1
    ):
        return HeadDescent(model, config, keys=keys, progress=progress)
    return GradientDescent(model, config, keys=keys, progress=progress, group=group)


class _Batches:
    """The batches of E heads, gathered where the steps need them.

    Args:
        samples: of each head.
        largest: images in the largest step.
        device: where the steps are.
    """

    def __init__(self, samples: Sequence[Samples], largest: int, device: torch.device) -> None:
        self._features = [cast("Tensor", of_head.images) for of_head in samples]
        self._labels = [of_head.labels for of_head in samples]
        self._home, self._device = self._features[0].device, device
        self._room = torch.empty(largest, self._features[0].shape[1], device=self._home)
        self._orders: list[Tensor] = []

    def order(self, orders: Sequence[Tensor]) -> None:
        """Begin an epoch, in which each head takes its samples in such an order."""
        self._orders = [order.to(self._home) for order in orders]

    def of_one(self, e: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """(B, width) and (B,): a step of one head; it is overwritten by the next call."""
        features, labels, order = self._features[e], self._labels[e], self._orders[e]
        if stop - start == len(features):  # of all of them, a gradient knows no order
            return features.to(self._device), labels.to(self._device)
        chosen = order[start:stop]
        rows = torch.index_select(features, 0, chosen, out=self._room[: stop - start])
        return rows.to(self._device), labels.index_select(0, chosen).to(self._device)

    def of_all(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """(E, B, width) and (E, B): a step of all heads."""
        chosen = [order[start:stop] for order in self._orders]
        rows = [f.index_select(0, c) for f, c in zip(self._features, chosen, strict=True)]
        labels = [y.index_select(0, c) for y, c in zip(self._labels, chosen, strict=True)]
        return torch.stack(rows).to(self._device), torch.stack(labels).to(self._device)


def _gradient(
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    labels: Tensor,
    smoothing: float,
    weight_grad: Tensor,
    bias_grad: Tensor,
) -> Tensor:
    """Gradient of the mean cross-entropy of one linear layer, or of E of them (then E goes first).

    With p the softmax of the logits and t the target, that is (p - t) x / B for the weights and
    (p - t) / B for the bias.

    Args:
        weight: (C, width).
        bias: (C,).
        rows: (B, width).
        labels: (B,).
        smoothing: share of the target that is spread over all classes.
        weight_grad: (C, width), written to.
        bias_grad: (C,), written to.

    Returns:
        The mean cross-entropy times -B: the sum of the targets' log-probabilities.
    """
    count, num_classes = labels.shape[-1], weight.shape[-2]
    # Classes before images: twice as fast as the other way round, so few are the classes.
    logits = torch.matmul(weight, rows.mT).add_(bias.unsqueeze(-1))
    log_p = torch.log_softmax(logits, dim=-2)
    at = labels.unsqueeze(-2)
    of_labels = log_p.gather(-2, at)
    found = of_labels.sum(dim=(-2, -1))
    if smoothing:
        of_all = log_p.sum(dim=(-2, -1))
        found.mul_(1 - smoothing).add_(of_all, alpha=smoothing / num_classes)
    wrong = log_p.exp_()
    if smoothing:
        wrong.sub_(smoothing / num_classes)
    wrong.scatter_add_(-2, at, torch.full_like(of_labels, smoothing - 1))
    wrong.div_(count)
    torch.matmul(wrong, rows, out=weight_grad)
    torch.sum(wrong, dim=-1, out=bias_grad)
    return found
