"""A stream of stored features, which the training loop takes like one of images."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.features.stored import StoredFeatures
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.learning.device import storage_device
from clear_mlflow.learning.samples.decoded import DecodedStream, HeldOutImages, Samples
from clear_mlflow.learning.samples.indices import SampleIndices


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
        self._selected: tuple[SampleIndices, Samples] | None = None
        self._test: HeldOutImages | None = None

    def train(self, position: int) -> Samples:
        """The training features of one bucket."""
        if self._newest is None or self._newest[0] != position:
            # Let go of the old bucket before the new one needs its room.
            self._newest = self._selected = None
            room = self._room_for(self.train_counts[position])
            _fill(room, self._features.train[position])
            labels = torch.tensor(self._train_labels[position], device=room.device)
            self._newest = (position, Samples(room, labels))
        return self._newest[1]

    def labels(self, position: int) -> NDArray[np.int64]:
        """(N,), the classes of one bucket's training images."""
        return self._train_labels[position]

    def select(self, picks: SampleIndices) -> Samples:
        """Training features of any buckets, copied to lie side by side.

        Whoever asks for the same as the one before gets the same: members of an ensemble do.
        """
        if self._selected is not None and self._selected[0].equals(picks):
            return self._selected[1]
        # Let go of the old bucket before the new one needs its room.
        self._newest = self._selected = None
        room = self._room_for(len(picks))
        labels = np.empty(len(picks), dtype=np.int64)
        for position in np.unique(picks.bucket):
            places = np.flatnonzero(picks.bucket == position)
            index = picks.index[places]
            labels[places] = self._train_labels[position][index]
            rows = torch.from_numpy(self._features.train[position][index])
            room[torch.from_numpy(places).to(room.device)] = rows.to(room.device)
        self._selected = (picks, Samples(room, torch.tensor(labels, device=room.device)))
        return self._selected[1]

    def test(self) -> HeldOutImages:
        """The test features of all buckets, end to end."""
        if self._test is None:
            counts = tuple(len(rows) for rows in self._features.test)
            features = self._room_for(sum(counts))
            start = 0
            for rows in self._features.test:
                _fill(features[start : start + len(rows)], rows)
                start += len(rows)
            home = features.device
            labels = torch.tensor(np.concatenate(self._test_labels), device=home)
            bucket = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
            self._test = HeldOutImages(features, labels, bucket.to(home), counts)
        return self._test

    def _room_for(self, count: int) -> Tensor:
        num_bytes = count * self.width * 4
        home = storage_device(num_bytes, self.device)
        try:
            return torch.empty(count, self.width, device=home)
        except RuntimeError:
            raise DataError(
                f"features of {count} images need {num_bytes} bytes, which this machine cannot "
                "give; train on fewer buckets or on narrower features"
            ) from None


def _fill(room: Tensor, rows: NDArray[np.float32]) -> None:
    """Copy rows, which may be a mapped file that nothing may write to, once."""
    if room.device.type == "cpu":
        room.numpy()[...] = rows
    else:
        room.copy_(torch.from_numpy(np.array(rows)))


TrainingStream: TypeAlias = DecodedStream | FeatureStream
