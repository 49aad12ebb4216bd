"""Stored predictions as a page carries them: as few bytes as say how often which class was taken.

Of every bucket and true class, the page needs how many images got each predicted class, and not
which ones. So the predicted classes of a row are sorted by bucket, true class and themselves, one
number an image, and compressed: sorted numbers are mostly runs. What belongs to which bucket and
class follows from the totals, which are the same for all rows.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.text import one_line
from clear_mlflow.metrics import Predictions

# In base64: a page of both is below two megabytes.
MOST_BYTES = 1_500_000
# Of more classes, which is taken for which fills no table that a person reads.
MOST_CLASSES = 1000
_LONGEST_NAME = 60


def packed_answers(predictions: Predictions) -> dict[str, Any]:
    """Classes, totals ((T, classes) uint32), answers of rows that fit, deflated, in base64."""
    images = predictions.images
    classes = len(images.class_names)
    wide = classes > 256
    group = images.bucket.astype(np.int64) * classes + images.label
    totals = _packed(images.class_counts.astype("<u4"))
    rows: dict[int, str] = {}
    room = MOST_BYTES - len(totals)
    for row in sorted(predictions.rows, reverse=True):
        ordered = np.sort(group * classes + predictions.rows[row].labels) % classes
        text = _packed(ordered.astype("<u2" if wide else "u1"))
        room -= len(text)
        if room < 0:
            break
        rows[row] = text
    names = [one_line(name, _LONGEST_NAME) for name in images.class_names]
    return {"classes": names, "wide": wide, "totals": totals, "rows": rows}


def _packed(numbers: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(numbers.tobytes(), 9)).decode("ascii")
