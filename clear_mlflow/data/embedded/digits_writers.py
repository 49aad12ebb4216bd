"""The embedded dataset without artificial drift: handwritten digits, two sheets in each bucket.

The scans of :mod:`clear_mlflow.data.embedded.digits`, 8 x 8 pixels, in stored order: fourteen
sheets, each by one writer, so that only the writer changes from bucket to bucket. Three of ten
scans of each class are test images; every scan is in one bucket.

Source:
    See :mod:`clear_mlflow.data.embedded.digits`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from clear_mlflow.data.embedded.digits import CLASSES, load_scans, write_images

FOLDER = "digits-writers-v2"  # a changed design needs a new name, because old caches remain
DIGEST = "sha256:c17e1cc0ac3a533eec9cae8e7460fe1a83dca537eb39492d2faca16d80c5d707"

# The first scan of each sheet, where the sequence of labels starts again: 0123456789 three times
# (in the eighth without its first 0, in the thirteenth without one 7 and one 8).
SHEETS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
SHEETS_PER_BUCKET = 2

_TEST_SCANS = (1, 4, 8)  # of every ten scans of a class


def write(root: Path) -> None:
    """Write ``SPLIT/BUCKET/CLASS/NUMBER.bmp`` below *root*, which must not exist."""
    scans, labels = load_scans()
    grey = (scans * 255 // 16).astype(np.uint8)
    pixels = np.repeat(grey[..., np.newaxis], 3, axis=-1)
    starts = [*SHEETS[::SHEETS_PER_BUCKET], len(labels)]
    for bucket, (first, end) in enumerate(pairwise(starts)):
        for label in range(len(CLASSES)):
            selected = first + np.flatnonzero(labels[first:end] == label)
            is_test = np.isin(np.arange(len(selected)) % 10, _TEST_SCANS)
            for split, numbers in (("train", selected[~is_test]), ("test", selected[is_test])):
                folder = root / split / str(bucket + 1) / CLASSES[label]
                write_images(folder, numbers, pixels[numbers])
