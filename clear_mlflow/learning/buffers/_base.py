"""What a buffer is, and how one is found by its name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers import buffer_names
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.samples.indices import SampleIndices, joined, whole_bucket


class Buffer(ABC):
    """A bounded memory of training images, kept as indices.

    Args:
        capacity: images that it holds at most.
        num_classes: of the stream.
        seed: of the run; what is drawn follows from it and the bucket's position alone.
        alpha: how much a biased reservoir prefers what is new; ``none`` for all others.
    """

    counted: ClassVar[tuple[str, ...]] = ()  # attributes of a subclass that it chooses by

    def __init__(self, *, capacity: int, num_classes: int, seed: int, alpha: str = NONE) -> None:
        self.check_alpha(alpha)
        self.capacity = capacity
        self.num_classes = num_classes
        self.seed = seed
        self.alpha = alpha
        self.picks = SampleIndices(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        self.labels = np.empty(0, dtype=np.int64)  # (len(picks),)

    def __len__(self) -> int:
        return len(self.picks)

    def offer(self, position: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """A bucket is done: its images, of these classes, compete for the buffer.

        Args:
            position: of the bucket in the stream.
            labels: (N,), of its images, in their order.

        Returns:
            (len(self),), what is held now, as indices into what was held before followed by the
            bucket's images: what is kept along with each image is chosen by them.
        """
        kept = self._choose(position, labels)
        candidates = joined(self.picks, whole_bucket(position, len(labels)))
        self.picks = candidates.take(kept)
        self.labels = np.concatenate([self.labels, labels])[kept]
        return kept

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run continues with."""
        picks = {"bucket": self.picks.bucket, "index": self.picks.index, "labels": self.labels}
        return picks | {name: getattr(self, name) for name in self.counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` gave."""
        self.picks = SampleIndices(state["bucket"], state["index"])
        self.labels = state["labels"]
        for name in self.counted:
            setattr(self, name, state[name])

    @abstractmethod
    def _choose(self, position: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """What :meth:`offer` returns, while :attr:`picks` and :attr:`labels` are as before."""

    @classmethod
    def check_alpha(cls, alpha: str) -> None:
        """Check the text of an alpha, as ``strategy_args`` gives it.

        Raises:
            ConfigError: it is none of this buffer's.
        """
        if alpha != NONE:
            raise ConfigError(
                f"strategy_args has alpha={alpha}, which only buffer=biased_reservoir takes; "
                "leave it out or pass that buffer"
            )


@dataclass(frozen=True)
class BufferArguments:
    """Which images a strategy keeps: arguments of all strategies that let one choose."""

    buffer: str = "class_balanced"  # a module of this package
    alpha: str = NONE

    def __post_init__(self) -> None:
        load_buffer(self.buffer).check_alpha(self.alpha)


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
