"""A stream of stored features, which the training loop takes like one of images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.data.features import StoredFeatures
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.errors import DataError
from clear_mlflow.learning.device import Draw, generator, home_of
from clear_mlflow.learning.images import DecodedStream, HeldOutImages, Samples, batch_bounds


class FeatureStream:
    """A stream whose ``images`` are features, (N, width), float32.

    Nothing about them is random: there are no crops, no flips, and no normalisation.

    Args:
        stream: the dataset.
        features: of all its images.
        device: where the model trains.
    """

    def __init__(
        self, stream: BucketStream, features: StoredFeatures, *, device: torch.device
    ) -> None:
        self.keys = tuple(bucket.key for bucket in stream.buckets)
        self.train_counts = tuple(len(bucket.train) for bucket in stream.buckets)
        self.num_classes = len(stream.class_names)
        self.width = features.width
        self.device = device
        self._train_labels = tuple(bucket.train.labels for bucket in stream.buckets)
        self._test_labels = tuple(bucket.test.labels for bucket in stream.buckets)
        self._features = features
        self._newest: tuple[int, Samples] | None = None
        self._test: HeldOutImages | None = None

    def train(self, position: int) -> Samples:
        """The training features of one bucket."""
        if self._newest is None or self._newest[0] != position:
            self._newest = None  # let go of the old bucket before the new one needs its room
            rows = self._features.train[position]
            samples = self.room_for(len(rows))
            self._fill(samples, 0, rows, self._train_labels[position])
            self._newest = (position, samples)
        return self._newest[1]

    def test(self) -> HeldOutImages:
        """The test features of all buckets, end to end."""
        if self._test is None:
            counts = tuple(len(rows) for rows in self._features.test)
            samples = self.room_for(sum(counts))
            start = 0
            for rows, labels in zip(self._features.test, self._test_labels, strict=True):
                self._fill(samples, start, rows, labels)
                start += len(rows)
            bucket = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
            self._test = HeldOutImages(samples, bucket.to(samples.labels.device), counts)
        return self._test

    def room_for(self, count: int) -> Samples:
        """Uninitialised room for features, for a strategy that keeps some."""
        num_bytes = count * self.width * 4
        home = home_of(num_bytes, self.device)
        try:
            room = torch.empty(count, self.width, device=home)
        except RuntimeError:
            raise DataError(
                f"features of {count} images need {num_bytes} bytes, which this machine cannot "
                "give; train on fewer buckets or on narrower features"
            ) from None
        return Samples(room, torch.empty(count, dtype=torch.int64, device=home))

    @staticmethod
    def _fill(
        samples: Samples, start: int, rows: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> None:
        stop = start + len(rows)
        # Copied once by numpy: the rows may be a file that nothing may write to.
        samples.images[start:stop] = torch.from_numpy(np.array(rows, dtype=np.float32))
        samples.labels[start:stop] = torch.from_numpy(np.array(labels))


TrainingStream: TypeAlias = DecodedStream | FeatureStream


def is_features(images: Tensor) -> bool:
    """Whether a sample's ``images`` are features: (N, width), and no bytes of pixels."""
    return images.dim() == 2


def feature_batches(
    samples: Samples,
    *,
    batch_size: int,
    device: torch.device,
    seed: int,
    position: int,
    epoch: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch: the features of every image once, in the random order that images have too.

    Args:
        samples: features of N images.
        batch_size: images in a step; see :func:`~clear_mlflow.learning.images.batch_bounds`.
        device: where the batches lie.
        seed: the run's seed.
        position: of the bucket in the stream.
        epoch: within the bucket, from 0.

    Yields:
        Features (B, width), float32, and labels (B,), int64.
    """
    order = torch.randperm(len(samples), generator=generator(seed, Draw.ORDER, position, epoch))
    order = order.to(samples.images.device)
    for start, stop in batch_bounds(len(samples), batch_size):
        chosen = order[start:stop]
        features = samples.images.index_select(0, chosen)
        labels = samples.labels.index_select(0, chosen)
        yield features.to(device, non_blocking=True), labels.to(device, non_blocking=True)
