"""Images between the files and the model: decoded once, kept as bytes, made floats in batches.

Bytes until the device: a quarter of the memory, of the reads and of the transfers of floats.
Images lie as (N, height, width, channel), as they are decoded. A batch is that memory seen as
(N, channel, height, width), which torch calls channels-last: convolutions are fastest on it.
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
from clear_mlflow.data.decoding.decode import decode
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.stream import BucketStream, ImageSet
from clear_mlflow.learning.device import RngPurpose, generator, storage_device
from clear_mlflow.learning.parallel.group import ALONE, Group
from clear_mlflow.learning.samples.indices import SampleIndices

# ImageNet's mean and standard deviation, the field's habit. Constants, not measured on the data:
# statistics of the whole stream would tell the model of buckets that it has not yet seen.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)

# Below this side, images are drawings of a few strokes: nothing to crop, and often no mirror image
# of the same class (a digit's is none).
_SMALLEST_PHOTO = 64


@dataclass(frozen=True, eq=False)
class ScatteredImages:
    """Photographs of several buckets in main memory, each left where its bucket's cache maps it.

    A copy of what a strategy trains on would take gigabytes, for the cumulative one of the whole
    stream; this takes two numbers an image. It behaves as far as needed like the tensor
    (N, height, width, 3) that the copy would be.
    """

    buckets: tuple[Tensor, ...]  # each (n, height, width, 3), uint8, one shape but for n
    bucket: NDArray[np.int64]  # (N,), an index into *buckets*
    index: NDArray[np.int64]  # (N,), an index into that bucket

    device = torch.device("cpu")

    def __getitem__(self, n: int) -> Tensor:
        image: Tensor = self.buckets[self.bucket[n]][self.index[n]]
        return image

    @property
    def shape(self) -> torch.Size:
        """As of a tensor."""
        return torch.Size((len(self.index), *self.buckets[0].shape[1:]))

    def dim(self) -> int:
        """As of a tensor."""
        return 4


@dataclass(frozen=True, eq=False)
class Samples:
    """Decoded images or features, and their labels, on one device."""

    images: Tensor | ScatteredImages  # (N, height, width, 3), uint8; or (N, width), float32
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


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """The test sets of all buckets, end to end, so that one pass measures a whole row."""

    images: (
        Tensor  # (N, size, size, 3), uint8, cropped to the model's input; or (N, width), float32
    )
    labels: Tensor  # (N,), int64
    bucket: Tensor  # (N,), int64: the position of each image's bucket in the stream
    counts: tuple[int, ...]  # images per bucket


def crop_margin(image_size: int) -> int:
    """Pixels that a random crop may cut away: 32 of 256 for CLEAR's recipe, 0 for small images."""
    return image_size // 7 if image_size >= _SMALLEST_PHOTO else 0


class DecodedStream:
    """A stream whose images are decoded when first asked for, and each of them once.

    The test images of all buckets stay. Of the training images those that are trained on stay; a
    strategy keeps of them which they are (:class:`SampleIndices`), and no pixels. All lie on the
    training device if they fit well into its free memory. If not, training images stay where
    the cache has mapped them, so that the system keeps as many of them in memory as it has room
    for; test images lie in main memory.

    Args:
        stream: the dataset.
        image_size: side of the model's input, pixels.
        device: where the model trains.
        cache: where decoded images stay from run to run; without one they are decoded into memory.
        on_image: called with the numbers of images decoded and to be decoded in all.
    """

    def __init__(
        self,
        stream: BucketStream,
        *,
        image_size: int,
        device: torch.device,
        cache: DecodedCache | None = None,
        on_image: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.keys = tuple(bucket.key for bucket in stream.buckets)
        self.train_counts = tuple(len(bucket.train) for bucket in stream.buckets)
        self.num_classes = len(stream.class_names)
        self.image_size = image_size
        self.device = device
        self._train_sets = tuple(bucket.train for bucket in stream.buckets)
        self._test_sets = tuple(bucket.test for bucket in stream.buckets)
        self._decoded = decode if cache is None else cache.images
        self._on_image = on_image
        self._mapped: dict[int, Tensor] = {}
        self._newest: tuple[int, Samples] | None = None
        self._test: HeldOutImages | None = None

    def labels(self, position: int) -> NDArray[np.int64]:
        """(N,), the classes of one bucket's training images; known before any is decoded."""
        return self._train_sets[position].labels

    def train(self, position: int) -> Samples:
        """The training images of one bucket, with the margin that random crops cut away."""
        if self._newest is None or self._newest[0] != position:
            self._newest = None  # let go of the old bucket before the new one needs its room
            self._newest = (position, self._placed(self._open(position), self.labels(position)))
        return self._newest[1]

    def select(self, picks: SampleIndices) -> Samples:
        """Training images of any buckets, with the margin that random crops cut away.

        On an accelerator, and where images are small, they are copied to lie side by side.
        """
        self._newest = None  # a bucket that is kept for :meth:`train` would lie there twice
        side = self.image_size + crop_margin(self.image_size)
        home = storage_device(len(picks) * side**2 * 3, self.device)
        where = [(int(b), np.flatnonzero(picks.bucket == b)) for b in np.unique(picks.bucket)]
        labels = np.empty(len(picks), dtype=np.int64)
        for position, places in where:
            labels[places] = self.labels(position)[picks.index[places]]
        images: Tensor | ScatteredImages
        if home.type == "cpu" and crop_margin(self.image_size):
            number = np.empty(len(picks), dtype=np.int64)
            for n, (_, places) in enumerate(where):
                number[places] = n
            opened = tuple(self._open(position) for position, _ in where)
            images = ScatteredImages(opened, number, picks.index)
        else:
            images = _empty_images(len(picks), side, home)
            for position, places in where:
                rows = self._open(position)[torch.from_numpy(picks.index[places])]
                images[torch.from_numpy(places).to(home)] = rows.to(home)
        return Samples(images, torch.tensor(labels, device=home))

    def test(self) -> HeldOutImages:
        """The test images of all buckets, cropped at the centre."""
        if self._test is None:
            counts = tuple(len(images) for images in self._test_sets)
            total = sum(counts)
            home = storage_device(total * self.image_size**2 * 3, self.device)
            pixels = _empty_images(total, self.image_size, home)
            done = 0
            for images in self._test_sets:
                decoded = self._decode(images, done=done, total=total)
                cropped = centre_crop(torch.from_numpy(decoded), self.image_size)
                pixels[done : done + len(images)] = cropped
                done += len(images)
            labels = np.concatenate([images.labels for images in self._test_sets])
            bucket = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
            self._test = HeldOutImages(
                pixels, torch.tensor(labels, device=home), bucket.to(home), counts
            )
        return self._test

    def _open(self, position: int) -> Tensor:
        """One bucket's images: where the cache has mapped them, else decoded into memory anew."""
        if position in self._mapped:
            return self._mapped[position]
        images = self._train_sets[position]
        decoded = self._decode(images, done=0, total=len(images))
        opened = torch.from_numpy(decoded)
        if isinstance(decoded.base, np.memmap):
            self._mapped[position] = opened
        return opened

    def _decode(self, images: ImageSet, *, done: int, total: int) -> NDArray[np.uint8]:
        return self._decoded(
            images,
            size=self.image_size,
            crop_margin=crop_margin(self.image_size),
            on_image=lambda count: self._on_image(done + count, total),
        )

    def _placed(self, images: Tensor, labels: NDArray[np.int64]) -> Samples:
        home = storage_device(images.nbytes, self.device)
        return Samples(images.to(home), torch.tensor(labels, device=home))


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
    group: Group = ALONE,
) -> Iterator[Batch]:
    """One epoch: every sample once, in random order; images randomly cropped and mirrored.

    Order, crops and flips follow from (seed, position, epoch) alone.

    Args:
        samples: N images of side *image_size* plus its crop margin, or features; without a margin,
            images are neither cropped nor mirrored, and nothing about features is random.
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
    group: Group = ALONE,
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
    images, count = samples.images, len(order)
    home = images.device
    order = order.to(home)
    margin = 0 if is_features(images) else images.shape[1] - image_size
    if margin:
        corners = torch.randint(0, margin + 1, (2, count), generator=draws).to(home)
        mirrored = torch.randint(0, 2, (count,), generator=draws).bool().to(home)
    normalise = None if is_features(images) else Normaliser(image_size, device)
    for begin, end in bounds:
        start, stop = group.share(begin, end)
        chosen = order[start:stop]
        if isinstance(images, ScatteredImages):
            where = corners[:, start:stop]
            raw = _augment_on_host(images, chosen, where, mirrored[start:stop], image_size)
        elif margin:
            augment = _augment_on_host if home.type == "cpu" else _augment_on_device
            where = corners[:, start:stop]
            raw = augment(images, chosen, where, mirrored[start:stop], image_size)
        else:
            raw = images.index_select(0, chosen)
        labels = samples.labels.index_select(0, chosen).to(device, non_blocking=True)
        inputs = raw.to(device, non_blocking=True) if normalise is None else normalise(raw)
        yield Batch(inputs, labels, chosen, group.weight(stop - start, end - begin))


def is_features(images: Tensor | ScatteredImages) -> bool:
    """Whether a sample's ``images`` are features: (N, width), and no bytes of pixels."""
    return images.dim() == 2


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


def centre_crop(images: Tensor, image_size: int) -> Tensor:
    """The central squares, as a view.

    Args:
        images: (N, H, H, 3).
        image_size: side of the result, pixels, at most H.
    """
    start = (images.shape[1] - image_size) // 2
    return images[:, start : start + image_size, start : start + image_size]


def _augment_on_host(
    images: Tensor | ScatteredImages,
    chosen: Tensor,
    corners: Tensor,
    mirrored: Tensor,
    image_size: int,
) -> Tensor:
    """Crop and mirror a batch in main memory.

    An image at a time: a crop is a copy of whole lines, at the speed of memory. Indexing a batch
    at once goes byte by byte there, and took eight times as long.

    Args:
        images: (N, H, H, 3), uint8.
        chosen: (B,), which images.
        corners: (2, B), top and left of each crop, pixels.
        mirrored: (B,), bool.
        image_size: side of a crop, pixels.

    Returns:
        (B, image_size, image_size, 3), uint8.
    """
    batch = torch.empty((len(chosen), image_size, image_size, 3), dtype=torch.uint8)
    tops, lefts = corners.tolist()
    for i, (n, mirror) in enumerate(zip(chosen.tolist(), mirrored.tolist(), strict=True)):
        top, left = tops[i], lefts[i]
        crop = images[n][top : top + image_size, left : left + image_size]
        batch[i].copy_(crop.flip(1) if mirror else crop)
    return batch


def _augment_on_device(
    images: Tensor, chosen: Tensor, corners: Tensor, mirrored: Tensor, image_size: int
) -> Tensor:
    """The same on an accelerator, in a few kernels for the whole batch."""
    # Every crop of every image, as a view: (N, tops, lefts, image_size, image_size, 3).
    by_corner = images.unfold(1, image_size, 1).unfold(2, image_size, 1).permute(0, 1, 2, 4, 5, 3)
    crops = by_corner[chosen, corners[0], corners[1]]
    return torch.where(mirrored[:, None, None, None], crops.flip(2), crops)


def _empty_images(count: int, side: int, home: torch.device) -> Tensor:
    try:
        return torch.empty((count, side, side, 3), dtype=torch.uint8, device=home)
    except RuntimeError:
        raise DataError(
            f"{count} images of {side} x {side} pixels need {count * side**2 * 3} bytes, which "
            "this machine cannot give; pass a smaller image_size"
        ) from None
