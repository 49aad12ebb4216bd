"""Decoding: image files in, bytes out, which are kept from run to run.

There are two geometries. Both scale the shorter side to a given length, bilinear with
anti-aliasing:

* the complete image, byte for byte as torchvision's image loader and ``Resize`` return it. The
  CLEAR authors' code does this, so a camera's orientation (EXIF) is not applied and transparency is
  dropped;
* the central square of the image as people see it: upright, on white where it is transparent.

In both, 16-bit values are divided by 257; torchvision's loader clips them at 255.

The cache has a file for each set of images, named by the hash of what its pixels depend on: the
content of each image in order, the geometry, and the decoder's version. ``KEY.npy`` contains the
pixels end to end, ``KEY.json`` the sizes. If some images cannot be decoded, it lists them with the
reasons, and the pixels are missing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError, features

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import format_count, warn
from clear_mlflow.data import cache as caching
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream, iter_with_progress

LEAVE_OUT = "leave_out"
DECODED_FOLDER = "decoded-v1"  # in the folder of all caches
# Height to width of most photos, to estimate how much room they take.
_PHOTO_RATIO = 1.5
_MOST_LISTED = 100  # damaged images, by name

# Raster formats only: Pillow would hand PostScript to an interpreter.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_MAX_PIXELS = 89_000_000  # where Pillow starts to warn of decompression bombs
_CLEAR_SIDE = 224  # pixels of the shorter side in trainings on CLEAR
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Factors by which Pillow multiplies the grey levels of a PNG, by its name for their depth.
_GREY_FACTORS = {"L;2": 85, "L;4": 17}
_IMAGES_IN_A_TASK = 16
_MAX_BYTES_AHEAD = 2**30  # of decoded images that wait to be used

_DECODER = 4  # to be raised with any change to this module that changes a pixel

# Pillow's warnings do not name the file. Our own messages do, and contain what matters.
warnings.filterwarnings("ignore", module=r"PIL\.")


@dataclass(frozen=True)
class Resize:
    """A geometry that scales the shorter side to *side* pixels."""

    side: int
    square: bool = False  # keep only the central square, not the complete image

    def __str__(self) -> str:
        return f"{self.side} {'square' if self.square else 'whole'}"  # in keys of the cache


@dataclass(frozen=True, eq=False)
class LibraryTransform:
    """Another library's transform of an upright image, on white if transparent."""

    make: Callable[[Image.Image], NDArray[np.float32]]  # of the image in RGB; in several threads
    side: int  # pixels to which it scales the shorter side at most
    text: str  # describes the transform

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """Images end to end, line by line, pixels as RGB."""

    pixels: NDArray[np.uint8]  # (sum of height * width * 3,)
    sizes: NDArray[np.int64]  # (N, 2), height and width of each
    # Why images of files that were read cannot be decoded, by row. If there are some, the pixels
    # need not be complete.
    damages: Mapping[int, str] = field(default_factory=dict)


class UndecodableError(Exception):
    """The bytes of a file are no image that can be decoded.

    The message is the reason.
    """


def get_decoder_version() -> str:
    """Return the versions on which pixels depend: module, Pillow, JPEG library."""
    return f"clear_mlflow-{_DECODER}-{features.version('pil')}-{features.version('jpg')}"


def decode(
    images: ImageTable,
    resize: Resize,
    *,
    write: Callable[[memoryview], object] | None = None,
    on_image: Callable[[int], None] | None = None,
) -> DecodedImages:
    """Decode images in order, into memory or only to *write*.

    Raises the errors of :func:`iter_decoded`.
    """
    return _collect(iter_decoded(images, resize, on_image=on_image), write)


def decode_bytes(contents: Sequence[bytes], resize: Resize) -> DecodedImages:
    """Decode image files' contents into memory. Raises DataError if damaged."""
    decoded = _collect(_decode_image(content, resize) for content in contents)
    for row, problem in decoded.damages.items():
        raise DataError(
            f"image {row + 1} of {len(contents)} cannot be decoded: {problem}; expected a "
            "complete JPEG or PNG image"
        )
    return decoded


def _collect(
    images: Iterable[NDArray[Any] | UndecodableError],
    write: Callable[[memoryview], object] | None = None,
) -> DecodedImages:
    pixels = bytearray()
    sizes: list[tuple[int, ...]] = []
    damages = {}
    for row, image in enumerate(images):
        if isinstance(image, UndecodableError):
            damages[row] = str(image)
            sizes.append((0, 0))
        else:
            sizes.append(image.shape[:2])
            (write or pixels.extend)(image.data)
    array = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    return DecodedImages(np.frombuffer(pixels, dtype=np.uint8), array, damages)


def iter_decoded(
    images: ImageTable,
    geometry: Resize | LibraryTransform,
    *,
    on_image: Callable[[int], None] | None = None,
) -> Iterator[NDArray[Any] | UndecodableError]:
    """Decode images in threads, and yield them or errors in order.

    on_image: receives the number of images done, at times. Raises DataError if a file cannot be
    read or differs from its content hash, if the table has vectors, or if the geometry is too
    large.
    """
    if images.vectors is not None:
        raise DataError("the dataset contains vectors, not images; pass features=vectors")
    if geometry.side**2 > _MAX_PIXELS:
        # Pillow takes what memory there is, block by block, until the system ends the process.
        raise DataError(
            f"images whose shorter side has {geometry.side} pixels would have more than "
            f"{_MAX_PIXELS}; pass a smaller image_size"
        )

    workers = count_usable_cores()
    # Smaller tasks where images are large, so that all cores decode within the limit.
    image_bytes = 3 * geometry.side**2 * (1 if isinstance(geometry, Resize) else 4)
    images_in_task = max(1, min(_IMAGES_IN_A_TASK, _MAX_BYTES_AHEAD // (3 * workers * image_bytes)))
    task_bytes = images_in_task * image_bytes  # of the largest task; an estimate until one is done
    contents = images.contents or (None,) * len(images)

    def decode_block(start: int) -> list[NDArray[Any] | UndecodableError]:
        rows = slice(start, start + images_in_task)
        return [
            decode_file(file, geometry, content)[1]
            for file, content in zip(images.files[rows], contents[rows], strict=True)
        ]

    # Threads and not processes: Pillow releases the interpreter's lock while it decodes and scales,
    # and threads need not send pixels to one another.
    pool = ThreadPoolExecutor(max_workers=workers)
    waiting: deque[Future[list[NDArray[Any] | UndecodableError]]] = deque()
    starts = iter(range(0, len(images), images_in_task))
    done = 0

    def submit_tasks() -> None:  # not all at once: decoded images would fill the memory
        max_tasks = max(1, min(3 * workers, _MAX_BYTES_AHEAD // task_bytes))
        while len(waiting) < max_tasks and (start := next(starts, -1)) >= 0:
            waiting.append(pool.submit(decode_block, start))

    try:
        submit_tasks()
        while waiting:
            block = waiting.popleft().result()
            task_bytes = max(task_bytes, sum(getattr(image, "nbytes", 0) for image in block))
            submit_tasks()
            yield from block
            done += len(block)
            if on_image is not None:
                on_image(done)
    finally:
        pool.shutdown(cancel_futures=True)


def build_damage_error(damages: Mapping[str, str], *, advice: str = "") -> DataError:
    """Return an error that counts damaged files and names the first.

    *advice* follows.

    damages: why each file cannot be decoded.
    """
    file, problem = next(iter(damages.items()))
    message = f"{path_text(file)} cannot be decoded: {problem}"
    if len(damages) > 1:
        message = f"{len(damages)} images cannot be decoded; the first: {message}"
    return DataError(
        f"{message}; expected a complete JPEG or PNG image: unpack the dataset again{advice}"
    )


def decode_file(
    file: str, geometry: Resize | LibraryTransform, expected_hash: str | None = None
) -> tuple[str, NDArray[Any] | UndecodableError]:
    """Read an image file once, and return its SHA-256 and its pixels.

    The pixels are (height, width, 3) bytes, or the result of another library's transform, or an
    error if they cannot be decoded.

    expected_hash: SHA-256 that the file must have, or None for any. Raises DataError if it cannot
    be read, has another hash, or needs too much memory.
    """
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 (a path takes longer than a small image)
            data = opened.read()
    except OSError as error:
        raise DataError(f"{path_text(file)} cannot be read: {reason(error)}") from None
    content_hash = hashlib.sha256(data).hexdigest()
    if expected_hash not in (None, content_hash):
        raise DataError(
            f"{path_text(file)} is not the file whose content was hashed; it was changed in the "
            "meantime: run again when nothing writes to the dataset"
        )
    try:
        return content_hash, _decode_image(data, geometry)
    except MemoryError:  # the image may be intact, so it is not an UndecodableError
        raise DataError(
            f"{path_text(file)} needs more memory to be decoded than this machine can give; end "
            "other programs on it, or store the image smaller"
        ) from None


def _decode_image(
    data: bytes, geometry: Resize | LibraryTransform
) -> NDArray[Any] | UndecodableError:
    """Decode an image file's bytes: the only way pixels are made."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise UndecodableError(
                    f"it has {image.width} x {image.height} pixels, and at most {_MAX_PIXELS:,} "
                    "are allowed"
                )
            if image.mode == "F":
                raise UndecodableError("its pixels are floating-point numbers of unknown range")
            if image.mode == "I" and np.any(np.asarray(image) >> 16):  # of negative numbers, too
                raise UndecodableError("its pixels have more than 16 bits")
            if isinstance(geometry, Resize):
                return (_resize_square if geometry.square else _resize)(image, geometry.side)
            _compute_long_side(image, geometry.side)
            upright = _turn_upright(_convert_to_rgb(image), image)
    except UndecodableError as error:
        return error
    except MemoryError:
        raise
    except UnidentifiedImageError:
        return UndecodableError("it is not an image in a format of photos")
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        return UndecodableError(reason(error))
    return geometry.make(upright)  # out here: an error of the library is not damage


def _compute_long_side(image: Image.Image, side: int) -> int:
    """Return the longer side for a shorter one of *side* pixels.

    Raises UndecodableError if the image would be too large with this side, or with CLEAR's
    image_size: ``data check`` decodes to a smaller side and rejects the same shapes as training.
    """
    short, long = sorted(image.size)
    checked_side = max(side, _CLEAR_SIDE)
    checked_long = int(checked_side * long / short)
    if checked_side * checked_long > _MAX_PIXELS:
        sides = (checked_side, checked_long)[:: 1 if image.width < image.height else -1]
        raise UndecodableError(
            f"it has {image.width} x {image.height} pixels; scaled to a shorter side of "
            f"{checked_side}, it would have {sides[0]} x {sides[1]}, over {_MAX_PIXELS:,} in all"
        )
    return int(side * long / short)  # rounded down, as torchvision does


def _resize(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Scale an image byte for byte as torchvision's ``Resize(side)``."""
    long = _compute_long_side(image, side)
    image = _reduce_depth(image).convert("RGB")
    size = (side, long) if image.width <= image.height else (long, side)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR))


def _resize_square(image: ImageFile.ImageFile, side: int) -> NDArray[np.uint8]:
    """Scale an image's central square to (side, side, 3), upright."""
    # Only JPEG has a draft mode. It keeps both sides at least as large as requested; half of the
    # reduction is left to the better filter below.
    image.draft("RGB", (2 * side, 2 * side))
    colour = _convert_to_rgb(image)
    # A square crop commutes with turning, so turning is left to the small image.
    square = min(colour.size)
    left, top = (colour.width - square) / 2, (colour.height - square) / 2
    small = colour.resize(
        (side, side),
        Image.Resampling.BILINEAR,
        box=(left, top, left + square, top + square),
    )
    return np.asarray(_turn_upright(small, image))


def _convert_to_rgb(image: ImageFile.ImageFile) -> Image.Image:
    """Convert an image to RGB of 8 bits, transparent pixels to white."""
    transparent = _read_transparency(image)
    if image.mode.startswith("I"):
        return _reduce_depth(image, transparent).convert("RGB")
    if transparent is None and image.mode not in ("RGBA", "LA", "PA", "RGBa", "La"):
        return image.convert("RGB")
    colour = image.convert("RGBA")
    white = Image.new("RGBA", colour.size, "white")
    return Image.alpha_composite(white, colour).convert("RGB")


def _read_transparency(image: ImageFile.ImageFile) -> Any:
    """Return the transparent grey, colour or palette entries, or None.

    A PNG's is scaled to 8 bits as Pillow scales its pixels, except a grey of 16 bits.

    image: one whose pixels were not read yet, because Pillow then forgets their depth.
    """
    transparent = image.info.get("transparency")
    if transparent is not None and image.format == "PNG" and image.tile:
        raw_mode = image.tile[0][3]
        if raw_mode in _GREY_FACTORS:
            transparent *= _GREY_FACTORS[raw_mode]
        elif raw_mode == "RGB;16B":
            transparent = tuple(level >> 8 for level in transparent)
        image.info["transparency"] = transparent
    return transparent


def _reduce_depth(image: Image.Image, white: int | None = None) -> Image.Image:
    """Convert 16 bits to 8, whatever bits are in use.

    white: the level that becomes white, or None.
    """
    if not image.mode.startswith("I"):
        return image
    levels = np.asarray(image)
    if white is not None:
        levels = np.where(levels == white, 65_535, levels)
    # Pillow's own conversion clips at 255, which turns most of a 16-bit image white.
    return Image.fromarray((levels // 257).astype(np.uint8))


def _turn_upright(pixels: Image.Image, image: Image.Image) -> Image.Image:
    """Turn pixels, read from *image*, by its EXIF orientation."""
    turn = None
    if image.format != "TIFF":  # which Pillow turns when it reads the pixels
        # Damaged EXIF is common in collected photos, whose pixels may be intact.
        with contextlib.suppress(Exception):
            turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    return pixels if turn is None else pixels.transpose(turn)


class DecodedCache:
    """Decoded images that a folder keeps from run to run.

    folder: where they are kept, or None to decode them into memory.
    """

    def __init__(self, folder: Path | None, *, warn: Callable[[str], None] = warn) -> None:
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
        """Cache images, and return them decoded and mapped copy-on-write.

        If the folder cannot be used, decodes them into memory, with a warning. Raises DataError if
        an image cannot be decoded.
        """
        decoded = self._load_or_build(images, resize, on_image)
        decoded = decoded or decode(images, resize, on_image=on_image)
        if decoded.damages:
            damages = {images.files[row]: text for row, text in decoded.damages.items()}
            raise build_damage_error(damages)
        return decoded

    def find_damaged(
        self,
        images: ImageTable,
        resize: Resize,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> Mapping[int, str]:
        """Decode images into the cache, and return why rows cannot be.

        If the folder cannot be used, the decoded images are dropped, and a warning is printed.
        """
        decoded = self._load_or_build(images, resize, on_image)
        if decoded is None:  # nothing can be kept: decode each image and drop it
            decoded = decode(images, resize, write=lambda pixels: None, on_image=on_image)
        return decoded.damages

    def _load_or_build(
        self, images: ImageTable, resize: Resize, on_image: Callable[[int], None] | None
    ) -> DecodedImages | None:
        """Return the images, decoded once, or None if they cannot be cached."""
        if self.folder is None or not images.contents:
            return None
        described = "\n".join((get_decoder_version(), str(resize), *images.contents))
        path = self.folder / f"{hashlib.sha256(described.encode()).hexdigest()}.npy"
        try:
            if (decoded := self._read_unless_damaged(path)) is None:
                with caching.lock_folder(path.parent):
                    # Another process may have built it while this one waited.
                    if (decoded := self._read_unless_damaged(path)) is None:
                        self._build(path, images, resize, on_image)
                        return _read(path)
        # After it was built, too: some file systems let everybody write to every file.
        except caching.UnusableFileError as error:
            problem = str(error)
            advice = "of your own, which no other user may write to"
        except OSError as error:
            problem = reason(error)
            advice = "that can be written, or until there is room"
        else:
            if on_image is not None:
                on_image(len(images))
            return decoded
        self._warn_once(
            "folder",
            f"decoded images cannot be kept in {path_text(self.folder)}: {problem}; each run "
            f"decodes them again until CLEAR_MLFLOW_CACHE names a folder {advice}",
        )
        return None

    def _read_unless_damaged(self, path: Path) -> DecodedImages | None:
        """Return a cached file's content, None if missing or damaged."""
        try:
            return _read(path)
        except caching.ForeignFileError:  # so this user does not replace it
            raise
        except caching.UnusableFileError as error:
            self._warn_once("damage", f"{error}; images of damaged files are decoded again")
            return None

    def _build(
        self,
        path: Path,
        images: ImageTable,
        resize: Resize,
        on_image: Callable[[int], None] | None,
    ) -> None:
        num_bytes = len(images) * resize.side**2 * 3 * (1 if resize.square else _PHOTO_RATIO)
        # The cache must not fill a disk that others need.
        if shutil.disk_usage(path.parent).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        metadata: dict[str, Any] = {"key": path.stem}
        with caching.write_array(path, metadata) as file:
            start = file.write(_npy_header(0))
            # Written and not mapped: a full disk is an error here, and a killed process there.
            decoded = decode(images, resize, write=file.write, on_image=on_image)
            if decoded.damages:
                file.truncate(start)
            metadata["damaged"] = list(decoded.damages.items())
            metadata["sizes"] = [] if decoded.damages else decoded.sizes.ravel().tolist()
            end = file.seek(0, io.SEEK_END)
            file.seek(0)
            file.write(_npy_header(end - start))

    def _warn_once(self, topic: str, message: str) -> None:
        if topic not in self._warnings:
            self._warnings.add(topic)
            self._warn(message)


def _read(path: Path) -> DecodedImages | None:
    if (entry := caching.read_array(path, {"key": path.stem})) is None:
        return None
    pixels, metadata = entry
    sizes = np.array(metadata["sizes"], dtype=np.int64).reshape(-1, 2)
    # As a plain array: torch takes it without a warning, for it may be written to.
    return DecodedImages(pixels.view(np.ndarray), sizes, dict(metadata["damaged"]))


def drop_undecodable(
    stream: BucketStream,
    *,
    cache: DecodedCache,
    resize: Resize,
    damaged: str,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[BucketStream, int]:
    """Decode every image into the cache, and drop what is damaged.

    Returns the stream, and how many images were dropped. If some were dropped, the stream has a new
    digest, and warnings that name up to 100 of them. damaged: ``leave_out`` to drop damaged images,
    or ``stop`` to raise DataError if there are any. Raises DataError if none remain in a set of a
    bucket.
    """
    damages: dict[str, str] = {}
    for images, on_ready in iter_with_progress(stream.image_sets, on_image):
        rows = cache.find_damaged(images, resize, on_image=on_ready)
        damages |= {images.files[row]: problem for row, problem in rows.items()}
    if not damages:
        return stream, 0
    if damaged != LEAVE_OUT:
        raise build_damage_error(
            damages, advice=", or pass damaged=leave_out to train without them"
        )
    messages = [
        f"{path_text(file)} is not used: it cannot be decoded: {problem}"
        for file, problem in list(damages.items())[:_MOST_LISTED]
    ]
    if (num_unlisted := len(damages) - _MOST_LISTED) > 0:
        count = format_count(num_unlisted, "more image is", "more images are")
        messages.append(f"{count} not used for the same reason")
    is_decodable = np.array([file not in damages for file in stream.images.files])
    decodable = stream.with_images(
        stream.images.take(np.flatnonzero(is_decodable)),
        warnings=(*(stream.dataset.warnings or ()), *messages),
    )
    for split, sets in (("train", decodable.train), (stream.dataset.split, decodable.test)):
        for key, images in zip(stream.dataset.buckets, sets, strict=True):
            if not len(images):
                raise DataError(
                    f"none of bucket {key}'s {split} images can be decoded; the first "
                    f"damaged image is {path_text(next(iter(damages)))}: unpack the dataset again"
                )
    # A set without its damaged images is another one to the cache. It is decoded now, as the others
    # were, and not in the middle of the training.
    for images, on_ready in iter_with_progress(decodable.image_sets, on_image):
        cache.find_damaged(images, resize, on_image=on_ready)
    return decodable, len(damages)


def _npy_header(num_bytes: int) -> bytes:
    """Return the header of a .npy file of bytes, always equally long."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (num_bytes,)}
    )
    return header.getvalue()
