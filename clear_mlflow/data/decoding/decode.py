"""Decoding: image files in, squares of bytes out.

One fixed geometry: the shorter side is scaled to the model's input plus the crop margin, and the
central square is kept. Squares of one size can be mapped from a file, indexed, moved to a device
and cropped a whole batch at a time; images of their own widths and heights can do none of that.
What is lost is what lies outside the central square, which a centre crop would not show either.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import ImageSet

# Raster formats only: Pillow would hand PostScript to an interpreter.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
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

_DECODER = 1  # to be raised with any change to this module that changes a pixel


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
    images: ImageSet,
    *,
    size: int,
    crop_margin: int,
    on_image: Callable[[int], None] | None = None,
) -> NDArray[np.uint8]:
    """Decode every image once, into memory.

    Args:
        images: N files.
        size: side of the model's input, pixels.
        crop_margin: what a random crop may cut away later, pixels; 0 for none.
        on_image: called in the calling thread with the number of images decoded so far.

    Returns:
        (N, size + crop_margin, size + crop_margin, 3), C-contiguous, in the order of *images*.

    Raises:
        DataError: a file is missing, damaged, no image, or over 89 megapixels; or the images of
            this size do not fit into memory.
    """
    side = size + crop_margin
    try:
        pixels = np.empty((len(images), side, side, 3), dtype=np.uint8)
    except (MemoryError, ValueError):
        raise DataError(
            f"{len(images)} images of {side} x {side} pixels need {len(images) * side**2 * 3} "
            "bytes, which this machine cannot give; pass a smaller image_size"
        ) from None

    def put(start: int, block: NDArray[np.uint8]) -> None:
        pixels[start : start + len(block)] = block

    damaged = decode_blocks(images, side=side, put=put, on_image=on_image)
    if damaged:
        raise refusal(damaged)
    return pixels


def decode_blocks(
    images: ImageSet,
    *,
    side: int,
    put: Callable[[int, NDArray[np.uint8]], None],
    on_image: Callable[[int], None] | None = None,
) -> tuple[Damaged, ...]:
    """Decode every image once: RGB, upright, shorter side scaled, the central square.

    Greyscale, palette and CMYK images become RGB; 16-bit greyscale is scaled to 8 bits; what is
    transparent becomes white; EXIF's orientation is applied. Scaling is bilinear with
    anti-aliasing, after a coarser decoding of JPEGs that are several times too large.

    Args:
        images: N files. Where their contents are known, a file that has changed since is refused:
            what is decoded is what was hashed.
        side: of the squares, pixels.
        put: takes a position and the squares (n, side, side, 3) that begin there; called from
            several threads at once, in any order.
        on_image: called in the calling thread with the number of images decoded so far.

    Returns:
        What cannot be decoded, in order; its squares are black.

    Raises:
        DataError: a file is missing, cannot be read, or has changed since it was hashed.
    """

    def fill(start: int) -> list[Damaged]:
        stop = min(start + _IMAGES_IN_A_TASK, len(images))
        block = np.zeros((stop - start, side, side, 3), dtype=np.uint8)
        damaged = []
        for i in range(start, stop):
            content = _read(images.paths[i], images.contents[i] if images.contents else None)
            try:
                block[i - start] = _square(content, side)
            except _UndecodableError as error:
                damaged.append(Damaged(i, images.paths[i], str(error)))
        put(start, block)
        return damaged

    found: list[Damaged] = []
    starts = range(0, len(images), _IMAGES_IN_A_TASK)
    # Threads and not processes: Pillow lets go of the interpreter's lock while it decodes and
    # scales, and threads need not send pixels to one another.
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        for start, damaged in zip(starts, pool.map(fill, starts), strict=True):
            found += damaged
            if on_image is not None:
                on_image(min(start + _IMAGES_IN_A_TASK, len(images)))
    finally:
        pool.shutdown(cancel_futures=True)
    return tuple(found)


def refusal(damaged: Sequence[Damaged], *, advice: str = "") -> DataError:
    """The error about images that cannot be decoded: all are counted and the first is named.

    Args:
        damaged: one image or more.
        advice: what else the caller's user can do, to follow "unpack the dataset again".
    """
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


def _square(data: bytes, side: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise _UndecodableError(
                    f"it has {image.width} x {image.height} pixels, and {_MAX_PIXELS} are the most"
                )
            # Only JPEG has a draft mode. It keeps both sides at least as large as asked for; half
            # of the reduction is left to the better filter below.
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
    except (_UndecodableError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise _UndecodableError("it is no image of a kind that photos have") from None
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        raise _UndecodableError(reason(error)) from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255, which turns most of a 16-bit image white.
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its pixels have more than 16 bits")
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
