"""What every metric is made of: its declaration, and means that refuse unmeasured cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
        score_name: its name there, as ``clear/in_domain_{score}``; ``name`` when not given.
            ``{lowest}`` is ``highest`` where lower is better.
    """

    takes: str = ACCURACY_ALONE
    score_name: str = ""

    def of(self, score: Score) -> Metric:
        """The same metric of a matrix of some score, under the name that it then has.

        >>> level = Metric(name="a/accuracy", function=len, takes=LEVEL, score_name="a/{score}")
        >>> level.of(Score("rmse", higher_is_better=False)).name
        'a/rmse'
        """
        if score.is_accuracy or self.takes == ANY:
            return self
        lowest = "lowest" if score.higher_is_better else "highest"
        return replace(
            self,
            name=(self.score_name or self.name).format(score=score.name, lowest=lowest),
            function=_OfScore(self.function, score, self.takes),
            higher_is_better=(
                score.higher_is_better if self.takes == LEVEL else self.higher_is_better
            ),
            takes=ANY,
        )

    @property
    def meaning(self) -> str:
        """What it says, in one line, of its score."""
        of = self.function
        if not isinstance(of, _OfScore) or of.takes == ACCURACY_ALONE:
            return super().meaning
        sign = " with its sign turned" if of.takes == CHANGE else ""
        what = of.score.name + ("" if of.score.higher_is_better else sign)
        return f"{super().meaning.removesuffix('.')}; of {what} in place of accuracy."


def level(name: str, function: Callable[[AccuracyMatrix], float], score_name: str = "") -> Metric:
    """A metric that is of the score itself, with its name of another score than accuracy."""
    return Metric(name=name, function=function, takes=LEVEL, score_name=score_name)


def change(
    name: str, function: Callable[[AccuracyMatrix], float], higher_is_better: bool = True
) -> Metric:
    """A metric that is a difference of scores."""
    return Metric(name=name, function=function, takes=CHANGE, higher_is_better=higher_is_better)


@dataclass(frozen=True)
class _OfScore:
    """A metric's function on matrices of another score than accuracy."""

    function: Callable[[AccuracyMatrix], float]
    score: Score
    takes: str

    def __call__(self, matrix: AccuracyMatrix) -> float:
        if self.takes == ACCURACY_ALONE:
            raise UndefinedMetricError(f"needs an accuracy (the score is {self.score.name})")
        value = self.function(matrix.oriented)
        return 0.0 - value if self.takes == LEVEL and not self.score.higher_is_better else value


def need_trained(matrix: AccuracyMatrix, least: int, what: str) -> None:
    """Refuse a run that has trained on fewer than ``least`` buckets, for want of ``what``."""
    if matrix.num_rows < least:
        raise UndefinedMetricError(f"needs {what}: k >= {least} (trained on {matrix.num_rows})")


def need_future(matrix: AccuracyMatrix) -> None:
    """Refuse a run that has no bucket yet, or a stream that has no second one."""
    need_trained(matrix, 1, "a trained bucket")
    if matrix.num_buckets < 2:
        raise UndefinedMetricError("needs a future bucket: T >= 2")


def measured(cells: NDArray[np.float64], name: Callable[[int], str]) -> NDArray[np.float64]:
    """The same (n,) cells; the first that is NaN is refused by the name of its position."""
    # A mean over what happens to be there would be a different quantity under the same name.
    gaps = np.isnan(cells)
    if gaps.any():
        raise UndefinedMetricError(f"{name(int(gaps.argmax()))} was not measured")
    return cells


def name_cell(row: int, column: int) -> str:
    """Return the name of R[row, column] in messages, which count from 1 as tables do."""
    return f"row {row + 1}, column {column + 1}"


def cells_where(matrix: AccuracyMatrix, where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The chosen cells, row by row, all measured; ``where`` is (k, n), of the first n columns."""

    def name(position: int) -> str:
        i, j = np.argwhere(where)[position]
        return name_cell(int(i), int(j))

    return measured(matrix.values[:, : where.shape[1]][where], name)


def cells_seen(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """The cells of buckets trained on by then: the lower triangle with its diagonal."""
    need_trained(matrix, 1, "a trained bucket")
    return cells_where(matrix, np.tri(*matrix.values.shape, dtype=np.bool_))


def last_row(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """(k,): the last row, on the buckets trained on."""
    need_trained(matrix, 1, "a trained bucket")
    last = matrix.num_rows - 1
    return measured(matrix.values[last, : last + 1], lambda j: name_cell(last, j))


def change_on_past(matrix: AccuracyMatrix) -> float:
    """Mean of R[i, j] - R[j, j] over j < i: BWT over the whole lower triangle."""
    need_trained(matrix, 2, "a past bucket")
    k = matrix.num_rows
    past = cells_where(matrix, np.tri(k, k - 1, -1, dtype=np.bool_))
    new = cells_where(matrix, np.eye(k, k - 1, dtype=np.bool_))
    # Bucket j is in the past of k - 1 - j rows.
    return float((past.sum() - (new * np.arange(k - 1, 0, -1)).sum()) / len(past))
