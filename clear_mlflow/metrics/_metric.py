"""Declare a metric, and read cells of the matrix without skipping unmeasured ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import Score

# Input of a metric's function.
MATRIX = "matrix"  # an AccuracyMatrix
COSTS = "costs"  # an AccuracyMatrix whose rows have costs
PREDICTIONS = "predictions"  # a Predictions
WITHIN_BUCKET = "within_bucket"  # an AnytimeMatrix

# Role of a metric for matrices of another score than accuracy. Its function then receives values
# for which higher is better: R, or -R if lower is better. The result is:
LEVEL = "level"  # a value of the score, for example a mean of cells; its sign is turned back
CHANGE = "change"  # a difference, positive if the score became better
ACCURACY_ONLY = "accuracy"  # undefined: the definition needs counts of correct images
ANY = "any"  # what the function returns for the matrix as it is


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number computed from the measurements of a run, and where it is shown.

    Args:
        name: family and metric, for example ``clear/in_domain_accuracy``.
        function: takes the input that *needs* names and returns the value. Raises
            UndefinedMetricError if the metric has no value for this run.
        needs: input of the function: ``matrix``, ``costs`` (a matrix whose rows have costs),
            ``predictions`` or ``within_bucket`` (tests within buckets).
        higher_is_better: direction, or None if it is not declared.
        unit: unit of the value; empty for a fraction and for values in the unit of the score.
        version: number to raise when the definition changes, so that stored values are replaced.
        headline: short name under which it is shown before all others; empty if it is not.
        rank_priority: priority for the ranking of a comparison if the user names no metric: among
            metrics that most groups define, the highest wins. None if it never ranks.
        ranks_new_classes: True to keep that priority for runs whose classes arrive over time.
        score_role: role for matrices of another score than accuracy: :data:`LEVEL`,
            :data:`CHANGE`, :data:`ACCURACY_ONLY` or :data:`ANY`.
        score_name: name for such a matrix, for example ``clear/in_domain_{score}``; the same as
            *name* if empty. ``{lowest}`` becomes ``highest`` if lower is better.
        skip_if: returns True for inputs for which the metric is left out without a reason.
    """

    name: str
    function: Callable[[Any], float]
    needs: str = MATRIX
    higher_is_better: bool | None = True
    unit: str = ""
    version: int = 1
    headline: str = ""
    rank_priority: int | None = 0
    ranks_new_classes: bool = True
    score_role: str = ACCURACY_ONLY
    score_name: str = ""
    skip_if: Callable[[Any], bool] | None = None

    @property
    def family(self) -> str:
        """Part of the name before the slash."""
        return self.name.partition("/")[0]

    @cached_property
    def meaning(self) -> str:
        """First line of the function's docstring, with the score that replaces accuracy."""
        line = self.documentation.partition("\n")[0]
        wrapped = self.function
        if not isinstance(wrapped, _OrientedFunction) or wrapped.score_role == ACCURACY_ONLY:
            return line
        score = wrapped.score
        turned = wrapped.score_role == CHANGE and not score.higher_is_better
        sign = " with its sign turned" if turned else ""
        return f"{line.removesuffix('.')}; for {score.name}{sign} instead of accuracy."

    @cached_property
    def formula(self) -> str:
        """Formula in the function's docstring, or an empty string if it has none."""
        match = re.search(r"Formula: (.+?)\. Defined when ", " ".join(self.documentation.split()))
        return match[1] if match else ""

    @property
    def documentation(self) -> str:
        """Docstring of the innermost function, below wrappers and partial arguments."""
        function: Any = self.function
        while (inner := getattr(function, "func", getattr(function, "function", None))) is not None:
            function = inner
        return inspect.getdoc(function) or ""

    def adapt(self, score: Score) -> Metric:
        """Return the metric for matrices of a score, with the name that it has there.

        >>> accuracy = level("a/accuracy", len, score_name="a/{score}")
        >>> accuracy.adapt(Score("rmse", higher_is_better=False)).name
        'a/rmse'
        """
        if (
            score.is_accuracy
            or self.score_role == ANY
            or self.needs in (PREDICTIONS, WITHIN_BUCKET)
        ):
            return self
        lowest = "lowest" if score.higher_is_better else "highest"
        is_level = self.score_role == LEVEL
        return replace(
            self,
            name=(self.score_name or self.name).format(score=score.name, lowest=lowest),
            function=_OrientedFunction(self.function, score, self.score_role),
            higher_is_better=score.higher_is_better if is_level else self.higher_is_better,
            score_role=ANY,
        )


@dataclass(frozen=True)
class _OrientedFunction:
    """Function of a metric for matrices of another score than accuracy."""

    function: Callable[[AccuracyMatrix], float]
    score: Score
    score_role: str

    def __call__(self, matrix: AccuracyMatrix) -> float:
        if self.score_role == ACCURACY_ONLY:
            raise UndefinedMetricError(f"needs an accuracy (the score is {self.score.name})")
        value = self.function(matrix.oriented)
        turned = self.score_role == LEVEL and not self.score.higher_is_better
        return 0.0 - value if turned else value


def level(
    name: str, function: Callable[[AccuracyMatrix], float], score_name: str = "", **fields: Any
) -> Metric:
    """Declare a metric in the unit of the score, for example a mean of cells."""
    return Metric(name=name, function=function, score_role=LEVEL, score_name=score_name, **fields)


def change(name: str, function: Callable[[AccuracyMatrix], float], **fields: Any) -> Metric:
    """Declare a metric that is a difference of scores."""
    return Metric(name=name, function=function, score_role=CHANGE, **fields)


def require_trained(matrix: AccuracyMatrix, minimum: int, requirement: str) -> None:
    """Raise UndefinedMetricError if fewer than *minimum* buckets were trained."""
    if matrix.num_rows < minimum:
        raise UndefinedMetricError(
            f"needs {requirement}: k >= {minimum} (trained on {matrix.num_rows})"
        )


def require_future(matrix: AccuracyMatrix) -> None:
    """Raise UndefinedMetricError if no bucket was trained or the stream has only one bucket."""
    require_trained(matrix, 1, "a trained bucket")
    if matrix.num_buckets < 2:
        raise UndefinedMetricError("needs a future bucket: T >= 2")


def require_measured(
    cells: NDArray[np.float64], name_position: Callable[[int], str]
) -> NDArray[np.float64]:
    """Return the cells unchanged, or raise UndefinedMetricError if one of them is NaN."""
    # A mean of the measured cells would be a different quantity under the same name.
    gaps = np.isnan(cells)
    if gaps.any():
        raise UndefinedMetricError(f"{name_position(int(gaps.argmax()))} was not measured")
    return cells


def name_cell(row: int, column: int) -> str:
    """Return the name of R[row, column] in messages, which count from 1 as tables do."""
    return f"row {row + 1}, column {column + 1}"


def select_cells(matrix: AccuracyMatrix, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the cells selected by a (k, n) mask of the first n columns, row by row.

    Raises UndefinedMetricError if one of them was not measured.
    """

    def name_position(position: int) -> str:
        i, j = np.argwhere(mask)[position]
        return name_cell(int(i), int(j))

    return require_measured(matrix.values[:, : mask.shape[1]][mask], name_position)


def select_trained_cells(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return the lower triangle with its diagonal: cells of buckets trained on by then."""
    require_trained(matrix, 1, "a trained bucket")
    return select_cells(matrix, np.tri(*matrix.values.shape, dtype=np.bool_))


def select_last_row(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return the (k,) cells of the last row on the buckets trained on."""
    require_trained(matrix, 1, "a trained bucket")
    last = matrix.num_rows - 1
    return require_measured(matrix.values[last, : last + 1], lambda j: name_cell(last, j))


def compute_change_on_past(matrix: AccuracyMatrix) -> float:
    """Return the mean of R[i, j] - R[j, j] over j < i."""
    require_trained(matrix, 2, "a past bucket")
    k = matrix.num_rows
    past = select_cells(matrix, np.tri(k, k - 1, -1, dtype=np.bool_))
    diagonal = select_cells(matrix, np.eye(k, k - 1, dtype=np.bool_))
    # Bucket j is in the past of k - 1 - j rows.
    return float((past.sum() - (diagonal * np.arange(k - 1, 0, -1)).sum()) / len(past))
