"""Accuracy on batches before training on them, next to blind classifiers.

Batches arrive in the order of time. Before step t, the model predicts batch t (distance 0: online
accuracy) and batch t + D (distance D: near-future accuracy), and then it trains on batch t. A value
counts each training image of the k buckets once, without the first D batches, for which no model
existed D batches before.

A label often repeats the labels before it, and a model that only repeats them has a high online
accuracy. Therefore each value has the best blind classifier next to it, which predicts the
most frequent of the last K labels that the model has seen, for the best K of 1, 10, 100 and 1000
(of several, the class with the lowest index). At distance 0 and with batches of one image, K = 1
repeats the label before. Where the blind classifiers are not better than the most frequent class,
labels are not correlated any more, and the accuracy was learned from the images.

Source: Hammoud et al., Rapid Adaptation in Online Continual Learning: Are We Evaluating It Right?,
ICCV 2023, arXiv:2305.09275, for near-future accuracy and blind classifiers. That distances are
numbers of batches, and the values of K, are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.batch_record import DISTANCES, PrequentialRecord
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics._metric import PREQUENTIAL, Metric, declare

BLIND_WINDOWS = (1, 10, 100, 1000)  # number of labels, K
_MAX_DISTANCE = 1000  # batches; at larger ones, correlation of labels is not looked for


def accuracy(record: PrequentialRecord, distance: int) -> float:
    """Accuracy on each batch of the model before training on it.

    Formula: images predicted right / images, over batches t >= D, by the model before step t - D,
    with D = 0. Defined when k >= 1.
    """
    correct, sizes = record.select_counts(distance)
    return float(correct.sum() / sizes.sum())


def near_future(record: PrequentialRecord, distance: int) -> float:
    """Accuracy on each batch of the model D batches earlier.

    Formula: images predicted right / images, over batches t >= D, by the model before step t - D.
    Defined when k >= 1 and there are more than D batches.
    """
    return accuracy(record, distance)


def blind(record: PrequentialRecord, distance: int) -> float:
    """Accuracy of the best classifier that repeats labels without seeing images.

    Formula: max over K of (images of the class that is most frequent among the last K labels before
    batch t - D / images), over batches t >= D. Defined when k >= 1 and there are more than D
    batches.
    """
    record.select_counts(distance)
    return _BlindClassifiers.build(record).measure_best(distance)


def most_frequent_class(record: PrequentialRecord) -> float:
    """Share of the most frequent class among all training images so far.

    Formula: images of the most frequent class / images. Defined when k >= 1.
    """
    record.select_counts(record.distances[0])
    return _BlindClassifiers.build(record).measure_mode(0)


def label_correlation(record: PrequentialRecord) -> float:
    """Smallest distance in batches at which earlier labels predict no labels.

    Formula: smallest D at which blind_D <= share of the most frequent class of all k buckets, both
    over batches t >= D. Defined when k >= 1 and there is such a D of up to 1000 batches.
    """
    record.select_counts(record.distances[0])
    blind_classifiers = _BlindClassifiers.build(record)
    stop = min(len(record.size), _MAX_DISTANCE + 1)
    for distance in range(stop):
        if blind_classifiers.measure_best(distance) <= blind_classifiers.measure_mode(distance):
            return float(distance)
    raise UndefinedMetricError(
        f"at each distance up to {stop - 1} batches, labels seen before predict labels better than "
        "the most frequent class does"
    )


@dataclass(frozen=True, eq=False)
class _BlindClassifiers:
    """The classes that blind classifiers predict for B batches, and the labels."""

    sizes: NDArray[np.int64]  # (B,), images of each batch
    predicted: NDArray[np.int64]  # (windows, B), class predicted before each batch; -1 without any
    mode: int  # most frequent class of all batches
    num_classes: int
    # Batch and class as one number, for each that occur together, ascending; and their images.
    pairs: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    @lru_cache(maxsize=1)  # for all metrics of one record
    def build(cls, record: PrequentialRecord) -> _BlindClassifiers:
        """Find the most frequent classes of the windows before each batch."""
        labels, num_classes = record.label.astype(np.int64), int(record.label.max()) + 1
        starts = np.cumsum(record.size) - record.size
        predicted = [
            [
                int(np.bincount(labels[max(0, start - window) : start]).argmax())
                for start in starts[1:]
            ]
            for window in BLIND_WINDOWS
        ]
        batches = np.repeat(np.arange(len(starts)), record.size)
        pairs, counts = np.unique(batches * num_classes + labels, return_counts=True)
        return cls(
            sizes=record.size,
            predicted=np.array([[-1, *row] for row in predicted]),
            mode=int(np.bincount(labels).argmax()),
            num_classes=num_classes,
            pairs=pairs,
            counts=counts,
        )

    def measure_best(self, distance: int) -> float:
        """Return the accuracy of the best window at a distance below B."""
        return max(self._score(row[: len(row) - distance], distance) for row in self.predicted)

    def measure_mode(self, distance: int) -> float:
        """Return the accuracy of the most frequent class on the same batches."""
        return self._score(np.full(len(self.sizes) - distance, self.mode), distance)

    def _score(self, predicted: NDArray[np.int64], distance: int) -> float:
        """Return the accuracy of one class for each batch from *distance* on."""
        codes = np.arange(distance, len(self.sizes)) * self.num_classes + predicted
        indices = np.minimum(np.searchsorted(self.pairs, codes), len(self.pairs) - 1)
        is_present = (self.pairs[indices] == codes) & (predicted >= 0)
        return float(self.counts[indices][is_present].sum() / self.sizes[distance:].sum())


def _declare_at_distance(name: str, function: Callable[..., float], distance: int) -> Metric:
    """Declare a metric that runs without predictions at *distance* skip."""
    return Metric(
        name=f"prequential/{name}",
        function=partial(function, distance=distance),
        needs=PREQUENTIAL,
        higher_is_better=None if function is blind else True,
        rank_priority=None if function is blind else 0,
        skip_if=lambda record: distance not in record.distances,
    )


METRICS = (
    _declare_at_distance("accuracy", accuracy, 0),
    _declare_at_distance("blind_0", blind, 0),
    *(
        _declare_at_distance(f"{function.__name__}_{distance}", function, distance)
        for distance in DISTANCES[1:]
        for function in (near_future, blind)
    ),
    declare(most_frequent_class, needs=PREQUENTIAL, higher_is_better=None, rank_priority=None),
    declare(
        label_correlation,
        needs=PREQUENTIAL,
        higher_is_better=None,
        rank_priority=None,
        unit="batches",
    ),
)
