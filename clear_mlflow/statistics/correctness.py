"""Which test image each row got right: what paired tests over test images compare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.core.text import shown


@dataclass(frozen=True, eq=False)
class CorrectMatrix:
    """The stored predictions of one run, reduced to right or wrong.

    Args:
        evaluation_set: digest of the images tested on, in their order.
        buckets: keys of all buckets, in stream order.
        bucket: (N,), position of each image's bucket.
        rows: which rows are there, ascending; 0 is the initialisation.
        right: (rows, N), whether the image was classified correctly.
    """

    evaluation_set: str
    buckets: tuple[str, ...]
    bucket: NDArray[np.uint16]
    rows: tuple[int, ...]
    right: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.right.dtype != np.bool_ or self.right.shape != (len(self.rows), len(self.bucket)):
            raise RecordError(
                f"hits are {self.right.dtype} of shape {self.right.shape}; expected a truth value "
                f"for each of {len(self.rows)} rows and {len(self.bucket)} images"
            )
        if not self.rows or list(self.rows) != sorted(set(self.rows)):
            raise RecordError(f"hits of rows {shown(self.rows)} arrived; expected rows, ascending")

    @classmethod
    def of(cls, images: EvaluationSet, answers: Iterable[RowPredictions]) -> CorrectMatrix:
        """The hits of stored predictions, in any order of rows.

        Raises:
            RecordError: there are none, or they are of another evaluation set.
        """
        found: dict[int, RowPredictions] = {}
        for answer in answers:
            answer.check(images)
            if answer.row in found:
                raise RecordError(f"predictions of row {answer.row} arrived twice")
            found[answer.row] = answer
        if not found:
            raise RecordError("no predictions arrived; expected those of a row at least")
        rows = tuple(sorted(found))
        right = np.stack([found[row].hits(images) for row in rows])
        return cls(images.digest, images.buckets, images.bucket, rows, right)

    @property
    def num_rows(self) -> int:
        """k: the buckets trained on, up to the last row that is there."""
        return self.rows[-1]

    def matrix(self) -> AccuracyMatrix:
        """The accuracy matrix that these hits count up to; rows that are not there are NaN."""
        width = len(self.buckets)
        totals = tuple(np.bincount(self.bucket, minlength=width).tolist())
        return AccuracyMatrix.from_rows(
            AccuracyRow(
                row=row,
                buckets=self.buckets,
                correct=tuple(np.bincount(self.bucket[right], minlength=width).tolist()),
                num_instances=totals,
            )
            for row, right in zip(self.rows, self.right, strict=True)
        )

    def after(self, k: int) -> CorrectMatrix:
        """The hits of the run cut off after k buckets; RecordError where no row is left."""
        count = sum(row <= k for row in self.rows)
        return replace(self, rows=self.rows[:count], right=self.right[:count])


def check_same_images(a: CorrectMatrix, b: CorrectMatrix) -> None:
    """Raise RecordError where two runs answered different images."""
    if a.evaluation_set != b.evaluation_set:
        raise RecordError(
            f"the runs were tested on different images ({shown(a.evaluation_set, 24)} and "
            f"{shown(b.evaluation_set, 24)}) and cannot be paired; re-test one of them"
        )
