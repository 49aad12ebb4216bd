"""Decoded images that are kept from run to run: pixels in files, one per image set.

A file is named by the hash of what its pixels depend on: the content of each image in order, the
geometry, and the decoder's version. ``KEY.npy`` contains the pixels end to end, ``KEY.json`` the
sizes. If some images cannot be decoded, it lists them with the reasons, and there are no pixels.
"""

from __future__ import annotations

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
from clear_mlflow.data.decode import (
    Damages,
    DecodedImages,
    Resize,
    build_damage_error,
    decode,
    get_decoder_version,
    write_pixels,
)
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream, iter_with_progress

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
        images: ImageTable,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> DecodedImages:
        """Return the decoded images, mapped copy-on-write, and cache them if necessary.

        If the folder cannot be used, decodes them into memory, with a warning. Raises DataError if
        an image cannot be decoded.
        """
        entry = self._load_or_build(images, resize, on_image)
        if isinstance(entry, dict):
            raise build_damage_error(
                [(images.files[row], message) for row, message in entry.items()]
            )
        return decode(images, resize, on_image=on_image) if entry is None else entry

    def find_damaged(
        self,
        images: ImageTable,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> Damages:
        """Decode images into the cache unless they are there. Return the undecodable ones.

        If the folder cannot be used, the decoded images are dropped, and a warning is printed.
        """
        entry = self._load_or_build(images, resize, on_image)
        if entry is None:  # nothing can be kept: decode each image and drop it
            return write_pixels(lambda pixels: None, images, resize, on_image=on_image)[1]
        return entry if isinstance(entry, dict) else {}

    def _load_or_build(
        self, images: ImageTable, resize: Resize, on_image: Callable[[int], None] | None
    ) -> DecodedImages | Damages | None:
        """Return pixels or damages of images, decoded once, or None if they cannot be cached."""
        if not images.contents:
            return None
        described = "\n".join((get_decoder_version(), str(resize), *images.contents))
        path = self.folder / f"{hashlib.sha256(described.encode()).hexdigest()}.npy"
        try:
            if (entry := self._read_unless_damaged(path)) is None:
                with lock_folder(self.folder):
                    # Another process may have built it while this one waited.
                    if (entry := self._read_unless_damaged(path)) is None:
                        self._build(path, images, resize, on_image)
                        return _read(path)
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

    def _read_unless_damaged(self, path: Path) -> DecodedImages | Damages | None:
        """Return a cached file's content, or None if it is missing or, with a warning, damaged."""
        try:
            return _read(path)
        except ForeignFileError:  # so this user does not replace it
            raise
        except UnusableFileError as error:
            self._warn_once("damage", f"{error}; images of damaged files are decoded again")
            return None

    def _build(
        self,
        path: Path,
        images: ImageTable,
        resize: Resize,
        on_image: Callable[[int], None] | None,
    ) -> None:
        """Decode the images into a file, or write the list of damaged images."""
        num_bytes = len(images) * resize.side**2 * 3 * (1 if resize.square else _PHOTO_RATIO)
        # The cache must not fill a disk that others need.
        if shutil.disk_usage(self.folder).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        metadata: dict[str, Any] = {"key": path.stem}
        with write_array(path, metadata) as file:
            start = file.write(_npy_header(0))
            # Written and not mapped: a full disk is an error here, and a killed process there.
            sizes, damages = write_pixels(file.write, images, resize, on_image=on_image)
            if damages:
                file.truncate(start)
            metadata["damaged"] = list(damages.items())
            metadata["sizes"] = [] if damages else sizes.ravel().tolist()
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


def _read(path: Path) -> DecodedImages | Damages | None:
    """Return a cached file's pixels or its damages, or None if it is missing."""
    if (entry := read_array(path, {"key": path.stem})) is None:
        return None
    pixels, metadata = entry
    if metadata["damaged"]:
        return dict(metadata["damaged"])
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
    all_damaged: list[tuple[str, str]] = []
    for images, on_ready in iter_with_progress(stream.image_sets, on_image):
        damages = cache.find_damaged(images, resize, on_image=on_ready)
        all_damaged += [(images.files[row], message) for row, message in damages.items()]
    if not all_damaged:
        return stream, 0
    if damaged != LEAVE_OUT:
        raise build_damage_error(
            all_damaged, advice=", or pass damaged=leave_out to train without them"
        )
    warnings = [
        f"{path_text(file)} is left out: it cannot be decoded: {message}"
        for file, message in all_damaged[:_MOST_LISTED]
    ]
    if (num_unlisted := len(all_damaged) - _MOST_LISTED) > 0:
        warnings.append(f"{num_unlisted} more images are left out, which cannot be decoded")
    dropped = {file for file, _ in all_damaged}
    is_decodable = np.array([file not in dropped for file in stream.images.files])
    decodable = stream.with_images(
        stream.images.take(np.flatnonzero(is_decodable)), warnings=(*stream.warnings, *warnings)
    )
    for bucket in decodable.buckets:
        for split, images in (("train", bucket.train), (stream.tested_on, bucket.test)):
            if not len(images):
                raise DataError(
                    f"none of bucket {bucket.key}'s {split} images can be decoded; the first "
                    f"damaged image is {path_text(all_damaged[0][0])}: unpack the dataset again"
                )
    # A set without its damaged images is another one to the cache. It is decoded now, as the others
    # were, and not in the middle of the training.
    for images, on_ready in iter_with_progress(decodable.image_sets, on_image):
        cache.find_damaged(images, resize, on_image=on_ready)
    return decodable, len(all_damaged)


def _npy_header(num_bytes: int) -> bytes:
    """Return the header of a .npy file of bytes. Its length does not depend on their number."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (num_bytes,)}
    )
    return header.getvalue()
