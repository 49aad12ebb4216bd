"""Records of predictions before training, and slow versions of what is computed from them."""

from collections import Counter

import numpy as np

from clear_mlflow.core.batch_record import PrequentialRecord
from clear_mlflow.metrics.prequential import BLIND_WINDOWS


def build_record(labels, sizes, *, bucket=None, distances=(0,), correct=None, buckets="ab"):
    """Return a record of batches of these sizes, of one bucket unless *bucket* names others."""
    sizes = np.array(sizes, np.int64)
    if correct is None:
        correct = [[0 if t >= d else -1 for d in distances] for t in range(len(sizes))]
    times = 1_000_000 + 86_400 * np.arange(len(sizes))
    return PrequentialRecord(
        distances=tuple(distances),
        buckets=tuple(buckets),
        bucket=np.array([0] * len(sizes) if bucket is None else bucket, np.uint16),
        size=sizes,
        first_time=times,
        last_time=times + 3600,
        label=np.array(labels, np.uint16),
        correct=np.array(correct, np.int64),
    )


def measure_blind(labels, sizes, distance, window):
    """Return the accuracy of one blind classifier, image by image."""
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    hits = total = 0
    for t in range(distance, len(sizes)):
        labels_before = labels[: starts[t - distance]][-window:]
        counts = Counter(labels_before)
        guess = min(counts, key=lambda label: (-counts[label], label)) if counts else None
        batch = labels[starts[t] : starts[t] + sizes[t]]
        hits += sum(label == guess for label in batch)
        total += len(batch)
    return hits / total


def measure_best_blind(labels, sizes, distance):
    """Return the accuracy of the best blind classifier."""
    return max(measure_blind(labels, sizes, distance, window) for window in BLIND_WINDOWS)
