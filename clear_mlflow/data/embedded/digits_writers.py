"""The embedded dataset without made drift: handwritten digits, a bucket for every two sheets.

The scans of :mod:`clear_mlflow.data.embedded.digits`, 8 x 8 pixels, in the order in which they are
stored: fourteen sheets of one hand each, so that from bucket to bucket the writer changes and
nothing else. Three scans in ten of each class are for testing; every scan is in one bucket.

Source:
    As of :mod:`clear_mlflow.data.embedded.digits`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from clear_mlflow.data.embedded._scans import CLASSES, load_scans, write_images

FOLDER = "digits-writers-v2"  # another design needs another name, as for the digits
DIGEST = "sha256:c17e1cc0ac3a533eec9cae8e7460fe1a83dca537eb39492d2faca16d80c5d707"

# Where the sheets begin: the sequence of labels starts again, 0123456789 three times over (in the
# eighth without its first 0, in the thirteenth without one 7 and one 8).
SHEETS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
SHEETS_PER_BUCKET = 2

_TESTED = (1, 4, 8)  # of every ten scans of a class


def write(root: Path) -> None:
    """Write a folder for each class of each bucket; *root* does not exist yet."""
    scans, labels = load_scans()
    grey = (scans * 255 // 16).astype(np.uint8)
    pixels = np.repeat(grey[..., np.newaxis], 3, axis=-1)
    starts = [*SHEETS[::SHEETS_PER_BUCKET], len(labels)]
    for bucket, (first, end) in enumerate(pairwise(starts)):
        for label in range(len(CLASSES)):
            own = first + np.flatnonzero(labels[first:end] == label)
            tested = np.isin(np.arange(len(own)) % 10, _TESTED)
            for split, taken in (("train", own[~tested]), ("test", own[tested])):
                folder = root / split / str(bucket + 1) / CLASSES[label]
                write_images(folder, taken, pixels[taken])
