"""The embedded dataset: handwritten digits whose appearance drifts from bucket to bucket.

Each of scikit-learn's scans is in one bucket, so that no two images show the same scan. Images have
32 x 32 pixels: along the stream the digits turn, strokes become bolder, the contrast decreases, and
a shade increases; neighbouring buckets overlap. All arithmetic on pixels uses integers and the
files are BMP, so that the digest is the same on every machine.

Source:
    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, 1998, doi:10.24432/C50P49 (CC BY 4.0); its test set, from
    ``sklearn.datasets.load_digits``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FOLDER = "digits-v3"  # a changed design needs a new name, because old caches remain
DIGEST = "sha256:f2e515223b626620892565102d684e8bf9cebab3267eec37345ad320527a5319"

BUCKETS = 10
PER_CLASS = 17  # scans of a class in a bucket; the rarest class has 174, and the rest is unused
CLASSES = tuple("0123456789")

_SIDE = 32
_SCAN_SIDE = 8
_SEED = 20220619
_ONE = 1 << 16  # 1.0 in fixed point

_UNIT = 64  # one bucket's step along the drift
_END = (BUCKETS - 1) * _UNIT
_JITTER = 1.25  # largest distance of an image from its bucket's position, in buckets

# Colours (red, green, blue) at the positions of buckets 1, 4, 7 and 10; linear in between.
_INK = ((236, 236, 236), (244, 214, 120), (236, 140, 72), (140, 40, 64))
_GROUND = ((12, 12, 24), (36, 56, 104), (84, 124, 136), (172, 176, 148))
_DEGREES = (-30, 30)  # clockwise, at the positions of the first and the last bucket
_THRESHOLD = (7 * 256, 3 * 256)  # grey level, of 16 * 256, at which ink begins
_RAMP = 4 * 256  # grey levels from no ink to full ink
_SHADE = (0, 60)  # levels that the background changes by, from corner to corner


def load_scans() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the scans, (1797, 8, 8), 0 to 16, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.int64), digits.target.astype(np.int64)


def write_images(folder: Path, numbers: NDArray[np.int64], pixels: NDArray[np.uint8]) -> None:
    """Write *pixels* (N, height, width, 3) of scans as .bmp.

    Files are ``NUMBER.bmp`` in *folder*, which must not exist.
    """
    folder.mkdir(parents=True)
    for number, image in zip(numbers.tolist(), pixels, strict=True):
        Image.fromarray(image).save(folder / f"{number}.bmp", dpi=(72, 72))


def write(root: Path) -> None:
    """Write ``SPLIT/BUCKET/CLASS/NUMBER.bmp`` below *root*, which must not exist."""
    scans, labels = load_scans()
    by_class = [np.flatnonzero(labels == label) for label in range(len(CLASSES))]
    is_test = np.arange(PER_CLASS) % 3 == 2  # five of 17
    for bucket in range(BUCKETS):
        for label, all_numbers in enumerate(by_class):
            selected = all_numbers[bucket::BUCKETS][:PER_CLASS]
            for split, numbers in (("train", selected[~is_test]), ("test", selected[is_test])):
                folder = root / split / str(bucket + 1) / CLASSES[label]
                write_images(folder, numbers, _render(scans[numbers], numbers, bucket))


def _render(scans: NDArray[np.int64], numbers: NDArray[np.int64], bucket: int) -> NDArray[np.uint8]:
    """Render a bucket's scans to (N, 32, 32, 3), red first."""
    draws = np.array([_draw_numbers(number, bucket) for number in numbers.tolist()])
    # From here on all numbers are integers, except each scan's angle and size, which are rounded
    # before a pixel depends on them.
    position = np.clip(
        bucket * _UNIT + np.rint(draws[:, 0] * _JITTER * _UNIT).astype(np.int64), 0, _END
    )
    grey = _warp(
        scans,
        degrees=_interpolate(_DEGREES, position) + np.rint(draws[:, 1] * 6),
        scale=_SIDE / _SCAN_SIDE * (0.92 + 0.08 * draws[:, 2]),
        shift=np.rint(draws[:, 3:] * 3).astype(np.int64),
    )
    threshold = _interpolate(_THRESHOLD, position)[:, np.newaxis, np.newaxis]
    ink = np.clip((grey - threshold) * 255 // _RAMP, 0, 255)[..., np.newaxis]
    steps = np.arange(_SIDE) - _SIDE // 2
    corner_to_corner = (steps[:, np.newaxis] + steps)[..., np.newaxis]
    shade = corner_to_corner * _interpolate(_SHADE, position)[:, np.newaxis, np.newaxis, np.newaxis]
    ground = _mix_colour(_GROUND, position) + shade // (2 * _SIDE)
    pixels: NDArray[np.int64] = (ground * (255 - ink) + _mix_colour(_INK, position) * ink) // 255
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _draw_numbers(number: int, bucket: int) -> list[float]:
    # numpy promises that the raw words of a bit generator never change.
    raw = np.random.PCG64([_SEED, bucket, number]).random_raw(5)
    return [(word >> 11) / 2.0**52 - 1.0 for word in raw.tolist()]


def _interpolate(ends: tuple[int, int], position: NDArray[np.int64]) -> NDArray[np.int64]:
    """Interpolate linearly in integers, (N,).

    position: (N,), 0 to _END.
    """
    first, last = ends
    value: NDArray[np.int64] = first + (last - first) * position // _END
    return value


def _mix_colour(
    colours: tuple[tuple[int, int, int], ...], position: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Interpolate colours, (N, 1, 1, 3).

    position: (N,), 0 to _END.
    """
    span = _END // (len(colours) - 1)
    start = np.minimum(position // span, len(colours) - 2)
    step = (position - start * span)[:, np.newaxis]
    table = np.array(colours)
    mixed: NDArray[np.int64] = (table[start] * (span - step) + table[start + 1] * step) // span
    return mixed[:, np.newaxis, np.newaxis, :]


def _warp(
    scans: NDArray[np.int64],
    *,
    degrees: NDArray[np.float64],  # (N,), clockwise
    scale: NDArray[np.float64],  # (N,), pixels of the image for each pixel of the scan
    shift: NDArray[np.int64],  # (N, 2), to the left and upwards, in half pixels
) -> NDArray[np.int64]:
    """Turn, enlarge and move scans to (N, 32, 32), 0 to 4096."""
    angle = np.radians(degrees)
    # The source's step, in fixed point, for half a pixel of the image.
    along = np.rint(_ONE * np.cos(angle) / scale / 2).astype(np.int64)[:, np.newaxis, np.newaxis]
    across = np.rint(_ONE * np.sin(angle) / scale / 2).astype(np.int64)[:, np.newaxis, np.newaxis]
    half_pixels = 2 * np.arange(_SIDE) - (_SIDE - 1)
    x = half_pixels + shift[:, :1, np.newaxis]
    y = half_pixels[:, np.newaxis] + shift[:, 1:, np.newaxis]
    centre = (_SCAN_SIDE - 1) * _ONE // 2
    column = centre + along * x + across * y
    row = centre - across * x + along * y

    margin = _SCAN_SIDE
    padded = np.pad(scans, ((0, 0), (margin, margin), (margin, margin)))
    scan_index = np.arange(len(scans))[:, np.newaxis, np.newaxis]
    x0, y0 = column // _ONE + margin, row // _ONE + margin
    right, down = column % _ONE // 256, row % _ONE // 256  # the neighbours' weights, of 256
    upper, lower = (
        padded[scan_index, r, x0] * (256 - right) + padded[scan_index, r, x0 + 1] * right
        for r in (y0, y0 + 1)
    )
    grey: NDArray[np.int64] = (upper * (256 - down) + lower * down) // 256
    return grey
