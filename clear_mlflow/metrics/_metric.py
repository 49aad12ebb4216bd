"""Declare a metric, and select values of the matrix without skipping unmeasured ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, iter_stack
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr

# Input of a metric's function.
MATRIX = "matrix"  # an AccuracyMatrix
COSTS = "costs"  # an AccuracyMatrix whose rows have costs
PREDICTIONS = "predictions"  # a Predictions
WITHIN_BUCKET = "within_bucket"  # an AnytimeMatrix
PREQUENTIAL = "prequential"  # a PrequentialRecord
SCRATCH = "scratch"  # a ScratchMatrix

# Role of a metric for matrices of another score than accuracy. Its function then receives values
# for which higher is better: R, or -R if lower is better. Its value is:
LEVEL = "level"  # a value of the score, for example a mean of R[i, j]; its sign is turned back
CHANGE = "change"  # a difference, positive if the score became better
ACCURACY_ONLY = "accuracy"  # undefined: the definition needs counts of correct images
ANY = "any"  # what the function returns for the matrix as it is

# Value of a vectorized function: a number, or an array of shape (...) for stacked matrices.
Value = float | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: its function, and how values are named, ranked and displayed.

    Args:
        name: family and metric, for example ``clear/in_domain_accuracy``.
        function: computes the value from the input that *needs* names. Raises
            UndefinedMetricError if the metric is undefined for a run.
        needs: input of the function: ``matrix``, ``costs`` (a matrix whose rows have costs),
            ``predictions``, ``within_bucket`` (tests within buckets), ``prequential`` (predictions
            before training) or ``scratch`` (a matrix, and runs that were trained from scratch).
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
        is_vectorized: True if the function also computes stacked matrices, whose values have the
            shape (..., k, T), at once; it then returns an array of shape (...).
        sensitivity: largest change of the value if no R[i, j] changes by more than 1.
        score: score in the matrices that the metric is computed from; set by :meth:`adapt`.
    """

    name: str
    function: Callable[[Any], Any]
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
    is_vectorized: bool = False
    sensitivity: float = 2.0
    score: Score = ACCURACY

    def compute(self, measurements: Any) -> float:
        """Compute the value from the input in *needs*, or raise UndefinedMetricError.

        That is a matrix with :attr:`score` if *needs* is ``matrix``.
        """
        value: float = self._compute_signed(measurements)
        return value

    def compute_stack(self, stack: AccuracyMatrix) -> NDArray[np.float64]:
        """Compute the values for n matrices, (n,), NaN where undefined.

        stack: result of :func:`stack_cells`. A function that is not vectorized is called n times.
        """
        values = np.full(len(stack.values), np.nan)
        if self.is_vectorized:
            with suppress(UndefinedMetricError):  # it depends on which cells were measured
                values[:] = self._compute_signed(stack)
            return values
        for i, matrix in enumerate(iter_stack(stack)):
            with suppress(UndefinedMetricError):
                values[i] = self._compute_signed(matrix)
        return values

    def _compute_signed(self, measurements: Any) -> Any:
        if self.score.is_accuracy:
            return self.function(measurements)
        if self.score_role == ACCURACY_ONLY:
            raise UndefinedMetricError(f"needs an accuracy (the score is {self.score.name})")
        value = self.function(measurements.oriented)
        is_negated = self.score_role == LEVEL and not self.score.higher_is_better
        return 0.0 - value if is_negated else value

    def adapt(self, score: Score) -> Metric:
        """Return the metric, renamed, for matrices that contain *score* instead of accuracy.

        Metrics of predictions or tests within buckets, with the role ANY, or adapted before, stay
        as they are.

        >>> accuracy = Metric(
        ...     name="a/accuracy", function=len, score_role=LEVEL, score_name="a/{score}"
        ... )
        >>> accuracy.adapt(Score("rmse", higher_is_better=False)).name
        'a/rmse'
        """
        needs_matrix = self.needs in (MATRIX, COSTS) and self.score_role != ANY
        if score.is_accuracy or not self.score.is_accuracy or not needs_matrix:
            return self
        lowest = "lowest" if score.higher_is_better else "highest"
        return replace(
            self,
            name=(self.score_name or self.name).format(score=score.name, lowest=lowest),
            higher_is_better=(
                score.higher_is_better if self.score_role == LEVEL else self.higher_is_better
            ),
            score=score,
        )

    @property
    def family(self) -> str:
        """Part of the name before the slash."""
        return self.name.partition("/")[0]

    @property
    def documentation(self) -> str:
        """Docstring of the function, also inside ``partial``; empty if none."""
        return inspect.getdoc(getattr(self.function, "func", self.function)) or ""

    @property
    def meaning(self) -> str:
        """First line of the function's docstring, with the score's name."""
        line = self.documentation.partition("\n")[0]
        if self.score.is_accuracy or self.score_role == ACCURACY_ONLY:
            return line
        is_negated = self.score_role == CHANGE and not self.score.higher_is_better
        sign = " with its sign turned" if is_negated else ""
        return f"{line.removesuffix('.')}; for {self.score.name}{sign} instead of accuracy."

    @property
    def formula(self) -> str:
        """Formula in the function's docstring, empty if it has none."""
        match = re.search(r"Formula: (.+?)\. Defined when ", " ".join(self.documentation.split()))
        return match[1] if match else ""


def compute_values(
    measurements: Any, metrics: Sequence[Metric]
) -> tuple[dict[str, float], dict[str, UndefinedMetricError]]:
    """Compute metrics, and return values and UndefinedMetricErrors by name.

    Args:
        measurements: input that all the metrics need, for example an AccuracyMatrix.
        metrics: metrics for the score in the input.
    """
    values: dict[str, float] = {}
    errors: dict[str, UndefinedMetricError] = {}
    for metric in metrics:
        try:
            values[metric.name] = metric.compute(measurements)
        except UndefinedMetricError as error:
            errors[metric.name] = error
    return values, errors


def adapt_metrics(metrics: Iterable[Metric], score: Score) -> tuple[Metric, ...]:
    """Return each metric adapted to *score* by :meth:`Metric.adapt`.

    Raises ConfigError if two metrics get the same name, unless the score is accuracy: then the last
    one of a name is returned.

    >>> from clear_mlflow.metrics import FAMILIES
    >>> [m.name for m in adapt_metrics(FAMILIES["gem"], Score("rmse", higher_is_better=False))]
    ['gem/average_rmse', 'gem/backward_transfer', 'gem/forward_transfer']
    """
    by_name: dict[str, Metric] = {}
    for metric in (metric.adapt(score) for metric in metrics):
        if metric.name in by_name and not score.is_accuracy:
            raise ConfigError(
                f"score is {safe_repr(score.name)}, which would make two metrics {metric.name!r}; "
                "rename the score",
                parameter="score",
            )
        by_name[metric.name] = metric
    return tuple(by_name.values())


def declare(function: Callable[[Any], Any], family: str = "", **fields: Any) -> Metric:
    """Create a metric named after its family and function.

    It is vectorized if it needs a matrix.

    family: part of the name before the slash; the name of the function's module if empty. fields:
    other fields of :class:`Metric`.
    """
    family = family or function.__module__.rpartition(".")[2]
    if "score_name" in fields:
        fields["score_name"] = f"{family}/{fields['score_name']}"
    fields.setdefault("is_vectorized", fields.get("needs", MATRIX) == MATRIX)
    return Metric(name=f"{family}/{function.__name__}", function=function, **fields)


def level(function: Callable[[AccuracyMatrix], Value], score_name: str, **fields: Any) -> Metric:
    """Create a metric whose value has the score's unit, like a mean.

    score_name: name for other scores, without the family, for example ``in_domain_{score}``.
    fields: other arguments of :func:`declare`.
    """
    fields = {"sensitivity": 1.0, **fields}
    return declare(function, score_role=LEVEL, score_name=score_name, **fields)


def change(function: Callable[[AccuracyMatrix], Value], **fields: Any) -> Metric:
    """Create a metric whose value is a difference of scores.

    fields: other arguments of :func:`declare`.
    """
    return declare(function, score_role=CHANGE, **fields)


def require_trained(matrix: AccuracyMatrix, minimum: int, requirement: str) -> None:
    """Raise UndefinedMetricError if fewer than *minimum* buckets were trained.

    requirement: description of what is needed, for the message, for example "a past bucket".
    """
    if matrix.num_rows < minimum:
        raise UndefinedMetricError(
            f"needs {requirement}: k >= {minimum} (trained on {matrix.num_rows})"
        )


def require_future(matrix: AccuracyMatrix) -> None:
    """Raise UndefinedMetricError unless k >= 1 and T >= 2."""
    require_trained(matrix, 1, "a trained bucket")
    if matrix.num_buckets < 2:
        raise UndefinedMetricError("needs a future bucket: T >= 2")


def count_steps_ahead(matrix: AccuracyMatrix) -> NDArray[np.int64]:
    """Return j - i for all cells, (k, T).

    It is negative for past buckets, and 0 for the bucket just trained.
    """
    return np.arange(matrix.num_buckets) - np.arange(matrix.num_rows)[:, np.newaxis]


def select_values(matrix: AccuracyMatrix, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return (..., n) measured values R[i, j] under *mask*, or raise.

    They are in row order.

    mask: (k, m), for the first m columns of the matrix. Raises UndefinedMetricError if one of the
    values was not measured.
    """
    values = matrix.values[..., : mask.shape[1]]
    # As in memory, each matrix after the other: sums then have the rounding of a single matrix.
    selected = np.ascontiguousarray(values[..., mask])
    # A mean of the measured values would be a different quantity under the same name.
    if np.isnan(selected).any():
        is_missing = mask & np.isnan(values)
        row, column = np.argwhere(is_missing.reshape(-1, *mask.shape).any(axis=0))[0] + 1
        raise UndefinedMetricError(f"row {row}, column {column} was not measured")  # from 1
    return selected


def select_trained_values(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return all R[i, j] with j <= i, in row order.

    Raises UndefinedMetricError if one was not measured, or if no bucket was trained.
    """
    require_trained(matrix, 1, "a trained bucket")
    return select_values(matrix, count_steps_ahead(matrix) <= 0)


def select_row(matrix: AccuracyMatrix, row: int, columns: slice) -> NDArray[np.float64]:
    """Return R[row, j] of some columns. Negative rows count from the last.

    Raises UndefinedMetricError if one was not measured, or if no bucket was trained.
    """
    require_trained(matrix, 1, "a trained bucket")
    mask = np.zeros((matrix.num_rows, matrix.num_buckets), dtype=np.bool_)
    mask[row, columns] = True
    return select_values(matrix, mask)


def select_last_row(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return the last row's values on the k buckets trained on.

    Raises UndefinedMetricError if one was not measured, or if no bucket was trained.
    """
    return select_row(matrix, -1, slice(matrix.num_rows))


def select_past_diagonal(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """Return the k - 1 values R[j, j] of earlier buckets.

    Raises UndefinedMetricError if one was not measured.
    """
    k = matrix.num_rows
    return select_values(matrix, np.eye(k, k - 1, dtype=np.bool_))


def select_columns(matrix: AccuracyMatrix, num_columns: int) -> NDArray[np.float64]:
    """Return the (..., k, n) values of the first columns.

    Raises UndefinedMetricError if one was not measured.
    """
    shape = matrix.num_rows, num_columns
    values = select_values(matrix, np.ones(shape, dtype=np.bool_))
    return values.reshape(*values.shape[:-1], *shape)


def get_test_counts(matrix: AccuracyMatrix, num_buckets: int) -> NDArray[np.float64]:
    """Return the first buckets' numbers of test images, or raise if unknown."""
    if matrix.num_instances is None:
        raise UndefinedMetricError("needs test counts per bucket")
    return matrix.num_instances[:num_buckets].astype(np.float64)


def compute_mean(values: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> Value:
    """Return the mean of the last axis, an array for stacked matrices.

    weights: (n,) weights, or None for equal ones.
    """
    if weights is None:
        return to_value(values.mean(axis=-1))
    return to_value((weights * values).sum(axis=-1) / weights.sum())


def to_value(values: Any) -> Value:
    """Convert a NumPy number to float, and return an array unchanged."""
    return float(values) if np.ndim(values) == 0 else values
