"""Reservoir: every image so far is equally likely to be held."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from clear_mlflow.learning.buffers._base import Buffer
from clear_mlflow.learning.device import RngPurpose, generator


class Reservoir(Buffer):
    """A uniform sample, without replacement, of all images so far, whatever their class.

    Every image draws a priority once, uniform in [0, 1); those with the lowest are held.

    Source:
        Vitter, Random Sampling with a Reservoir, ACM TOMS 11(1), 1985. His algorithm R goes through
        the images one by one; random keys give the same distribution.
    """

    counted = ("_priorities",)
    _priorities: NDArray[np.float64] = np.empty(0)  # (len(self),)

    def _choose(self, position: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        draws = generator(self.seed, RngPurpose.BUFFER, position)
        new = torch.rand(len(labels), generator=draws, dtype=torch.float64).numpy()
        priorities = np.concatenate([self._priorities, new])
        kept = np.sort(np.argsort(priorities, kind="stable")[: self.capacity])
        self._priorities = priorities[kept]
        return kept
