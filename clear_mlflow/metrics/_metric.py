"""Declare a metric, and select values of the matrix without skipping unmeasured ones."""

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
LEVEL = "level"  # a value of the score, for example a mean of R[i, j]; its sign is turned back
CHANGE = "change"  # a difference, positive if the score became better
ACCURACY_ONLY = "accuracy"  # undefined: the definition needs counts of correct images
ANY = "any"  # what the function returns for the matrix as it is


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a run: its function, and how its values are named, ranked and displayed.

    Args:
        name: family and metric, for example ``clear/in_domain_accuracy``.
        function: computes the value from the input that *needs* names. Raises
            UndefinedMetricError if the metric is undefined for a run.
        needs: input of the function: ``matrix``, ``costs`` (a matrix whose rows have costs),
            ``predictions`` or ``within_bucket`` (tests within buckets).
        higher_is_better: False if lower values are better, or None if not declared.
        unit: unit of the value; empty for a fraction and for values in the unit of the score.
        version: version number of the formula. Increase it when the formula changes: logged values
            with a lower number are then computed again.
        headline: short name in lists of the most important metrics; empty to leave it out of them.
        rank_priority: priority for the ranking of a comparison if the user names no metric: among
            metrics that most groups define, the highest wins. None if it never ranks.
        ranks_new_classes: True to keep that priority for runs whose classes arrive over time.
        score_role: how the value follows from a matrix of another score than accuracy, for example
            of RMSE: :data:`LEVEL`, :data:`CHANGE`, :data:`ACCURACY_ONLY` or :data:`ANY`.
        score_name: name for such a matrix, for example ``clear/in_domain_{score}``; the same as
            *name* if empty. ``{lowest}`` becomes ``highest`` if lower is better.
        skip_if: function that returns True for an input for which results omit the metric.
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
        """First line of the function's docstring, naming the score if it is not accuracy."""
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
        """Docstring of the function inside wrappers and ``partial``, or an empty string."""
        function: Any = self.function
        while (inner := getattr(function, "func", getattr(function, "function", None))) is not None:
            function = inner
        return inspect.getdoc(function) or ""

    def adapt(self, score: Score) -> Metric:
        """Return the metric, renamed, for matrices that contain *score* instead of accuracy.

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
    """Function of a metric, converted for matrices of another score than accuracy.

    Raises UndefinedMetricError if the metric is defined for accuracy only.
    """

    function: Callable[[AccuracyMatrix], float]
    score: Score
    score_role: str

    def __call__(self, matrix: AccuracyMatrix) -> float:
        """Return the value for a matrix of any score, by the metric's role."""
        if self.score_role == ACCURACY_ONLY:
            raise UndefinedMetricError(f"needs an accuracy (the score is {self.score.name})")
        value = self.function(matrix.oriented)
        turned = self.score_role == LEVEL and not self.score.higher_is_better
        return 0.0 - value if turned else value


def level(
    name: str, function: Callable[[AccuracyMatrix], float], score_name: str = "", **fields: Any
) -> Metric:
    """Create a metric whose value is in the unit of the score, for example a mean of R[i, j]."""
    return Metric(name=name, function=function, score_role=LEVEL, score_name=score_name, **fields)


def change(name: str, function: Callable[[AccuracyMatrix], float], **fields: Any) -> Metric:
    """Create a metric whose value is a difference of scores."""
    return Metric(name=name, function=function, score_role=CHANGE, **fields)


def require_trained(matrix: AccuracyMatrix, minimum: int, requirement: str) -> None:
    """Raise UndefinedMetricError if fewer than *minimum* buckets were trained.

    Args:
        matrix: matrix with a row for each trained bucket.
        minimum: smallest number of trained buckets.
        requirement: description of what is needed, for the message: "a past bucket".
    """
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
    values: NDArray[np.float64], describe_position: Callable[[int], str]
) -> NDArray[np.float64]:
    """Return *values*, or raise UndefinedMetricError if one of them is NaN.

    Args:
        values: (n,) values of the matrix.
        describe_position: function from an index of *values* to its description in the message.
    """
    # A mean of the measured values would be a different quantity under the same name.
    is_missing = np.isnan(values)
    if is_missing.any():
        raise UndefinedMetricError(
            f"{describe_position(int(is_missing.argmax()))} was not measured"
        )
    return values


def format_position(row: int, column: int) -> str:
    """Return "row 2, column 4" for R[1, 3]: messages count from 1."""
    return f"row {row + 1}, column {column + 1}"


def select_values(matrix: AccuracyMatrix, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the values R[i, j] where *mask* is True, as a flat array in row order.

    Args:
        matrix: matrix of k rows.
        mask: (k, n) mask of the first n columns.

    Raises UndefinedMetricError if one of the values was not measured.
    """

    def describe_position(index: int) -> str:
        i, j = np.argwhere(mask)[index]
        return format_position(int(i), int(j))

    return require_measured(matrix.values[:, : mask.shape[1]][mask], describe_position)


def select_trained_values(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return all R[i, j] with j <= i, as a flat array in row order.

    Raises UndefinedMetricError if one was not measured, or if no bucket was trained.
    """
    require_trained(matrix, 1, "a trained bucket")
    return select_values(matrix, np.tri(*matrix.values.shape, dtype=np.bool_))


def select_last_row(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return the (k,) values of the last row on the k buckets trained on.

    Raises UndefinedMetricError if one was not measured, or if no bucket was trained.
    """
    require_trained(matrix, 1, "a trained bucket")
    last = matrix.num_rows - 1
    return require_measured(matrix.values[last, : last + 1], lambda j: format_position(last, j))


def compute_change_on_past(matrix: AccuracyMatrix) -> float:
    """Return the mean of R[i, j] - R[j, j] over j < i.

    Raises UndefinedMetricError if one was not measured, or if fewer than 2 buckets were trained.
    """
    require_trained(matrix, 2, "a past bucket")
    k = matrix.num_rows
    past = select_values(matrix, np.tri(k, k - 1, -1, dtype=np.bool_))
    diagonal = select_values(matrix, np.eye(k, k - 1, dtype=np.bool_))
    # Bucket j is in the past of k - 1 - j rows.
    return float((past.sum() - (diagonal * np.arange(k - 1, 0, -1)).sum()) / len(past))
