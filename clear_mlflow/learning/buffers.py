"""Replay buffers: each class selects the images that stay in a memory of bounded size.

Users name a class in snake case, for example ``class_balanced``; see :data:`BUFFERS`.
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
from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.photos import SampleIndices, join_indices, list_bucket_indices


class Buffer(ABC):
    """A memory of images' indices and labels, not pixels. Starts empty.

    Its random numbers depend only on seed and bucket.

    Args:
        capacity: largest number of images.
        num_classes: number of classes in the stream.
        seed: seed of the random numbers.
        alpha: text for :func:`parse_alpha`, or none; only for buffers that use it.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ()  # further attributes to resume from

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

    def update(
        self,
        bucket_index: int,
        labels: NDArray[np.int64],
        indices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Update the buffer with a bucket, and return the kept candidates' indices.

        labels: classes of all images of the bucket, (N,).
        indices: which of these images may be selected, or None for all.

        Returns (len(self),), the index of each kept image among the candidates: first the images
        that were in the buffer, then the bucket's images in the order of *indices*.
        """
        arriving = list_bucket_indices(bucket_index, len(labels))
        if indices is not None:
            arriving, labels = arriving.take(indices), labels[indices]
        kept_indices = self.select(
            labels, build_generator(self.seed, RngPurpose.BUFFER, bucket_index)
        )
        candidates = join_indices(self.sample_indices, arriving)
        self.sample_indices = candidates.take(kept_indices)
        self.labels = np.concatenate([self.labels, labels])[kept_indices]
        return kept_indices

    def state_dict(self) -> dict[str, Any]:
        """Return indices, labels and the attributes named in ``state_attributes``, for a resume."""
        sample_indices = {
            "bucket": self.sample_indices.bucket,
            "index": self.sample_indices.index,
            "labels": self.labels,
        }
        return sample_indices | {name: getattr(self, name) for name in self.state_attributes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace indices, labels and the attributes named in ``state_attributes``.

        state: what :meth:`state_dict` returned.
        """
        self.sample_indices = SampleIndices(state["bucket"], state["index"])
        self.labels = state["labels"]
        for name in self.state_attributes:
            setattr(self, name, state[name])

    @abstractmethod
    def select(self, labels: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
        """Return indices of buffered, then new images to keep, at most ``capacity``.

        The buffer's images come first, with the classes ``self.labels``, then the bucket's.

        labels: classes of the bucket's images, (N,). generator: source of all random numbers. May
        change ``state_attributes``.
        """


class Reservoir(Buffer):
    """A uniform sample, without replacement, of all images so far.

    Every image draws one priority, uniform in [0, 1); the images with the lowest ones are kept.

    Source:
        Vitter, Random Sampling with a Reservoir, ACM TOMS 11(1), 1985. His algorithm R goes through
        the images one by one; random keys give the same distribution.
    """

    state_attributes = ("_priorities",)
    _priorities: NDArray[np.float64] = np.empty(0)  # (len(self),)

    def select(self, labels: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
        """Return ascending indices of the images to keep, as :meth:`Buffer.select`."""
        priorities = np.concatenate([self._priorities, _draw_uniform(len(labels), generator)])
        kept_indices = np.sort(np.argsort(priorities, kind="stable")[: self.capacity])
        self._priorities = priorities[kept_indices]
        return kept_indices


class ClassBalanced(Buffer):
    """A uniform sample of equally many images per class so far.

    Every image draws one priority, uniform in [0, 1). For each class, the buffer keeps the images
    with the lowest priorities, up to the class's quota (:func:`compute_class_quotas`). So all
    images of a class are equally likely to be in the buffer, whatever their bucket. A quota never
    grows beyond the images that the class still has, so no discarded image is needed again.

    Source:
        Chrysakis and Moens, Online Continual Learning from Imbalanced Data, ICML 2020
        (class-balanced reservoir); Vitter, Random Sampling with a Reservoir, 1985 (random keys).
    """

    state_attributes = ("_priorities", "_num_seen")
    _priorities: NDArray[np.float64] = np.empty(0)  # (len(self),)
    _num_seen: NDArray[np.int64] | None = None  # (num_classes,), images of each class so far

    def select(self, labels: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
        """Return ascending indices of the images to keep, as :meth:`Buffer.select`."""
        num_new = np.bincount(labels, minlength=self.num_classes)
        self._num_seen = num_new if self._num_seen is None else self._num_seen + num_new
        priorities = np.concatenate([self._priorities, _draw_uniform(len(labels), generator)])
        kept_indices = select_lowest_per_class(
            np.concatenate([self.labels, labels]),
            priorities,
            compute_class_quotas(self._num_seen, self.capacity),
        )
        self._priorities = priorities[kept_indices]
        return kept_indices


def compute_class_quotas(num_seen: NDArray[np.int64], memory: int) -> NDArray[np.int64]:
    """Divide a buffer of *memory* images equally among classes so far.

    num_seen: images of each class so far, (classes,). Returns the images to keep of each class.
    Rare classes keep all their images. The quotas of the others differ by at most one, and lower
    labels get the remainder. A class's quota grows only if new images of that class arrive.

    >>> compute_class_quotas(np.array([100, 2, 100, 0]), 9)
    array([4, 2, 3, 0])
    """
    quotas = np.zeros_like(num_seen)
    num_free = memory
    while True:
        hungry = np.flatnonzero(quotas < num_seen)
        if num_free < len(hungry) or len(hungry) == 0:
            break
        # Give one image to each of these classes, as many times as all of them can take one.
        rounds = min(num_free // len(hungry), int((num_seen - quotas)[hungry].min()))
        quotas[hungry] += rounds
        num_free -= rounds * len(hungry)
    quotas[hungry[:num_free]] += 1
    return quotas


def select_lowest_per_class(
    labels: NDArray[np.int64], priorities: NDArray[np.float64], quotas: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return ascending indices of each class's images with the lowest priorities.

    labels, priorities: (N,). quotas: number of images per class, (classes,).
    """
    order = np.lexsort((priorities, labels))
    starts = np.searchsorted(labels[order], np.arange(len(quotas)))
    rank = np.arange(len(labels)) - starts[labels[order]]
    return np.sort(order[rank < quotas[labels[order]]])


class GreedyBalanced(Buffer):
    """GDumb's sampler: first come, first served, equal shares per class.

    Images arrive one by one, those of a bucket in random order. An image is added if its class is
    new, or has fewer images in the buffer than the capacity divided by the number of classes so
    far. If the buffer is full, a random image of the largest class is removed.

    So once every class has its share, **no image is ever replaced**. If every bucket contains all
    classes, as in CLEAR, a buffer that is not larger than the first bucket stays a sample of it.

    Source:
        Prabhu, Torr and Dokania, GDumb, ECCV 2020, algorithm 1.
    """

    state_attributes = ("_classes",)
    _classes: tuple[int, ...] = ()  # all classes so far, ascending

    def select(self, labels: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
        """Return ascending indices of the images to keep, as :meth:`Buffer.select`."""
        arriving = torch.randperm(len(labels), generator=generator).tolist()
        luck = _draw_uniform(len(labels), generator).tolist()
        # Indices of each class's images, counting the buffer's images first, then the bucket's.
        by_class: dict[int, list[int]] = {label: [] for label in self._classes}
        for number, label in enumerate(self.labels.tolist()):
            by_class[label].append(number)
        num_buffered = total = len(self)
        for number, draw in zip(arriving, luck, strict=True):
            label = int(labels[number])
            # The first image of a new class is always added.
            if label in by_class and len(by_class[label]) >= self.capacity / len(by_class):
                continue
            if total == self.capacity:
                largest = max(sorted(by_class), key=lambda label: len(by_class[label]))
                by_class[largest].pop(int(draw * len(by_class[largest])))
                total -= 1
            by_class.setdefault(label, []).append(num_buffered + number)
            total += 1
        self._classes = tuple(sorted(by_class))
        return np.sort(np.array([n for indices in by_class.values() for n in indices]))


class BiasedReservoir(Buffer):
    """CLEAR's reservoir, which prefers new images to a uniform sample.

    Images arrive one by one. The first k, the buffer's capacity, fill it. Image n is added with
    probability ``min(1, alpha * k / n)`` and replaces a uniformly drawn image of the buffer.

    - Fixed alpha, ``alpha=2``: with 1, the buffer is a uniform sample of the stream
      (:class:`Reservoir`). A larger alpha prefers new images. Later images are still less likely to
      be added than earlier ones.
    - Dynamic alpha, ``alpha=0.75n/k``: grows with the stream, so that every image is added with the
      same probability, 0.75. The probability that an image is still in the buffer then falls
      exponentially with its age.

    A bucket's images arrive in random order: files are sorted by class, and in their order the last
    class would be preferred. This follows the paper's text, not the authors' program; for that, see
    ``gdumb`` with ``update=authors``.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289, biased reservoir sampling. Their code
        tries alpha 0.25, 0.5, 1, 2 and 5, and 0.25, 0.5, 0.75 and 1 times n / k, with a buffer as
        large as a bucket.
    """

    state_attributes = ("_num_seen",)
    _num_seen = 0  # images so far

    def select(self, labels: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
        """Return ascending indices of the images to keep, as :meth:`Buffer.select`."""
        count, num_buffered, k = len(labels), len(self), self.capacity
        arriving = num_buffered + torch.randperm(count, generator=generator).numpy()
        luck = _draw_uniform(count, generator)
        replaced = torch.randint(k, (count,), generator=generator).numpy()

        num_seen = self._num_seen + np.arange(1, count + 1)
        self._num_seen += count
        buffered = np.concatenate([np.arange(num_buffered), arriving[: k - num_buffered]])
        alpha, is_dynamic = parse_alpha(self.alpha)
        is_added = (num_seen > k) & (
            luck < (alpha if is_dynamic else np.minimum(1.0, alpha * k / num_seen))
        )
        # If several images replace the same image, the last one is kept.
        buffered[replaced[is_added]] = arriving[is_added]
        return np.sort(buffered)


class AuthorsReservoir(BiasedReservoir):
    """Replace the newest images, as the program that CLEAR's authors published does.

    If a bucket is larger than the buffer, a random selection of its images that fits is drawn
    first. Once the buffer is full, each of them replaces an image with probability ``alpha / i`` in
    bucket i, or with probability alpha if alpha is dynamic.

    Source:
        ElvishElvis/CLEAR-Continual_Learning_Benchmark@df6824d:avalanche/training/
        storage_policy.py:136, which fails unless the first bucket fills the buffer.
    """

    def select(self, labels: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
        """Return indices of the images to keep, as :meth:`Buffer.select`."""
        self._num_seen += 1  # buckets
        alpha, is_dynamic = parse_alpha(self.alpha)
        chance = alpha if is_dynamic else alpha / self._num_seen
        arriving = len(self) + np.arange(len(labels))
        if len(labels) > self.capacity:
            arriving = arriving[torch.randperm(len(labels), generator=generator).numpy()]
            arriving = arriving[: self.capacity]
        room = self.capacity - len(self)
        lucky = _draw_uniform(len(arriving), generator)[room:] <= chance
        added = arriving[room:][lucky]
        buffered = np.concatenate([np.arange(len(self)), arriving[:room]])
        return np.concatenate([buffered[: len(buffered) - len(added)], added])


def parse_alpha(text: str) -> tuple[float, bool]:
    """Parse alpha into its number and whether it multiplies n / k.

    n: images so far. k: capacity. Raises ConfigError if the text is not such a number.

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
            f"strategy_args has alpha={text}; buffer=biased_reservoir expects a number above 0, "
            "such as alpha=2, or a multiple of n/k, above 0 and at most 1, such as alpha=0.75n/k"
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
    """Arguments that choose a buffer, for strategies with a choice."""

    buffer: str = "class_balanced"  # of BUFFERS
    alpha: str = NONE

    def __post_init__(self) -> None:
        if get_buffer_class(self.buffer) is BiasedReservoir:
            parse_alpha(self.alpha)
        elif self.alpha != NONE:
            raise ConfigError(
                f"strategy_args has alpha={self.alpha}, which only buffer=biased_reservoir takes; "
                "leave it out or pass that buffer"
            )


def get_buffer_class(name: str) -> type[Buffer]:
    """Return a buffer's class, or raise ConfigError for an unknown name."""
    if name not in BUFFERS:
        raise ConfigError(
            f"unknown buffer {name!r} in strategy_args; expected one of {', '.join(BUFFERS)}"
        )
    return BUFFERS[name]


def _draw_uniform(count: int, generator: torch.Generator) -> NDArray[np.float64]:
    """Draw (count,) numbers in [0, 1)."""
    return torch.rand(count, generator=generator, dtype=torch.float64).numpy()
