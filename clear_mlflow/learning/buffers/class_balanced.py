"""Class-balanced reservoir: every class gets an equal share of the buffer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from clear_mlflow.learning.buffers._base import Buffer
from clear_mlflow.learning.device import RngPurpose, generator


class ClassBalanced(Buffer):
    """Of each class, an equally likely sample of all its images so far.

    Every image draws a priority once, uniform in [0, 1). Of each class the buffer holds those with
    the lowest priorities, as many as :func:`class_quotas` gives. So every image of a class that was
    ever seen is equally likely to be held, whatever bucket it came from; and since a class's quota
    can never exceed what it still holds, no image is missed that was let go.

    Source:
        Chrysakis and Moens, Online Continual Learning from Imbalanced Data, ICML 2020
        (class-balanced reservoir); Vitter, Random Sampling with a Reservoir, 1985 (random keys).
    """

    counted = ("_priorities", "_num_seen")
    _priorities: NDArray[np.float64] = np.empty(0)  # (len(self),)
    _num_seen: NDArray[np.int64] | None = None  # (num_classes,), images of each class so far

    def _choose(self, position: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        draws = generator(self.seed, RngPurpose.BUFFER, position)
        new = torch.rand(len(labels), generator=draws, dtype=torch.float64).numpy()
        num_new = np.bincount(labels, minlength=self.num_classes)
        self._num_seen = num_new if self._num_seen is None else self._num_seen + num_new
        priorities = np.concatenate([self._priorities, new])
        kept = lowest_of_each_class(
            np.concatenate([self.labels, labels]),
            priorities,
            class_quotas(self._num_seen, self.capacity),
        )
        self._priorities = priorities[kept]
        return kept


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
