"""What a strategy with a memory keeps: buffers of images, each one way to choose.

The class :class:`ClassBalanced` is asked for as ``class_balanced``; :data:`BUFFERS` has them all.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.samples.photos import SampleIndices, join_indices, whole_bucket


class Buffer(ABC):
    """A bounded memory of images, kept as indices; draws follow from seed and position alone."""

    counted: ClassVar[tuple[str, ...]] = ()  # attributes of a subclass that it chooses by

    def __init__(self, *, capacity: int, num_classes: int, seed: int, alpha: str = NONE) -> None:
        self.capacity = capacity
        self.num_classes = num_classes
        self.seed = seed
        self.alpha = alpha
        self.sample_indices = SampleIndices(
            np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        )
        self.labels = np.empty(0, dtype=np.int64)  # (len(self),)

    def __len__(self) -> int:
        return len(self.sample_indices)

    def offer(
        self,
        position: int,
        labels: NDArray[np.int64],
        indices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Let a bucket's images compete for the buffer, all of them or those at *indices*.

        Returns the kept images as indices into the images before followed by those of the bucket.
        """
        arriving = whole_bucket(position, len(labels))
        if indices is not None:
            arriving, labels = arriving.take(indices), labels[indices]
        kept_indices = self._choose(labels, generator(self.seed, RngPurpose.BUFFER, position))
        candidates = join_indices(self.sample_indices, arriving)
        self.sample_indices = candidates.take(kept_indices)
        self.labels = np.concatenate([self.labels, labels])[kept_indices]
        return kept_indices

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues."""
        sample_indices = {
            "bucket": self.sample_indices.bucket,
            "index": self.sample_indices.index,
            "labels": self.labels,
        }
        return sample_indices | {name: getattr(self, name) for name in self.counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.sample_indices = SampleIndices(state["bucket"], state["index"])
        self.labels = state["labels"]
        for name in self.counted:
            setattr(self, name, state[name])

    @abstractmethod
    def _choose(self, labels: NDArray[np.int64], draws: torch.Generator) -> NDArray[np.int64]:
        """Return the result of :meth:`offer`, before the attributes change."""


class Reservoir(Buffer):
    """A uniform sample, without replacement, of all images so far, whatever their class.

    Every image draws a priority once, uniform in [0, 1); those with the lowest are held.

    Source:
        Vitter, Random Sampling with a Reservoir, ACM TOMS 11(1), 1985. His algorithm R goes through
        the images one by one; random keys give the same distribution.
    """

    counted = ("_priorities",)
    _priorities: NDArray[np.float64] = np.empty(0)  # (len(self),)

    def _choose(self, labels: NDArray[np.int64], draws: torch.Generator) -> NDArray[np.int64]:
        priorities = np.concatenate([self._priorities, _uniform(len(labels), draws)])
        kept_indices = np.sort(np.argsort(priorities, kind="stable")[: self.capacity])
        self._priorities = priorities[kept_indices]
        return kept_indices


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

    def _choose(self, labels: NDArray[np.int64], draws: torch.Generator) -> NDArray[np.int64]:
        num_new = np.bincount(labels, minlength=self.num_classes)
        self._num_seen = num_new if self._num_seen is None else self._num_seen + num_new
        priorities = np.concatenate([self._priorities, _uniform(len(labels), draws)])
        kept_indices = select_lowest_per_class(
            np.concatenate([self.labels, labels]),
            priorities,
            class_quotas(self._num_seen, self.capacity),
        )
        self._priorities = priorities[kept_indices]
        return kept_indices


def class_quotas(num_seen: NDArray[np.int64], memory: int) -> NDArray[np.int64]:
    """Share a buffer of *memory* images among the classes seen so far, as equally as they allow.

    From (classes,), images of each so far, to (classes,), images to hold of each. Rare classes keep
    all they have; the others differ by at most one, and those of lower labels take what is left
    over. As more images are seen, no class's quota grows but by images just seen.

    >>> class_quotas(np.array([100, 2, 100, 0]), 9)
    array([4, 2, 3, 0])
    """
    quotas = np.zeros_like(num_seen)
    num_left = memory
    while True:
        hungry = np.flatnonzero(quotas < num_seen)
        if num_left < len(hungry) or len(hungry) == 0:
            break
        # As many rounds at once as every hungry class can take part in.
        rounds = min(num_left // len(hungry), int((num_seen - quotas)[hungry].min()))
        quotas[hungry] += rounds
        num_left -= rounds * len(hungry)
    quotas[hungry[:num_left]] += 1
    return quotas


def select_lowest_per_class(
    labels: NDArray[np.int64], priorities: NDArray[np.float64], quotas: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return ascending indices of the images with the lowest priorities of each class.

    labels, priorities: (N,). quotas: number of images per class, (classes,).
    """
    order = np.lexsort((priorities, labels))
    starts = np.searchsorted(labels[order], np.arange(len(quotas)))
    rank = np.arange(len(labels)) - starts[labels[order]]
    return np.sort(order[rank < quotas[labels[order]]])


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

    def _choose(self, labels: NDArray[np.int64], draws: torch.Generator) -> NDArray[np.int64]:
        arriving = torch.randperm(len(labels), generator=draws).tolist()
        luck = _uniform(len(labels), draws).tolist()
        # Of each class that was ever seen, indices into what was held followed by the bucket.
        by_class: dict[int, list[int]] = {label: [] for label in self._classes}
        for number, label in enumerate(self.labels.tolist()):
            by_class[label].append(number)
        num_held = total = len(self)
        for number, draw in zip(arriving, luck, strict=True):
            label = int(labels[number])
            # Of a class that is new, one is let in, however many classes there are.
            if label in by_class and len(by_class[label]) >= self.capacity / len(by_class):
                continue
            if total == self.capacity:
                largest = max(sorted(by_class), key=lambda label: len(by_class[label]))
                by_class[largest].pop(int(draw * len(by_class[largest])))
                total -= 1
            by_class.setdefault(label, []).append(num_held + number)
            total += 1
        self._classes = tuple(sorted(by_class))
        return np.sort(np.array([n for indices in by_class.values() for n in indices]))


class BiasedReservoir(Buffer):
    """CLEAR's reservoir, which lets new images in more readily than a uniform sample would.

    Images arrive one by one. The first k, the buffer's capacity, fill it. The n-th one is let in
    with probability ``min(1, alpha * k / n)`` and takes the place of one that is drawn uniformly
    from those held.

    - Fixed alpha, ``alpha=2``: 1 is a uniform sample of the stream (:class:`Reservoir`); the
      greater it is, the more the buffer prefers what is new, while still every image is let in less
      readily than those before it.
    - Dynamic alpha, ``alpha=0.75n/k``: it grows with the stream, so that every image is let in with
      the same probability, 0.75; the chance that an image is still there then falls exponentially
      with its age.

    A bucket's images arrive in a random order; in files they are sorted by class, and the last
    class would be preferred. This is the paper's text, and not the authors' program: see
    ``gdumb`` with ``update=authors``.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289, biased reservoir sampling. Their code
        tries alpha 0.25, 0.5, 1, 2 and 5, and 0.25, 0.5, 0.75 and 1 times n / k, with a buffer as
        large as a bucket.
    """

    counted = ("_num_seen",)
    _num_seen = 0  # images so far

    def _choose(self, labels: NDArray[np.int64], draws: torch.Generator) -> NDArray[np.int64]:
        count, num_held, k = len(labels), len(self), self.capacity
        arriving = num_held + torch.randperm(count, generator=draws).numpy()
        luck = _uniform(count, draws)
        replaced = torch.randint(k, (count,), generator=draws).numpy()

        num_seen = self._num_seen + np.arange(1, count + 1)
        self._num_seen += count
        buffered = np.concatenate([np.arange(num_held), arriving[: k - num_held]])
        alpha, is_dynamic = parse_alpha(self.alpha)
        let_in = (num_seen > k) & (
            luck < (alpha if is_dynamic else np.minimum(1.0, alpha * k / num_seen))
        )
        # Of several that replace the same image, the last one stays.
        buffered[replaced[let_in]] = arriving[let_in]
        return np.sort(buffered)


class AuthorsReservoir(BiasedReservoir):
    """Replace the newest images, as the program that CLEAR's authors published does.

    Of a bucket larger than the buffer, as many images as fit are drawn at random first. Each
    replaces one with the chance ``alpha / i`` in the i-th bucket (or alpha, where it is dynamic),
    once the buffer is full.

    Source:
        ElvishElvis/CLEAR-Continual_Learning_Benchmark@df6824d:avalanche/training/
        storage_policy.py:136, which fails unless the first bucket fills the buffer.
    """

    def _choose(self, labels: NDArray[np.int64], draws: torch.Generator) -> NDArray[np.int64]:
        self._num_seen += 1  # buckets
        alpha, is_dynamic = parse_alpha(self.alpha)
        chance = alpha if is_dynamic else alpha / self._num_seen
        arriving = len(self) + np.arange(len(labels))
        if len(labels) > self.capacity:
            arriving = arriving[torch.randperm(len(labels), generator=draws).numpy()]
            arriving = arriving[: self.capacity]
        room = self.capacity - len(self)
        lucky = _uniform(len(arriving), draws)[room:] <= chance
        let_in = arriving[room:][lucky]
        buffered = np.concatenate([np.arange(len(self)), arriving[:room]])
        return np.concatenate([buffered[: len(buffered) - len(let_in)], let_in])


def parse_alpha(text: str) -> tuple[float, bool]:
    """Read an alpha: the number, and whether it is a multiple, at most 1, of n / k.

    >>> parse_alpha("2")
    (2.0, False)
    >>> parse_alpha("0.75n/k")
    (0.75, True)
    """
    number, dynamic = re.fullmatch(r"(.*?)(\*?n/k)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0 and (alpha <= 1 or not dynamic)):
        raise ConfigError(
            f"strategy_args has alpha={text}; buffer=biased_reservoir expects a number above 0, as "
            "alpha=2, or a share that grows with the stream, from above 0 to 1, as alpha=0.75n/k"
        )
    return alpha, bool(dynamic)


BUFFERS: dict[str, type[Buffer]] = {
    "biased_reservoir": BiasedReservoir,
    "class_balanced": ClassBalanced,
    "greedy_balanced": GreedyBalanced,
    "reservoir": Reservoir,
}


@dataclass(frozen=True)
class BufferArguments:
    """Arguments that choose a buffer, for all strategies with a choice of buffers."""

    buffer: str = "class_balanced"  # of BUFFERS
    alpha: str = NONE

    def __post_init__(self) -> None:
        if load_buffer(self.buffer) is BiasedReservoir:
            parse_alpha(self.alpha)
        elif self.alpha != NONE:
            raise ConfigError(
                f"strategy_args has alpha={self.alpha}, which only buffer=biased_reservoir takes; "
                "leave it out or pass that buffer"
            )


def load_buffer(name: str) -> type[Buffer]:
    """Return the class of a buffer. Raises ConfigError if no buffer has that name."""
    if name not in BUFFERS:
        raise ConfigError(
            f"unknown buffer {name!r} in strategy_args; known are {', '.join(BUFFERS)}"
        )
    return BUFFERS[name]


def _uniform(count: int, draws: torch.Generator) -> NDArray[np.float64]:
    """(count,), in [0, 1)."""
    return torch.rand(count, generator=draws, dtype=torch.float64).numpy()
