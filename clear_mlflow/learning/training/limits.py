"""What ends a bucket or skips a batch: epochs, a budget, or a stream that does not wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.version import convert_custom_errors
from clear_mlflow.learning.models import set_training_mode
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.values import OFF
from clear_mlflow.learning.photos import list_bucket_indices
from clear_mlflow.learning.samples import (
    FeatureStream,
    Samples,
    TrainingStream,
    compute_batch_bounds,
)
from clear_mlflow.learning.training.costs import CostMeter, FlopCounter

_IMAGES = "images"


class Limiter:
    """Ends a bucket after a number of epochs, and skips no batch.

    ``done`` of ``total`` is how far a bucket's training is: here in steps.
    """

    def __init__(self) -> None:
        self._bucket_index = 0
        self._indices = list_bucket_indices(0, 0)
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._epochs = self._num_steps = self._steps_done = 0

    def begin_bucket(self, bucket_index: int, key: str, strategy: Any) -> None:
        """Start a bucket before training. key: the bucket's, for messages."""

    def begin_steps(
        self, samples: Samples, bucket_index: int, bounds: Sequence[tuple[int, int]], epochs: int
    ) -> int | None:
        """Start a bucket's steps. Returns their number, None if unknown.

        bounds: where each batch of an epoch starts and stops.
        """
        self._bucket_index = bucket_index
        self._indices = samples.list_indices(bucket_index)
        self._epochs, self._num_steps, self._steps_done = epochs, epochs * len(bounds), 0
        return self._num_steps

    @property
    def total(self) -> int:
        """Length of the bucket's training, in the unit of ``done``."""
        return self._num_steps

    @property
    def done(self) -> int:
        """How much of the total is done: steps, FLOPs or images."""
        return self._steps_done

    @property
    def is_over(self) -> bool:
        """True if the bucket takes no further step of its epoch."""
        return False

    @property
    def schedule_epoch(self) -> int:
        """Epoch for the learning rate, in equal shares of the total."""
        return self._epochs * self.done // self.total

    def iter_epochs(self) -> Iterator[int]:
        """Yield the index of each epoch of the bucket, from 0."""
        yield from range(self._epochs)

    def begin_epoch(self, order: Tensor) -> None:
        """Start an epoch. order: (N,), indices in training order."""
        self._order = order.numpy()

    def take_batch(self) -> bool:
        """Return True if the next batch is trained on, and take it."""
        return True

    def step_done(self) -> None:
        """Count a step."""
        self._steps_done += 1

    def end_epoch(self, num_images: int) -> int:
        """Return how many of an epoch's images belong to the bucket.

        The others are replayed. Call it at the end of each epoch.
        """
        trained = self._order[:num_images]
        return int((self._indices.bucket[trained] == self._bucket_index).sum())

    def end_bucket(self) -> None:
        """End a bucket, after all that its strategy computes."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues with."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""


class Budget(Limiter):
    """Limits what the training of each bucket costs, in FLOPs or images.

    FLOPs for what follows the steps of a bucket are reserved: as many as the strategy computes, or
    as followed the steps before. A bucket's steps end with the one that uses up the rest. What a
    bucket overspends is taken from the next one, and what it does not spend is added to it.
    """

    def __init__(self, config: TrainConfig, bucket_budgets: list[int], costs: CostMeter) -> None:
        super().__init__()
        self._text = config.budget
        self._counts_images = config.budget.startswith(_IMAGES)
        self._bucket_budgets = bucket_budgets
        self._costs = costs
        self._carried = 0  # what the buckets so far did not spend; below 0: what they overspent
        self._limit = self._reserved = 0  # of the bucket; FLOPs of it for what follows its steps
        self._done_in_steps = self._done_after_steps = 0

    def begin_bucket(self, bucket_index: int, key: str, strategy: Any) -> None:
        """Start a bucket. Raises ConfigError if nothing remains for its steps."""
        budget, unit = self._bucket_budgets[bucket_index], _IMAGES
        if not self._counts_images:  # images are counted only in steps
            flops, unit = strategy.count_flops_after(bucket_index), "FLOPs"
            self._reserved = self._done_after_steps if flops is None else flops
        self._limit, self._done_in_steps = budget + self._carried, 0
        if self.total <= 0:
            used = {
                "earlier buckets took more than their share": -self._carried,
                "what follows its steps will take": self._reserved,
            }
            uses = " and ".join(f"{use} ({amount:,})" for use, amount in used.items() if amount > 0)
            raise ConfigError(
                f"budget is {self._text}, which is {budget:,} {unit} in bucket {key}, and nothing "
                f"remains for its steps: {uses}; pass more, or budget=off",
                parameter="budget",
            )

    def begin_steps(
        self, samples: Samples, bucket_index: int, bounds: Sequence[tuple[int, int]], epochs: int
    ) -> None:
        """Start the steps of a bucket, whose number is not known."""
        super().begin_steps(samples, bucket_index, bounds, epochs)

    @property
    def total(self) -> int:
        """The bucket's budget for steps."""
        return self._limit - self._reserved

    @property
    def done(self) -> int:
        """What the bucket has cost so far."""
        return self._costs.images_in_steps if self._counts_images else self._costs.flops

    @property
    def is_over(self) -> bool:
        """True if the budget is spent."""
        return self.done >= self.total

    def iter_epochs(self) -> Iterator[int]:
        """Yield epochs until the budget is spent."""
        return itertools.takewhile(lambda _: not self.is_over, itertools.count())

    def step_done(self) -> None:
        """Count a step."""
        super().step_done()
        self._done_in_steps = self.done

    def end_bucket(self) -> None:
        """Carry what is left or overspent to the next bucket."""
        self._carried = self._limit - self.done
        # Without steps, everything would count as after them.
        self._done_after_steps = self.done - self._done_in_steps if self._done_in_steps else 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues with."""
        return {"budget": {"carried": self._carried, "after_steps": self._done_after_steps}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._carried = state["budget"]["carried"]
        self._done_after_steps = state["budget"]["after_steps"]


class StreamClock(Limiter):
    """Skips batches that pass during computation, by a clock of FLOPs.

    The clock runs through all buckets. A batch can be taken until the next one is there, as in the
    program of Ghunaim et al., arXiv:2302.01047: if a step takes 4/3 of the time of a batch, every
    fourth batch is skipped.
    """

    def __init__(self, image_flops: Fraction, stream: TrainingStream, costs: CostMeter) -> None:
        super().__init__()
        # How far an image and a FLOP advance the clock, as integers, so that nothing is rounded.
        self._image_ticks, self._flop_ticks = image_flops.as_integer_ratio()
        self._stream, self._costs = stream, costs
        self._delay = 0  # when the model is done with the buckets before, in ticks of this one
        self._bounds: Sequence[tuple[int, int]] = ()
        self._arriving: Iterator[NDArray[np.int64]] = iter(())  # the bucket's images, by batch
        self._taken: list[NDArray[np.int64]] = []
        # Since the bucket began: the clock, when the model is done, and FLOPs included in that.
        self._time = self._model_time = self._counted_flops = 0

    def begin_steps(
        self, samples: Samples, bucket_index: int, bounds: Sequence[tuple[int, int]], epochs: int
    ) -> int | None:
        """Start a bucket, which passes batch by batch. Returns their number."""
        self._bounds, self._taken = bounds, [np.empty(0, dtype=np.int64)]
        self._time, self._model_time, self._counted_flops = 0, self._delay, 0
        return super().begin_steps(samples, bucket_index, bounds, epochs)

    def begin_epoch(self, order: Tensor) -> None:
        """Let the bucket's images arrive in the order of its epoch."""
        super().begin_epoch(order)
        batches = (self._indices.take(self._order[start:stop]) for start, stop in self._bounds)
        self._arriving = (batch.index[batch.bucket == self._bucket_index] for batch in batches)

    def take_batch(self) -> bool:
        """Advance the clock by a batch, and return True if trained on.

        Each call advances the clock by one batch.
        """
        images = next(self._arriving)
        start, self._time = self._time, self._time + len(images) * self._image_ticks
        self._advance_model()
        if self._model_time >= self._time:
            return False
        self._model_time = max(self._model_time, start)
        self._taken.append(images)
        return True

    def end_epoch(self, num_images: int) -> int:
        """Remove skipped images from the bucket, and return how many remain.

        Raises ConfigError if the strategy already trained on the bucket. Ignores *num_images*.
        """
        indices = np.sort(np.concatenate(self._taken))
        self._stream.keep_only(self._bucket_index, indices)
        return len(indices)

    def end_bucket(self) -> None:
        """Let the model finish, and carry its delay to the next bucket."""
        self._advance_model()
        self._delay = max(0, self._model_time - self._time)

    def _advance_model(self) -> None:
        """Let the model take the time of FLOPs since the last call."""
        self._model_time += (self._costs.flops - self._counted_flops) * self._flop_ticks
        self._counted_flops = self._costs.flops

    def state_dict(self) -> dict[str, Any]:
        """Return the model's delay, and each bucket's images not skipped."""
        return {"passing": {"late": self._delay, "seen": self._stream.seen_indices}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned. Removes skipped images again."""
        self._delay = state["passing"]["late"]
        for bucket_index, indices in state["passing"]["seen"].items():
            self._stream.keep_only(bucket_index, indices)


def build_limiter(
    config: TrainConfig, meta_model: nn.Module | None, stream: TrainingStream, costs: CostMeter
) -> Limiter:
    """Build the limiter for ``budget`` or ``stream_rate``, else for epochs.

    meta_model: a copy of the model on the device "meta", or None if both are off.
    """
    if meta_model is not None and config.budget != OFF:
        return Budget(config, compute_bucket_budgets(config, meta_model, stream), costs)
    if meta_model is not None and config.stream_rate != OFF:
        unit, _, number = config.stream_rate.rpartition(":")
        image_flops = Fraction(10**15)
        if unit == "naive":  # of two images: batch normalisation may not train on one
            image_flops = Fraction(count_naive_flops(config, meta_model, stream, {2})[2], 2)
        return StreamClock(image_flops / Fraction(number), stream, costs)
    return Limiter()


def compute_bucket_budgets(
    config: TrainConfig, meta_model: nn.Module, stream: TrainingStream
) -> list[int]:
    """Return the FLOPs or images that each bucket may take.

    ``naive:0.5`` is half the FLOPs of naive learning on that bucket; any other budget is the same
    number for each bucket. It must not be off.
    """
    unit, _, number = config.budget.rpartition(":")
    if unit != "naive":
        return [int(Decimal(number))] * len(stream.keys)
    sizes = [
        [stop - start for start, stop in compute_batch_bounds(count, config.batch_size)]
        for count in stream.train_counts
    ]
    step_flops = count_naive_flops(
        config, meta_model, stream, {n for bucket in sizes for n in bucket}
    )
    return [
        int(Decimal(number) * config.epochs * sum(step_flops[size] for size in bucket))
        for bucket in sizes
    ]


def count_naive_flops(
    config: TrainConfig, meta_model: nn.Module, stream: TrainingStream, sizes: set[int]
) -> dict[int, int]:
    """Set *meta_model* to training mode, and count naive steps' FLOPs by size.

    sizes: numbers of images. Raises ConfigError if the model needs data.
    """
    set_training_mode(meta_model.train(), config.freeze)
    flops = {}
    for size in sizes:
        inputs = build_meta_inputs(config, stream, size)
        labels = torch.empty(size, dtype=torch.int64, device="meta")
        # A user's model may read numbers, which the device "meta" does not have.
        failure = convert_custom_errors(
            f"the FLOPs of model {config.model} cannot be counted without data",
            "; pass budget=images:N, or budget=off",
        )
        with failure, FlopCounter() as counter:
            torch.autograd.backward(cross_entropy(meta_model(inputs), labels))
        flops[size] = counter.flops
    return flops


def build_meta_inputs(config: TrainConfig, stream: TrainingStream, num_images: int) -> Tensor:
    """Build a batch of a model's inputs on the device "meta"."""
    side = config.image_size
    shape = (stream.width,) if isinstance(stream, FeatureStream) else (3, side, side)
    return torch.empty(num_images, *shape, device="meta")


def check_memory(config: TrainConfig, num_bytes: int | None) -> None:
    """Raise ConfigError if a strategy keeps more bytes than memory_budget allows.

    num_bytes: None if unknown, which is accepted.
    """
    if config.memory_budget and (num_bytes or 0) > config.memory_budget:
        raise ConfigError(
            f"memory_budget is {config.memory_budget:,} bytes, and strategy {config.strategy} "
            f"keeps {num_bytes:,}; pass more, or memory=N images and memory_budget=0",
            parameter="memory_budget",
        )
