"""A stream that does not wait: what passes while a model computes is not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from torch import nn

from clear_mlflow.learning.anytime.schedule import OFF
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.samples.decoded import Samples, TrainingStream, draw_order
from clear_mlflow.learning.samples.photos import whole_bucket
from clear_mlflow.learning.spending.budget import naive_steps
from clear_mlflow.learning.spending.meter import CostMeter


class Passing:
    """Which batches a model is in time for, by a clock of FLOPs that runs through all buckets.

    A batch can be taken until the next one is there, as in the program of Ghunaim et al.,
    arXiv:2302.01047: with steps of 4/3 of the time of a batch every fourth one passes by.
    """

    def __init__(
        self, flops_an_image: Fraction, seed: int, stream: TrainingStream, costs: CostMeter
    ) -> None:
        # How far an image, and a FLOP, move the clock: in whole numbers nothing is rounded.
        self._image, self._flop = flops_an_image.as_integer_ratio()
        self._seed, self._stream, self._costs = seed, stream, costs
        self._late = 0  # when the model is done with the buckets before, if this one has begun

    def begin(self, samples: Samples, position: int, bounds: Sequence[tuple[int, int]]) -> None:
        """A bucket begins to pass, batch by batch, in the order of its one epoch."""
        picks = samples.indices or whole_bucket(position, len(samples))
        picks = picks.take(draw_order(len(picks), self._seed, position, 0).numpy())
        parts = [picks.take(np.arange(*of_batch)) for of_batch in bounds]
        self._coming = iter([part.index[part.bucket == position] for part in parts])
        self._position, self._taken = position, [np.empty(0, dtype=np.int64)]
        # Since the bucket began: the clock, when the model is done, and FLOPs that are in that.
        self._now, self._done, self._counted = 0, self._late, 0

    def takes(self) -> bool:
        """Whether the model is done before the next batch is over; else that passes by."""
        images = next(self._coming)
        begins, self._now = self._now, self._now + len(images) * self._image
        self._compute()
        if self._done >= self._now:
            return False
        self._done = max(self._done, begins)
        self._taken.append(images)
        return True

    def passed(self) -> int:
        """All batches are over: from now on the bucket has so many images, those that were seen."""
        seen = np.sort(np.concatenate(self._taken))
        self._stream.keep_seen(self._position, seen)
        return len(seen)

    def end(self) -> None:
        """What follows the bucket's steps is done, too."""
        self._compute()
        self._late = max(0, self._done - self._now)

    def _compute(self) -> None:
        self._done += (self._costs.flops - self._counted) * self._flop
        self._counted = self._costs.flops

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run continues with."""
        return {"late": self._late, "seen": self._stream.seen_indices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` gave."""
        self._late = state["late"]
        for position, seen in state["seen"].items():
            self._stream.keep_seen(position, seen)


def passing_of(
    config: TrainConfig, twin: nn.Module | None, stream: TrainingStream, costs: CostMeter
) -> Passing | None:
    """The stream's passing at the rate that a configuration names; None where it waits."""
    if twin is None or config.stream_rate == OFF:
        return None
    kind, _, number = config.stream_rate.rpartition(":")
    time = Fraction(10**15)
    if kind == "naive":  # of two images: batch normalisation may not train on one
        time = Fraction(naive_steps(config, twin, stream, {2})[2], 2)
    return Passing(time / Fraction(number), config.seed, stream, costs)
