"""Score one run: read its measurements, evaluate the metrics, log the results (``run_log``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Run

from clear_mlflow.core.record import Record
from clear_mlflow.core.text import format_count
from clear_mlflow.metrics import (
    PREDICTION_METRICS,
    MetricResults,
    build_logged_result,
    evaluate_metrics,
    sort_results,
)
from clear_mlflow.scoring.run_record import (
    StoredRun,
    parse_logged_versions,
    read_predictions_and_tests,
    read_record,
)
from clear_mlflow.store.client import mlflow_errors


@dataclass(frozen=True)
class Changes:
    """A run's files, metric values and tags to write, in order."""

    reports: bool = False  # the matrix as JSON, CSV and heat map
    page: bool = False  # the HTML report
    metric_values: tuple[MlflowMetric, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # names of metrics whose logged value differs

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to write."""
        return not (self.reports or self.page or self.metric_values or self.tags)

    def __str__(self) -> str:
        """Return the changes in one line: "3 metric values, the page"."""
        tags = "the tag" if len(self.tags) == 1 else "the tags"
        parts = {
            format_count(len(self.metric_values), "metric value"): self.metric_values,
            "the reports": self.reports,
            "the page": self.page,
            f"{tags} {', '.join(sorted(self.tags))}": self.tags,
        }
        return ", ".join(part for part, is_needed in parts.items() if is_needed) or "nothing"


@dataclass(frozen=True, eq=False)
class Scores:
    """A run's scores, and the input from which they were computed."""

    stored: StoredRun
    results: MetricResults  # metric name to its value and history, or why it is undefined
    changes: Changes = field(default_factory=Changes)  # what the store lacks

    @property
    def record(self) -> Record | None:
        """Accuracy matrix and costs of all stored rows, None without rows."""
        return self.stored.record


@dataclass(frozen=True)
class ActionResult:
    """What was done with a run: scored, copied, imported or sent.

    Attributes:
        run_id: id of the run in the tracking store, or None if it has none.
        run_name: name of the run.
        action: what was done, for example "scored", "unchanged", "skipped" or "failed".
        detail: description of what was written, or the reason why nothing was, in one line.
        source: id of the run that was copied, or the file or folder that was read; else "".
        scores: metrics of the run, or None if they were not computed.
        is_problem: True if the user should look at the run.
        is_partial: True if rows are missing, at the end or in between.
        undefined: names of the user's own metrics that are undefined for the run.
        links: lines with addresses of the run.
        parameter: name of the parameter that an error in *detail* is about, or None.
    """

    run_id: str | None
    run_name: str
    action: str
    detail: str = ""
    source: str = ""
    scores: Scores | None = field(default=None, repr=False)
    is_problem: bool = False
    is_partial: bool = False
    undefined: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    parameter: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return run, action, detail, metrics and their reasons for JSON."""
        results = self.scores.results if self.scores else {}
        return {
            "run_id": self.run_id,
            "run_name": self.run_name,
            "action": self.action,
            "detail": self.detail,
            "metrics": {name: result.value for name, result in results.items()},
            "reasons": {n: result.reason for n, result in results.items() if result.reason},
        }


def load_scores(client: MlflowClient, run: Run) -> Scores:
    """Read a run's measurements, and compute its metrics with their histories.

    A metric that cannot be computed here, such as a custom one, has its logged values, if any.
    """
    stored = read_predictions_and_tests(client, read_record(client, run))
    results = evaluate(stored)
    with mlflow_errors(f"read the metrics of run {stored.run_id}"):
        for name, result in results.items():
            if result.version is None:
                logged = client.get_metric_history(stored.run_id, name)
                series = {m.step: m.value for m in sorted(logged, key=lambda m: m.timestamp)}
                results[name] = replace(result, series=series)
    return Scores(stored, results)


def evaluate(stored: StoredRun) -> MetricResults:
    """Compute the metrics of a run from its stored measurements.

    A logged metric that cannot be computed from *stored*, such as a custom one, has its logged
    value, without a history. Undefined metrics that need stored predictions (labels or
    probabilities of each image) are left out; other undefined ones have a reason. A run without
    rows has none.
    """
    record, logged = stored.record, stored.run.data.metrics
    if record is None:
        return MetricResults()
    results = evaluate_metrics(
        stored.metrics,
        record.matrix,
        record.dataset.protocol,
        predictions=stored.predictions,
        tests=stored.tests,
        prequential=stored.prequential,
    )
    # Most runs store only labels, so that metrics of probabilities would be listed as undefined.
    for metric in PREDICTION_METRICS:
        if metric.name in results and results[metric.name].value is None:
            del results[metric.name]
    for name in sorted(
        parse_logged_versions(stored.run.data.tags).keys() & logged.keys() - results.keys()
    ):
        results[name] = build_logged_result(name, logged[name], record.matrix.score)
    return sort_results(results)
