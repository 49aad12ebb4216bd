"""Decode once: pixels in files that are mapped into memory, one per image set.

A file is named by its key: the hash of what its pixels depend on, which is the content of each
image in order, the geometry, and the decoder's version. So a file is never out of date;
one that is no longer needed is no longer asked for, and the folder may be deleted at any time.

It holds two arrays in numpy's format, one after the other: the sizes of the images, (N, 2), and
their pixels end to end, which begin where the sizes before them say; and its seal. A file that is
not as it was written is decoded anew, with a warning.

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
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

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
from clear_mlflow.data.sealed import (
    ForeignFileError,
    SealedFiles,
    UnsealedFileError,
    sealed_file,
)
from clear_mlflow.data.stream import ImageSet

DECODED_FOLDER = "decoded-v3"  # in the folder of all caches

# Height to width of most photos, for how much room they will take.
_PHOTO_RATIO = 1.5


def to_standard_error(message: str) -> None:
    """Warn as the rest of the program does: one line."""
    sys.stderr.write(f"warning: {message}\n")


class DecodedCache:
    """Decoded images that stay from run to run.

    A file is checked when this process first reads it; one that is not as it was written, or that
    other users could have written to, is decoded anew. Where the folder cannot be written, the disk
    is full, or a file is another user's, the cache warns once and decodes images into memory
    instead: slower at the next start, but the same images.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = to_standard_error) -> None:
        self.folder = folder
        self.files = SealedFiles()
        self._warn = warn
        self._warned = False
        self._warned_of_damage = False

    def images(
        self,
        images: ImageSet,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> DecodedImages:
        """The decoded images, built when they are first asked for."""
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
        """The images that cannot be decoded; where there are none, the set is ready afterwards."""
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
        """Have a set ready for :meth:`images`; where nothing can be kept, do nothing."""
        found = self._ready(images, resize, on_image)
        if isinstance(found, tuple):
            raise refusal(found)

    def _ready(
        self, images: ImageSet, resize: Resize, on_image: Callable[[int], None] | None
    ) -> DecodedImages | tuple[Damaged, ...] | None:
        """Pixels, or what is damaged in their place; None where nothing can be kept."""
        if not images.contents:
            return None
        entry = _Entry(self.folder, images, resize, self.files)
        try:
            if (found := self._sound(entry)) is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                with entry.only_builder():
                    # Another process may have built it while this one waited.
                    if (found := self._sound(entry, tell=False)) is None:
                        entry.build(on_image)
                        return entry.read()
        # After it was built, too: some file systems let everybody write to every file.
        except UnsealedFileError as error:
            self._tell(str(error), "of your own, which no other user may write to")
            return None
        except OSError as error:
            self._tell(reason(error), "that can be written, or until there is room")
            return None
        if on_image is not None:
            on_image(len(images))
        return found

    def _sound(
        self, entry: _Entry, *, tell: bool = True
    ) -> DecodedImages | tuple[Damaged, ...] | None:
        """What is kept, if it is as it was written; None where it has to be built."""
        try:
            return entry.read()
        except ForeignFileError:
            raise
        except UnsealedFileError as error:
            if tell and not self._warned_of_damage:
                self._warned_of_damage = True
                self._warn(
                    f"{error}; its images are decoded anew, as those of any other such file are"
                )
            return None

    def _tell(self, why: str, other_folder: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"decoded images cannot be kept in {path_text(self.folder)}: {why}; each run "
                f"decodes them anew until CLEAR_MLFLOW_CACHE names a folder {other_folder}"
            )


class _Entry:
    """One image set of one geometry in the cache's folder.

    ``KEY.npy`` holds the pixels; ``KEY.json``, in its place, the images that cannot be decoded.
    """

    def __init__(self, folder: Path, images: ImageSet, resize: Resize, files: SealedFiles) -> None:
        self._folder = folder
        self._images = images
        self._resize = resize
        self._files = files
        described = "\n".join((decoder_version(), str(resize), *images.contents))
        self._key = hashlib.sha256(described.encode()).hexdigest()
        self._pixels = folder / f"{self._key}.npy"
        self._damaged = folder / f"{self._key}.json"

    def read(self) -> DecodedImages | tuple[Damaged, ...] | None:
        """What is kept; None where that is nothing."""
        for path, read in ((self._pixels, self._read_pixels), (self._damaged, self._read_damaged)):
            try:
                with self._files.open(path, path.name) as (file, size):
                    return read(file, size)
            except FileNotFoundError:
                continue
            except UnsealedFileError as error:
                raise type(error)(f"{path_text(path)} {error}") from None
        return None

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
        try:
            with sealed_file(self._pixels, self._pixels.name) as file:
                file.seek(len(_header_of(sizes)))
                # Written and not mapped: a full disk is an error here, and a killed process there.
                for block in decode_blocks(self._images, self._resize, on_image=on_image):
                    damaged += block.damaged
                    for n, image in enumerate(block.images, start=block.start):
                        sizes[n] = image.shape[:2]
                        file.write(image.data)
                if damaged:
                    raise _DamagedError
                file.seek(0)
                file.write(_header_of(sizes))
        except _DamagedError:
            self._pixels.unlink(missing_ok=True)  # what was there is not as it was written
            with sealed_file(self._damaged, self._damaged.name) as file:
                file.write(json.dumps([[one.position, one.why] for one in damaged]).encode())

    def _read_pixels(self, file: BinaryIO, size: int) -> DecodedImages:
        sizes = np.zeros((len(self._images), 2), dtype="<i8")
        start = len(_header_of(sizes))
        sizes = np.frombuffer(file.read(start), "<i8", sizes.size, len(_npy_header(sizes)))
        # Copy-on-write: torch takes no array that it may not write to without a warning.
        pixels = np.memmap(file, np.uint8, mode="c", offset=start, shape=size - start)
        return DecodedImages(pixels.view(np.ndarray), sizes.reshape(-1, 2).astype(np.int64))

    def _read_damaged(self, file: BinaryIO, size: int) -> tuple[Damaged, ...]:
        return tuple(
            Damaged(position, self._images.paths[position], why)
            for position, why in json.loads(file.read(size))
        )


class _DamagedError(Exception):
    """Some images cannot be decoded, so there are no pixels to keep."""


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
