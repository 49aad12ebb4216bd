"""Evaluate metrics: the value and history of each, or the reason why it is undefined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from numpy.typing import ArrayLike

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.batch_record import PrequentialRecord
from clear_mlflow.core.dataset import find_row_indices
from clear_mlflow.core.errors import FailedMetricError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, load_renderer
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import NOT_MEASURED, one_line, printable
from clear_mlflow.metrics._metric import (
    COSTS,
    MATRIX,
    PREDICTIONS,
    PREQUENTIAL,
    WITHIN_BUCKET,
    Metric,
    adapt_metrics,
    compute_values,
)
from clear_mlflow.metrics._predictions import Predictions
from clear_mlflow.metrics._registry import (
    DEFAULT_FAMILIES,
    METRICS,
    add_matrix_metrics,
    format_value,
    get_built_in_metrics,
    get_family_metrics,
    split_families,
)


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """Value and history of one metric, or why it is undefined.

    Attributes:
        name: family and metric, for example ``clear/in_domain_accuracy``.
        value: value after the last row; an accuracy is a fraction. None if it is undefined.
        reason: why the value is undefined, or an empty string.
        series: history: number of trained buckets to the value then, without undefined values.
        interval: low and high end of the 95 % interval over the test images of this trained model,
            or None without stored predictions.
        higher_is_better: False if lower values are better.
        formula: formula in terms of R[i, j]; empty for custom metrics.
        meaning: explanation in one line; empty for custom metrics.
        score: score in the matrix, for example accuracy.
        version: :attr:`Metric.version`, or None if the value was logged, not computed here.
        is_failed: True if a custom metric's function raised an error or returned no finite number.
    """

    name: str
    value: float | None
    reason: str = ""
    series: Mapping[int, float] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    higher_is_better: bool = True
    formula: str = ""
    meaning: str = ""
    score: Score = ACCURACY
    version: int | None = None
    is_failed: bool = False

    @property
    def is_built_in(self) -> bool:
        """Return True if the metric is built in, not custom."""
        return bool(self.meaning)

    @property
    def text(self) -> str:
        """Rounded value, or a dash if it is undefined."""
        return NOT_MEASURED if self.value is None else self._format(self.value)

    @property
    def note(self) -> str:
        """Why the value is undefined, "lower is better", or ""."""
        return self.reason or ("" if self.higher_is_better else "lower is better")

    def _format(self, value: float) -> str:
        return format_value(self.name, value, self.score)

    def __str__(self) -> str:
        better = "higher" if self.higher_is_better else "lower"
        interval = f" [{', '.join(map(self._format, self.interval))}]" if self.interval else ""
        note = self.reason or f"{better} is better"
        return printable(f"{self.name} {self.text}{interval} ({note})")

    def __repr__(self) -> str:
        return f"MetricResult({self})"

    def to_dict(self) -> dict[str, Any]:
        """Return the most important fields as JSON types.

        They are value, reason, interval, higher_is_better, formula and series. An undefined value,
        a missing interval and an empty text are None; the keys of series are strings.
        """
        return {
            "value": self.value,
            "reason": self.reason or None,
            "interval": None if self.interval is None else list(self.interval),
            "higher_is_better": self.higher_is_better,
            "formula": self.formula or None,
            "series": {str(step): value for step, value in self.series.items()},
        }


class MetricResults(dict[str, MetricResult]):
    """Metric name to its result. Prints as a table, also in notebooks."""

    @property
    def values_by_name(self) -> dict[str, float]:
        """Metric name to value, without undefined metrics."""
        return {name: result.value for name, result in self.items() if result.value is not None}

    def __repr__(self) -> str:
        table = load_renderer("terminal_tables", "build_metrics_table")(self.values())
        text: str = load_renderer("terminal_tables", "render_text")(table)
        return text

    def _repr_html_(self) -> str:
        html: str = load_renderer("page.run_page", "render_run_html")("", None, self.values())
        return html


def summarize(
    matrix: AccuracyMatrix, protocol: str = "iid", metrics: Sequence[Metric] = METRICS
) -> dict[str, float]:
    """Compute metrics, and return the values of defined ones by name.

    Under the protocol ``streaming``, R[i, j] with j <= i does not count. Raises ConfigError for an
    unknown protocol.
    """
    return compute_values(matrix.mask(protocol), adapt_metrics(metrics, matrix.score))[0]


def evaluate_metrics(
    metrics: Sequence[Metric],
    matrix: AccuracyMatrix,
    protocol: str = "iid",
    *,
    predictions: Predictions | None = None,
    tests: AnytimeMatrix | None = None,
    prequential: PrequentialRecord | None = None,
) -> MetricResults:
    """Compute metrics with their values after each bucket of a run.

    Undefined metrics have a reason instead of a value, and so have custom metrics that fail. Left
    out are metrics that need predictions, tests within buckets or predictions before training if
    these are None, and metrics that :attr:`Metric.skip_if` excludes. Built-in metrics come first.

    protocol: applies to the matrix; predictions and tests have their own. tests: tests within
    buckets. prequential: predictions of batches before they were trained on.
    """
    masked_matrix = matrix.mask(protocol)
    inputs: dict[str, Any] = {
        MATRIX: masked_matrix,
        COSTS: masked_matrix,
        PREDICTIONS: predictions,
        WITHIN_BUCKET: tests,
        PREQUENTIAL: prequential,
    }
    results: dict[str, MetricResult] = {}
    adapted = adapt_metrics(metrics, matrix.score)
    for needs, measurements in inputs.items():
        group = [
            metric
            for metric in adapted
            if measurements is not None
            and metric.needs == needs
            and not (metric.skip_if is not None and metric.skip_if(measurements))
        ]
        if not group:
            continue
        values, errors = compute_values(measurements, group)
        series: dict[str, dict[int, float]] = {metric.name: {} for metric in group}
        for step in range(1, matrix.num_rows + 1):
            is_last = step == matrix.num_rows
            step_values = values if is_last else compute_values(measurements.after(step), group)[0]
            for name, value in step_values.items():
                series[name][step] = value
        for metric in group:
            error = errors.get(metric.name)
            if error is not None and measurements is masked_matrix:
                error = _explain_masked_value(error, protocol)
            results[metric.name] = MetricResult(
                **_build_result_fields(metric),
                value=values.get(metric.name),
                score=matrix.score,
                reason="" if error is None else one_line(str(error), 200),
                series=series[metric.name],
                version=metric.version,
                is_failed=isinstance(error, FailedMetricError),
            )
    return sort_results(results)


def build_logged_result(name: str, value: float, score: Score) -> MetricResult:
    """Return a result without history, interval and version for a logged value.

    Formula and meaning are empty if the metric is not built in.

    Args:
        name: name of the metric; any name is valid.
        value: logged value.
        score: score in the matrix of the run.
    """
    metric = get_built_in_metrics(score).get(name)
    fields = {"name": name} if metric is None else _build_result_fields(metric)
    return MetricResult(**fields, value=value, score=score)


def sort_results(results: Mapping[str, MetricResult]) -> MetricResults:
    """Sort results: built-in metrics in a fixed order, then custom ones."""
    names: dict[str, None] = {}
    for score in dict.fromkeys(result.score for result in results.values()):
        names |= {name: None for name in get_built_in_metrics(score) if name in results}
    return MetricResults((name, results[name]) for name in (names | dict.fromkeys(results)))


def _build_result_fields(metric: Metric) -> dict[str, Any]:
    formula, meaning = _describe_metric(metric.name, metric.score)
    return {
        "name": metric.name,
        "higher_is_better": metric.higher_is_better is not False,
        "formula": formula,
        "meaning": meaning,
    }


@lru_cache(maxsize=1024)
def _describe_metric(name: str, score: Score) -> tuple[str, str]:
    """Return a built-in metric's formula and meaning, "" of others."""
    metric = get_built_in_metrics(score).get(name)
    return ("", "") if metric is None else (metric.formula, one_line(metric.meaning, 200))


def _explain_masked_value(error: UndefinedMetricError, protocol: str) -> UndefinedMetricError:
    """Return the error, or one that names the protocol as the reason."""
    cell = re.match("row ([0-9]+), column ([0-9]+)", str(error))
    if protocol == "iid" or cell is None or int(cell[2]) > int(cell[1]):
        return error
    return UndefinedMetricError(
        f"under the {protocol} protocol cells with j <= i score training images"
    )


def scores(
    matrix: AccuracyMatrix | ArrayLike,
    protocol: str = "iid",
    metrics: str | Sequence[str | Metric] = DEFAULT_FAMILIES,
) -> MetricResults:
    """Compute metrics of an accuracy matrix, each with its history.

    Args:
        matrix: (k, T) accuracies: R[i, j] on bucket j after training on bucket i. Lists, an array,
            or a data frame with the layout of ``to_frame(wide=True)`` are converted.
        protocol: ``iid``, or ``streaming``, under which R[i, j] with j <= i does not count.
        metrics: names of families, for example ``["clear", "gem"]`` or ``"clear,gem"``, or Metric
            objects.

    Returns:
        Metric name to its value and history, or the reason why it is undefined. Includes all
        metrics of cost if a row of the matrix has a cost. For another score than accuracy, metrics
        are adapted by :meth:`Metric.adapt`.

    Raises:
        ConfigError: the protocol or a family does not exist.
        RecordError: the argument cannot be converted to a matrix.

    >>> results = scores([[0.9, 0.6]])
    >>> results["clear/next_domain_accuracy"]
    MetricResult(clear/next_domain_accuracy 0.6000 (higher is better))
    >>> results["clear/backward_transfer"].reason
    'needs a past bucket: k >= 2 (trained on 1)'
    """
    matrix = _convert_matrix(matrix)
    chosen: list[Metric] = []
    items: Sequence[Any] = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    for item in items:
        chosen += [item] if isinstance(item, Metric) else get_family_metrics(split_families(item))
    by_name = {metric.name: metric for metric in chosen}
    return evaluate_metrics(
        add_matrix_metrics(by_name.values(), matrix.mask(protocol)), matrix, protocol
    )


def _convert_matrix(table: Any) -> AccuracyMatrix:
    """Convert lists, arrays or labelled data frames to a matrix."""
    if isinstance(table, AccuracyMatrix):
        return table
    if not hasattr(table, "iterrows"):
        return AccuracyMatrix(table)
    # A data frame; pandas need not be installed.
    initial = table.loc["initial"] if "initial" in table.index else None
    rows = table.drop(index="initial", errors="ignore")
    keys = [str(key) for key in table.columns]
    rows = rows.set_axis(find_row_indices([str(label) for label in rows.index], keys))
    return AccuracyMatrix(rows.reindex(range(max(rows.index, default=-1) + 1)), initial, None, keys)
