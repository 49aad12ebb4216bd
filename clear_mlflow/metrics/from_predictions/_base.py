"""What metrics over predictions are made of: the answers of all rows, and their declaration."""

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
from clear_mlflow.metrics._common import MetricOf


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one run answered, in every row that kept predictions, for every test image."""

    images: EvaluationSet
    answers: Mapping[int, RowPredictions]  # by row; 0 is the initialisation, rows may be missing
    protocol: str = "iid"  # under streaming, buckets trained on are no evidence
    num_rows: int | None = None  # k, the buckets trained on; the highest row when not given

    def __post_init__(self) -> None:
        check_protocol(self.protocol)
        for row, answer in self.answers.items():
            if answer.row != row:
                raise RecordError(f"predictions of row {answer.row} are stored under row {row}")
            answer.check(self.images)
        if self.num_rows is None:
            if not self.answers:
                raise RecordError("no predictions arrived; expected those of a row at least")
            object.__setattr__(self, "num_rows", max(self.answers))
        ordered = {row: self.answers[row] for row in sorted(self.answers)}
        object.__setattr__(self, "answers", MappingProxyType(ordered))

    @property
    def k(self) -> int:
        """Buckets trained on; the last row."""
        return self.num_rows or 0

    def check(self, matrix: AccuracyMatrix) -> None:
        """Make sure that the predictions count up to a run's accuracy matrix."""
        images, counts = self.images, np.array(self.images.num_instances)
        if images.buckets != matrix.buckets:
            raise RecordError(
                f"predictions are of buckets {safe_repr(images.buckets)}, but the rows say "
                f"{safe_repr(matrix.buckets)}"
            )
        if matrix.num_instances is not None and not np.array_equal(counts, matrix.num_instances):
            raise RecordError(
                f"predictions are of {safe_repr(counts.tolist())} images per bucket, but the rows "
                f"say {safe_repr(matrix.num_instances.tolist())}"
            )
        for row, answer in self.answers.items():
            stored = matrix.initial if row == 0 else None
            if 0 < row <= matrix.num_rows:
                stored = matrix.values[row - 1]
            if stored is None:
                raise RecordError(f"predictions of row {row} are stored, and the row is not")
            answer.check(images, stored.tolist())

    def after(self, k: int) -> Predictions:
        """The predictions of the run cut off after k buckets."""
        kept = {row: answer for row, answer in self.answers.items() if row <= k}
        return Predictions(self.images, kept, self.protocol, k)

    def of_row(self, row: int) -> RowPredictions:
        """The answers of one row; UndefinedMetricError where none were stored."""
        if row not in self.answers:
            raise UndefinedMetricError(f"the predictions of row {row} were not stored")
        return self.answers[row]

    def evidence(self, row: int) -> NDArray[np.bool_]:
        """(N,): images whose answer in a row is evidence; under ``streaming``, unseen ones."""
        if self.protocol == "streaming":
            return np.greater_equal(self.images.bucket, row)
        return np.ones(len(self.images), dtype=np.bool_)

    def learned(self) -> NDArray[np.bool_]:
        """(N,): images of the buckets trained on by the end, where their answers are evidence."""
        if self.k < 1:
            raise UndefinedMetricError("needs a trained bucket: k >= 1 (trained on 0)")
        found: NDArray[np.bool_] = (self.images.bucket < self.k) & self.evidence(self.k)
        if not found.any():
            raise UndefinedMetricError(
                f"under the {self.protocol} protocol cells with j <= i score training images"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class PredictionMetric(MetricOf[Predictions]):
    """One number of a run's predictions, under the name that it is logged as."""
