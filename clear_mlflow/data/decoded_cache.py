"""Decoded images that are kept from run to run: pixels in files, one per image set.

A file is named by the hash of what its pixels depend on: the content of each image in order, the
geometry, and the decoder's version. ``KEY.npy`` contains the pixels end to end, ``KEY.json`` the
sizes. If some images cannot be decoded, it lists them with the reasons, and there are no pixels.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import warn
from clear_mlflow.data.cache import (
    ForeignFileError,
    UnusableFileError,
    lock_folder,
    read_array,
    write_array,
)
from clear_mlflow.data.content import compute_stream_digest
from clear_mlflow.data.decode import (
    DamagedImage,
    DecodedImages,
    Resize,
    build_damage_error,
    decode,
    decode_blocks,
    get_decoder_version,
)
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import (
    Bucket,
    BucketStream,
    ImageSet,
    iter_image_sets,
    iter_with_progress,
)

LEAVE_OUT = "leave_out"
DECODED_FOLDER = "decoded-v1"  # in the folder of all caches

# Height to width of most photos, to estimate how much room they take.
_PHOTO_RATIO = 1.5
_MOST_LISTED = 100  # damaged images, by name


class DecodedCache:
    """Decoded images that are kept from run to run; one line warns if they cannot be."""

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = warn) -> None:
        self.folder = folder
        self._warn = warn
        self._warnings: set[str] = set()

    def load(
        self,
        images: ImageSet,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> DecodedImages:
        """Return the decoded images, mapped copy-on-write, and cache them if necessary.

        If the folder cannot be used, decodes them into memory, with a warning. Raises DataError if
        an image cannot be decoded.
        """
        entry = self._load_or_build(images, resize, on_image)
        if isinstance(entry, tuple):
            raise build_damage_error(entry)
        return decode(images, resize, on_image=on_image) if entry is None else entry

    def find_damaged(
        self,
        images: ImageSet,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> tuple[DamagedImage, ...]:
        """Decode images into the cache unless they are there. Return the undecodable ones.

        If the folder cannot be used, the decoded images are dropped, and a warning is printed.
        """
        entry = self._load_or_build(images, resize, on_image)
        if entry is None:  # nothing can be kept: decode each image and drop it
            blocks = decode_blocks(images, resize, on_image=on_image)
            return tuple(image for block in blocks for image in block.damaged)
        return entry if isinstance(entry, tuple) else ()

    def _load_or_build(
        self, images: ImageSet, resize: Resize, on_image: Callable[[int], None] | None
    ) -> DecodedImages | tuple[DamagedImage, ...] | None:
        """Return pixels or damaged images, decoded once, or None if they cannot be cached."""
        if not images.contents:
            return None
        described = "\n".join((get_decoder_version(), str(resize), *images.contents))
        path = self.folder / f"{hashlib.sha256(described.encode()).hexdigest()}.npy"
        try:
            if (entry := self._read_unless_damaged(path, images)) is None:
                with lock_folder(self.folder):
                    # Another process may have built it while this one waited.
                    if (entry := self._read_unless_damaged(path, images)) is None:
                        self._build(path, images, resize, on_image)
                        return _read(path, images)
        # After it was built, too: some file systems let everybody write to every file.
        except UnusableFileError as error:
            self._warn_not_kept(str(error), "of your own, which no other user may write to")
            return None
        except OSError as error:
            self._warn_not_kept(reason(error), "that can be written, or until there is room")
            return None
        if on_image is not None:
            on_image(len(images))
        return entry

    def _read_unless_damaged(
        self, path: Path, images: ImageSet
    ) -> DecodedImages | tuple[DamagedImage, ...] | None:
        """Return a cached file's content, or None if it is missing or, with a warning, damaged."""
        try:
            return _read(path, images)
        except ForeignFileError:  # so this user does not replace it
            raise
        except UnusableFileError as error:
            message = f"{error}; images of damaged files are decoded again"
            self._warn_once("damage", message)
            return None

    def _build(
        self,
        path: Path,
        images: ImageSet,
        resize: Resize,
        on_image: Callable[[int], None] | None,
    ) -> None:
        """Decode the images into a file, or write the list of damaged images."""
        num_bytes = len(images) * resize.side**2 * 3 * (1 if resize.square else _PHOTO_RATIO)
        # The cache must not fill a disk that others need.
        if shutil.disk_usage(self.folder).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sizes: list[int] = []
        damaged: list[tuple[int, str]] = []
        metadata: dict[str, Any] = {"key": path.stem, "sizes": sizes, "damaged": damaged}
        with write_array(path, metadata) as file:
            start = file.write(_npy_header(0))
            # Written and not mapped: a full disk is an error here, and a killed process there.
            for block in decode_blocks(images, resize, on_image=on_image):
                damaged += [(image.index, image.reason) for image in block.damaged]
                for pixels in block.images:
                    sizes += pixels.shape[:2]
                    file.write(pixels.data)
            if damaged:
                sizes.clear()
                file.truncate(start)
            end = file.seek(0, io.SEEK_END)
            file.seek(0)
            file.write(_npy_header(end - start))

    def _warn_not_kept(self, why: str, other_folder: str) -> None:
        """Warn once that the folder cannot be used. other_folder: end of the message."""
        self._warn_once(
            "folder",
            f"decoded images cannot be kept in {path_text(self.folder)}: {why}; each run decodes "
            f"them again until CLEAR_MLFLOW_CACHE names a folder {other_folder}",
        )

    def _warn_once(self, topic: str, message: str) -> None:
        """Print a warning, unless there was one on this topic before."""
        if topic not in self._warnings:
            self._warnings.add(topic)
            self._warn(message)


def _read(path: Path, images: ImageSet) -> DecodedImages | tuple[DamagedImage, ...] | None:
    """Return a cached file's pixels or its list of damaged images, or None if it is missing."""
    if (entry := read_array(path, {"key": path.stem})) is None:
        return None
    pixels, metadata = entry
    if metadata["damaged"]:
        return tuple(DamagedImage(n, images.paths[n], why) for n, why in metadata["damaged"])
    sizes = np.array(metadata["sizes"], dtype=np.int64).reshape(-1, 2)
    # As a plain array: torch takes it without a warning, for it may be written to.
    return DecodedImages(pixels.view(np.ndarray), sizes)


def drop_undecodable(
    stream: BucketStream,
    *,
    cache: DecodedCache,
    resize: Resize,
    damaged: str,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[BucketStream, int]:
    """Decode every image into the cache, and return the decodable stream and how many were dropped.

    If some were dropped, the stream has a new digest, and warnings that name up to 100 of them.
    damaged: ``leave_out`` to drop damaged images, or ``stop`` to raise DataError if there are any.
    Raises DataError if none remain in a set of a bucket.
    """
    remaining: dict[int, ImageSet] = {}
    all_damaged: list[DamagedImage] = []
    for images, on_ready in iter_with_progress([*iter_image_sets(stream)], on_image):
        damaged_images = cache.find_damaged(images, resize, on_image=on_ready)
        all_damaged += damaged_images
        if damaged_images:
            dropped = [image.index for image in damaged_images]
            remaining[id(images)] = images.take(np.delete(np.arange(len(images)), dropped))
    if not all_damaged:
        return stream, 0
    if damaged != LEAVE_OUT:
        raise build_damage_error(
            all_damaged, advice=", or pass damaged=leave_out to train without them"
        )
    buckets = tuple(
        Bucket(
            bucket.key,
            remaining.get(id(bucket.train), bucket.train),
            remaining.get(id(bucket.test), bucket.test),
        )
        for bucket in stream.buckets
    )
    for bucket in buckets:
        for split, images in (("train", bucket.train), (stream.tested_on, bucket.test)):
            if not len(images):
                raise DataError(
                    f"none of bucket {bucket.key}'s {split} images can be decoded; the first "
                    f"damaged image is {path_text(all_damaged[0].path)}: unpack the dataset again"
                )
    warnings = [
        f"{path_text(image.path)} is left out: it cannot be decoded: {image.reason}"
        for image in all_damaged[:_MOST_LISTED]
    ]
    if (num_unlisted := len(all_damaged) - _MOST_LISTED) > 0:
        warnings.append(f"{num_unlisted} more images are left out, which cannot be decoded")
    decodable = dataclasses.replace(
        stream,
        buckets=buckets,
        digest=compute_stream_digest(
            buckets, stream.class_names, stream.tested_on, stream.scenario
        ),
        warnings=(*stream.warnings, *warnings),
    )
    # A set without its damaged images is another one to the cache. It is decoded now, as the others
    # were, and not in the middle of the training.
    for images, on_ready in iter_with_progress([*iter_image_sets(decodable)], on_image):
        cache.find_damaged(images, resize, on_image=on_ready)
    return decodable, len(all_damaged)


def _npy_header(num_bytes: int) -> bytes:
    """Return the header of a .npy file of bytes. Its length does not depend on their number."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (num_bytes,)}
    )
    return header.getvalue()
