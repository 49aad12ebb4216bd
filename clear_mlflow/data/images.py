"""Decoding: image files in, one array of bytes out."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.stream import ImageSet
from clear_mlflow.errors import DataError

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


def decode(
    images: ImageSet,
    *,
    size: int,
    crop_margin: int,
    on_image: Callable[[int], None] | None = None,
) -> NDArray[np.uint8]:
    """Decode every image once: RGB, upright, shorter side scaled, the central square.

    Greyscale, palette and CMYK images become RGB; 16-bit greyscale is scaled to 8 bits; what is
    transparent becomes white; EXIF's orientation is applied. Scaling is bilinear with
    anti-aliasing, after a coarser decoding of JPEGs that are several times too large.

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
    shape = (len(images), side, side, 3)
    try:
        pixels = np.empty(shape, dtype=np.uint8)
    except (MemoryError, ValueError):
        raise DataError(
            f"{len(images)} images of {side} x {side} pixels need {len(images) * side**2 * 3} "
            "bytes, which this machine cannot give; pass a smaller image_size"
        ) from None

    def fill(start: int) -> int:
        stop = min(start + _IMAGES_IN_A_TASK, len(images))
        for i in range(start, stop):
            pixels[i] = _decode_one(images.paths[i], side)
        return stop

    # Threads and not processes: Pillow lets go of the interpreter's lock while it decodes and
    # scales, and threads write into the one array.
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done in pool.map(fill, range(0, len(images), _IMAGES_IN_A_TASK)):
            if on_image is not None:
                on_image(done)
    return pixels


def _decode_one(path: Path, side: int) -> NDArray[np.uint8]:
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise DataError(
                    f"{path_text(path)} has {image.width} x {image.height} pixels; expected "
                    f"{_MAX_PIXELS} at most; scale it down or remove it from the metadata"
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
    except DataError:
        raise
    except Exception as error:  # Pillow has no closed set of exceptions for damaged files
        raise DataError(
            f"{path_text(path)} cannot be decoded: {reason(error)}; expected a whole JPEG or PNG "
            "image: unpack the dataset again"
        ) from error


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
