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

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.data.decode import DecodedCache, Resize
from clear_mlflow.data.features import StoredFeatures
from clear_mlflow.data.images import TRAIN, ImageTable
from clear_mlflow.data.scenarios import TASK
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.learning.device import (
    RngPurpose,
    build_generator,
    copy_to_device,
    is_other_device,
    select_storage_device,
)
from clear_mlflow.learning.inference.description import STANDARDISED
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.photos import (
    Crops,
    Photos,
    SampleIndices,
    list_bucket_indices,
    list_indices,
    select_photos,
)
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup

# ImageNet's mean and standard deviation, as usual in the field. They are not measured on the data:
# statistics of the complete stream depend on buckets that the model has not seen yet.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)

_ROWS = 2**14  # of vectors that are read at once
_AHEAD = 2  # batches in pinned memory, if images are in main memory


@dataclass(frozen=True, eq=False)
class Samples:
    """Decoded images or features, and their labels, on one device."""

    images: Photos | Tensor  # to be cropped; or features, (N, width), float32
    labels: Tensor  # (N,), int64
    indices: SampleIndices | None = None  # (N,), in the stream, or None for all of one bucket

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def list_indices(self, bucket_index: int) -> SampleIndices:
        """Return ``indices``, or the indices of all images of the bucket."""
        return self.indices or list_bucket_indices(bucket_index, len(self))


@dataclass(frozen=True, eq=False)
class Batch:
    """Images or features that one step trains on."""

    inputs: Tensor  # (B, 3, S, S), float32 in channels-last memory; or (B, width), float32
    labels: Tensor  # (B,), int64
    chosen: Tensor  # (B,), int64: indices of the samples, on the samples' device
    # Weight of a mean over these, so that the mean over all processes is the complete batch's.
    weight: float = 1.0
    total: int = 0  # images in the complete batch, of which this is one process's share
    # Further batches of this step, for example from a strategy's buffer.
    rehearsed: tuple[Batch, ...] = ()


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """The test sets of all buckets, end to end, for one pass."""

    images: Crops | Tensor  # the model's input as bytes; or features, (N, width), float32
    labels: Tensor  # (N,), int64
    bucket: Tensor  # (N,), int64: index of each image's bucket in the stream
    counts: tuple[int, ...]  # images per bucket
    # (T, classes), bool: classes that may be predicted for a bucket's images, or None for any.
    class_masks: Tensor | None = None

    @property
    def side(self) -> int | None:
        """Side of each image in pixels, or None for features."""
        return self.images.side if isinstance(self.images, Crops) else None

    def cut(self, start: int, stop: int) -> Tensor:
        """Return the images or features from index *start* to *stop*."""
        images = self.images
        return images.cut(start, stop) if isinstance(images, Crops) else images[start:stop]

    def iter_batches(
        self, start: int, stop: int, batch_size: int, device: torch.device
    ) -> Iterator[Tensor]:
        """Yield images or features from *start* to *stop*, by batch.

        Yields one empty batch for an empty range. On the way from main memory to a GPU, batches are
        gathered ahead in pinned memory.
        """
        bounds = compute_batch_bounds(stop - start, batch_size) if stop > start else [(0, 0)]
        shares = [(start + lower, start + upper) for lower, upper in bounds]
        if not is_other_device(self.images.device, device):
            return (self.cut(*share) for share in shares)
        parts = _gather_ahead(lambda share: (self.cut(*share),), shares)
        return (inputs.to(device, non_blocking=True) for (inputs,) in parts)


class TrainingStream(ABC):
    """A stream that fetches images or features. Strategies keep indices."""

    image_bytes: int  # bytes of an image or its features in a buffer

    def __init__(self, stream: BucketStream, device: torch.device) -> None:
        self.keys = stream.dataset.buckets
        self.train_counts = tuple(map(len, stream.train))
        self.num_classes = len(stream.dataset.class_names)
        self._class_masks = _build_class_masks(stream.dataset)
        self.device = device
        self._sets = {TRAIN: stream.train, TEST: stream.test}
        # Mean and scale of vectors, (width,) each on the CPU; empty if they are not standardised.
        self.standardised: Mapping[str, Tensor] = {}
        # In a stream that does not wait: images of a bucket that were seen, (N,), ascending.
        self.seen_indices: dict[int, NDArray[np.int64]] = {}
        self._test: HeldOutImages | None = None

    def begin_bucket(self, bucket_index: int) -> None:
        """Prepare the stream for training on a bucket. By default, does nothing."""
        return

    def labels(self, bucket_index: int) -> NDArray[np.int64]:
        """Return (N,), the classes of one bucket's training images, without decoding images.

        Images that :meth:`keep_only` dropped are not among them.
        """
        indices = self.seen_indices.get(bucket_index, slice(None))
        return self._sets[TRAIN][bucket_index].labels[indices]

    def sort_by_time(self, order: Tensor, indices: SampleIndices, bucket_index: int) -> Tensor:
        """Sort a bucket's images within an order of samples, (N,), by time.

        Images of other buckets, which are replayed, stay where they are.
        """
        arranged = order.numpy().copy()
        is_new = indices.bucket[arranged] == bucket_index
        ranks = np.argsort(self._sets[TRAIN][bucket_index].time_order)
        new = arranged[is_new]
        arranged[is_new] = new[np.argsort(ranks[indices.index[new]])]
        return torch.from_numpy(arranged)

    def take_in_time_order(self, bucket_index: int, count: int) -> ImageTable:
        """Return a bucket's first *count* training images in the order of time."""
        table = self._sets[TRAIN][bucket_index]
        return table.take(table.time_order[:count])

    def load_in_time_order(self, bucket_index: int, count: int) -> HeldOutImages:
        """Load these images as a test set. They are not cached."""
        order = self._sets[TRAIN][bucket_index].time_order[:count]
        images = self._fetch(SampleIndices(np.full_like(order, bucket_index), order))
        labels = torch.from_numpy(self._sets[TRAIN][bucket_index].labels[order])
        return HeldOutImages(
            images.centre_crops() if isinstance(images, Photos) else images,
            copy_to_device(labels, self.device),
            torch.full((count,), bucket_index),
            (count,),
        )

    def keep_only(self, bucket_index: int, indices: NDArray[np.int64]) -> None:
        """Drop all training images of a bucket except these, for good.

        indices: ascending. Raises ConfigError if called twice for a bucket.
        """
        if bucket_index in self.seen_indices:
            raise ConfigError(
                "the strategy trains more than once on a bucket, but stream_rate lets each image "
                "pass once; pass stream_rate=off"
            )
        self.seen_indices[bucket_index] = indices
        counts = [*self.train_counts]
        counts[bucket_index] = len(indices)
        self.train_counts = tuple(counts)

    def train(self, bucket_index: int) -> Samples:
        """Return one bucket's training images, without dropped ones, with labels."""
        return self.select(list_bucket_indices(bucket_index, self.train_counts[bucket_index]))

    def select(self, indices: SampleIndices) -> Samples:
        """Return training images by *indices*, with labels.

        They are on the GPU if they fit there. indices: among the images that are not dropped.
        """
        file_index = indices.index.copy()  # among all images of each bucket
        labels = np.empty(len(indices), dtype=np.int64)
        for bucket_index in np.unique(indices.bucket).tolist():
            mask = indices.bucket == bucket_index
            labels[mask] = self.labels(bucket_index)[indices.index[mask]]
            if bucket_index in self.seen_indices:
                file_index[mask] = self.seen_indices[bucket_index][file_index[mask]]
        images = self._fetch(SampleIndices(indices.bucket, file_index))
        return Samples(images, copy_to_device(torch.from_numpy(labels), images.device), indices)

    def test(self) -> HeldOutImages:
        """Return all test images, cropped at the centre, or their features.

        They are on the GPU if they fit there, and cached.
        """
        if self._test is None:
            counts = tuple(map(len, self._sets[TEST]))
            indices = list_indices(counts)
            images = self._fetch(indices, TEST)
            labels = np.concatenate([images.labels for images in self._sets[TEST]])
            self._test = HeldOutImages(
                images.centre_crops() if isinstance(images, Photos) else images,
                copy_to_device(torch.from_numpy(labels), images.device),
                copy_to_device(torch.from_numpy(indices.bucket), images.device),
                counts,
                self._class_masks,
            )
        return self._test

    @abstractmethod
    def _fetch(self, indices: SampleIndices, split: str = TRAIN) -> Photos | Tensor:
        """Return images or features by index, on the GPU if they fit."""


def _build_class_masks(dataset: DatasetDescription) -> Tensor | None:
    if dataset.scenario.get("name") != TASK:
        return None
    masks = torch.zeros(len(dataset.buckets), len(dataset.class_names), dtype=torch.bool)
    for bucket_index, names in enumerate(dataset.scenario["classes"]):
        masks[bucket_index, [dataset.class_names.index(name) for name in names]] = True
    return masks


class DecodedStream(TrainingStream):
    """A stream of images that are decoded once.

    They are copied to an accelerator if there is one.
    """

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
        self._resize, self._augment = Resize(image_size), augment
        self.image_bytes = 3 * image_size**2
        self._cache = cache or DecodedCache(None)

    def _fetch(self, indices: SampleIndices, split: str = TRAIN) -> Photos:
        """Decode complete buckets, and copy selected images to a GPU with room."""
        decoded = {
            n: self._cache.load(self._sets[split][n], self._resize)
            for n in np.unique(indices.bucket).tolist()
        }
        photos = select_photos(decoded, indices, self._resize.side, self._augment)
        device = select_storage_device(photos.nbytes, self.device)
        return photos if device.type == "cpu" else photos.to(device)


class FeatureStream(TrainingStream):
    """A stream whose ``images`` are features, (N, width), float32, without augmentation."""

    def __init__(
        self, stream: BucketStream, features: StoredFeatures, *, device: torch.device
    ) -> None:
        super().__init__(stream, device)
        self.width = features.width
        self.image_bytes = 4 * features.width
        self._features, self._standardise = features, stream.standardise
        if stream.standardise != NONE:
            self.standardised = self._compute_statistics(1)

    def begin_bucket(self, bucket_index: int) -> None:
        """With ``standardise=past``, standardise by the training vectors up to this bucket.

        Discards the cached tests, except in the first bucket.
        """
        if self._standardise == "past" and bucket_index > 0:
            self._test = None
            self.standardised = self._compute_statistics(bucket_index + 1)

    def _compute_statistics(self, num_buckets: int) -> dict[str, Tensor]:
        """Return mean and 1 / standard deviation, (width,) each."""
        number, total = 0, np.zeros((2, self.width))
        middle = self._features.train[0][:1].astype(np.float64)  # so that squares do not cancel
        for features in self._features.train[:num_buckets]:
            number += len(features)
            for start in range(0, len(features), _ROWS):
                centred = features[start : start + _ROWS] - middle
                total += centred.sum(axis=0), np.square(centred).sum(axis=0)
        mean = total[0] / number
        deviation = np.sqrt(np.maximum(total[1] / number - mean**2, 0))
        scale = 1 / np.where(deviation > 0, deviation, 1)
        tensors = (torch.from_numpy(array).float() for array in (mean + middle[0], scale))
        return dict(zip(STANDARDISED, tensors, strict=True))

    def _fetch(self, indices: SampleIndices, split: str = TRAIN) -> Tensor:
        """Return features, standardised if set, by indices in the complete buckets."""
        arrays = self._features.train if split == TRAIN else self._features.test
        device = select_storage_device(len(indices) * self.width * 4, self.device)
        inputs = torch.empty(len(indices), self.width, device=device)
        for bucket_index in np.unique(indices.bucket):
            selected = np.flatnonzero(indices.bucket == bucket_index)
            rows = torch.from_numpy(arrays[bucket_index][indices.index[selected]])
            inputs[torch.from_numpy(selected).to(device)] = rows.to(device)
        if self.standardised:
            mean, scale = (tensor.to(device) for tensor in self.standardised.values())
            inputs.sub_(mean).mul_(scale)
        return inputs


@lru_cache
def _build_pixel_factors(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift that standardize bytes, (3 * width,) each."""
    # For a complete line, since broadcasting three channels is 7 times slower.
    scale = torch.tensor([1 / (255 * std) for std in _STD])
    shift = torch.tensor([-mean / std for mean, std in zip(_MEAN, _STD, strict=True)])
    return scale.repeat(width).to(device), shift.repeat(width).to(device)


def normalise(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert (N, H, W, 3), uint8, to the model's input.

    That is (N, 3, H, W), channels-last. The images are contiguous. Values are divided by 255, and
    standardised by ImageNet's mean and standard deviation.
    """
    scale, shift = _build_pixel_factors(images.shape[2], images.device)
    lines = images.flatten(2)
    if images.device.type == "cpu":  # faster there than addcmul
        inputs = lines.float().mul_(scale).add_(shift).to(dtype)
    else:
        inputs = multiply_and_add(lines, scale, shift, dtype)
    return inputs.view(images.shape).permute(0, 3, 1, 2)


def multiply_and_add(numbers: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers * scale + shift in *dtype*, rounded once."""
    inputs = torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    return torch.addcmul(shift, numbers, scale, out=inputs)


def draw_order(count: int, seed: int, bucket_index: int, epoch: int) -> Tensor:
    """Return a random order of *count* samples for these numbers."""
    return torch.randperm(
        count, generator=build_generator(seed, RngPurpose.ORDER, bucket_index, epoch)
    )


def iter_batches(
    samples: Samples,
    order: Tensor,
    bounds: Sequence[tuple[int, int]],
    *,
    device: torch.device,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
    dtype: torch.dtype = torch.float32,  # of images; features are float32
) -> Iterator[Batch]:
    """Yield this process's share of each batch, on *device*, images normalised.

    order: indices of samples, which may repeat. bounds: where in the order each batch starts and
    stops. generator: of all random crops, which are drawn before the first batch.
    """
    images = samples.images
    cut: Callable[[int, int], Tensor]
    if isinstance(images, Photos):
        cut = images.training_crops(order, generator).cut
    order = copy_to_device(order, images.device)

    def gather(share: tuple[int, int]) -> tuple[Tensor, ...]:
        chosen = order[slice(*share)]
        inputs = images.index_select(0, chosen) if isinstance(images, Tensor) else cut(*share)
        return inputs, samples.labels.index_select(0, chosen), chosen

    shares = [group.split_range(*batch) for batch in bounds]
    is_remote = is_other_device(images.device, device)
    parts = _gather_ahead(gather, shares) if is_remote else map(gather, shares)
    for (start, stop), (inputs, labels, chosen) in zip(bounds, parts, strict=True):
        inputs = inputs.to(device, non_blocking=True)
        if isinstance(images, Photos):
            inputs = normalise(inputs, dtype)
        labels = labels.to(device, non_blocking=True)
        total = stop - start
        yield Batch(inputs, labels, chosen, group.weight(len(labels), total), total)


def _gather_ahead(
    gather: Callable[[tuple[int, int]], tuple[Tensor, ...]], shares: Iterable[tuple[int, int]]
) -> Iterator[tuple[Tensor, ...]]:
    """Gather and pin batches on a thread. shares: (start, stop) each."""

    def gather_pinned(share: tuple[int, int]) -> tuple[Tensor, ...]:
        return tuple(part.pin_memory() for part in gather(share))

    with ThreadPoolExecutor(1) as thread:
        waiting: deque[Future[tuple[Tensor, ...]]] = deque()
        for share in shares:
            waiting.append(thread.submit(gather_pinned, share))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def compute_batch_bounds(count: int, batch_size: int | Literal["full"]) -> list[tuple[int, int]]:
    """Return where batches of *batch_size* images start and stop.

    count: number of images, above 0. ``full`` is one batch of all. A single remaining image joins
    the batch before it: batch normalisation cannot train on one image that the network has shrunk
    to one pixel.

    >>> compute_batch_bounds(7, 3)
    [(0, 3), (3, 7)]
    >>> compute_batch_bounds(8, 3)
    [(0, 3), (3, 6), (6, 8)]
    """
    if batch_size == "full":
        return [(0, count)]
    starts = list(range(0, count, batch_size))
    if len(starts) > 1 and count - starts[-1] == 1 and batch_size > 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))
