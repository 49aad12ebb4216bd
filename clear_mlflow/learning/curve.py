"""The loss while a bucket is trained on: means over windows of steps, at most so many a bucket.

The steps add their loss to a number that lies where the model does; it is read once a window.
"""

from __future__ import annotations

import math
import time
from collections import deque

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
    """What a training reports of its steps to its progress.

    The windows of a bucket are equally long (by a step), and its last step ends the last of them;
    they follow from the number of steps alone, so that runs have points at the same steps. The loss
    is that of the whole batch over all processes, and the mean over models that step together.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        device: torch.device,
        *,
        group: ProcessGroup = ALONE,
        num_models: int = 1,
    ) -> None:
        self._progress = progress
        self._group = group
        self.steps = 0  # since the training began, over all buckets
        self._window = torch.zeros(num_models, device=device)  # sums of losses, of each model
        self._epoch = torch.zeros(num_models, device=device)
        self._ends: deque[int] = deque()
        self._start = 0
        self._began = math.nan
        self._images = 0
        self._lr = math.nan

    def begin(self, num_steps: int) -> None:
        """A bucket of *num_steps* steps begins."""
        self._progress.steps_planned(num_steps)
        points = num_points(num_steps)
        self._ends = deque(self.steps + num_steps * (i + 1) // points for i in range(points))
        self._open_window()

    def begin_epoch(self, lr: float) -> None:
        """An epoch begins, all of whose steps have one learning rate."""
        self._lr = lr
        self._epoch.zero_()

    def step_done(self, loss: Tensor, images: int) -> None:
        """A step was issued; of its whole batch, images without those from a strategy's buffer."""
        self._window += loss
        self._epoch += loss
        self._images += images
        self.steps += 1
        self._progress.step_done()
        if self.steps == self._ends[0]:
            self._ends.popleft()
            self._end_window()

    def end_epoch(self) -> list[float]:
        """Sums of each model's losses in this epoch, over all processes; waits for the device."""
        sums: list[float] = self._group.add_up(self._epoch.clone()).tolist()
        return sums

    def _open_window(self) -> None:
        self._window.zero_()
        self._start, self._images, self._began = self.steps, 0, time.perf_counter()

    def _end_window(self) -> None:
        steps = self.steps - self._start
        mean = self._group.add_up(self._window.mean() / (steps * self._group.size)).item()
        seconds = time.perf_counter() - self._began
        self._progress.curve_measured(
            CurvePoint(
                step=self.steps,
                loss=mean,
                lr=self._lr,
                images_per_second=self._images / seconds if seconds else math.nan,
                time=round(time.time() * 1000),
            )
        )
        self._open_window()
