"""Linear heads on features that differ in nothing but their seed, each step of all taken at once.

The loss of each head is its own and so is its gradient; the optimisers treat each number by itself.
So each has the matrix of the run that it would have been alone, but for rounding: products are
summed in another order, and two logits that agree in six digits may change places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.learning.descent import GradientDescent
from clear_mlflow.learning.device import uploaded
from clear_mlflow.learning.loop import Trained, fresh_model, measure_row
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import LINEAR, NONE
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import (
    Batch,
    Samples,
    TrainingStream,
    batch_bounds,
    order_of,
)
from clear_mlflow.learning.spending.budget import check_memory, within_memory
from clear_mlflow.learning.strategies._base import Strategy, check_strategy, load_strategy


def check_ensemble(config: TrainConfig) -> None:
    """Raise ConfigError unless members can train together: float32 heads, of plain strategies."""
    is_plain = load_strategy(config.strategy).has_plain_steps(check_strategy(config))
    on_heads = config.model == LINEAR and (config.precision, config.compile) == ("off", "off")
    if not (is_plain and on_heads):
        raise ConfigError(
            f"seeds is {config.seeds}, and only linear heads train together: pass features=NAME "
            "with strategy naive, linear, cumulative or replay (batches=shuffled), precision=off "
            "and compile=off; anything else trains one seed at a time, as a sweep does"
        )


def member_configs(config: TrainConfig) -> tuple[TrainConfig, ...]:
    """What each member would be trained with alone, in the order of ``seeds``."""
    return tuple(
        dataclasses.replace(config, seed=int(seed), seeds=NONE) for seed in config.seeds.split(",")
    )


def train_ensemble(
    stream: TrainingStream, config: TrainConfig, *, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """Train all members: gives (seed, row) of every member, then of every member the next row."""
    config = within_memory(config, stream, load_strategy(config.strategy))
    members = member_configs(config)
    heads = [cast("nn.Linear", fresh_model(stream, member)) for member in members]
    seeds = [member.seed for member in members]
    descent = HeadsDescent(heads, seeds, config, keys=stream.keys, progress=progress)
    arguments, kind = check_strategy(config), load_strategy(config.strategy)
    strategies = [
        kind(member, stream, head, arguments) for member, head in zip(members, heads, strict=True)
    ]
    check_memory(config, strategies[0], heads[0])

    def rows(trained: int) -> Iterator[tuple[int, Trained]]:
        descent.costs.trained()
        for member, head, strategy in zip(members, heads, strategies, strict=True):
            try:
                with descent.costs.test():
                    found = measure_row(head, stream, member, trained=trained)
            except DivergedError as error:
                raise DivergedError(f"seed {member.seed}: {error}", member.seed) from error
            row = dataclasses.replace(
                found.row, cost=descent.costs.row(head, strategy, trained=trained)
            )
            if member is members[0]:
                progress.row_measured(row)
            yield member.seed, dataclasses.replace(found, row=row)

    yield from rows(0)
    for position, key in enumerate(stream.keys):
        stream.begin(position)
        progress.bucket_started(key, position=position, num_buckets=len(stream.keys))
        descent.costs.begin()
        samples = [strategy.training_set(position) for strategy in strategies]
        sizes = sorted({len(of_member) for of_member in samples})
        if len(sizes) > 1:
            raise ConfigError(
                f"with strategy {config.strategy} ({config.as_text()['strategy_args']}) members "
                f"train on {sizes[0]} to {sizes[-1]} images of one bucket; runs that train "
                "together need equally many: train with one seed at a time"
            )
        descent.run_all(samples, position=position)
        for strategy in strategies:
            strategy.after_bucket(position)
        yield from rows(position + 1)


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
    """Trains heads a step of all at a time, each in its own order; the curve is their mean."""

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
        seeds = [cast("int", seed) for seed in self._seeds]
        orders = [order_of(len(samples), seed, position, epoch) for seed in seeds]
        orders = [uploaded(order, samples.labels.device) for order in orders]
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
