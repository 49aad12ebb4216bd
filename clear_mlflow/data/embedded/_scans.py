"""The scans that the embedded datasets are made of, and the files that they become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = tuple("0123456789")


def load_scans() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The scans in the order in which they are stored, (1797, 8, 8), 0 to 16, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.int64), digits.target.astype(np.int64)


def write_images(folder: Path, numbers: NDArray[np.int64], pixels: NDArray[np.uint8]) -> None:
    """Write *pixels* (N, height, width, 3) of the scans with these *numbers* (N,)."""
    folder.mkdir(parents=True)
    for number, image in zip(numbers.tolist(), pixels, strict=True):
        Image.fromarray(image).save(folder / f"{number}.bmp", dpi=(72, 72))
