"""The embedded dataset: handwritten digits whose look drifts from bucket to bucket.

Scikit-learn's scans are dealt out to the buckets, each to one, so that no two images show the same
scan. A bucket shows its own at 32 x 32 pixels: along the stream the digits turn, strokes grow
bolder, the contrast falls, and a shade grows; neighbours overlap. All arithmetic on pixels is on
integers and the files are BMP: the digest is the same on every machine.

Source:
    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, 1998, doi:10.24432/C50P49 (CC BY 4.0); its test set, as
    ``sklearn.datasets.load_digits`` gives it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.data.embedded._scans import CLASSES, load_scans, write_images

FOLDER = "digits-v3"  # another design needs another name, or old caches are read as the new data
DIGEST = "sha256:f2e515223b626620892565102d684e8bf9cebab3267eec37345ad320527a5319"

BUCKETS = 10
PER_CLASS = (
    17  # scans of a class in a bucket; the rarest class has 174, and what is over is left out
)

_SIDE = 32
_SCAN_SIDE = 8
_SEED = 20220619
_ONE = 1 << 16  # 1.0 in fixed point

_UNIT = 64  # one bucket's step along the drift
_END = (BUCKETS - 1) * _UNIT
_SPREAD = 1.25  # how far images lie from their bucket's place, in buckets

# Colours (red, green, blue) at the places of buckets 1, 4, 7 and 10; straight lines between.
_INK = ((236, 236, 236), (244, 214, 120), (236, 140, 72), (140, 40, 64))
_GROUND = ((12, 12, 24), (36, 56, 104), (84, 124, 136), (172, 176, 148))
_DEGREES = (-30, 30)  # clockwise, at the first bucket's place and at the last one's
_THRESHOLD = (7 * 256, 3 * 256)  # grey level, of 16 * 256, at which ink begins
_RAMP = 4 * 256  # grey levels from no ink to full ink
_SHADE = (0, 60)  # levels that the background changes by, from corner to corner


def write(root: Path) -> None:
    """Write a folder for each class of each bucket; *root* does not exist yet."""
    scans, labels = load_scans()
    by_class = [np.flatnonzero(labels == label) for label in range(len(CLASSES))]
    tested = np.arange(PER_CLASS) % 3 == 2  # five, which leave twelve to train on
    for bucket in range(BUCKETS):
        for label, of_class in enumerate(by_class):
            own = of_class[bucket::BUCKETS][:PER_CLASS]
            for split, taken in (("train", own[~tested]), ("test", own[tested])):
                folder = root / split / str(bucket + 1) / CLASSES[label]
                write_images(folder, taken, _shown(scans[taken], taken, bucket))


def _shown(scans: NDArray[np.int64], numbers: NDArray[np.int64], bucket: int) -> NDArray[np.uint8]:
    """Scans as a bucket shows them: (N, 8, 8), 0 to 16, to (N, 32, 32, 3), red first."""
    draws = np.array([_own_draws(number, bucket) for number in numbers.tolist()])
    # From here on whole numbers, but for the angle and the size of each scan, which are rounded
    # before a pixel depends on them.
    place = np.clip(
        bucket * _UNIT + np.rint(draws[:, 0] * _SPREAD * _UNIT).astype(np.int64), 0, _END
    )
    grey = _warped(
        scans,
        degrees=_between(_DEGREES, place) + np.rint(draws[:, 1] * 6),
        scale=_SIDE / _SCAN_SIDE * (0.92 + 0.08 * draws[:, 2]),
        shift=np.rint(draws[:, 3:] * 3).astype(np.int64),
    )
    threshold = _between(_THRESHOLD, place)[:, np.newaxis, np.newaxis]
    ink = np.clip((grey - threshold) * 255 // _RAMP, 0, 255)[..., np.newaxis]
    steps = np.arange(_SIDE) - _SIDE // 2
    corner_to_corner = (steps[:, np.newaxis] + steps)[..., np.newaxis]
    shade = corner_to_corner * _between(_SHADE, place)[:, np.newaxis, np.newaxis, np.newaxis]
    ground = _colour(_GROUND, place) + shade // (2 * _SIDE)
    pixels: NDArray[np.int64] = (ground * (255 - ink) + _colour(_INK, place) * ink) // 255
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _own_draws(number: int, bucket: int) -> list[float]:
    """Five numbers in [-1, 1) for a scan in a bucket."""
    # The raw words of a bit generator are what numpy promises never to change.
    raw = np.random.PCG64([_SEED, bucket, number]).random_raw(5)
    return [(word >> 11) / 2.0**52 - 1.0 for word in raw.tolist()]


def _between(ends: tuple[int, int], place: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value at each place of the drift: (N,) to (N,)."""
    first, last = ends
    value: NDArray[np.int64] = first + (last - first) * place // _END
    return value


def _colour(
    colours: tuple[tuple[int, int, int], ...], place: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The colour at each place of the drift: (N,) to (N, 1, 1, 3)."""
    span = _END // (len(colours) - 1)
    start = np.minimum(place // span, len(colours) - 2)
    step = (place - start * span)[:, np.newaxis]
    table = np.array(colours)
    mixed: NDArray[np.int64] = (table[start] * (span - step) + table[start + 1] * step) // span
    return mixed[:, np.newaxis, np.newaxis, :]


def _warped(
    scans: NDArray[np.int64],
    *,
    degrees: NDArray[np.float64],  # (N,), clockwise
    scale: NDArray[np.float64],  # (N,), pixels of the image for one of the scan
    shift: NDArray[np.int64],  # (N, 2), to the left and up, in half pixels
) -> NDArray[np.int64]:
    """Scans turned, enlarged and moved: (N, 8, 8), 0 to 16, to (N, 32, 32), 0 to 16 * 256."""
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
    which = np.arange(len(scans))[:, np.newaxis, np.newaxis]
    left, up = column // _ONE + margin, row // _ONE + margin
    right, down = column % _ONE // 256, row % _ONE // 256  # the neighbours' weights, of 256
    upper, lower = (
        padded[which, r, left] * (256 - right) + padded[which, r, left + 1] * right
        for r in (up, up + 1)
    )
    grey: NDArray[np.int64] = (upper * (256 - down) + lower * down) // 256
    return grey
