"""The stored predictions of a run, and the accuracy matrix per class that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, check_protocol
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.core.text import safe_repr


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of one run for all test images, row by row.

    Args:
        images: test images of all buckets, with their labels.
        rows: number of buckets trained to the predictions then; 0 is the untrained model. Rows may
            be missing.
        protocol: ``iid``, or ``streaming``, under which images of trained buckets do not count.
        num_rows: number of buckets trained, k; the highest row if None.

    Raises:
        RecordError: a row's predictions belong to another row or other images, or there are none.
    """

    images: EvaluationSet
    rows: Mapping[int, RowPredictions]
    protocol: str = "iid"
    num_rows: int | None = None

    def __post_init__(self) -> None:
        """Check all predictions, sort them, and set *num_rows* if None."""
        check_protocol(self.protocol)
        for row, predictions in self.rows.items():
            if predictions.row != row:
                raise RecordError(
                    f"predictions of row {predictions.row} are stored under row {row}"
                )
            predictions.check(self.images)
        if self.num_rows is None:
            if not self.rows:
                raise RecordError("got no predictions; expected predictions of at least one row")
            object.__setattr__(self, "num_rows", max(self.rows))
        ordered = {row: self.rows[row] for row in sorted(self.rows)}
        object.__setattr__(self, "rows", MappingProxyType(ordered))

    @property
    def k(self) -> int:
        """Number of buckets trained, which is the number of the last row."""
        return self.num_rows or 0

    def check(self, matrix: AccuracyMatrix) -> None:
        """Raise RecordError if the predictions contradict an accuracy matrix.

        They do if their buckets or numbers of images differ, or an accuracy computed from them.
        """
        images, counts = self.images, np.array(self.images.num_instances)
        if images.buckets != matrix.buckets:
            raise RecordError(
                f"the predictions have buckets {safe_repr(images.buckets)}, but the rows have "
                f"{safe_repr(matrix.buckets)}"
            )
        if matrix.num_instances is not None and not np.array_equal(counts, matrix.num_instances):
            raise RecordError(
                f"the predictions have {safe_repr(counts.tolist())} images per bucket, but the "
                f"rows have {safe_repr(matrix.num_instances.tolist())}"
            )
        for row, predictions in self.rows.items():
            accuracies = matrix.initial if row == 0 else None
            if 0 < row <= matrix.num_rows:
                accuracies = matrix.values[row - 1]
            if accuracies is None:
                raise RecordError(f"predictions of row {row} are stored, but not the row")
            predictions.check(images, accuracies.tolist())

    def after(self, k: int) -> Predictions:
        """Return the predictions of rows 0 to k."""
        rows = {row: predictions for row, predictions in self.rows.items() if row <= k}
        return Predictions(self.images, rows, self.protocol, k)

    def get_row(self, row: int) -> RowPredictions:
        """Return the predictions after *row* buckets, or raise UndefinedMetricError."""
        if row not in self.rows:
            raise UndefinedMetricError(f"the predictions of row {row} were not stored")
        return self.rows[row]

    def mask_counted_images(self, row: int) -> NDArray[np.bool_]:
        """Return an (N,) mask of images that count under the protocol.

        They are all images, or under ``streaming`` the images of buckets not yet trained.
        """
        if self.protocol == "streaming":
            return np.greater_equal(self.images.bucket, row)
        return np.ones(len(self.images), dtype=np.bool_)

    def mask_trained_images(self) -> NDArray[np.bool_]:
        """Return an (N,) mask of trained buckets' test images, or raise.

        Raises UndefinedMetricError if there are none, or if the protocol excludes them.
        """
        if self.k < 1:
            raise UndefinedMetricError("needs a trained bucket: k >= 1 (trained on 0)")
        mask: NDArray[np.bool_] = (self.images.bucket < self.k) & self.mask_counted_images(self.k)
        if not mask.any():
            raise UndefinedMetricError(
                f"under the {self.protocol} protocol cells with j <= i score training images"
            )
        return mask


def class_accuracies(predictions: Predictions) -> NDArray[np.float64]:
    """Return the accuracy by row, bucket and class, (k + 1, T, classes).

    Index 0 of the first axis is the untrained model. A value is NaN if the bucket lacks test images
    of the class, if the predictions were not stored, or if the protocol excludes the bucket.
    """
    images = predictions.images
    width, classes = len(images.buckets), len(images.class_names)
    pair = images.bucket.astype(np.int64) * classes + images.label
    accuracies = np.full((predictions.k + 1, width, classes), np.nan)
    for row, row_predictions in predictions.rows.items():
        mask = predictions.mask_counted_images(row)
        totals = np.bincount(pair[mask], minlength=width * classes)
        correct = np.bincount(
            pair[mask & row_predictions.find_hits(images)], minlength=width * classes
        )
        with np.errstate(invalid="ignore"):
            accuracies[row] = (correct / totals).reshape(width, classes)
    return accuracies


def macro_matrix(predictions: Predictions) -> AccuracyMatrix:
    """Return the matrix whose R[i, j] are means over classes.

    Each is the mean of the accuracies on the classes.

    A class without test images in bucket j is left out of R[i, j]. R[i, j] is NaN if predictions
    were not stored, or if the protocol excludes it. Raises UndefinedMetricError if the predictions
    of the last row were not stored.
    """
    if predictions.k:
        predictions.get_row(predictions.k)
    # Under streaming no value of the last row may count, but it has to stay a row. Therefore the
    # matrix is made of all images first, and masked then.
    unmasked = Predictions(predictions.images, predictions.rows, num_rows=predictions.k)
    accuracies = class_accuracies(unmasked)
    is_measured = ~np.isnan(accuracies)
    with np.errstate(invalid="ignore"):
        means = np.where(is_measured, accuracies, 0.0).sum(axis=2) / is_measured.sum(axis=2)
    # Rounding may lift a mean of fractions above 1.
    means = np.clip(means, 0.0, 1.0)
    matrix = AccuracyMatrix(means[1:], means[0], buckets=predictions.images.buckets)
    return matrix.mask(predictions.protocol)


def confusion(predictions: Predictions, row: int) -> NDArray[np.int64]:
    """Return the confusion matrix, (classes, classes): rows are true classes.

    Columns are predicted classes.

    Counts the test images that the protocol counts after *row* buckets. Raises UndefinedMetricError
    if the predictions of that row were not stored.
    """
    images, classes = predictions.images, len(predictions.images.class_names)
    mask = predictions.mask_counted_images(row)
    pairs = images.label.astype(np.int64) * classes + predictions.get_row(row).labels
    counts = np.bincount(pairs[mask], minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)
