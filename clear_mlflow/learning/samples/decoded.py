"""Images between the files and the model: decoded once, kept as bytes, made floats in batches.

Bytes until the device: a quarter of the memory, of the reads and of the transfers of floats.
A batch lies as (N, height, width, channel), as images are decoded. The model gets that memory seen
as (N, channel, height, width), which torch calls channels-last: convolutions are fastest on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.decoding.decode import DecodedImages, decode
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.stream import BucketStream, ImageSet
from clear_mlflow.learning.device import RngPurpose, generator, storage_device
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.samples.augment import augmentation
from clear_mlflow.learning.samples.indices import SampleIndices, joined, whole_bucket
from clear_mlflow.learning.samples.photos import Crops, Photos, photos_at, photos_of

# ImageNet's mean and standard deviation, as is usual in the field. They are constants, not measured
# on the data: statistics of the whole stream depend on buckets that the model has not yet seen.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)

# Below this side, images that need no crop are copied to lie side by side: a step on so few bytes
# is mostly the time that it takes to find them. So are test images of any kind.
_SMALL = 64
_CUT_AT_ONCE = 256  # images


@dataclass(frozen=True, eq=False)
class Samples:
    """Decoded images or features, and their labels, on one device."""

    # Photographs to be cropped; (N, size, size, 3), uint8, the model's input as bytes; or features,
    # (N, width), float32.
    images: Photos | Tensor
    labels: Tensor  # (N,), int64

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

    # (N, size, size, 3), uint8, cropped to the model's input, or where to cut that from; or
    # (N, width), float32.
    images: Tensor | Crops
    labels: Tensor  # (N,), int64
    bucket: Tensor  # (N,), int64: the position of each image's bucket in the stream
    counts: tuple[int, ...]  # images per bucket

    @property
    def side(self) -> int | None:
        """Of each image, pixels; None of features."""
        if isinstance(self.images, Crops):
            return self.images.side
        return None if is_features(self.images) else self.images.shape[2]

    def some(self, start: int, stop: int) -> Tensor:
        """Images, or features, from one number to another."""
        images = self.images
        return images[start:stop] if isinstance(images, Tensor) else images.cut(start, stop)


class DecodedStream:
    """A stream whose images are decoded when first asked for, and each of them once.

    The test images of all buckets stay. Of the training images those that are trained on stay; a
    strategy keeps of them which they are (:class:`SampleIndices`), and no pixels. All lie on the
    training device if they fit well into its free memory. If not, they stay where the cache has
    mapped them, so that the system keeps as many of them in memory as it has room for, and a
    stream may be larger than that.

    Args:
        stream: the dataset.
        image_size: side of the model's input, pixels.
        augment: what is done to images; see :func:`~.augment.augmentation`.
        device: where the model trains.
        cache: where decoded images stay from run to run; without one they are decoded into memory.
        on_image: called with the numbers of images decoded and to be decoded in all.
    """

    def __init__(
        self,
        stream: BucketStream,
        *,
        image_size: int,
        augment: str = NONE,
        device: torch.device,
        cache: DecodedCache | None = None,
        on_image: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.keys = tuple(bucket.key for bucket in stream.buckets)
        self.train_counts = tuple(len(bucket.train) for bucket in stream.buckets)
        self.num_classes = len(stream.class_names)
        self.augmentation = augmentation(augment, image_size)
        self.device = device
        self._train_sets = tuple(bucket.train for bucket in stream.buckets)
        self._test_sets = tuple(bucket.test for bucket in stream.buckets)
        self._decoded = decode if cache is None else cache.images
        self._on_image = on_image
        self._mapped: dict[int, Photos] = {}
        self._newest: tuple[int, Samples] | None = None
        self._test: HeldOutImages | None = None

    def labels(self, position: int) -> NDArray[np.int64]:
        """(N,), the classes of one bucket's training images; known before any is decoded."""
        return self._train_sets[position].labels

    def train(self, position: int) -> Samples:
        """The training images of one bucket, as much of each as a crop may show."""
        if self._newest is None or self._newest[0] != position:
            self._newest = None  # let go of the old bucket before the new one needs its room
            self._newest = (position, self._samples(self._open(position), self.labels(position)))
        return self._newest[1]

    def select(self, picks: SampleIndices) -> Samples:
        """Training images of any buckets, as much of each as a crop may show.

        On an accelerator, and where images are small, they are copied to lie side by side.
        """
        self._newest = None  # a bucket that is kept for :meth:`train` would lie there twice
        positions = [int(position) for position in np.unique(picks.bucket)]
        labels = np.empty(len(picks), dtype=np.int64)
        for position in positions:
            here = picks.bucket == position
            labels[here] = self.labels(position)[picks.index[here]]
        return self._samples(photos_at({b: self._open(b) for b in positions}, picks), labels)

    def test(self) -> HeldOutImages:
        """The test images of all buckets, cropped at the centre."""
        if self._test is None:
            counts = tuple(len(images) for images in self._test_sets)
            total = sum(counts)
            size = self.augmentation.size
            opened: dict[int, Photos] = {}
            done = 0
            for position, images in enumerate(self._test_sets):
                decoded = self._decode(images, done=done, total=total)
                photos = photos_of(decoded, self.augmentation)
                opened[position] = photos if _is_mapped(decoded) else _centres(photos)
                done += len(images)
            picks = joined(*(whole_bucket(n, count) for n, count in enumerate(counts)))
            photos = photos_at(opened, picks)
            home = storage_device(total * size**2 * 3, self.device)
            pixels: Tensor | Crops
            if home.type == "cpu" and size >= _SMALL:
                pixels = photos.centre_crops()
            else:
                pixels = _empty_images(total, size, home)
                _fill_with_centres(pixels, photos)
            labels = np.concatenate([images.labels for images in self._test_sets])
            self._test = HeldOutImages(
                pixels,
                torch.tensor(labels, device=home),
                torch.tensor(picks.bucket, device=home),
                counts,
            )
        return self._test

    def _open(self, position: int) -> Photos:
        """One bucket's images: where the cache has mapped them, else decoded into memory anew."""
        if position in self._mapped:
            return self._mapped[position]
        images = self._train_sets[position]
        decoded = self._decode(images, done=0, total=len(images))
        opened = photos_of(decoded, self.augmentation)
        if _is_mapped(decoded):
            self._mapped[position] = opened
        return opened

    def _decode(self, images: ImageSet, *, done: int, total: int) -> DecodedImages:
        return self._decoded(
            images,
            self.augmentation.resize,
            on_image=lambda count: self._on_image(done + count, total),
        )

    def _samples(self, photos: Photos, labels: NDArray[np.int64]) -> Samples:
        """Images where a training reads them."""
        size = self.augmentation.size
        home = storage_device(photos.nbytes, self.device)
        images: Photos | Tensor
        # There is one crop of such an image. It is cut once and not in every epoch.
        if size < _SMALL and not self.augmentation.flip and bool((photos.sizes == size).all()):
            images = _empty_images(len(labels), size, home)
            _fill_with_centres(images, photos)
        else:
            images = photos if home.type == "cpu" else photos.to(home)
        return Samples(images, torch.tensor(labels, device=home))


class Normaliser:
    """Bytes to the model's input, for images of one width, on one device.

    Made once for many batches: its numbers are sent to the device when it is made, and a host that
    sends them at every step waits for the device at every step.

    Args:
        width: of the images, pixels.
        device: where the results lie.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._device = device
        # One long row per line of pixels: broadcasting over three channels alone is 7 times slower.
        self._scale = torch.tensor([1 / (255 * std) for std in _STD], device=device).repeat(width)
        self._shift = torch.tensor(
            [-mean / std for mean, std in zip(_MEAN, _STD, strict=True)], device=device
        ).repeat(width)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise one batch.

        Args:
            images: (N, H, width, 3), uint8, contiguous.

        Returns:
            (N, 3, H, width), float32, in channels-last memory; zero mean and unit deviation on
            ImageNet.
        """
        count, height, width, channels = images.shape
        lines = images.to(self._device, non_blocking=True).reshape(count, height, width * channels)
        pixels = lines.float().mul_(self._scale).add_(self._shift)
        return pixels.view(count, height, width, channels).permute(0, 3, 1, 2)


def training_batches(
    samples: Samples,
    *,
    image_size: int,
    batch_size: int | Literal["full"],
    device: torch.device,
    seed: int,
    position: int,
    epoch: int,
    group: ProcessGroup = ALONE,
) -> Iterator[Batch]:
    """One epoch: every sample once, in random order; photographs cropped and mirrored at random.

    Order, crops and flips follow from (seed, position, epoch) alone.

    Args:
        samples: what an epoch goes through. Nothing but the order is random about features and
            about images that are the model's input as they are.
        image_size: side of the model's input, pixels.
        batch_size: samples in a step; see :func:`batch_bounds`.
        device: where the batches lie.
        seed: the run's seed.
        position: of the bucket in the stream.
        epoch: within the bucket, from 0.
        group: the processes that share every batch; the batches are this one's shares.
    """
    return batches(
        samples,
        torch.randperm(len(samples), generator=generator(seed, RngPurpose.ORDER, position, epoch)),
        batch_bounds(len(samples), batch_size),
        image_size=image_size,
        device=device,
        draws=generator(seed, RngPurpose.AUGMENTATION, position, epoch),
        group=group,
    )


def batches(
    samples: Samples,
    order: Tensor,
    bounds: Sequence[tuple[int, int]],
    *,
    image_size: int,
    device: torch.device,
    draws: torch.Generator,
    group: ProcessGroup = ALONE,
) -> Iterator[Batch]:
    """The samples in a given order, made the model's input a step at a time.

    Crops and flips are drawn for all steps at once, so that a step waits for nothing.

    Args:
        samples: what is chosen from.
        order: (M,), int64, on a CPU: which samples, in the order of their use; repeats may occur.
        bounds: where each step starts and stops in *order*.
        image_size: side of the model's input, pixels; nothing to features.
        device: where the batches lie.
        draws: a CPU generator, for crops and flips.
        group: the processes that share every step; the batches are this one's shares.
    """
    images = samples.images
    source = images if isinstance(images, Tensor) else images.training_crops(order, draws)
    order = order.to(images.device)
    normalise = None if is_features(images) else Normaliser(image_size, device)
    for begin, end in bounds:
        start, stop = group.share(begin, end)
        chosen = order[start:stop]
        if isinstance(source, Tensor):
            raw = source.index_select(0, chosen)
        else:
            raw = source.cut(start, stop)
        labels = samples.labels.index_select(0, chosen).to(device, non_blocking=True)
        inputs = raw.to(device, non_blocking=True) if normalise is None else normalise(raw)
        whole = end - begin
        yield Batch(inputs, labels, chosen, group.weight(stop - start, whole), whole)


def is_features(images: Photos | Tensor) -> bool:
    """Whether a sample's ``images`` are features: (N, width), and no bytes of pixels."""
    return isinstance(images, Tensor) and images.dim() == 2


def looks_alike(images: Photos | Tensor) -> bool:
    """Whether every epoch shows the same of these images; else they are cropped at random."""
    if not isinstance(images, Photos):
        return True
    return not (images.augmentation.crop or images.augmentation.flip)


def batch_bounds(count: int, batch_size: int | Literal["full"]) -> list[tuple[int, int]]:
    """Where batches start and stop: all of *batch_size* images but the last, which takes the rest.

    ``full`` is one batch of all.

    A rest of one image joins the batch before it: batch normalisation cannot train on one image
    where the network has shrunk it to one pixel, and leaving it out would waste it.

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


def _is_mapped(images: DecodedImages) -> bool:
    """Whether they are a file's, of which the system keeps in memory what it has room for."""
    return isinstance(images.pixels.base, np.memmap)


def _centres(photos: Photos) -> Photos:
    """Of photographs in memory what they are tested by, so that the rest can go."""
    count, size = len(photos.sizes), photos.augmentation.size
    pixels = _empty_images(count, size, photos.device)
    _fill_with_centres(pixels, photos)
    return Photos(
        (pixels.view(-1),),
        np.zeros(count, dtype=np.int64),
        np.arange(count) * size**2 * 3,
        np.full((count, 2), size, dtype=np.int64),
        photos.augmentation,
    )


def _fill_with_centres(room: Tensor, photos: Photos) -> None:
    """Cut the central crops into (N, size, size, 3), some at a time."""
    crops = photos.centre_crops()
    for start in range(0, len(room), _CUT_AT_ONCE):
        stop = min(start + _CUT_AT_ONCE, len(room))
        room[start:stop] = crops.cut(start, stop)


def _empty_images(count: int, side: int, home: torch.device) -> Tensor:
    try:
        return torch.empty((count, side, side, 3), dtype=torch.uint8, device=home)
    except RuntimeError:
        raise DataError(
            f"{count} images of {side} x {side} pixels need {count * side**2 * 3} bytes, which "
            "this machine cannot give; pass a smaller image_size"
        ) from None
