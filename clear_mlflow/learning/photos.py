"""Photographs of any height and width, indices of them, and the crops that steps take from them.

Images are stored end to end in one flat tensor. A crop is a list of lines, each a number of bytes
from an offset: a batch is one gather of lines, on a CPU (at the speed of copying) and on an
accelerator, without a loop over images. Strategies keep indices, two numbers per image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clear_mlflow.data.decode import DecodedImages
from clear_mlflow.learning.device import copy_to_device
from clear_mlflow.learning.parameters.recipes import NONE, RANDOM_CROP_FLIP

_MANY = 1 << 62  # so many that the remainder is uniform for any number of offsets
_SENT_AT_ONCE = 2**26  # bytes of images that are pinned together: pinned memory is not given back


@dataclass(frozen=True, eq=False)
class SampleIndices:
    """Training images of a stream, in an order."""

    bucket: NDArray[np.int64]  # (N,), index of the bucket in the stream
    index: NDArray[np.int64]  # (N,), index in that bucket's training images

    def __len__(self) -> int:
        return len(self.index)

    def take(self, order: NDArray[np.int64]) -> SampleIndices:
        """Return the images at the positions *order*, in that order."""
        return SampleIndices(self.bucket[order], self.index[order])


def list_bucket_indices(bucket_index: int, count: int) -> SampleIndices:
    """Return the indices of a bucket's *count* images, in order."""
    return SampleIndices(np.full(count, bucket_index, dtype=np.int64), np.arange(count))


def join_indices(*indices: SampleIndices) -> SampleIndices:
    """Concatenate the indices of images."""
    return SampleIndices(
        np.concatenate([part.bucket for part in indices]),
        np.concatenate([part.index for part in indices]),
    )


def list_indices(counts: Sequence[int]) -> SampleIndices:
    """Return the indices of the first buckets' images, *counts* each."""
    return join_indices(*(list_bucket_indices(n, count) for n, count in enumerate(counts)))


@dataclass(frozen=True, eq=False)
class Photos:
    """Photographs on one device, in one tensor or one per bucket.

    A GPU has them in one tensor. Images are cropped as by torchvision's Resize with RandomCrop to
    train and CenterCrop to test, as in the CLEAR authors' example in Avalanche, the starter kit of
    their challenge, and Renate.
    """

    parts: tuple[Tensor, ...]  # each (bytes,), uint8; on an accelerator only one
    part: NDArray[np.int64]  # (N,), index of each image's part
    first: NDArray[np.int64]  # (N,), offset of each image's first byte in its part
    sizes: NDArray[np.int64]  # (N, 2), height and width of each image
    side: int  # of each crop, pixels; the shorter side of an image is as long
    augment: str = NONE  # how training images are cropped: a value of the option of that name

    @property
    def device(self) -> torch.device:
        """Device of the images."""
        return self.parts[0].device

    @property
    def nbytes(self) -> int:
        """Number of bytes of all images."""
        return int((self.sizes.prod(axis=1) * 3).sum())

    def to(self, device: torch.device) -> Photos:
        """Return a copy on an accelerator, all pixels in one tensor."""
        num_bytes = self.sizes.prod(axis=1) * 3
        first = _compute_offsets(num_bytes)
        pixels = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        starts = np.flatnonzero(np.diff(first // _SENT_AT_ONCE, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(first)], strict=False):
            images = [
                self.parts[self.part[n]][self.first[n] : self.first[n] + num_bytes[n]]
                for n in range(start, stop)
            ]
            block, offset = torch.cat(images), int(first[start])
            pixels[offset : offset + len(block)] = copy_to_device(block, device)
        return replace(self, parts=(pixels,), part=np.zeros_like(self.part), first=first)

    def training_crops(self, order: Tensor, generator: torch.Generator) -> Crops:
        """Return a crop of each image in *order*, (M,), int64.

        Its offset is random unless ``augment`` is none, and it is mirrored at random with
        ``random_crop_flip``.
        """
        chosen = order.numpy()
        corners = self._compute_centre(chosen)
        if self.augment != NONE:
            numbers = torch.randint(0, _MANY, (2, len(order)), generator=generator).numpy().T
            corners = numbers % (self._compute_slack(chosen) + 1)
        mirrored = None
        if self.augment == RANDOM_CROP_FLIP:
            mirrored = torch.randint(0, 2, (len(order),), generator=generator).bool()
        return self._build_crops(chosen, corners, mirrored)

    def centre_crops(self) -> Crops:
        """Return the central crop of each image, for tests."""
        chosen = np.arange(len(self.sizes))
        return self._build_crops(chosen, self._compute_centre(chosen), None)

    def _compute_slack(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (M, 2), pixels of height and width that crops omit."""
        return self.sizes[chosen] - self.side

    def _compute_centre(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (M, 2), the first pixel of chosen images' central crops."""
        # torchvision rounds a half to the even number: 1, 3, 5, 7 become 0, 2, 2, 4.
        return np.rint(self._compute_slack(chosen) / 2).astype(np.int64)

    def _build_crops(
        self, chosen: NDArray[np.int64], corners: NDArray[np.int64], mirrored: Tensor | None
    ) -> Crops:
        """Crop the chosen images, (M,). corners: (M, 2). mirrored: (M,)."""
        step = self.sizes[chosen, 1] * 3
        first = self.first[chosen] + corners[:, 0] * step + corners[:, 1] * 3
        return Crops(
            self,
            self.part[chosen],
            copy_to_device(torch.from_numpy(first), self.device),
            copy_to_device(torch.from_numpy(step), self.device),
            None if mirrored is None else copy_to_device(mirrored, self.device),
        )


@dataclass(frozen=True, eq=False)
class Crops:
    """Offsets of crops, in the order of their use."""

    photos: Photos
    part: NDArray[np.int64]  # (M,), index of the crop's part of the photos
    first: Tensor  # (M,), int64: offset of the first line; on the photos' device
    step: Tensor  # (M,), int64: bytes from one line to the next; on the photos' device
    mirrored: Tensor | None  # (M,), bool, on the photos' device, or None if none is

    @property
    def device(self) -> torch.device:
        """Device of the photos."""
        return self.photos.device

    @property
    def side(self) -> int:
        """Side of each crop in pixels."""
        return self.photos.side

    def cut(self, start: int, stop: int) -> Tensor:
        """Copy the pixels of crops, mirrored where that was drawn.

        Returns (stop - start, side, side, 3), uint8, on the photos' device.
        """
        side = self.side
        selected = slice(start, stop)
        line_numbers = torch.arange(side, device=self.first.device)
        offsets = self.first[selected, None] + line_numbers * self.step[selected, None]
        parts = self.photos.parts
        used = np.unique(self.part[selected])
        if self.mirrored is not None and self.device.type != "cpu":
            return gather_mirrored_lines(parts[0], offsets, side, self.mirrored[selected])
        if len(used) == 1:
            crops = _gather_lines(parts[used[0]], offsets, side)
        else:
            crops = torch.empty((len(offsets), side, side, 3), dtype=torch.uint8)
            for n in used:
                in_part = torch.from_numpy(np.flatnonzero(self.part[selected] == n))
                crops[in_part] = _gather_lines(parts[n], offsets[in_part], side)
        if self.mirrored is None:
            return crops
        # One at a time: in main memory, mirroring a batch at once takes five times as long.
        for n in self.mirrored[selected].nonzero().squeeze(1).tolist():
            crops[n] = crops[n].flip(1)
        return crops


def select_photos(
    decoded: Mapping[int, DecodedImages], indices: SampleIndices, side: int, augment: str = NONE
) -> Photos:
    """Select decoded images in the order of *indices*, without copying them.

    decoded: all images of each bucket, by the bucket's index.
    """
    first = np.empty(len(indices), dtype=np.int64)
    sizes = np.empty((len(indices), 2), dtype=np.int64)
    part = np.empty(len(indices), dtype=np.int64)
    for n, (bucket_index, images) in enumerate(decoded.items()):
        mask = indices.bucket == bucket_index
        chosen = indices.index[mask]
        part[mask], sizes[mask] = n, images.sizes[chosen]
        first[mask] = _compute_offsets(images.sizes.prod(axis=1) * 3)[chosen]
    parts = tuple(torch.from_numpy(images.pixels) for images in decoded.values())
    return Photos(parts, part, first, sizes, side, augment)


def wrap_photos(decoded: DecodedImages, side: int, augment: str = NONE) -> Photos:
    """Wrap decoded images in their order, without copying them."""
    return select_photos({0: decoded}, list_bucket_indices(0, len(decoded.sizes)), side, augment)


def _compute_offsets(num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each image's first byte if all are end to end."""
    return np.cumsum(num_bytes) - num_bytes


def _gather_lines(pixels: Tensor, offsets: Tensor, side: int) -> Tensor:
    """Copy *side* pixels from offsets: (M, side) to (M, side, side, 3)."""
    lines = pixels.unfold(0, side * 3, 1)  # a view with a row for each offset
    return lines.index_select(0, offsets.reshape(-1)).view(-1, side, side, 3)


def gather_mirrored_lines(pixels: Tensor, offsets: Tensor, side: int, mirrored: Tensor) -> Tensor:
    """Copy lines like :func:`_gather_lines`, the (M,) mirrored ones from right to left."""
    column = torch.arange(side, device=pixels.device)
    columns = torch.where(mirrored[:, None], side - 1 - column, column)
    lines = pixels.unfold(0, side * 3, 1).view(-1, side, 3)
    crops: Tensor = lines[offsets[:, :, None], columns[:, None, :]]
    return crops
