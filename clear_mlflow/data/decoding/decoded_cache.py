"""Decode once: pixels in files that are mapped into memory, one per image set.

A file is named by the hash of what its pixels depend on: the content of each image in order, the
geometry, and the decoder's version. ``KEY.npy`` holds the pixels end to end, ``KEY.json`` the
sizes; where some images cannot be decoded, which and why, and there are no pixels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import warn
from clear_mlflow.data.cached_arrays import (
    CachedArrays,
    ForeignFileError,
    UnusableFileError,
    new_array,
)
from clear_mlflow.data.checking.content import stream_digest
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
from clear_mlflow.data.stream import Bucket, BucketStream, ImageSet, counted, image_sets

LEAVE_OUT = "leave_out"
DECODED_FOLDER = "decoded-v1"  # in the folder of all caches

# Height to width of most photos, for how much room they will take.
_PHOTO_RATIO = 1.5
_MOST_LISTED = 100  # damaged images, by name


class DecodedCache:
    """Decoded images that stay from run to run; where they cannot, a warning, once."""

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = warn) -> None:
        self.folder = folder
        self._arrays = CachedArrays()
        self._warn = warn
        self._warned: set[str] = set()

    def images(
        self,
        images: ImageSet,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> DecodedImages:
        """The decoded images, built when they are first asked for; mapped copy-on-write."""
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

    def _ready(
        self, images: ImageSet, resize: Resize, on_image: Callable[[int], None] | None
    ) -> DecodedImages | tuple[Damaged, ...] | None:
        """Pixels, or what is damaged in their place; None where nothing can be kept."""
        if not images.contents:
            return None
        described = "\n".join((decoder_version(), str(resize), *images.contents))
        path = self.folder / f"{hashlib.sha256(described.encode()).hexdigest()}.npy"
        try:
            if (found := self._kept(path, images)) is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._only_builder():
                    # Another process may have built it while this one waited.
                    if (found := self._kept(path, images)) is None:
                        self._build(path, images, resize, on_image)
                        return self._read(path, images)
        # After it was built, too: some file systems let everybody write to every file.
        except UnusableFileError as error:
            self._not_kept(str(error), "of your own, which no other user may write to")
            return None
        except OSError as error:
            self._not_kept(reason(error), "that can be written, or until there is room")
            return None
        if on_image is not None:
            on_image(len(images))
        return found

    def _kept(self, path: Path, images: ImageSet) -> DecodedImages | tuple[Damaged, ...] | None:
        """What is kept, if it is as it was written; None where it has to be built."""
        try:
            return self._read(path, images)
        except ForeignFileError:  # so this user does not replace it
            raise
        except UnusableFileError as error:
            message = f"{error}; its images are decoded anew, as those of any other such file are"
            self._warn_once("damage", message)
            return None

    def _read(self, path: Path, images: ImageSet) -> DecodedImages | tuple[Damaged, ...] | None:
        if (found := self._arrays.open(path, {"key": path.stem})) is None:
            return None
        pixels, about = found
        if about["damaged"]:
            return tuple(Damaged(n, images.paths[n], why) for n, why in about["damaged"])
        # Of a plain array: torch takes it without a warning, for it may be written to.
        sizes = np.array(about["sizes"], dtype=np.int64).reshape(-1, 2)
        return DecodedImages(pixels.view(np.ndarray), sizes)

    @contextlib.contextmanager
    def _only_builder(self) -> Iterator[None]:
        """Wait until no other process builds anything here, and keep others waiting."""
        with (self.folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it however a process ends
            for part in self.folder.glob("*.part"):  # of builders that were killed
                part.unlink(missing_ok=True)
            yield

    def _build(
        self,
        path: Path,
        images: ImageSet,
        resize: Resize,
        on_image: Callable[[int], None] | None,
    ) -> None:
        """Decode the images into a file; or, where some are damaged, keep their list."""
        needed = len(images) * resize.side**2 * 3 * (1 if resize.square else _PHOTO_RATIO)
        # Whoever else needs this disk is not to find it full because of a cache.
        if shutil.disk_usage(self.folder).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sizes: list[int] = []
        damaged: list[tuple[int, str]] = []
        about: dict[str, Any] = {"key": path.stem, "sizes": sizes, "damaged": damaged}
        with new_array(path, about) as file:
            start = file.write(_npy_header(0))
            # Written and not mapped: a full disk is an error here, and a killed process there.
            for block in decode_blocks(images, resize, on_image=on_image):
                damaged += [(one.position, one.why) for one in block.damaged]
                for image in block.images:
                    sizes += image.shape[:2]
                    file.write(image.data)
            if damaged:
                sizes.clear()
                file.truncate(start)
            file.seek(0, io.SEEK_END)
            num_bytes = file.tell() - start
            file.seek(0)
            file.write(_npy_header(num_bytes))

    def _not_kept(self, why: str, other_folder: str) -> None:
        self._warn_once(
            "folder",
            f"decoded images cannot be kept in {path_text(self.folder)}: {why}; each run decodes "
            f"them anew until CLEAR_MLFLOW_CACHE names a folder {other_folder}",
        )

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._warn(message)


def sound_stream(
    stream: BucketStream,
    *,
    cache: DecodedCache,
    resize: Resize,
    damaged: str,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[BucketStream, int]:
    """Decode every image into the cache: what of the stream can be, and how many are left out."""
    left: dict[int, ImageSet] = {}
    everything: list[Damaged] = []
    for images, on_ready in counted([*image_sets(stream)], on_image):
        found = cache.damaged(images, resize, on_image=on_ready)
        everything += found
        gone = [one.position for one in found]
        rest = images.take(np.delete(np.arange(len(images)), gone)) if gone else images
        left[id(images)] = rest
    if not everything:
        return stream, 0
    if damaged != LEAVE_OUT:
        raise refusal(everything, advice=", or pass damaged=leave_out to train without")
    buckets = tuple(
        Bucket(bucket.key, left[id(bucket.train)], left[id(bucket.test)])
        for bucket in stream.buckets
    )
    for bucket in buckets:
        for split, images in (("train", bucket.train), (stream.tested_on, bucket.test)):
            if not len(images):
                raise DataError(
                    f"none of bucket {bucket.key}'s {split} images can be decoded; the first "
                    f"damaged image is {path_text(everything[0].path)}: unpack the dataset again"
                )
    listed = everything[:_MOST_LISTED]
    warnings = [
        f"{path_text(one.path)} is left out: it cannot be decoded: {one.why}" for one in listed
    ]
    if more := len(everything) - len(listed):
        warnings.append(f"{more} more images are left out, which cannot be decoded")
    sound = dataclasses.replace(
        stream,
        buckets=buckets,
        digest=stream_digest(buckets, stream.class_names, stream.tested_on, stream.scenario),
        warnings=(*stream.warnings, *warnings),
    )
    # A set without its damaged images is another one to the cache. It is decoded now, as the others
    # were, and not in the middle of the training.
    for images, on_ready in counted([*image_sets(sound)], on_image):
        cache.damaged(images, resize, on_image=on_ready)
    return sound, len(everything)


def _npy_header(num_bytes: int) -> bytes:
    """The beginning of numpy's file format for so many bytes; as long for any number."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (num_bytes,)}
    )
    return header.getvalue()
