"""Decode once: squares of bytes in files that are mapped into memory, one per image set.

A file is named by its key: the hash of what its pixels depend on, which is the content of each
image in order, the side of the squares, and the decoder's version. So a file is never out of date;
one that is no longer needed is no longer asked for, and the folder may be deleted at any time.

A file is written under another name, flushed to the disk and renamed when whole: a builder that
dies half-way leaves nothing that is read later. Of several builders of one set, the first holds a
lock, which the system releases however it ends; the others wait and then read what it built.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.data.decoding.decode import (
    Damaged,
    decode,
    decode_blocks,
    decoder_version,
    refusal,
)
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import ImageSet

DECODED_FOLDER = "decoded-v1"  # in the folder of all caches

_LARGEST_LIST = 2**26  # bytes of a list of damaged images that are read at most


def to_standard_error(message: str) -> None:
    """Warn as the rest of the program does: one line."""
    sys.stderr.write(f"warning: {message}\n")


class DecodedCache:
    """Decoded images that stay from run to run.

    Where the folder cannot be written or the disk is full, that is told once and images are decoded
    into memory instead: slower at the next start, but the same images.

    Args:
        folder: made where it is missing.
        warn: takes one line.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = to_standard_error) -> None:
        self.folder = folder
        self._warn = warn
        self._warned = False

    def images(
        self,
        images: ImageSet,
        *,
        size: int,
        crop_margin: int,
        on_image: Callable[[int], None] | None = None,
    ) -> NDArray[np.uint8]:
        """The decoded images, built when they are first asked for.

        Args:
            images: N files; those of unknown content are decoded and not kept.
            size: side of the model's input, pixels.
            crop_margin: what a random crop may cut away later, pixels; 0 for none.
            on_image: called with the number of images that are ready so far.

        Returns:
            (N, size + crop_margin, size + crop_margin, 3), C-contiguous, as
            :func:`~clear_mlflow.data.decoding.decode.decode` gives them; mapped copy-on-write,
            so nothing that is done to the array reaches the file.

        Raises:
            DataError: as :func:`~clear_mlflow.data.decoding.decode.decode` does.
        """
        found = self._ready(images, size + crop_margin, on_image)
        if isinstance(found, tuple):
            raise refusal(found)
        if found is None:
            return decode(images, size=size, crop_margin=crop_margin, on_image=on_image)
        return found

    def damaged(
        self,
        images: ImageSet,
        *,
        size: int,
        crop_margin: int,
        on_image: Callable[[int], None] | None = None,
    ) -> tuple[Damaged, ...]:
        """The images that cannot be decoded; where there are none, the set is ready afterwards.

        Raises:
            DataError: a file is missing, cannot be read, or has changed since it was hashed.
        """
        side = size + crop_margin
        found = self._ready(images, side, on_image)
        if found is None:
            # Nothing can be kept: look at each image, and let it go.
            return decode_blocks(images, side=side, put=lambda *_: None, on_image=on_image)
        return found if isinstance(found, tuple) else ()

    def keep(
        self,
        images: ImageSet,
        *,
        size: int,
        crop_margin: int,
        on_image: Callable[[int], None] | None = None,
    ) -> None:
        """Have a set ready for :meth:`images`; where nothing can be kept, do nothing.

        Raises:
            DataError: an image is damaged, is missing, cannot be read, or has changed.
        """
        found = self._ready(images, size + crop_margin, on_image)
        if isinstance(found, tuple):
            raise refusal(found)

    def _ready(
        self, images: ImageSet, side: int, on_image: Callable[[int], None] | None
    ) -> NDArray[np.uint8] | tuple[Damaged, ...] | None:
        """Pixels, or what is damaged in their place; None where nothing can be kept."""
        if not images.contents:
            return None
        entry = _Entry(self.folder, images, side)
        if (found := entry.read()) is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with entry.only_builder():
                    # Another process may have built it while this one waited.
                    if (found := entry.read()) is None:
                        entry.build(on_image)
                        return entry.read()
            except OSError as error:
                self._tell(error)
                return None
        if on_image is not None:
            on_image(len(images))
        return found

    def _tell(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"decoded images cannot be kept in {path_text(self.folder)}: {reason(error)}; each "
                "run decodes them anew until there is room, or CLEAR_MLFLOW_CACHE names a folder "
                "that can be written"
            )


class _Entry:
    """One image set of one geometry in the cache's folder.

    ``KEY.npy`` holds the pixels; ``KEY.json``, in its place, the images that cannot be decoded.
    """

    def __init__(self, folder: Path, images: ImageSet, side: int) -> None:
        self._folder = folder
        self._images = images
        self._side = side
        self._shape = (len(images), side, side, 3)
        described = "\n".join((decoder_version(), str(side), *images.contents))
        self._key = hashlib.sha256(described.encode()).hexdigest()
        self._header = _npy_header(self._shape)
        self._pixels = folder / f"{self._key}.npy"
        self._damaged = folder / f"{self._key}.json"

    def read(self) -> NDArray[np.uint8] | tuple[Damaged, ...] | None:
        """What is kept; None where that is nothing, or not what was written."""
        pixels = self._read_pixels()
        return self._read_damaged() if pixels is None else pixels

    @contextlib.contextmanager
    def only_builder(self) -> Iterator[None]:
        """Wait until no other process builds this entry, and keep others waiting."""
        path = self._folder / f"{self._key}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Left behind by builders that were killed: nobody else writes now.
            for part in self._folder.glob(f"{self._key}.*.part"):
                part.unlink(missing_ok=True)
            yield
            # Whoever comes now finds the entry itself; a lock on a file that is gone does no harm.
            path.unlink(missing_ok=True)
        finally:
            os.close(lock)

    def build(self, on_image: Callable[[int], None] | None) -> None:
        """Decode the images into a file; or, where some are damaged, keep their list."""
        row = self._side**2 * 3
        needed = len(self._images) * row
        # Whoever else needs this disk is not to find it full because of a cache.
        if shutil.disk_usage(self._folder).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with self._part() as (part, file):
            file.write(self._header)
            file.flush()
            start = len(self._header)

            # Written and not mapped: a full disk is an error here, and a killed process there.
            def put(position: int, block: NDArray[np.uint8]) -> None:
                _write_at(file.fileno(), block.data.cast("B"), start + position * row)

            damaged = decode_blocks(self._images, side=self._side, put=put, on_image=on_image)
            if not damaged:
                os.fsync(file.fileno())
                part.replace(self._pixels)
                return
        with self._part() as (part, file):
            file.write(json.dumps([[one.position, one.why] for one in damaged]).encode())
            file.flush()
            os.fsync(file.fileno())
            part.replace(self._damaged)

    @contextlib.contextmanager
    def _part(self) -> Iterator[tuple[Path, io.BufferedWriter]]:
        """A new file under a temporary name, which is gone afterwards unless it was renamed."""
        part = self._folder / f"{self._key}.{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as file:
                yield part, file
        finally:
            part.unlink(missing_ok=True)

    def _read_pixels(self) -> NDArray[np.uint8] | None:
        # The header is known to the byte: nothing in the file needs to be understood.
        start = len(self._header)
        try:
            with self._pixels.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != start + math.prod(self._shape) or file.read(start) != self._header:
                    return None
                # Copy-on-write: torch takes no array that it may not write to without a warning.
                pixels = np.memmap(file, np.uint8, mode="c", offset=start, shape=self._shape)
        except (OSError, ValueError):
            return None
        return pixels.view(np.ndarray)

    def _read_damaged(self) -> tuple[Damaged, ...] | None:
        try:
            with self._damaged.open("rb") as file:
                listed = json.loads(file.read(_LARGEST_LIST))
            damaged = tuple(
                Damaged(position, self._images.paths[position], " ".join(str(why).split()))
                for position, why in listed
                if position >= 0
            )
        except (OSError, ValueError, TypeError, IndexError):
            return None
        return damaged or None


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """The beginning of numpy's file format, so that any program can read what is kept."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def _write_at(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
