"""What observes the steps of a bucket: loss, tests within it, predictions before training."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.batch_record import PrequentialRecord
from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.core.text import format_count
from clear_mlflow.learning.device import autocast, copy_to_device, is_other_device, record_event
from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.learning.models import get_input_dtype, logits_in_float32
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import SampleIndices
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import (
    HeldOutImages,
    TrainingStream,
    compute_batch_bounds,
    normalise,
)

# In one bucket. A chart has some hundred pixels for all buckets, and a store takes as long for one
# point as a linear head does for a step.
MOST_POINTS = 100
_FEWEST_POINTS = 10
_STEPS_PER_POINT = 10

_MOST_TESTS = 10_000  # within the buckets of a run: each is a file and a request to the store


def count_points(num_steps: int) -> int:
    """Return the number of points of a bucket's curve, 10 to 100.

    A bucket of fewer than 10 steps has a point for each step.

    >>> [count_points(steps) for steps in (3, 70, 500, 1_000_000)]
    [3, 10, 50, 100]
    """
    return min(num_steps, max(_FEWEST_POINTS, min(num_steps // _STEPS_PER_POINT, MOST_POINTS)))


class FetchedTensor:
    """A tensor on its way to the host, which waits for reading."""

    def __init__(self, tensor: Tensor) -> None:
        self._host_tensor = tensor.to("cpu", non_blocking=True)
        self.event = record_event(tensor.device)

    def read(self) -> Tensor:
        """Wait for the copy and return it."""
        self.event.synchronize()
        return self._host_tensor


class LossCurve:
    """Means of the loss over windows of steps, each read once."""

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
        """Start a bucket of about *num_steps* steps.

        total: value of ``done`` in :meth:`step_done` at the end of the bucket.
        """
        points = count_points(num_steps)
        self._window_ends = deque(total * (i + 1) // points for i in range(points))
        self._last_event = record_event(self._window_sum.device)
        self._open_window()

    def step_done(self, loss: Tensor, num_images: int, done: int) -> None:
        """Add a step, and report it and computed points to *progress*.

        loss: this process's share; the device may still be computing it. done: how much of the
        bucket's total is done.
        """
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

    def end_bucket(self) -> None:
        """Wait for the bucket's remaining points, and report them.

        A budget may leave the last window incomplete.
        """
        if self.steps > self._window_start:
            self._close_window()
        self._report_ready(wait=True)

    def end_epoch(self) -> FetchedTensor:
        """Return and reset this epoch's sum of losses, over all processes."""
        epoch_sum = FetchedTensor(self._group.all_reduce(self._epoch_sum.clone()))
        self._epoch_sum.zero_()
        return epoch_sum

    def _open_window(self) -> None:
        self._window_sum.zero_()
        self._window_start, self._num_images = self.steps, 0

    def _close_window(self) -> None:
        """Queue the window's mean loss over processes, and open another."""
        num_steps = self.steps - self._window_start
        mean = self._group.all_reduce(self._window_sum / (num_steps * self._group.size))
        self._pending.append((FetchedTensor(mean), self.steps, self.lr, self._num_images))
        self._open_window()

    def _report_ready(self, *, wait: bool = False) -> None:
        """Report the computed points. wait: wait for it, and report all."""
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


class WithinBucketTests:
    """Tests a model at intervals within a bucket, before its end.

    Args:
        model: model in training.
        test_every: interval, as :func:`.values.parse_test_every` returns it.
        stream: the stream that is trained on.
        measure: tests the model on all buckets. Returns an ``Evaluation``, or None if an output is
            not a finite number.
        on_test: receives the result of each test.
    """

    def __init__(
        self,
        model: nn.Module,
        test_every: str,
        stream: TrainingStream,
        measure: Callable[[], Any],
        on_test: Callable[[AnytimeRow], None],
    ) -> None:
        self._model = model
        self._test_every = test_every
        self._stream = stream
        self._measure = measure
        self._on_test = on_test
        self._bucket_index = -1
        self._step = self._num_steps = self._interval_steps = 0

    @property
    def _num_tests(self) -> int:
        """Number of tests within the bucket, without the one at its end."""
        return (self._num_steps - 1) // self._interval_steps

    def begin_bucket(self, bucket_index: int, *, epochs: int, epoch_steps: int) -> None:
        """Start a bucket of *epochs* epochs with *epoch_steps* steps each.

        Raises ConfigError if the strategy already trained in the bucket, if test_every results in
        no test inside the first bucket, or in more tests than a run may store.
        """
        if bucket_index == self._bucket_index:
            raise ConfigError(
                "the strategy trains more than once in one bucket, so test_every does not determine"
                " when to test; pass test_every=off"
            )
        self._bucket_index = bucket_index
        self._step = 0
        self._num_steps = epochs * epoch_steps
        self._interval_steps = count_interval_steps(self._test_every, epoch_steps)
        if bucket_index == 0 and self._num_tests == 0:
            raise ConfigError(
                f"test_every is {self._test_every}, and bucket {self._stream.keys[0]} takes "
                f"{format_count(self._num_steps, 'step')}, after which it is tested in "
                "any case: test more often",
                parameter="test_every",
            )
        keys = self._stream.keys
        if self._num_tests * len(keys) > _MOST_TESTS:
            raise ConfigError(
                f"test_every is {self._test_every}, which is "
                f"{format_count(self._num_tests, 'test')} inside bucket "
                f"{keys[bucket_index]}; a run of {format_count(len(keys), 'bucket')} "
                f"stores at most {_MOST_TESTS:,} in all: test less often",
                parameter="test_every",
            )

    def step_done(self) -> None:
        """Count an optimiser step, and test the model if that is due.

        At the bucket's end it does not: that test is a row. Passes results to *on_test*. Raises
        DivergedError if an output is not finite.
        """
        self._step += 1
        if self._step % self._interval_steps or self._step == self._num_steps:
            return
        with preserve_state(self._model):
            evaluation = self._measure()
        if evaluation is None:
            raise DivergedError(
                f"after {self._step} of {self._num_steps} steps on bucket "
                f"{self._stream.keys[self._bucket_index]} the model's output is not a finite "
                "number; pass a lower lr"
            )
        self._on_test(
            AnytimeRow(
                bucket=self._bucket_index + 1,
                test=self._step // self._interval_steps,
                num_tests=self._num_tests,
                step=self._step,
                num_steps=self._num_steps,
                buckets=self._stream.keys,
                correct=evaluation.correct,
                num_instances=self._stream.test().counts,
            )
        )


def count_interval_steps(test_every: str, epoch_steps: int) -> int:
    """Return the optimiser steps of an interval ``3`` (epochs) or ``200steps``.

    >>> count_interval_steps("3", 10), count_interval_steps("200steps", 10)
    (30, 200)
    """
    number = int(test_every.removesuffix("steps"))
    return number if test_every.endswith("steps") else number * epoch_steps


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore layers' modes and torch's random state after the block."""
    modes = [(layer, layer.training) for layer in model.modules()]
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for layer, training in modes:
        layer.training = training


class PrequentialTests:
    """Counts right predictions of a model for later batches before each step.

    The counts stay on the device until a row is measured. Predictions do not change the training.
    Batches are parts of the stream, of ``batch_size`` images of one bucket. A batch is predicted
    before the step that trains on its first image; if a strategy replays images in the same steps,
    a batch takes several of them. Batches are counted over the complete stream, so that a distance
    may reach into the next buckets.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, stream: TrainingStream) -> None:
        self._model, self._config, self._stream = model, config, stream
        self._distances = tuple(map(int, config.prequential.split(",")))
        self._bounds = [compute_batch_bounds(n, config.batch_size) for n in stream.train_counts]
        # Number of the first batch of each bucket, and of all batches.
        self._first_batches = np.cumsum([0, *map(len, self._bounds)])
        # Images predicted right by batch and distance, (B, D); -1 if no model predicted them.
        shape = (int(self._first_batches[-1]), len(self._distances))
        self.correct = torch.full(shape, -1, dtype=torch.int64, device=stream.device)
        self._images: dict[int, HeldOutImages] = {}  # of the bucket and the next ones
        self._bucket_index, self._next_batch = -1, 0
        self._num_starts: Iterator[int] = iter(())  # batches that start in each step

    def begin_bucket(
        self, bucket_index: int, samples: SampleIndices, bounds: Sequence[tuple[int, int]]
    ) -> None:
        """Load the coming images in order of time, also of later buckets.

        samples: images of the first epoch in the order of training, with the bucket's sorted by
        time. bounds: where each step starts and stops. Raises ConfigError unless the bucket's
        images are trained on, each once.
        """
        is_new = samples.bucket == bucket_index
        all_indices = np.arange(self._stream.train_counts[bucket_index])
        has_all = np.array_equal(np.sort(samples.index[is_new]), all_indices)
        if bucket_index == self._bucket_index or not has_all:
            raise ConfigError(
                f"prequential is {self._config.prequential}, but strategy {self._config.strategy} "
                "does not train once on each image of a new bucket: leave prequential at off",
                parameter="prequential",
            )
        self._bucket_index, self._next_batch = bucket_index, int(self._first_batches[bucket_index])
        starts = [start for start, _ in self._bounds[bucket_index]]
        steps = np.searchsorted(
            [stop for _, stop in bounds], np.flatnonzero(is_new)[starts], side="right"
        )
        self._num_starts = iter(np.bincount(steps, minlength=len(bounds)).tolist())
        self._images.clear()
        stop = int(self._first_batches[bucket_index + 1]) + max(self._distances)
        for later, later_bounds in enumerate(self._bounds[bucket_index:], bucket_index):
            if (num_batches := stop - int(self._first_batches[later])) > 0:
                _, count = later_bounds[min(num_batches, len(later_bounds)) - 1]
                self._images[later] = self._stream.load_in_time_order(later, count)

    def predict_before_step(self) -> None:
        """Predict the batches that start in the next step, and later ones.

        The host does not wait. Call it before each step of the first epoch.
        """
        for _ in range(next(self._num_starts)):
            with preserve_state(self._model), torch.no_grad(), logits_in_float32(self._model):
                self._model.eval()
                for column, distance in enumerate(self._distances):
                    if (batch := self._next_batch + distance) < len(self.correct):
                        self._count_correct(batch, column)
            self._next_batch += 1

    def _count_correct(self, batch: int, column: int) -> None:
        bucket_index = int(np.searchsorted(self._first_batches, batch, side="right")) - 1
        images = self._images[bucket_index]
        bounds = slice(*self._bounds[bucket_index][batch - int(self._first_batches[bucket_index])])
        inputs, device = images.cut(bounds.start, bounds.stop), self._stream.device
        if is_other_device(inputs.device, device):
            inputs = copy_to_device(inputs, device)
        precision = self._config.precision
        if images.side is not None:
            inputs = normalise(inputs, get_input_dtype(self._model, precision))
        with autocast(device, precision):
            labels = self._model(inputs).argmax(dim=1)
        self.correct[batch, column] = (labels == images.labels[bounds]).sum()

    def build_record(self, num_trained: int) -> PrequentialRecord:
        """Wait for the counts, and return the first *num_trained* buckets' record."""
        tables = [
            self._stream.take_in_time_order(bucket_index, self._stream.train_counts[bucket_index])
            for bucket_index in range(num_trained)
        ]
        times = np.concatenate([table.times for table in tables if table.times is not None])
        bounds = self._bounds[:num_trained]
        sizes = np.array([stop - start for batches in bounds for start, stop in batches])
        stops = np.cumsum(sizes)
        return PrequentialRecord(
            distances=self._distances,
            buckets=self._stream.keys,
            bucket=np.repeat(np.arange(num_trained), [*map(len, bounds)]).astype(np.uint16),
            size=sizes,
            first_time=times[stops - sizes],
            last_time=times[stops - 1],
            label=np.concatenate([table.labels for table in tables]).astype(np.uint16),
            correct=self.correct[: len(sizes)].cpu().numpy(),
        )
