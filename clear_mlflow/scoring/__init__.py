"""Score one run in three steps: read its record, evaluate the metrics, log the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.record import Record, row_file_name
from clear_mlflow.metrics import (
    PREDICTION_METRICS,
    Metric,
    MetricResults,
    build_logged_result,
    evaluate_metrics,
    sort_results,
)
from clear_mlflow.scoring.run_log import Changes, find_changes, log_results
from clear_mlflow.scoring.run_record import StoredRun, read_record, read_versions
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.rows import build_missing_rows_error

__all__ = [
    "Scores",
    "evaluate",
    "load_scores",
    "log_results",
    "read_record",
    "read_scores",
    "score",
]


@dataclass(frozen=True, eq=False)
class Scores:
    """A scored run: what it stores, its metrics, and what was missing in the store."""

    stored: StoredRun
    results: MetricResults
    changes: Changes = field(default_factory=Changes)

    @property
    def record(self) -> Record | None:
        """The rows put together, or None if the run contains no rows."""
        return self.stored.record


def score(client: MlflowClient, run_id: str) -> Scores:
    """Read a run from its files, and log the scores that the store lacks.

    Raises:
        RecordError: a row is damaged, or rows are gone that the run had when it was scored.
        TrackingError: the store does not answer.
    """
    with mlflow_errors(f"read run {run_id}"):
        run = client.get_run(run_id)
    scores = read_scores(client, run)
    log_results(client, scores.stored, scores.results, scores.changes)
    return scores


def read_scores(
    client: MlflowClient, run: Run, metrics: Sequence[Metric] = (), *, reread: bool = True
) -> Scores:
    """Evaluate a run, and find what its store lacks, without writing it.

    Args:
        client: client of the store.
        run: run, as MLflow returned it.
        metrics: metrics to compute in addition to those of the run's families.
        reread: read all files of the run, and look for points and files that are gone.

    Raises RecordError if rows are gone that the run had when it was scored.
    """
    stored = read_record(client, run, metrics, reread=reread)
    if (
        stored.record is not None
        and run.data.tags.get(names.ROWS_TAG) == "complete"
        and not stored.record.is_complete
    ):
        # The tag with a copy of the rows is wrong as well, except for a matrix too large for it.
        missing = set(range(1, stored.record.matrix.num_buckets + 1)) - set(stored.record.rows)
        raise build_missing_rows_error(run, row_file_name(min(missing)))
    results = evaluate(stored)
    return Scores(stored, results, find_changes(client, stored, results, reread=reread))


def load_scores(client: MlflowClient, run: Run) -> Scores:
    """Evaluate a run, and add the logged history of metrics that an earlier scoring computed."""
    stored = read_record(client, run)
    results = evaluate(stored)
    with mlflow_errors(f"read the metrics of run {stored.run_id}"):
        for name, result in results.items():
            if result.version is None:
                logged = client.get_metric_history(stored.run_id, name)
                series = {m.step: m.value for m in sorted(logged, key=lambda m: m.timestamp)}
                results[name] = replace(result, series=series)
    return Scores(stored, results)


def evaluate(stored: StoredRun) -> MetricResults:
    """Evaluate the metrics of a stored run.

    Inputs that were not read, and custom metrics of an earlier scoring, have their logged values.
    """
    record = stored.record
    if record is None:
        return MetricResults()
    matrix, logged = record.matrix, stored.run.data.metrics
    results = evaluate_metrics(
        stored.metrics,
        matrix,
        record.protocol,
        predictions=stored.predictions,
        tests=stored.tests,
    )
    # Most runs store labels only: undefined metrics of predictions are shown if a user added them.
    for metric in PREDICTION_METRICS:
        if metric.name in results and results[metric.name].value is None:
            del results[metric.name]
    for name in sorted(read_versions(stored.run.data.tags).keys() & logged.keys() - results.keys()):
        results[name] = build_logged_result(name, logged[name], matrix.score)
    return sort_results(results)
