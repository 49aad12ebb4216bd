"""Decoding: image files in, bytes out, image after image.

Two geometries, both with the shorter side scaled to a given length, bilinear with anti-aliasing:

* the complete image, byte for byte as torchvision's image loader and ``Resize`` return it. The
  CLEAR authors' code does this, so a camera's orientation (EXIF) is not applied and transparency is
  dropped;
* the central square of the image as people see it: upright, on white where it is transparent.

In both, 16-bit values are divided by 257; torchvision's loader clips them at 255.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.images import ImageTable

# Raster formats only: Pillow would hand PostScript to an interpreter.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_MAX_PIXELS = 89_000_000  # where Pillow starts to warn of decompression bombs
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
_IMAGES_IN_A_TASK = 16
_MAX_BYTES_AHEAD = 2**30  # of decoded images that wait to be used

_DECODER = 3  # to be raised with any change to this module that changes a pixel


@dataclass(frozen=True)
class Resize:
    """A geometry in which the shorter side of an image is scaled to *side* pixels."""

    side: int
    square: bool = False  # keep only the central square, not the complete image

    def __str__(self) -> str:
        return f"{self.side} {'square' if self.square else 'whole'}"  # in keys of the cache


@dataclass(frozen=True, eq=False)
class LibraryTransform:
    """Another library's transform of an image that is upright, and on white if transparent."""

    make: Callable[[Image.Image], NDArray[np.float32]]  # of the image in RGB; in several threads
    side: int  # pixels to which it scales the shorter side at most
    text: str  # describes the transform

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """Images end to end, each line by line, each pixel as red, green and blue."""

    pixels: NDArray[np.uint8]  # (sum of height * width * 3,)
    sizes: NDArray[np.int64]  # (N, 2), height and width of each


class UndecodableError(Exception):
    """The bytes of a file are not an image that can be decoded; the message is the reason."""


# Rows of a table whose files were read, but cannot be decoded, with the reasons.
Damages: TypeAlias = dict[int, str]


def get_decoder_version() -> str:
    """Return the versions on which pixels depend: this module, Pillow, and its JPEG library."""
    libraries = (features.version("pil"), features.version("jpg"))
    return "-".join(("clear_mlflow", str(_DECODER), *(str(version) for version in libraries)))


def decode(
    images: ImageTable, resize: Resize, *, on_image: Callable[[int], None] | None = None
) -> DecodedImages:
    """Decode images into memory, in their order. Raises DataError if one is damaged."""
    pixels = bytearray()
    sizes, damages = write_pixels(pixels.extend, images, resize, on_image=on_image)
    if damages:
        raise build_damage_error([(images.files[row], message) for row, message in damages.items()])
    return DecodedImages(np.frombuffer(pixels, dtype=np.uint8), sizes)


def write_pixels(
    write: Callable[[memoryview], object],
    images: ImageTable,
    resize: Resize,
    *,
    on_image: Callable[[int], None] | None = None,
) -> tuple[NDArray[np.int64], Damages]:
    """Decode images, and write the pixels of each. Returns their sizes, (N, 2), and damages."""
    sizes = np.zeros((len(images), 2), dtype=np.int64)
    damages: Damages = {}
    for row, image in enumerate(iter_decoded(images, resize, on_image=on_image)):
        if isinstance(image, UndecodableError):
            damages[row] = str(image)
        else:
            sizes[row] = image.shape[:2]
            write(image.data)
    return sizes, damages


def decode_bytes(contents: Sequence[bytes], resize: Resize) -> DecodedImages:
    """Decode the contents of image files into memory. Raises DataError if one is damaged."""
    images = []
    for number, content in enumerate(contents, start=1):
        try:
            images.append(_decode_image(content, resize))
        except UndecodableError as error:
            raise DataError(
                f"image {number} of {len(contents)} cannot be decoded: {error}; expected a "
                "complete JPEG or PNG image"
            ) from None
    sizes = np.array([image.shape[:2] for image in images], dtype=np.int64).reshape(-1, 2)
    pixels = b"".join(image.tobytes() for image in images)
    return DecodedImages(np.frombuffer(bytearray(pixels), dtype=np.uint8), sizes)


def iter_decoded(
    images: ImageTable,
    geometry: Resize | LibraryTransform,
    *,
    on_image: Callable[[int], None] | None = None,
) -> Iterator[NDArray[Any] | UndecodableError]:
    """Decode images in threads, and yield each, or why it is damaged, in order.

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
            decode_file(*file, geometry)
            for file in zip(images.files[rows], contents[rows], strict=True)
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


def build_damage_error(damaged: Sequence[tuple[str, str]], *, advice: str = "") -> DataError:
    """Return the error that counts damaged files and names the first, followed by *advice*."""
    message = f"{path_text(damaged[0][0])} cannot be decoded: {damaged[0][1]}"
    if len(damaged) > 1:
        message = f"{len(damaged)} images cannot be decoded; the first: {message}"
    return DataError(
        f"{message}; expected a complete JPEG or PNG image: unpack the dataset again{advice}"
    )


def decode_file(
    file: str, content_hash: str | None, geometry: Resize | LibraryTransform
) -> NDArray[Any] | UndecodableError:
    """Decode an image file to (height, width, 3) bytes, or to the library's result.

    content_hash: SHA-256 that the file must have, or None for any. Raises DataError if it cannot
    be read, has another hash, or needs too much memory.
    """
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{path_text(file)} cannot be read: {reason(error)}") from None
    if content_hash is not None and hashlib.sha256(data).hexdigest() != content_hash:
        raise DataError(
            f"{path_text(file)} is not the file whose content was hashed; it was changed in the "
            "meantime: run again when nothing writes to the dataset"
        )
    try:
        return _decode_image(data, geometry)
    except UndecodableError as error:
        return error
    except MemoryError:  # the image may be intact, so it is not left out
        raise DataError(
            f"{path_text(file)} needs more memory to be decoded than this machine can give; end "
            "other programs on it, or store the image smaller"
        ) from None


def _decode_image(data: bytes, resize: Resize | LibraryTransform) -> NDArray[Any]:
    """Decode the bytes of an image file, as :func:`decode_file` does."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise UndecodableError(
                    f"it has {image.width} x {image.height} pixels, and {_MAX_PIXELS} are the most"
                )
            if image.mode == "F":
                raise UndecodableError("its pixels are floating-point numbers of unknown range")
            if image.mode == "I" and np.any(np.asarray(image) >> 16):  # of negative numbers, too
                raise UndecodableError("its pixels have more than 16 bits")
            if isinstance(resize, Resize):
                return (_resize_square if resize.square else _resize)(image, resize.side)
            _compute_long_side(image, resize.side)
            upright = _convert_upright(image)
    except (UndecodableError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UndecodableError("it is not an image in a format of photos") from None
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        raise UndecodableError(reason(error)) from error
    return resize.make(upright)  # out here: an error of the library is not damage


def _compute_long_side(image: Image.Image, side: int) -> int:
    """Return the longer side of an image whose shorter one is scaled to *side* pixels."""
    short, long = sorted(image.size)
    long = int(side * long / short)  # rounded down, as torchvision does
    if side * long > _MAX_PIXELS:
        raise UndecodableError(
            f"it has {image.width} x {image.height} pixels and would have {long} x {side}, and "
            f"{_MAX_PIXELS} are the most"
        )
    return long


def _resize(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Scale an image byte for byte as torchvision's image loader and ``Resize(side)`` do."""
    long = _compute_long_side(image, side)
    size = (side, long) if image.width <= image.height else (long, side)
    image = _reduce_depth(image).convert("RGB")
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR))


def _resize_square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Scale the central square of an image to (side, side, 3), and turn it upright by EXIF."""
    # Only JPEG has a draft mode. It keeps both sides at least as large as requested; half of the
    # reduction is left to the better filter below.
    image.draft("RGB", (2 * side, 2 * side))
    # A square crop commutes with turning, so turning is left to the small image.
    square = min(image.size)
    left, top = (image.width - square) / 2, (image.height - square) / 2
    small = _convert_to_rgb(image).resize(
        (side, side),
        Image.Resampling.BILINEAR,
        box=(left, top, left + square, top + square),
    )
    turn = _UPRIGHT.get(_read_orientation(image))
    return np.asarray(small if turn is None else small.transpose(turn))


def _convert_upright(image: Image.Image) -> Image.Image:
    """Return a copy of an image in RGB, turned upright by EXIF."""
    turn = _UPRIGHT.get(_read_orientation(image))
    colour = _convert_to_rgb(image)
    return colour.copy() if turn is None else colour.transpose(turn)


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB: transparent pixels become white, 16 bits become 8."""
    image = _reduce_depth(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        colour = image.convert("RGBA")
        white = Image.new("RGBA", colour.size, "white")
        return Image.alpha_composite(white, colour).convert("RGB")
    return image.convert("RGB")


def _reduce_depth(image: Image.Image) -> Image.Image:
    """Convert 16 bits to 8, whatever the bits in use. Returns other images unchanged."""
    if not image.mode.startswith("I"):
        return image
    # Pillow's own conversion clips at 255, which turns most of a 16-bit image white.
    return Image.fromarray((np.asarray(image) // 257).astype(np.uint8))


def _read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, or 1 if there is none or it is damaged."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # damaged EXIF is common in collected photos, whose pixels may be intact
        return 1
