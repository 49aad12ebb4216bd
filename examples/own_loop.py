"""Your own loop: three lines make a tracked run of it, whatever it trains and however.

``python examples/own_loop.py`` (seconds) trains scikit-learn's linear classifier on five buckets of
scans, each turned further than the one before. ``clear_mlflow.track`` opens a run, or joins the
active one; a row is in MLflow when ``log_counts`` returns; after the block the rows are scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import clear_mlflow

NUM_BUCKETS, NUM_TEST, TURN = 5, 100, 15  # degrees from one bucket to the next


class Part(NamedTuple):
    """Images as lines of pixels, and their classes."""

    pixels: np.ndarray
    labels: np.ndarray


def stream() -> list[tuple[Part, Part]]:
    """Each bucket's training and test part; no scan is in two of them."""
    scans, labels = load_digits(return_X_y=True)
    parts = []
    for bucket in range(NUM_BUCKETS):
        own = np.arange(bucket, len(scans), NUM_BUCKETS)
        turned = rotate(
            scans[own].reshape(-1, 8, 8), TURN * bucket, axes=(1, 2), reshape=False, order=1
        )
        pixels = turned.reshape(len(own), -1) / 16
        train = Part(pixels[NUM_TEST:], labels[own[NUM_TEST:]])
        parts.append((train, Part(pixels[:NUM_TEST], labels[own[:NUM_TEST]])))
    return parts


def rows(*, replays: bool, seed: int) -> Iterator[tuple[int, list[int]]]:
    """The loop itself: after each bucket, correct answers on every bucket's test part."""
    parts = stream()
    model = SGDClassifier(loss="log_loss", random_state=seed)
    past: list[Part] = []
    for trained, (train, _) in enumerate(parts, start=1):
        for _ in range(5):  # passes
            for part in [train, *past] if replays else [train]:
                model.partial_fit(part.pixels, part.labels, classes=np.arange(10))
        past.append(Part(train.pixels[:50], train.labels[:50]))
        yield trained, [int((model.predict(t.pixels) == t.labels).sum()) for _, t in parts]


def main() -> None:
    """Track one run."""
    with clear_mlflow.track(
        buckets=NUM_BUCKETS, num_instances=NUM_TEST, dataset="turned scans", strategy="replay"
    ) as run:
        for trained, correct in rows(replays=True, seed=0):
            run.log_counts(trained, correct)

    print(run.matrix.values)
    for name, metric in run.metrics.items():
        print(f"{name:32} {metric.text} {metric.note}")


if __name__ == "__main__":
    main()
