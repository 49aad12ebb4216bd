"""The embedded dataset without made drift: handwritten digits, a bucket for every two sheets.

The 1,797 scans of scikit-learn, 8 x 8 pixels of 17 grey levels, as they are and in the order in
which they are stored. Their labels say how they were collected: one sequence of 130 digits is
repeated fourteen times, with a few digits missing and one another. So there are fourteen sheets,
each from one hand; UCI's page counts 13 people. Two sheets in a row are a bucket, seven buckets in
all. What changes from bucket to bucket is who wrote, and nothing else: it is writer shift, not
years.

Of each class of a bucket, three scans in ten are for testing, along both sheets. Every scan is in
one bucket, and there in its training or in its test set.

Source:
    As of :mod:`clear_mlflow.data.embedded.digits`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from clear_mlflow.data.embedded._scans import CLASSES, ReleasedWriter, load_scans

FOLDER = "digits-writers-v1"  # another design needs another name, as for the digits
DIGEST = "sha256:c17e1cc0ac3a533eec9cae8e7460fe1a83dca537eb39492d2faca16d80c5d707"

# Where the sheets begin: the sequence of labels starts again, 0123456789 three times over (in the
# eighth without its first 0, in the thirteenth without one 7 and one 8).
SHEETS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
SHEETS_PER_BUCKET = 2

_TESTED = (1, 4, 8)  # of every ten scans of a class


def write(root: Path) -> None:
    """Write the dataset in the released layout; *root* does not exist yet."""
    scans, labels = load_scans()
    grey = (scans * 255 // 16).astype(np.uint8)
    pixels = np.repeat(grey[..., np.newaxis], 3, axis=-1)
    starts = [*SHEETS[::SHEETS_PER_BUCKET], len(labels)]
    writer = ReleasedWriter(root, CLASSES)
    for bucket, (first, end) in enumerate(pairwise(starts)):
        for label in range(len(CLASSES)):
            own = first + np.flatnonzero(labels[first:end] == label)
            tested = np.isin(np.arange(len(own)) % 10, _TESTED)
            for split, taken in (("train", own[~tested]), ("test", own[tested])):
                writer.add(split, str(bucket + 1), label, taken, pixels[taken])
    writer.finish()
