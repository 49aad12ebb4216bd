"""A stream of stored features, which the training loop takes like one of images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clear_mlflow.data.features.stored import StoredFeatures
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.learning.device import storage_device
from clear_mlflow.learning.samples.decoded import TrainingStream
from clear_mlflow.learning.samples.indices import SampleIndices

__all__ = ["FeatureStream", "TrainingStream"]


class FeatureStream(TrainingStream):
    """A stream whose ``images`` are features, (N, width), float32.

    Nothing about them is random: there are no crops, no flips, and no normalisation.
    """

    def __init__(
        self, stream: BucketStream, features: StoredFeatures, *, device: torch.device
    ) -> None:
        super().__init__(stream, device)
        self.width = features.width
        self._features = features

    def _fetch(self, picks: SampleIndices) -> Tensor:
        room = self._room_for(len(picks))
        for position in np.unique(picks.bucket):
            places = np.flatnonzero(picks.bucket == position)
            rows = torch.from_numpy(self._features.train[position][picks.index[places]])
            room[torch.from_numpy(places).to(room.device)] = rows.to(room.device)
        return room

    def _fetch_tests(self, counts: tuple[int, ...]) -> Tensor:
        room = self._room_for(sum(counts))
        for part, rows in zip(torch.split(room, list(counts)), self._features.test, strict=True):
            part.copy_(torch.from_numpy(np.array(rows)))  # a mapped file, which is read-only
        return room

    def _room_for(self, count: int) -> Tensor:
        home = storage_device(count * self.width * 4, self.device)
        return torch.empty(count, self.width, device=home)
