"""What a buffer is, and how one is found by its name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.errors import ConfigError
from clear_mlflow.learning.buffers import buffer_names
from clear_mlflow.learning.picks import Picks


class Buffer(ABC):
    """A bounded memory of training images, kept as indices.

    Args:
        capacity: images that it holds at most.
        num_classes: of the stream.
        seed: of the run; what is drawn follows from it and the bucket's position alone.
        alpha: for the ways to choose that have one such number; None for their own default.
    """

    def __init__(
        self, *, capacity: int, num_classes: int, seed: int, alpha: float | None = None
    ) -> None:
        self.capacity = capacity
        self.num_classes = num_classes
        self.seed = seed
        self.alpha = alpha
        self.picks = Picks(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        self.labels = np.empty(0, dtype=np.int64)  # (len(picks),)

    def __len__(self) -> int:
        return len(self.picks)

    @abstractmethod
    def offer(self, position: int, labels: NDArray[np.int64]) -> None:
        """A bucket is done: its images, of these classes, compete for the buffer."""


def load_buffer(name: str) -> type[Buffer]:
    """Find a buffer's class: ``class_balanced`` is ``ClassBalanced`` in the module of that name.

    Raises:
        ConfigError: there is no such buffer.
    """
    if name not in buffer_names():
        raise ConfigError(
            f"unknown buffer {name!r} in strategy_args; known are {', '.join(buffer_names())}"
        )
    module = importlib.import_module(f"{__package__}.{name}")
    class_name = "".join(word.capitalize() for word in name.split("_"))
    return cast("type[Buffer]", getattr(module, class_name))
