"""Which images, photographs of any height and width, and the crops that steps take from them.

Images lie end to end in one flat tensor. A crop is its lines, and a line is so many bytes from
some place on: a batch is one gather of lines, on a CPU (at the speed of copying) as on an
accelerator, with no loop over images. A strategy remembers indices: two numbers and no pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.data.decoding.decode import DecodedImages, Resize
from clear_mlflow.learning.device import uploaded
from clear_mlflow.learning.parameters.recipes import NONE, RANDOM_CROP, RANDOM_CROP_FLIP

_MANY = 1 << 62  # so many that a remainder by the number of places favours none
_SENT_AT_ONCE = 2**26  # bytes of images that are pinned together: pinned memory is not given back


@dataclass(frozen=True, eq=False)
class SampleIndices:
    """Training images of a stream, in an order."""

    bucket: NDArray[np.int64]  # (N,), position in the stream
    index: NDArray[np.int64]  # (N,), place in that bucket's training images

    def __len__(self) -> int:
        return len(self.index)

    def equals(self, other: SampleIndices) -> bool:
        """Whether these are the same images in the same order."""
        return np.array_equal(self.bucket, other.bucket) and np.array_equal(self.index, other.index)

    def take(self, places: NDArray[np.int64]) -> SampleIndices:
        """Those at *places*, in that order."""
        return SampleIndices(self.bucket[places], self.index[places])


def whole_bucket(position: int, count: int) -> SampleIndices:
    """All *count* images of the bucket at a position, in their order."""
    return SampleIndices(np.full(count, position, dtype=np.int64), np.arange(count, dtype=np.int64))


def joined(*picks: SampleIndices) -> SampleIndices:
    """One after the other."""
    return SampleIndices(
        np.concatenate([p.bucket for p in picks]), np.concatenate([p.index for p in picks])
    )


@dataclass(frozen=True)
class Augmentation:
    """What is done to an image; a test sees the centre of what a training may see."""

    resize: Resize  # what is decoded and kept of the image
    size: int  # side of the crops, pixels: of the model's input
    crop: bool  # training crops lie anywhere, each place as likely as any other; else at the centre
    flip: bool  # half of the training crops are mirrored, left to right


def augmentation(name: str, image_size: int) -> Augmentation:
    """The augmentation of a name, for a model's input of *image_size* pixels a side."""
    # torchvision's Resize and RandomCrop to train on, Resize and CenterCrop to test on: so do the
    # CLEAR authors' example in Avalanche, the starter kit of their challenge, and Renate.
    if name not in (RANDOM_CROP, RANDOM_CROP_FLIP, NONE):
        raise ValueError(f"no augmentation is called {name!r}")
    return Augmentation(
        Resize(image_size), image_size, crop=name != NONE, flip=name == RANDOM_CROP_FLIP
    )


@dataclass(frozen=True, eq=False)
class Photos:
    """Photographs on one device; in main memory each stays where its bucket's cache maps it."""

    parts: tuple[Tensor, ...]  # each (bytes,), uint8; on an accelerator one
    part: NDArray[np.int64]  # (N,), which of them an image lies in
    first: NDArray[np.int64]  # (N,), its first byte there
    sizes: NDArray[np.int64]  # (N, 2), its height and width
    augmentation: Augmentation

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.parts[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return int((self.sizes.prod(axis=1) * 3).sum())

    def to(self, device: torch.device) -> Photos:
        """The same on an accelerator, end to end in this order."""
        num_bytes = self.sizes.prod(axis=1) * 3
        first = _starts(num_bytes)
        placed = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        begins = np.flatnonzero(np.diff(first // _SENT_AT_ONCE, prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(first)], strict=False):
            images = [
                self.parts[self.part[n]][self.first[n] : self.first[n] + num_bytes[n]]
                for n in range(begin, end)
            ]
            together, there = torch.cat(images), int(first[begin])
            placed[there : there + len(together)] = uploaded(together, device)
        return Photos((placed,), np.zeros_like(self.part), first, self.sizes, self.augmentation)

    def training_crops(self, order: Tensor, draws: torch.Generator) -> Crops:
        """A crop of each image in (M,) *order*, int64, on a CPU, as an epoch takes them."""
        chosen = order.numpy()
        corners = self._centre(chosen)
        if self.augmentation.crop:
            drawn = torch.randint(0, _MANY, (2, len(order)), generator=draws).numpy().T
            corners = drawn % (self._slack(chosen) + 1)
        mirrored = None
        if self.augmentation.flip:
            mirrored = torch.randint(0, 2, (len(order),), generator=draws).bool()
        return self._crops(chosen, corners, mirrored)

    def centre_crops(self) -> Crops:
        """What each image is tested by."""
        chosen = np.arange(len(self.sizes))
        return self._crops(chosen, self._centre(chosen), None)

    def _slack(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """(M, 2), pixels of height and width that a crop leaves out."""
        return self.sizes[chosen] - self.augmentation.size

    def _centre(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        # torchvision rounds a half to the even number: 1, 3, 5, 7 become 0, 2, 2, 4.
        return np.rint(self._slack(chosen) / 2).astype(np.int64)

    def _crops(
        self, chosen: NDArray[np.int64], corners: NDArray[np.int64], mirrored: Tensor | None
    ) -> Crops:
        step = self.sizes[chosen, 1] * 3
        first = self.first[chosen] + corners[:, 0] * step + corners[:, 1] * 3
        return Crops(
            self,
            self.part[chosen],
            uploaded(torch.from_numpy(first), self.device),
            uploaded(torch.from_numpy(step), self.device),
            None if mirrored is None else uploaded(mirrored, self.device),
        )


@dataclass(frozen=True, eq=False)
class Crops:
    """Where some crops are, in the order of their use."""

    photos: Photos
    part: NDArray[np.int64]  # (M,), which tensor of bytes
    first: Tensor  # (M,), int64: the first byte of the first line; with the photos
    step: Tensor  # (M,), int64: bytes from one line to the next; with the photos
    mirrored: Tensor | None  # (M,), bool, with the photos; None where none is

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.photos.device

    @property
    def side(self) -> int:
        """Of each crop, pixels."""
        return self.photos.augmentation.size

    def cut(self, start: int, stop: int) -> Tensor:
        """(stop - start, size, size, 3), uint8: some of them, copied."""
        side = self.side
        some = slice(start, stop)
        along = torch.arange(side, device=self.first.device)
        lines = self.first[some, None] + along * self.step[some, None]
        parts = self.photos.parts
        used = np.unique(self.part[some])
        if self.mirrored is not None and self.device.type != "cpu":
            return mirrored_lines(parts[0], lines, side, self.mirrored[some])
        if len(used) == 1:
            found = _lines(parts[used[0]], lines, side)
        else:
            found = torch.empty((len(lines), side, side, 3), dtype=torch.uint8)
            for n in used:
                here = torch.from_numpy(np.flatnonzero(self.part[some] == n))
                found[here] = _lines(parts[n], lines[here], side)
        if self.mirrored is None:
            return found
        # One at a time: in main memory, mirroring a batch at once takes five times as long.
        for n in self.mirrored[some].nonzero().squeeze(1).tolist():
            found[n] = found[n].flip(1)
        return found


def photos_of(decoded: DecodedImages, augmentation: Augmentation) -> Photos:
    """Decoded images, where they are."""
    return Photos(
        (torch.from_numpy(decoded.pixels),),
        np.zeros(len(decoded.sizes), dtype=np.int64),
        _starts(decoded.sizes.prod(axis=1) * 3),
        decoded.sizes,
        augmentation,
    )


def photos_at(buckets: dict[int, Photos], picks: SampleIndices) -> Photos:
    """Photographs of several buckets, by their position and each in one part, left where it is."""
    first = np.empty(len(picks), dtype=np.int64)
    sizes = np.empty((len(picks), 2), dtype=np.int64)
    part = np.empty(len(picks), dtype=np.int64)
    for n, (position, photos) in enumerate(buckets.items()):
        here = np.flatnonzero(picks.bucket == position)
        part[here] = n
        first[here] = photos.first[picks.index[here]]
        sizes[here] = photos.sizes[picks.index[here]]
    parts = tuple(photos.parts[0] for photos in buckets.values())
    return Photos(parts, part, first, sizes, next(iter(buckets.values())).augmentation)


def _starts(num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(num_bytes) - num_bytes


def _lines(pixels: Tensor, lines: Tensor, side: int) -> Tensor:
    """So many pixels from each of (M, side) bytes on, as (M, side, side, 3)."""
    # A view with a row for each byte that a line may begin at.
    from_each = pixels.unfold(0, side * 3, 1)
    return from_each.index_select(0, lines.reshape(-1)).view(-1, side, side, 3)


def mirrored_lines(pixels: Tensor, lines: Tensor, side: int, mirrored: Tensor) -> Tensor:
    """The same, with (M,) some of them from right to left, in one gather."""
    along = torch.arange(side, device=pixels.device)
    places = torch.where(mirrored[:, None], side - 1 - along, along)
    from_each = pixels.unfold(0, side * 3, 1).view(-1, side, 3)
    found: Tensor = from_each[lines[:, :, None], places[:, None, :]]
    return found
