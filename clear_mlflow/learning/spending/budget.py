"""What the training of a bucket may cost, in FLOPs or images, and how far a training is in it."""

from __future__ import annotations

from decimal import Decimal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.anytime.schedule import OFF
from clear_mlflow.learning.models import set_training_mode
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import FeatureStream, TrainingStream, batch_bounds
from clear_mlflow.learning.spending.meter import CostMeter, FlopCounter

_IMAGES = "images"


class Budget:
    """How much the training of each bucket may cost.

    A bucket ends with the step that uses up its budget. What a bucket overspends, its last step or
    what follows its steps, is taken from the next one.
    """

    def __init__(self, config: TrainConfig, bucket_budgets: list[int], costs: CostMeter) -> None:
        self._text = config.budget
        self._counts_images = config.budget.startswith(_IMAGES)
        self._bucket_budgets = bucket_budgets
        self._costs = costs
        self._carried = 0  # below 0: what the buckets so far overspent
        self.limit = 0  # of the bucket

    @property
    def spent(self) -> int:
        """What the bucket has cost so far."""
        return self._costs.seen if self._counts_images else self._costs.flops

    @property
    def is_spent(self) -> bool:
        """True if the bucket takes no further step."""
        return self.spent >= self.limit

    def begin(self, position: int) -> None:
        """Start a bucket."""
        self.limit = self._bucket_budgets[position] + self._carried

    def epoch(self, epochs: int) -> int:
        """Return the epoch of the schedule, whose epochs are equal shares of the budget."""
        return epochs * self.spent // self.limit

    def end(self, position: int, key: str) -> None:
        """Charge what the bucket overspent to the next one. Raises ConfigError if it needs all."""
        self._carried = self.limit - self.spent
        following = self._bucket_budgets[position + 1 : position + 2]
        if following and following[0] + self._carried <= 0:
            unit = "images" if self._counts_images else "FLOPs"
            raise ConfigError(
                f"budget is {self._text}, which is {self._bucket_budgets[position]:,} {unit} in "
                f"bucket {key}; training took {self.spent:,} there, so nothing remains for the "
                "next bucket; pass more, or budget=off"
            )

    def state_dict(self) -> dict[str, int]:
        """Return what a resumed run continues with."""
        return {"carried": self._carried}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._carried = state["carried"]


def build_budget(
    config: TrainConfig, meta_model: nn.Module | None, stream: TrainingStream, costs: CostMeter
) -> Budget | None:
    """Return the budget that a configuration names, or None if it names none.

    meta_model: a copy of the model on the device "meta".
    """
    if meta_model is None or config.budget == OFF:
        return None
    unit, _, amount = config.budget.rpartition(":")
    bucket_budgets = [int(Decimal(amount))] * len(stream.keys)
    if unit == "naive":
        sizes = [
            [stop - start for start, stop in batch_bounds(count, config.batch_size)]
            for count in stream.train_counts
        ]
        step_flops = naive_steps(
            config, meta_model, stream, {n for bucket in sizes for n in bucket}
        )
        bucket_budgets = [
            int(Decimal(amount) * config.epochs * sum(step_flops[size] for size in bucket))
            for bucket in sizes
        ]
    return Budget(config, bucket_budgets, costs)


def check_memory(config: TrainConfig, num_bytes: int | None) -> None:
    """Raise ConfigError if a strategy keeps more bytes than memory_budget allows."""
    if config.memory_budget and (num_bytes or 0) > config.memory_budget:
        raise ConfigError(
            f"memory_budget is {config.memory_budget:,} bytes, and strategy {config.strategy} "
            f"keeps {num_bytes:,}; pass more, or memory=N images and memory_budget=0"
        )


def naive_steps(
    config: TrainConfig, twin: nn.Module, stream: TrainingStream, sizes: set[int]
) -> dict[int, int]:
    """FLOPs of a step of plain descent on so many images."""
    set_training_mode(twin.train(), config.freeze)
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
