"""The features that every dataset has: its images, made small, as numbers around zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.data.decoding.decode import Resize
from clear_mlflow.data.decoding.decoded_cache import DECODED_FOLDER, DecodedCache
from clear_mlflow.data.stream import ImageSet

PIXELS = "pixels"  # their name; no others may have it
SIDE = 16  # of the small image; wider would make a covariance of pixels large and no better
WIDTH = SIDE * SIDE * 3


def pixel_features(
    images: ImageSet, *, cache_dir: Path, on_image: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """(N, 768), float32: the central square at 16 x 16 pixels of 3 colours, line by line.

    A byte b becomes (b - 127.5) / 510, a number from -1/4 to 1/4: no statistic of any data, and a
    length of which a linear head learns at the rate that CLEAR's paper uses.
    """
    cache = DecodedCache(cache_dir / DECODED_FOLDER)
    decoded = cache.images(images, Resize(SIDE, square=True), on_image=on_image)
    features = decoded.pixels.reshape(len(images), WIDTH).astype(np.float32)
    features -= np.float32(127.5)  # exact, as all such differences are
    features /= np.float32(510)
    return features
