"""Images as bytes, (N, height, width, 3), until they are on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.decoding.decode import decode
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.features.stored import StoredFeatures
from clear_mlflow.data.scenarios import TASK
from clear_mlflow.data.stream import BucketStream, ImageSet
from clear_mlflow.learning.device import (
    RngPurpose,
    generator,
    is_apart,
    storage_device,
    uploaded,
)
from clear_mlflow.learning.inference.description import STANDARDISED
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.samples.photos import (
    Crops,
    Photos,
    SampleIndices,
    augmentation,
    joined,
    photos_at,
    photos_of,
    whole_bucket,
)

# ImageNet's mean and standard deviation, as is usual in the field. They are constants, not measured
# on the data: statistics of the whole stream depend on buckets that the model has not yet seen.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)

_ROWS = 2**14  # of vectors that are read at once
_AHEAD = 2  # batches in pinned memory, of images that lie in main memory


@dataclass(frozen=True, eq=False)
class Samples:
    """Decoded images or features, and their labels, on one device."""

    images: Photos | Tensor  # to be cropped; or features, (N, width), float32
    labels: Tensor  # (N,), int64
    picks: SampleIndices | None = None  # (N,), which of the stream's; None: all of one bucket

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step trains on."""

    inputs: Tensor  # (B, 3, S, S), float32 in channels-last memory; or (B, width), float32
    labels: Tensor  # (B,), int64
    chosen: Tensor  # (B,), int64: which of the samples these are; where the samples lie
    # What a mean over these counts, so that the mean over all processes is that of the whole batch.
    weight: float = 1.0
    total: int = 0  # images in the whole batch, of which this is one process's share
    # What a strategy takes in this step beside the batch, as from its buffer.
    rehearsed: tuple[Batch, ...] = ()


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """The test sets of all buckets, end to end, so that one pass measures a whole row."""

    images: Crops | Tensor  # the model's input as bytes; or features, (N, width), float32
    labels: Tensor  # (N,), int64
    bucket: Tensor  # (N,), int64: the position of each image's bucket in the stream
    counts: tuple[int, ...]  # images per bucket
    # (T, classes), bool: what an answer to a bucket's images may be; None: any class.
    answers: Tensor | None = None

    @property
    def side(self) -> int | None:
        """Of each image, pixels; None of features."""
        return self.images.side if isinstance(self.images, Crops) else None

    def some(self, start: int, stop: int) -> Tensor:
        """Images, or features, from one number to another."""
        images = self.images
        return images.cut(start, stop) if isinstance(images, Crops) else images[start:stop]


class TrainingStream(ABC):
    """A stream whose images or features are fetched when asked for; a strategy keeps indices."""

    image_bytes: int  # of an image, or of its features, as a buffer would hold it

    def __init__(self, stream: BucketStream, device: torch.device) -> None:
        self.keys = tuple(bucket.key for bucket in stream.buckets)
        self.train_counts = tuple(len(bucket.train) for bucket in stream.buckets)
        self.num_classes = len(stream.class_names)
        self._answers = _answers(stream) if stream.scenario == TASK else None
        self.device = device
        self._train_sets = tuple(bucket.train for bucket in stream.buckets)
        self._test_sets = tuple(bucket.test for bucket in stream.buckets)
        # Of vectors, STANDARDISED, (width,) each on the CPU; empty: vectors are as they are.
        self.standardised: Mapping[str, Tensor] = {}
        self._selected: tuple[SampleIndices, Samples] | None = None
        # Of buckets that did not wait: which of their images are left, (N,), ascending.
        self.seen: dict[int, NDArray[np.int64]] = {}
        self._test: HeldOutImages | None = None

    def begin(self, position: int) -> None:
        """Training comes to a bucket, or continues at it."""
        return

    def labels(self, position: int) -> NDArray[np.int64]:
        """(N,), the classes of one bucket's training images; known before any is fetched."""
        return self._train_sets[position].labels[self.seen.get(position, slice(None))]

    def keep_seen(self, position: int, seen: NDArray[np.int64]) -> None:
        """From now on a bucket has no other training images, nor are others counted."""
        if position in self.seen:
            raise ConfigError(
                "the strategy descends more than once in one bucket, of which stream_rate lets "
                "each image pass once; pass stream_rate=off"
            )
        self.seen[position], self._selected = seen, None
        counts = self.train_counts
        self.train_counts = (*counts[:position], len(seen), *counts[position + 1 :])

    def train(self, position: int) -> Samples:
        """The training images of one bucket."""
        return self.select(whole_bucket(position, self.train_counts[position]))

    def select(self, picks: SampleIndices) -> Samples:
        """Training images of any buckets; the same again where the same are asked for again."""
        if self._selected is None or not self._selected[0].equals(picks):
            self._selected = None  # let go of the old ones before the new ones need their room
            index = picks.index.copy()  # among all images of each bucket
            for position, seen in self.seen.items():
                here = picks.bucket == position
                index[here] = seen[index[here]]
            images = self._fetch(SampleIndices(picks.bucket, index))
            labels = np.empty(len(picks), dtype=np.int64)
            for position in np.unique(picks.bucket):
                here = picks.bucket == position
                labels[here] = self.labels(position)[picks.index[here]]
            placed = uploaded(torch.from_numpy(labels), images.device)
            self._selected = picks, Samples(images, placed, picks)
        return self._selected[1]

    def test(self) -> HeldOutImages:
        """The test images of all buckets, cropped at the centre."""
        if self._test is None:
            counts = tuple(len(images) for images in self._test_sets)
            images = self._fetch_tests(counts)
            labels = np.concatenate([images.labels for images in self._test_sets])
            bucket = np.repeat(np.arange(len(counts)), counts)
            home = images.device
            self._test = HeldOutImages(
                images,
                uploaded(torch.from_numpy(labels), home),
                uploaded(torch.from_numpy(bucket), home),
                counts,
                self._answers,
            )
        return self._test

    @abstractmethod
    def _fetch(self, picks: SampleIndices) -> Photos | Tensor:
        """Training images."""

    @abstractmethod
    def _fetch_tests(self, counts: tuple[int, ...]) -> Crops | Tensor:
        """All test images, end to end; *counts* of them in each bucket."""


def _answers(stream: BucketStream) -> Tensor:
    found = torch.zeros(len(stream.buckets), len(stream.class_names), dtype=torch.bool)
    for position, names in enumerate(stream.dealt):
        found[position, [stream.class_names.index(name) for name in names]] = True
    return found


class DecodedStream(TrainingStream):
    """A stream of images, decoded once: on an accelerator copied, else left in the mapped cache."""

    def __init__(
        self,
        stream: BucketStream,
        *,
        image_size: int,  # side of the model's input, pixels
        augment: str = NONE,
        device: torch.device,
        cache: DecodedCache | None = None,
    ) -> None:
        super().__init__(stream, device)
        self.augmentation = augmentation(augment, image_size)
        self.image_bytes = 3 * image_size**2
        self._decoded = decode if cache is None else cache.images

    def _fetch(self, picks: SampleIndices) -> Photos:
        positions = [int(position) for position in np.unique(picks.bucket)]
        opened = {n: self._open(self._train_sets[n]) for n in positions}
        return self._placed(photos_at(opened, picks))

    def _fetch_tests(self, counts: tuple[int, ...]) -> Crops:
        opened = {n: self._open(images) for n, images in enumerate(self._test_sets)}
        picks = joined(*(whole_bucket(n, count) for n, count in enumerate(counts)))
        return self._placed(photos_at(opened, picks)).centre_crops()

    def _open(self, images: ImageSet) -> Photos:
        """Images of a bucket: where the cache maps them, else decoded into memory anew."""
        return photos_of(self._decoded(images, self.augmentation.resize), self.augmentation)

    def _placed(self, photos: Photos) -> Photos:
        home = storage_device(photos.nbytes, self.device)
        return photos if home.type == "cpu" else photos.to(home)


class FeatureStream(TrainingStream):
    """A stream whose ``images`` are features, (N, width), float32; nothing of them is random."""

    def __init__(
        self, stream: BucketStream, features: StoredFeatures, *, device: torch.device
    ) -> None:
        super().__init__(stream, device)
        self.width = features.width
        self.image_bytes = 4 * features.width
        self._features = features
        if features.standardise != NONE:
            self.standardised = self._statistics(1)

    def begin(self, position: int) -> None:
        """Standardise by the buckets so far, where that is asked for."""
        if self._features.standardise == "past" and position > 0:
            self._selected = self._test = None
            self.standardised = self._statistics(position + 1)

    def _statistics(self, buckets: int) -> dict[str, Tensor]:
        """Mean, and one over the standard deviation, of training vectors; 1 where all are equal."""
        number, total = 0, np.zeros((2, self.width))
        middle = self._features.train[0][:1].astype(np.float64)  # so that squares do not cancel
        for features in self._features.train[:buckets]:
            number += len(features)
            for start in range(0, len(features), _ROWS):
                away = features[start : start + _ROWS] - middle
                total += away.sum(axis=0), np.square(away).sum(axis=0)
        mean = total[0] / number
        deviation = np.sqrt(np.maximum(total[1] / number - mean**2, 0))
        scale = 1 / np.where(deviation > 0, deviation, 1)
        found = (torch.from_numpy(array).float() for array in (mean + middle[0], scale))
        return dict(zip(STANDARDISED, found, strict=True))

    def _standardise(self, inputs: Tensor) -> Tensor:
        """In place."""
        if self.standardised:
            mean, scale = (tensor.to(inputs.device) for tensor in self.standardised.values())
            inputs.sub_(mean).mul_(scale)
        return inputs

    def _fetch(self, picks: SampleIndices) -> Tensor:
        room = self._room_for(len(picks))
        for position in np.unique(picks.bucket):
            places = np.flatnonzero(picks.bucket == position)
            rows = torch.from_numpy(self._features.train[position][picks.index[places]])
            room[torch.from_numpy(places).to(room.device)] = rows.to(room.device)
        return self._standardise(room)

    def _fetch_tests(self, counts: tuple[int, ...]) -> Tensor:
        room = self._room_for(sum(counts))
        for part, rows in zip(torch.split(room, list(counts)), self._features.test, strict=True):
            part.copy_(torch.from_numpy(np.array(rows[:])))  # a mapped file, which is read-only
        return self._standardise(room)

    def _room_for(self, count: int) -> Tensor:
        home = storage_device(count * self.width * 4, self.device)
        return torch.empty(count, self.width, device=home)


@lru_cache
def _scale_and_shift(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of a line of pixels: broadcasting over three channels alone is 7 times slower."""
    scale = torch.tensor([1 / (255 * std) for std in _STD])
    shift = torch.tensor([-mean / std for mean, std in zip(_MEAN, _STD, strict=True)])
    return scale.repeat(width).to(device), shift.repeat(width).to(device)


def normalised(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(N, H, W, 3), uint8, contiguous, to the model's input, (N, 3, H, W), channels-last."""
    scale, shift = _scale_and_shift(images.shape[2], images.device)
    lines = images.flatten(2)
    if images.device.type == "cpu":  # where it is the faster, too
        found = lines.float().mul_(scale).add_(shift).to(dtype)
    else:
        found = multiplied_and_added(lines, scale, shift, dtype)
    return found.view(images.shape).permute(0, 3, 1, 2)


def multiplied_and_added(
    numbers: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype
) -> Tensor:
    """The same, rounded once, in one pass over the bytes."""
    found = torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    return torch.addcmul(shift, numbers, scale, out=found)


def training_batches(
    samples: Samples,
    *,
    batch_size: int | Literal["full"],
    device: torch.device,
    seed: int,
    position: int,
    epoch: int,
    group: ProcessGroup = ALONE,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Batch]:
    """One epoch: every sample once, drawn from (seed, position, epoch from 0) alone."""
    return batches(
        samples,
        order_of(len(samples), seed, position, epoch),
        batch_bounds(len(samples), batch_size),
        device=device,
        draws=generator(seed, RngPurpose.AUGMENTATION, position, epoch),
        group=group,
        dtype=dtype,
    )


def order_of(count: int, seed: int, position: int, epoch: int) -> Tensor:
    """In which an epoch goes through so many samples."""
    return torch.randperm(count, generator=generator(seed, RngPurpose.ORDER, position, epoch))


def batches(
    samples: Samples,
    order: Tensor,
    bounds: Sequence[tuple[int, int]],
    *,
    device: torch.device,
    draws: torch.Generator,
    group: ProcessGroup = ALONE,
    dtype: torch.dtype = torch.float32,  # of images; features are float32
) -> Iterator[Batch]:
    """Samples in an order, which may repeat, as inputs step by step; draws are made at once."""
    images = samples.images
    cut: Callable[[int, int], Tensor]
    if isinstance(images, Photos):
        cut = images.training_crops(order, draws).cut
    order = uploaded(order, images.device)

    def found(share: tuple[int, int]) -> tuple[Tensor, ...]:
        chosen = order[slice(*share)]
        some = images.index_select(0, chosen) if isinstance(images, Tensor) else cut(*share)
        return some, samples.labels.index_select(0, chosen), chosen

    shares = [group.share(*whole) for whole in bounds]
    parts = _ahead(found, shares) if is_apart(images.device, device) else map(found, shares)
    for (begin, end), (some, labels, chosen) in zip(bounds, parts, strict=True):
        inputs = some.to(device, non_blocking=True)
        if isinstance(images, Photos):
            inputs = normalised(inputs, dtype)
        labels = labels.to(device, non_blocking=True)
        whole = end - begin
        yield Batch(inputs, labels, chosen, group.weight(len(labels), whole), whole)


def _ahead(
    find: Callable[[tuple[int, int]], tuple[Tensor, ...]], shares: Iterable[tuple[int, int]]
) -> Iterator[tuple[Tensor, ...]]:
    """What is found for each share, found and pinned on a thread while others are computed with."""

    def pinned(share: tuple[int, int]) -> tuple[Tensor, ...]:
        return tuple(part.pin_memory() for part in find(share))

    with ThreadPoolExecutor(1) as thread:
        coming: deque[Future[tuple[Tensor, ...]]] = deque()
        for share in shares:
            coming.append(thread.submit(pinned, share))
            if len(coming) > _AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def batch_bounds(count: int, batch_size: int | Literal["full"]) -> list[tuple[int, int]]:
    """Where batches start and stop: all of *batch_size* images but the last, which takes the rest.

    ``full`` is one batch of all. A rest of one image joins the batch before it: batch normalisation
    cannot train on one image where the network has shrunk it to one pixel.

    >>> batch_bounds(7, 3)
    [(0, 3), (3, 7)]
    >>> batch_bounds(8, 3)
    [(0, 3), (3, 6), (6, 8)]
    """
    if batch_size == "full":
        return [(0, count)]
    starts = list(range(0, count, batch_size))
    if len(starts) > 1 and count - starts[-1] == 1 and batch_size > 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))
