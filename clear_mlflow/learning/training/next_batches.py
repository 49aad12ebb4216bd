"""Predictions of batches, in the order of time, before training on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from clear_mlflow.core.batch_record import PrequentialRecord
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.device import autocast, copy_to_device, is_other_device
from clear_mlflow.learning.models import get_input_dtype, logits_in_float32
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import SampleIndices
from clear_mlflow.learning.samples import (
    HeldOutImages,
    TrainingStream,
    compute_batch_bounds,
    normalise,
)
from clear_mlflow.learning.training.observers import preserve_modes


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
            with preserve_modes(self._model), torch.no_grad(), logits_in_float32(self._model):
                self._model.eval()
                for column, distance in enumerate(self._distances):
                    if (batch := self._next_batch + distance) < len(self.correct):
                        self._predict(batch, column)
            self._next_batch += 1

    def _predict(self, batch: int, column: int) -> None:
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
        """Return the batches and counts of the first *num_trained* buckets, at least one."""
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
