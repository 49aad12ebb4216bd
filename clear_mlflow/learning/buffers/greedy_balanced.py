"""Greedy balanced: a class takes what it lacks to its equal share, and nothing beyond."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from clear_mlflow.learning.buffers._base import Buffer
from clear_mlflow.learning.device import RngPurpose, generator


class GreedyBalanced(Buffer):
    """GDumb's sampler: first come, first served, up to an equal share of the buffer for each class.

    Images arrive one by one, those of a bucket in a random order. One is let in if its class is new
    or holds fewer than the buffer's k places divided by the classes so far. If the buffer is full,
    a random image of the largest class makes room.

    So once every class has its share, **nothing is ever replaced**. In a stream that brings all
    classes in every bucket, such as CLEAR, a buffer no larger than the first bucket remains a
    sample of the first bucket.

    Source:
        Prabhu, Torr and Dokania, GDumb, ECCV 2020, algorithm 1.
    """

    counted = ("_classes",)
    _classes: tuple[int, ...] = ()  # ever seen, ascending

    def _choose(self, position: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        draws = generator(self.seed, RngPurpose.BUFFER, position)
        arriving = torch.randperm(len(labels), generator=draws).tolist()
        luck = torch.rand(len(labels), generator=draws, dtype=torch.float64).tolist()
        # Of each class that was ever seen, indices into what was held followed by the bucket.
        held: dict[int, list[int]] = {label: [] for label in self._classes}
        for number, label in enumerate(self.labels.tolist()):
            held[label].append(number)
        num_held = total = len(self)
        for number, draw in zip(arriving, luck, strict=True):
            label = int(labels[number])
            # Of a class that is new, one is let in, however many classes there are.
            if label in held and len(held[label]) >= self.capacity / len(held):
                continue
            if total == self.capacity:
                largest = max(sorted(held), key=lambda one: len(held[one]))
                held[largest].pop(int(draw * len(held[largest])))
                total -= 1
            held.setdefault(label, []).append(num_held + number)
            total += 1
        self._classes = tuple(sorted(held))
        return np.sort(np.array([n for of_class in held.values() for n in of_class]))
