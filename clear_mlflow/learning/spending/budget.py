"""What the training of a bucket may cost, in FLOPs or images, and how far a training is in it."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.anytime.schedule import OFF
from clear_mlflow.learning.models import trainable
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import FeatureStream, TrainingStream, batch_bounds
from clear_mlflow.learning.spending.meter import CostMeter, FlopCounter, Shape, stored_bytes
from clear_mlflow.learning.strategies._weights import trained_weights

_IMAGES = "images"


class Budget:
    """How much each bucket's training may cost; what one leaves, the next may spend."""

    def __init__(
        self, unit: str, of_buckets: list[int], after: list[int], costs: CostMeter
    ) -> None:
        self._unit = unit
        self._of_buckets = of_buckets
        self._of_after = after  # what follows each bucket's steps; 0 where a strategy does not say
        self._costs = costs
        # What the buckets before left; below 0 where one spent more, as its last step or what
        # follows its steps was not known.
        self._carried = 0
        self._after = 0  # what follows the bucket's steps, else what followed those before
        self._limit = 0
        self._last: Shape | None = None  # of the bucket's steps so far

    @property
    def spent(self) -> int:
        """By the bucket so far."""
        return self._costs.seen if self._unit == _IMAGES else self._costs.flops

    @property
    def for_steps(self) -> int:
        """What the bucket's steps may spend."""
        return max(0, self._limit - self._after)

    def begin(self, position: int) -> None:
        """The training of a bucket begins."""
        self._limit = self._of_buckets[position] + self._carried
        self._after = self._of_after[position] or self._after
        self._last = None

    def allows(self, shape: Shape) -> bool:
        """Whether a step of a shape fits; an image of a new one costs what it did in the last."""
        step = sum(shape[2:]) if self._unit == _IMAGES else self._flops(shape)
        self._last = shape
        return self.spent + step <= self.for_steps

    def _flops(self, shape: Shape) -> int:
        known = self._costs.flops_of
        if shape in known or self._last is None:
            return known.get(shape, 0)
        return math.ceil(Fraction(known[self._last] * sum(shape[2:]), sum(self._last[2:])))

    def epoch(self, epochs: int) -> int:
        """Return the epoch of a schedule whose epochs are equal shares of the budget."""
        return epochs * self.spent // max(1, self.for_steps)

    def end(self, of_steps: int) -> None:
        """The bucket is done; its steps spent so much."""
        self._after = self.spent - of_steps
        self._carried = self._limit - self.spent

    def state_dict(self) -> dict[str, int]:
        """What a resumed run continues with."""
        return {"carried": self._carried, "after": self._after}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from what :meth:`state_dict` gave."""
        self._carried, self._after = state["carried"], state["after"]


def budget_of(
    config: TrainConfig,
    strategy: Any,
    twin: nn.Module | None,  # of the model, without numbers
    stream: TrainingStream,
    costs: CostMeter,
) -> Budget | None:
    """The budget that a configuration names, or None; ConfigError where nothing fits into it."""
    if twin is None or config.budget == OFF:
        return None
    kind, _, number = config.budget.rpartition(":")
    counts = stream.train_counts
    unit = "images" if kind == _IMAGES else "FLOPs"
    steps = [[stop - start for start, stop in batch_bounds(n, config.batch_size)] for n in counts]
    if kind != _IMAGES:
        of_size = naive_steps(config, twin, stream, {n for sizes in steps for n in sizes})
        steps = [[of_size[size] for size in sizes] for sizes in steps]
    of_buckets = [int(Decimal(number))] * len(counts)
    if kind == "naive":
        of_buckets = [int(Decimal(number) * config.epochs * sum(sizes)) for sizes in steps]
    after = [0] * len(counts)
    if kind != _IMAGES:
        after = strategy.flops_after(_empty(config, stream, 1)) or after
    for position, key in enumerate(stream.keys):
        fixed = strategy.fixed_cost(position)
        least, what = max(steps[position]) + after[position], "one step of the model"
        if after[position]:
            what += f" with what strategy {config.strategy} computes after a bucket"
        if fixed is not None:
            least, what = fixed[kind == _IMAGES], f"strategy {config.strategy}"
        elif images := strategy.least_images(position):
            least = images * sum(steps[position]) // counts[position]
            what = f"an epoch of strategy {config.strategy}"
        if not 0 < least <= of_buckets[position]:
            raise ConfigError(
                f"budget is {config.budget}, which is {of_buckets[position]:,} {unit} in bucket "
                f"{key}, and {what} takes {least:,} there; pass more, or budget=off"
            )
    return Budget(kind, of_buckets, after, costs)


def within_memory(config: TrainConfig, stream: TrainingStream, kind: Any) -> TrainConfig:
    """The same, its memory the images that memory_budget has room for; *kind*: the strategy's."""
    if config.memory_budget == 0:
        return config
    of_classes = 8 * stream.num_classes  # how many of each a buffer has seen
    of_image = stream.image_bytes + kind.bytes_beside_image(stream.num_classes)
    images = (config.memory_budget - of_classes) // of_image
    if kind.needs_memory and images < 1:
        raise ConfigError(
            f"memory_budget is {config.memory_budget:,} bytes, and an image in the memory of "
            f"strategy {config.strategy} takes {of_image:,}; pass more, or memory_budget=0"
        )
    return replace(config, memory=max(0, min(images, sum(stream.train_counts))))


def check_memory(config: TrainConfig, strategy: Any, model: nn.Module) -> None:
    """Raise ConfigError where what a strategy keeps whatever its memory has no room."""
    if config.memory_budget == 0:
        return
    weights = sum(weight.nbytes for weight in trained_weights(model))
    least = stored_bytes(strategy, len(strategy.stream.keys) - 1) or 0
    least += strategy.later_copies * weights
    advice = "pass more, or memory_budget=0"
    if strategy.needs_memory:  # whose buffer has as many images as if nothing else were kept
        of_image = strategy.bytes_beside_image(strategy.stream.num_classes)
        least += int(config.memory) * (strategy.stream.image_bytes + of_image)
        advice = "pass memory=N images, and memory_budget=0"
    if least > config.memory_budget:
        raise ConfigError(
            f"memory_budget is {config.memory_budget:,} bytes, and strategy {config.strategy} "
            f"keeps {least:,}; {advice}"
        )


def naive_steps(
    config: TrainConfig, twin: nn.Module, stream: TrainingStream, sizes: set[int]
) -> dict[int, int]:
    """FLOPs of a step of plain descent on so many images."""
    trainable(twin.train(), config.freeze)
    found = {}
    for size in sizes:
        inputs = _empty(config, stream, size)
        labels = torch.empty(size, dtype=torch.int64, device="meta")
        with FlopCounter() as counter:
            torch.autograd.backward(cross_entropy(twin(inputs), labels))
        found[size] = counter.flops
    return found


def _empty(config: TrainConfig, stream: TrainingStream, size: int) -> Tensor:
    """So many images or vectors of a stream, without numbers."""
    side = config.image_size
    one = (stream.width,) if isinstance(stream, FeatureStream) else (3, side, side)
    return torch.empty(size, *one, device="meta")
