"""The curve of the training loss: means over windows of steps, read without waiting for a GPU."""

from __future__ import annotations

import math
import time
from collections import deque

import torch
from torch import Tensor

from clear_mlflow.learning.device import record_event
from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.progress import TrainingProgress

# In one bucket. A chart has some hundred pixels for all buckets, and a store takes as long for one
# point as a linear head does for a step.
MOST_POINTS = 100
_FEWEST_POINTS = 10
_STEPS_PER_POINT = 10


def count_points(num_steps: int) -> int:
    """Return how many points the curve of a bucket has: one for ten steps, from 10 points to 100.

    >>> [count_points(steps) for steps in (3, 70, 500, 1_000_000)]
    [3, 10, 50, 100]
    """
    return min(num_steps, max(_FEWEST_POINTS, min(num_steps // _STEPS_PER_POINT, MOST_POINTS)))


class FetchedTensor:
    """A tensor that is being copied to the host, which waits for it only to read it."""

    def __init__(self, tensor: Tensor) -> None:
        self._host_tensor = tensor.to("cpu", non_blocking=True)
        self.event = record_event(tensor.device)

    def read(self) -> Tensor:
        """Wait for the copy and return it."""
        self.event.synchronize()
        return self._host_tensor


class LossCurve:
    """Means of the loss over windows of steps, each read once, when its window has ended."""

    def __init__(
        self,
        progress: TrainingProgress,
        device: torch.device,
        *,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._progress = progress
        self._group = group
        self.steps = 0  # since the training began, over all buckets
        self._window_sum = torch.zeros((), device=device)
        self._epoch_sum = torch.zeros((), device=device)
        self._window_ends: deque[int] = deque()
        self._window_start = 0
        self._num_images = 0  # in the window
        # Windows that have ended: mean loss, last step, its rate, and images.
        self._pending: deque[tuple[FetchedTensor, int, float, int]] = deque()
        self._last_event = record_event(device)
        self.lr = math.nan  # of the steps that follow

    def begin_bucket(self, num_steps: int, total: int) -> None:
        """Start a bucket of about *num_steps* steps. total: of :meth:`step_done`, at its end."""
        points = count_points(num_steps)
        self._window_ends = deque(total * (i + 1) // points for i in range(points))
        self._last_event = record_event(self._window_sum.device)
        self._open_window()

    def step_done(self, loss: Tensor, num_images: int, done: int) -> None:
        """Add a step that was issued. done: how much of the bucket's total is done."""
        self._window_sum += loss
        self._epoch_sum += loss
        self._num_images += num_images
        self.steps += 1
        self._progress.step_done()
        is_end = False
        while self._window_ends and self._window_ends[0] <= done:
            self._window_ends.popleft()
            is_end = True
        if is_end:
            self._close_window()
        self._report_ready()

    def end(self) -> None:
        """Close the bucket's last window, which a budget may leave incomplete."""
        if self.steps > self._window_start:
            self._close_window()
        self._report_ready(wait=True)

    def end_epoch(self) -> FetchedTensor:
        """Return and reset the sum of the losses in this epoch, over all processes."""
        epoch_sum = FetchedTensor(self._group.all_reduce(self._epoch_sum.clone()))
        self._epoch_sum.zero_()
        return epoch_sum

    def _open_window(self) -> None:
        self._window_sum.zero_()
        self._window_start, self._num_images = self.steps, 0

    def _close_window(self) -> None:
        num_steps = self.steps - self._window_start
        mean = self._group.all_reduce(self._window_sum / (num_steps * self._group.size))
        self._pending.append((FetchedTensor(mean), self.steps, self.lr, self._num_images))
        self._open_window()

    def _report_ready(self, *, wait: bool = False) -> None:
        """Report the points that the device has computed. wait: all, and wait for them."""
        while self._pending and (wait or self._pending[0][0].event.query()):
            mean, step, lr, num_images = self._pending.popleft()
            loss = mean.read().item()
            seconds = self._last_event.elapsed_time(mean.event) / 1000
            self._last_event = mean.event
            self._progress.curve_measured(
                CurvePoint(
                    step=step,
                    loss=loss,
                    lr=lr,
                    images_per_second=num_images / seconds if seconds else math.nan,
                    time=round(time.time() * 1000),
                )
            )
