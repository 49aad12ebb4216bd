"""The accuracy matrix one level finer: per class, and which class is taken for which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics.from_predictions._base import Predictions


def class_accuracies(predictions: Predictions) -> NDArray[np.float64]:
    """(k + 1, T, classes): accuracy on each class of each bucket; row 0 is the initialisation.

    NaN where the bucket has no test image of the class, where the row's predictions were not
    stored, and where a cell is no evidence under the protocol.
    """
    images = predictions.images
    width, classes = len(images.buckets), len(images.class_names)
    group = images.bucket.astype(np.int64) * classes + images.label
    found = np.full((predictions.k + 1, width, classes), np.nan)
    for row, answer in predictions.answers.items():
        evidence = predictions.evidence(row)
        totals = np.bincount(group[evidence], minlength=width * classes)
        right = np.bincount(group[evidence & answer.hits(images)], minlength=width * classes)
        with np.errstate(invalid="ignore"):
            found[row] = (right / totals).reshape(width, classes)
    return found


def macro_matrix(predictions: Predictions) -> AccuracyMatrix:
    """The accuracy matrix in which every class counts alike: means of :func:`class_accuracies`.

    A class that a bucket has no test image of is left out of that bucket's mean.
    """
    if predictions.k:
        predictions.of_row(predictions.k)
    # Under streaming the last row may hold no evidence: it has to stay a row all the same, so the
    # matrix is made of all cells and then masked.
    everything = Predictions(predictions.images, predictions.answers, num_rows=predictions.k)
    cells = class_accuracies(everything)
    there = ~np.isnan(cells)
    with np.errstate(invalid="ignore"):
        means = np.where(there, cells, 0.0).sum(axis=2) / there.sum(axis=2)
    # A mean of fractions may end a rounding above 1.
    means = np.clip(means, 0.0, 1.0)
    matrix = AccuracyMatrix(means[1:], means[0], buckets=predictions.images.buckets)
    return matrix.masked(predictions.protocol)


def confusion(predictions: Predictions, row: int) -> NDArray[np.int64]:
    """(classes, classes): test images of each true class (row) by predicted class (column).

    Images of all buckets count, those whose answers are evidence under the protocol.
    """
    images, classes = predictions.images, len(predictions.images.class_names)
    evidence = predictions.evidence(row)
    pairs = images.label.astype(np.int64) * classes + predictions.of_row(row).labels
    counts = np.bincount(pairs[evidence], minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)
