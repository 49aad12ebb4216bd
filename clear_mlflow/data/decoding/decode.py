"""Decoding: image files in, bytes out, image after image.

Two geometries, both with the shorter side scaled to a given length, bilinear with anti-aliasing:

* the whole image, to the byte what torchvision makes of it: its image loader, then ``Resize``. That
  is what the CLEAR authors' code does, so a camera's orientation (EXIF) is not applied and
  transparency is dropped;
* the central square of the image as people see it: upright, on white where it is transparent.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from clear_mlflow.core.distributed import usable_cores
from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import ImageSet

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

_DECODER = 2  # to be raised with any change to this module that changes a pixel


@dataclass(frozen=True)
class Resize:
    """What becomes of an image: its shorter side is scaled to *side* pixels."""

    side: int
    square: bool = False  # keep the central square alone; else the whole image

    def __str__(self) -> str:
        return f"{self.side} {'square' if self.square else 'whole'}"


@dataclass(frozen=True, eq=False)
class OwnTransform:
    """What another library makes of an image: upright, and on white where it is transparent."""

    make: Callable[[Image.Image], NDArray[np.float32]]  # of the image in RGB; in several threads
    side: int  # pixels to which it scales the shorter side at most
    text: str  # the same in words

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """Images end to end, each line by line, each pixel as red, green and blue."""

    pixels: NDArray[np.uint8]  # (sum of height * width * 3,)
    sizes: NDArray[np.int64]  # (N, 2), height and width of each

    def squares(self, side: int) -> NDArray[np.uint8]:
        """(N, side, side, 3), a view, where all images are squares of that side."""
        return self.pixels.reshape(len(self.sizes), side, side, 3)


class _UndecodableError(Exception):
    """A file's bytes are no image that can be shown; the reason, for a one-line message."""


@dataclass(frozen=True)
class Damaged:
    """An image that was read, but cannot be decoded."""

    position: int  # in its image set
    path: Path
    why: str


def decoder_version() -> str:
    """What a pixel depends on, apart from the file: this module, Pillow, and its JPEG library."""
    libraries = (features.version("pil"), features.version("jpg"))
    return "-".join(("clear_mlflow", str(_DECODER), *(str(version) for version in libraries)))


def decode(
    images: ImageSet, resize: Resize, *, on_image: Callable[[int], None] | None = None
) -> DecodedImages:
    """Every image decoded once, into memory, in the order of *images*."""
    pixels = bytearray()
    sizes = np.zeros((len(images), 2), dtype=np.int64)
    damaged: list[Damaged] = []
    try:
        for block in decode_blocks(images, resize, on_image=on_image):
            for n, image in enumerate(block.images, start=block.start):
                sizes[n] = image.shape[:2]
                pixels += image.data
            damaged += block.damaged
    except MemoryError:
        raise DataError(
            f"{len(images)} images whose shorter side has {resize.side} pixels need more memory "
            "than this machine can give; pass a smaller image_size"
        ) from None
    if damaged:
        raise refusal(damaged)
    return DecodedImages(np.frombuffer(pixels, dtype=np.uint8), sizes)


def decode_bytes(contents: Sequence[bytes], resize: Resize) -> DecodedImages:
    """Decode images that are in memory."""
    images = []
    for position, content in enumerate(contents):
        try:
            images.append(_decoded(content, resize))
        except _UndecodableError as error:
            raise DataError(
                f"image {position + 1} of {len(contents)} cannot be decoded: {error}; expected a "
                "whole JPEG or PNG image"
            ) from None
    sizes = np.array([image.shape[:2] for image in images], dtype=np.int64).reshape(-1, 2)
    pixels = b"".join(image.tobytes() for image in images)
    return DecodedImages(np.frombuffer(bytearray(pixels), dtype=np.uint8), sizes)


@dataclass(frozen=True, eq=False)
class DecodedBlock:
    """Some images in a row."""

    start: int  # position of the first
    # Each (height, width, 3) of bytes, or what an OwnTransform made of it; empty where damaged.
    images: Sequence[NDArray[Any]]
    damaged: Sequence[Damaged]


def decode_blocks(
    images: ImageSet,
    resize: Resize | OwnTransform,
    *,
    on_image: Callable[[int], None] | None = None,
) -> Iterator[DecodedBlock]:
    """Every image decoded once, in threads: blocks in order, with what is damaged in each."""
    if images.vectors is not None:
        raise DataError("the dataset is of vectors, and not of images; pass features=vectors")
    if resize.side**2 > _MAX_PIXELS:
        # Pillow takes what memory there is, block by block, until the system ends the process.
        raise DataError(
            f"images whose shorter side has {resize.side} pixels would have more than "
            f"{_MAX_PIXELS}; pass a smaller image_size"
        )

    workers = usable_cores()
    # Smaller tasks where images are large, so that all cores decode within the limit.
    image_bytes = 3 * resize.side**2 * (1 if isinstance(resize, Resize) else 4)
    images_in_task = max(1, min(_IMAGES_IN_A_TASK, _MAX_BYTES_AHEAD // (3 * workers * image_bytes)))
    task_bytes = images_in_task * image_bytes  # of the largest task; an estimate until one is done

    def decoded(start: int) -> DecodedBlock:
        stop = min(start + images_in_task, len(images))
        block, damaged = [], []
        for i in range(start, stop):
            try:
                content = _read(images.paths[i], images.contents[i] if images.contents else None)
                block.append(_decoded(content, resize))
            except _UndecodableError as error:
                block.append(np.zeros((0, 0, 3), dtype=np.uint8))
                damaged.append(Damaged(i, images.paths[i], str(error)))
            except MemoryError:  # it may be sound, so it is not left out
                raise DataError(
                    f"{path_text(images.paths[i])} needs more memory to be decoded than this "
                    "machine can give; end what else runs on it, or store the image smaller"
                ) from None
        return DecodedBlock(start, block, damaged)

    # Threads and not processes: Pillow lets go of the interpreter's lock while it decodes and
    # scales, and threads need not send pixels to one another.
    pool = ThreadPoolExecutor(max_workers=workers)
    waiting: deque[Future[DecodedBlock]] = deque()
    starts = iter(range(0, len(images), images_in_task))

    def submit_tasks() -> None:  # not all at once: decoded images would fill the memory
        max_tasks = max(1, min(3 * workers, _MAX_BYTES_AHEAD // task_bytes))
        while len(waiting) < max_tasks and (start := next(starts, -1)) >= 0:
            waiting.append(pool.submit(decoded, start))

    try:
        submit_tasks()
        while waiting:
            block = waiting.popleft().result()
            task_bytes = max(task_bytes, sum(image.nbytes for image in block.images))
            submit_tasks()
            yield block
            if on_image is not None:
                on_image(block.start + len(block.images))
    finally:
        pool.shutdown(cancel_futures=True)


def refusal(damaged: Sequence[Damaged], *, advice: str = "") -> DataError:
    """The error about images that cannot be decoded: their number and the first, then *advice*."""
    first = damaged[0]
    one = f"{path_text(first.path)} cannot be decoded: {first.why}"
    what = (
        one if len(damaged) == 1 else f"{len(damaged)} images cannot be decoded; the first: {one}"
    )
    return DataError(
        f"{what}; expected a whole JPEG or PNG image: unpack the dataset again{advice}"
    )


def _read(path: Path, content: str | None) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
    if content is not None and hashlib.sha256(data).hexdigest() != content:
        raise DataError(
            f"{path_text(path)} is not the file whose content was hashed; it was changed in the "
            "meantime: run again when nothing writes to the dataset"
        )
    return data


def _decoded(data: bytes, resize: Resize | OwnTransform) -> NDArray[Any]:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise _UndecodableError(
                    f"it has {image.width} x {image.height} pixels, and {_MAX_PIXELS} are the most"
                )
            if image.mode == "F":
                raise _UndecodableError("its pixels are floating-point numbers of unknown range")
            if image.mode == "I" and np.any(np.asarray(image) >> 16):  # of negative numbers, too
                raise _UndecodableError("its pixels have more than 16 bits")
            if isinstance(resize, Resize):
                return (_square if resize.square else _whole)(image, resize.side)
            _scaled(image, resize.side)
            upright = _upright(image)
    except (_UndecodableError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise _UndecodableError("it is no image of a kind that photos have") from None
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        raise _UndecodableError(reason(error)) from error
    return resize.make(upright)  # out here, where an error of its own is no damage


def _scaled(image: Image.Image, side: int) -> int:
    """The longer side of an image whose shorter one is scaled to *side* pixels."""
    short, long = sorted(image.size)
    long = int(side * long / short)  # rounded down, as torchvision does
    if side * long > _MAX_PIXELS:
        raise _UndecodableError(
            f"it has {image.width} x {image.height} pixels and would have {long} x {side}, and "
            f"{_MAX_PIXELS} are the most"
        )
    return long


def _whole(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """What torchvision's image loader and ``Resize(side)`` make of an image, to the byte."""
    long = _scaled(image, side)
    size = (side, long) if image.width <= image.height else (long, side)
    return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))


def _square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    # Only JPEG has a draft mode. It keeps both sides at least as large as asked for; half of the
    # reduction is left to the better filter below.
    image.draft("RGB", (2 * side, 2 * side))
    # A square crop commutes with turning, so turning is left to the small image.
    square = min(image.size)
    left, top = (image.width - square) / 2, (image.height - square) / 2
    small = _rgb(image).resize(
        (side, side),
        Image.Resampling.BILINEAR,
        box=(left, top, left + square, top + square),
    )
    turn = _UPRIGHT.get(_orientation(image))
    return np.asarray(small if turn is None else small.transpose(turn))


def _upright(image: Image.Image) -> Image.Image:
    """The whole image as people see it."""
    turn = _UPRIGHT.get(_orientation(image))
    colour = _rgb(image)
    return colour.copy() if turn is None else colour.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255, which turns most of a 16-bit image white.
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        colour = image.convert("RGBA")
        white = Image.new("RGBA", colour.size, "white")
        return Image.alpha_composite(white, colour).convert("RGB")
    return image.convert("RGB")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # damaged EXIF is common in collected photos and says nothing of the pixels
        return 1
