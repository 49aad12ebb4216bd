"""Replay: train on the new bucket and on a class-balanced sample of the past."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from clear_mlflow.learning.device import Draw, generator
from clear_mlflow.learning.images import Samples
from clear_mlflow.learning.strategies._base import Strategy


class Replay(Strategy):
    """Experience replay with a class-balanced reservoir of ``memory`` images.

    While a bucket is trained on, its images and the buffer's are shuffled into one epoch, so each
    counts once. When the bucket is done, its images join the reservoir.

    Every image draws a priority once, uniform in [0, 1). Of each class the buffer holds those with
    the lowest priorities, as many as :func:`class_quotas` gives. So every image of a class that was
    ever seen is equally likely to be held, whatever bucket it came from; and since a class's quota
    can never exceed what it still holds, no image is missed that was let go.

    Source:
        Chaudhry et al., On Tiny Episodic Memories in Continual Learning, arXiv:1902.10486 (replay);
        Chrysakis and Moens, Online Continual Learning from Imbalanced Data, ICML 2020
        (class-balanced reservoir); Vitter, Random Sampling with a Reservoir, 1985 (random keys).
    """

    _buffer: Samples | None = None
    _priorities: NDArray[np.float64]  # (len(_buffer),)
    _num_seen: NDArray[np.int64]  # (num_classes,), images of each class so far

    def training_set(self, position: int) -> Samples:
        """The new bucket's images, then the buffer's."""
        new = self.stream.train(position)
        return new if self._buffer is None else _joined(new, self._buffer)

    def after_bucket(self, position: int) -> None:
        """Let the bucket's images compete for the buffer."""
        new = self.stream.train(position)
        draws = generator(self.config.seed, Draw.BUFFER, position)
        priorities = torch.rand(len(new), generator=draws, dtype=torch.float64).numpy()
        num_new = np.bincount(new.labels.cpu().numpy(), minlength=self.stream.num_classes)
        if self._buffer is None:
            candidates, self._priorities, self._num_seen = new, priorities, num_new
        else:
            candidates = _joined(self._buffer, new)
            self._priorities = np.concatenate([self._priorities, priorities])
            self._num_seen = self._num_seen + num_new
        kept = lowest_of_each_class(
            candidates.labels.cpu().numpy(),
            self._priorities,
            class_quotas(self._num_seen, self.config.memory),
        )
        self._priorities = self._priorities[kept]
        index = torch.from_numpy(kept).to(candidates.labels.device)
        self._buffer = Samples(candidates.images[index], candidates.labels[index])


def class_quotas(num_seen: NDArray[np.int64], memory: int) -> NDArray[np.int64]:
    """Share a buffer among the classes seen so far, as equally as their images allow.

    Args:
        num_seen: (classes,); images of each class so far.
        memory: images that the buffer holds at most.

    Returns:
        (classes,); images to hold of each. Rare classes keep all they have; the others differ by at
        most one, and those of lower labels take what is left over. The sum is the least of *memory*
        and all images seen. As more images are seen, no class's quota grows but by images just
        seen.

    >>> class_quotas(np.array([100, 2, 100, 0]), 9)
    array([4, 2, 3, 0])
    """
    quotas = np.zeros_like(num_seen)
    left = memory
    while True:
        hungry = np.flatnonzero(quotas < num_seen)
        if left < len(hungry) or len(hungry) == 0:
            break
        # As many rounds at once as every hungry class can take part in.
        rounds = min(left // len(hungry), int((num_seen - quotas)[hungry].min()))
        quotas[hungry] += rounds
        left -= rounds * len(hungry)
    quotas[hungry[:left]] += 1
    return quotas


def lowest_of_each_class(
    labels: NDArray[np.int64], priorities: NDArray[np.float64], quotas: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Indices, ascending, of the quota of each class with the lowest priorities.

    Args:
        labels: (N,).
        priorities: (N,).
        quotas: (classes,); how many to take of each class, at most.
    """
    order = np.lexsort((priorities, labels))
    starts = np.searchsorted(labels[order], np.arange(len(quotas)))
    rank = np.arange(len(labels)) - starts[labels[order]]
    return np.sort(order[rank < quotas[labels[order]]])


def _joined(first: Samples, second: Samples) -> Samples:
    device = first.images.device
    return Samples(
        torch.cat([first.images, second.images.to(device)]),
        torch.cat([first.labels, second.labels.to(device)]),
    )
