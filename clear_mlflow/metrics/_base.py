"""What every metric is made of: its declaration, and means that refuse unmeasured cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import Score
from clear_mlflow.metrics._common import MetricOf

# What a metric is of a matrix of another score than accuracy. Its formula is then evaluated such
# that more is better, on -R where lower is better, and its value is:
LEVEL = "level"  # one of the score itself, as a mean of cells: given in the score's own sign
CHANGE = "change"  # a difference, positive where the formula's is: a gain stays a gain
# It has no value there: its definition needs the share of images that were classified correctly.
ACCURACY_ALONE = "accuracy"
# It is given any matrix as it is, and makes of its score what it likes.
ANY = "any"


@dataclass(frozen=True, kw_only=True)
class Metric(MetricOf[AccuracyMatrix]):
    """One number of an accuracy matrix, under the name that it is logged as.

    Args:
        name: family and metric, as ``clear/in_domain_accuracy``.
        function: raises UndefinedMetricError where the metric has no value.
        higher_is_better: which of two values a researcher wants.
        version: raised when the definition changes, so that stored values are known as old.
        takes: what it is of a matrix of another score than accuracy: :data:`LEVEL`,
            :data:`CHANGE`, :data:`ACCURACY_ALONE` or :data:`ANY`.
    """

    takes: str = ACCURACY_ALONE

    def of(self, score: Score) -> Metric:
        """The same metric of a matrix of some score, under the name that it then has.

        >>> Metric(name="a/average_accuracy", function=len, takes=LEVEL).of(Score("rmse", False))
        ... # doctest: +ELLIPSIS
        Metric(name='a/average_rmse', ... higher_is_better=False, version=1, takes='any')
        """
        if score.is_accuracy or self.takes == ANY:
            return self
        name, higher = self.name, self.higher_is_better
        if self.takes != ACCURACY_ALONE:
            name = name_of(name, score)
        if self.takes == LEVEL:
            # CLEAR's "transfer" is an accuracy; an error of that name would be read as a gain.
            name, higher = name.replace("transfer", score.name), score.higher_is_better
        return replace(
            self,
            name=name,
            function=_OfScore(self.function, score, self.takes, self.higher_is_better),
            higher_is_better=higher,
            takes=ANY,
        )

    @property
    def meaning(self) -> str:
        """What it says, in one line: the first of its function's documentation."""
        return _meaning(self.function)


def name_of(name: str, score: Score) -> str:
    """The name that a metric of accuracies has where it is of another score.

    >>> name_of("clear/in_domain_accuracy", Score("rmse", higher_is_better=False))
    'clear/in_domain_rmse'
    """
    family, slash, own = name.partition("/")
    return f"{family}{slash}{_worded(own, score)}"


def _worded(text: str, score: Score) -> str:
    """What is said of accuracies, said of another score."""
    words = {} if score.higher_is_better else {"lowest": "highest", "drop": "rise"}
    for word, other in words.items():
        text = text.replace(word, other)
    return text.replace("accuracy", score.name)


def _meaning(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        return _meaning(function.func)
    if isinstance(function, _OfScore):
        return function.meaning
    return (function.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True)
class _OfScore:
    """A metric's function on matrices of another score than accuracy."""

    function: Callable[[AccuracyMatrix], float]
    score: Score
    takes: str
    is_gain: bool  # whether a change is good where it is positive

    def __call__(self, matrix: AccuracyMatrix) -> float:
        if self.takes == ACCURACY_ALONE:
            raise UndefinedMetricError(f"needs an accuracy (the score is {self.score.name})")
        value = self.function(matrix.oriented)
        return 0.0 - value if self.takes == LEVEL and not self.score.higher_is_better else value

    @property
    def meaning(self) -> str:
        text = _meaning(self.function)
        if self.takes == ACCURACY_ALONE:
            return text
        text = _worded(text, self.score)
        if self.takes == CHANGE and not self.score.higher_is_better:
            went = "fallen" if self.is_gain else "risen"
            text = f"{text.removesuffix('.')}; above 0 where {self.score.name} has {went}."
        return text


def need_trained(matrix: AccuracyMatrix, least: int, what: str) -> None:
    """Refuse a run that has trained on fewer than ``least`` buckets.

    Raises:
        UndefinedMetricError: with ``what`` is needed, and of how much.
    """
    if matrix.num_rows < least:
        raise UndefinedMetricError(f"needs {what}: k >= {least} (trained on {matrix.num_rows})")


def need_future(matrix: AccuracyMatrix) -> None:
    """Refuse a run that has no bucket yet, or a stream that has no second one.

    Raises:
        UndefinedMetricError: with what is needed.
    """
    need_trained(matrix, 1, "a trained bucket")
    if matrix.num_buckets < 2:
        raise UndefinedMetricError("needs a future bucket: T >= 2")


def measured(cells: NDArray[np.float64], name: Callable[[int], str]) -> NDArray[np.float64]:
    """The same cells, once it is sure that each of them was measured.

    A mean over what happens to be there would be a different quantity under the same name.

    Args:
        cells: (n,), fractions; NaN = not measured.
        name: what the cell at a position is called.

    Raises:
        UndefinedMetricError: a cell is NaN; the first such one is named.
    """
    gaps = np.isnan(cells)
    if gaps.any():
        raise UndefinedMetricError(f"{name(int(gaps.argmax()))} was not measured")
    return cells


def cells_where(matrix: AccuracyMatrix, where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The chosen cells of a matrix, row by row.

    Args:
        matrix: (k, T).
        where: (k, T), or the (k, n) for its first n columns.

    Raises:
        UndefinedMetricError: one of them was not measured.
    """

    def name(position: int) -> str:
        i, j = np.argwhere(where)[position]
        return f"R[{i}, {j}]"

    return measured(matrix.values[:, : where.shape[1]][where], name)


def change_on_past(matrix: AccuracyMatrix) -> float:
    """Mean of R[i, j] - R[j, j] over j < i: BWT over the whole lower triangle.

    Raises:
        UndefinedMetricError: there is no past bucket, or a cell was not measured.
    """
    need_trained(matrix, 2, "a past bucket")
    k = matrix.num_rows
    past = cells_where(matrix, np.tri(k, k - 1, -1, dtype=np.bool_))
    new = cells_where(matrix, np.eye(k, k - 1, dtype=np.bool_))
    # Bucket j is in the past of k - 1 - j rows.
    return float((past.sum() - (new * np.arange(k - 1, 0, -1)).sum()) / len(past))
