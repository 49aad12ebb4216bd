"""The loss while a bucket is trained on: means over windows of steps, at most so many a bucket.

The steps add their loss to a number that lies where the model does. Once a window it is copied on
its way, and looked at when it has surely arrived: the host never waits for the device.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.progress import TrainingProgress

# Of one bucket. A chart has some hundred pixels for all of them, and a store takes as long for one
# point as a linear head does for a step.
MOST_POINTS = 100
_FEWEST_POINTS = 10
_STEPS_A_POINT = 10


def num_points(num_steps: int) -> int:
    """How many points the curve of a bucket has: one for ten steps, from ten points to a hundred.

    >>> [num_points(steps) for steps in (3, 70, 500, 1_000_000)]
    [3, 10, 50, 100]
    """
    return min(num_steps, max(_FEWEST_POINTS, min(num_steps // _STEPS_A_POINT, MOST_POINTS)))


class LossCurve:
    """What a training reports of its steps, to its progress.

    The windows of a bucket are equally long (by a step), and its last step ends the last of them;
    they follow from the number of steps alone, so that runs have points at the same steps.

    Args:
        progress: what each point is handed to, once its values are there.
        device: where the steps are.
        group: the processes that train together; the loss is that of the whole batch.
        num_models: that take each step together; None: one, and :attr:`loss` is a single number.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        device: torch.device,
        *,
        group: ProcessGroup = ALONE,
        num_models: int | None = None,
    ) -> None:
        self._progress = progress
        self._group = group
        self._device = device
        self._num_models = num_models
        self._now: Callable[[], Any] = _DeviceMoment if device.type == "cuda" else _HostMoment
        self._began: Any = None  # when the open window did
        self.steps = 0  # since the training began, over all buckets
        self.loss = self._zeros()  # what the steps of this window add theirs to
        self._closed = self._zeros()  # sum over the windows of this epoch that have ended
        self._ends: deque[int] = deque()
        self._window_start = 0
        self._images = 0
        self._lr = math.nan
        self._copies = torch.empty(0)
        self._under_way: deque[_Window] = deque()

    def begin(self, num_steps: int) -> None:
        """A bucket of *num_steps* steps begins."""
        points = num_points(num_steps)
        self._window_start = self.steps
        self._ends = deque(self.steps + num_steps * (i + 1) // points for i in range(points))
        self._copies = torch.empty(points, pin_memory=self._device.type == "cuda")
        self._images = 0
        self.loss.zero_()
        self._began = self._now()

    def begin_epoch(self, lr: float) -> None:
        """An epoch begins, all of whose steps have one learning rate."""
        self._lr = lr
        self._closed.zero_().sub_(self.loss)  # the open window began in the epoch before

    def step_done(self, images: int) -> None:
        """A step was issued, and its loss added to :attr:`loss`.

        Args:
            images: in its whole batch, without those that a strategy takes from its buffer.
        """
        self._images += images
        self.steps += 1
        if self.steps == self._ends[0]:
            self._end_window()

    def end_epoch(self) -> list[float]:
        """The sum of each model's losses in this epoch, over all processes; waits for the device.

        All that was under way has arrived then.
        """
        sums: list[float] = self._group.add_up(self._closed + self.loss).reshape(-1).tolist()
        self._report()
        return sums

    def _zeros(self) -> Tensor:
        shape = () if self._num_models is None else (self._num_models,)
        return torch.zeros(shape, device=self._device)

    def _end_window(self) -> None:
        self._ends.popleft()
        number = len(self._copies) - len(self._ends) - 1
        self._closed += self.loss
        steps = self.steps - self._window_start
        # Read by the copy alone: the next step writes to the sum.
        mean = self._group.add_up(self.loss.mean() / (steps * self._group.size))
        self._copies[number].copy_(mean, non_blocking=True)
        ended = self._now()
        at = round(time.time() * 1000)
        self._under_way.append(
            _Window(
                self.steps, self._copies[number], self._lr, self._images, at, self._began, ended
            )
        )
        self._began = ended
        self.loss.zero_()
        self._window_start = self.steps
        self._images = 0
        self._report()

    def _report(self) -> None:
        """Hand on what has arrived."""
        while self._under_way and self._under_way[0].ended.has_passed():
            window = self._under_way.popleft()
            seconds = window.ended.seconds_since(window.began)
            self._progress.curve_measured(
                CurvePoint(
                    step=window.step,
                    loss=window.loss.item(),
                    lr=window.lr,
                    images_per_second=window.images / seconds if seconds else math.nan,
                    time=window.time,
                )
            )


class _HostMoment:
    """Now, on a device whose steps are done when they are issued."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def has_passed(self) -> bool:
        """Whether all that was issued before is done."""
        return True

    def seconds_since(self, before: _HostMoment) -> float:
        """Between two moments that have passed."""
        return self._at - before._at


class _DeviceMoment:
    """When the device will have done what was issued so far."""

    def __init__(self) -> None:
        self._event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream())

    def has_passed(self) -> bool:
        """Whether all that was issued before is done; asked without waiting for it."""
        return bool(self._event.query())

    def seconds_since(self, before: _DeviceMoment) -> float:
        """Between two moments that have passed."""
        return float(before._event.elapsed_time(self._event)) / 1000


@dataclass(frozen=True, eq=False)
class _Window:
    """A window that has ended, whose loss may not have left the device."""

    step: int
    loss: Tensor  # a number on the host
    lr: float
    images: int
    time: int
    began: Any
    ended: Any
