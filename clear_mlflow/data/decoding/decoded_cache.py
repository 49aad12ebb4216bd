"""Decode once: pixels in files that are mapped into memory, one per image set.

A file is named by its key: the hash of what its pixels depend on, which is the content of each
image in order, the geometry, and the decoder's version. So a file is never out of date;
one that is no longer needed is no longer asked for, and the folder may be deleted at any time.

It holds two arrays in numpy's format, one after the other: the sizes of the images, (N, 2), and
their pixels end to end, which begin where the sizes before them say.

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
    DecodedImages,
    Resize,
    decode,
    decode_blocks,
    decoder_version,
    refusal,
)
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import ImageSet

DECODED_FOLDER = "decoded-v2"  # in the folder of all caches

# Height to width of most photos, for how much room they will take.
_PHOTO_RATIO = 1.5
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
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> DecodedImages:
        """The decoded images, built when they are first asked for.

        Args:
            images: N files; those of unknown content are decoded and not kept.
            resize: what becomes of each.
            on_image: called with the number of images that are ready so far.

        Returns:
            What :func:`~clear_mlflow.data.decoding.decode.decode` gives; mapped copy-on-write,
            so nothing that is done to the pixels reaches the file.

        Raises:
            DataError: as :func:`~clear_mlflow.data.decoding.decode.decode` does.
        """
        found = self._ready(images, resize, on_image)
        if isinstance(found, tuple):
            raise refusal(found)
        if found is None:
            return decode(images, resize, on_image=on_image)
        return found

    def damaged(
        self,
        images: ImageSet,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> tuple[Damaged, ...]:
        """The images that cannot be decoded; where there are none, the set is ready afterwards.

        Raises:
            DataError: a file is missing, cannot be read, or has changed since it was hashed.
        """
        found = self._ready(images, resize, on_image)
        if found is None:
            # Nothing can be kept: look at each image, and let it go.
            blocks = decode_blocks(images, resize, on_image=on_image)
            return tuple(one for block in blocks for one in block.damaged)
        return found if isinstance(found, tuple) else ()

    def keep(
        self,
        images: ImageSet,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> None:
        """Have a set ready for :meth:`images`; where nothing can be kept, do nothing.

        Raises:
            DataError: an image is damaged, is missing, cannot be read, or has changed.
        """
        found = self._ready(images, resize, on_image)
        if isinstance(found, tuple):
            raise refusal(found)

    def _ready(
        self, images: ImageSet, resize: Resize, on_image: Callable[[int], None] | None
    ) -> DecodedImages | tuple[Damaged, ...] | None:
        """Pixels, or what is damaged in their place; None where nothing can be kept."""
        if not images.contents:
            return None
        entry = _Entry(self.folder, images, resize)
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

    def __init__(self, folder: Path, images: ImageSet, resize: Resize) -> None:
        self._folder = folder
        self._images = images
        self._resize = resize
        described = "\n".join((decoder_version(), str(resize), *images.contents))
        self._key = hashlib.sha256(described.encode()).hexdigest()
        self._pixels = folder / f"{self._key}.npy"
        self._damaged = folder / f"{self._key}.json"

    def read(self) -> DecodedImages | tuple[Damaged, ...] | None:
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
        needed = len(self._images) * self._resize.side**2 * 3
        if not self._resize.square:
            needed = int(needed * _PHOTO_RATIO)
        # Whoever else needs this disk is not to find it full because of a cache.
        if shutil.disk_usage(self._folder).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sizes = np.zeros((len(self._images), 2), dtype=np.int64)
        damaged: list[Damaged] = []
        with self._part() as (part, file):
            file.seek(len(_header_of(sizes)))
            # Written and not mapped: a full disk is an error here, and a killed process there.
            for block in decode_blocks(self._images, self._resize, on_image=on_image):
                damaged += block.damaged
                for n, image in enumerate(block.images, start=block.start):
                    sizes[n] = image.shape[:2]
                    file.write(image.data)
            if not damaged:
                file.seek(0)
                file.write(_header_of(sizes))
                file.flush()
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

    def _read_pixels(self) -> DecodedImages | None:
        sizes = np.zeros((len(self._images), 2), dtype=np.int64)
        # What lies before the pixels is known to the byte once the sizes are: nothing else in the
        # file needs to be understood.
        begin = len(_npy_header(sizes))
        start = len(_header_of(sizes))
        try:
            with self._pixels.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                header = file.read(start)
                if len(header) < start:
                    return None
                sizes = np.frombuffer(header, "<i8", sizes.size, begin).reshape(sizes.shape).copy()
                if header != _header_of(sizes) or size != start + _num_bytes(sizes):
                    return None
                # Copy-on-write: torch takes no array that it may not write to without a warning.
                pixels = np.memmap(file, np.uint8, mode="c", offset=start, shape=size - start)
        except (OSError, ValueError):
            return None
        return DecodedImages(pixels.view(np.ndarray), sizes)

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


def _header_of(sizes: NDArray[np.int64]) -> bytes:
    """All that lies before the pixels of images of these sizes; as long for any sizes."""
    pixels = np.broadcast_to(np.uint8(0), _num_bytes(sizes))
    return _npy_header(sizes) + sizes.astype("<i8").tobytes() + _npy_header(pixels)


def _num_bytes(sizes: NDArray[np.int64]) -> int:
    return sum(height * width * 3 for height, width in sizes.tolist())


def _npy_header(array: NDArray[np.generic]) -> bytes:
    """The beginning of numpy's file format, so that any program can read what is kept."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape},
    )
    return header.getvalue()
