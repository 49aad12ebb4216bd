"""Score one run in three steps: read its record, evaluate the metrics, log the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.record import row_file_name
from clear_mlflow.metrics import (
    PREDICTION_METRICS,
    Metric,
    MetricResults,
    build_logged_result,
    evaluate_metrics,
    sort_results,
)
from clear_mlflow.scoring.run_log import Scores, find_changes, log_results
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


def score(client: MlflowClient, run_id: str) -> Scores:
    """Compute the metrics of a run from its files, and log those that are missing or outdated.

    Returns the metrics with the changes that were logged. Raises RecordError if a row is damaged,
    or was deleted since the run was last scored.
    """
    with mlflow_errors(f"read run {run_id}"):
        run = client.get_run(run_id)
    scores = read_scores(client, run)
    log_results(client, scores)
    return scores


def read_scores(
    client: MlflowClient, run: Run, metrics: Sequence[Metric] = (), *, reread: bool = True
) -> Scores:
    """Compute the metrics of a run, and find what has to be logged. Writes nothing.

    metrics: metrics to compute in addition to the run's metric families. reread: True to read all
    files of the run, and to look for deleted files and metric values; False to trust the tags about
    what was logged. Raises RecordError like :func:`score`.
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
    """Compute the metrics of a run with their histories. Writes nothing.

    A metric that cannot be computed here, such as a custom one, has its logged values, if any.
    """
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
    """Compute the metrics of a run from its stored measurements.

    A logged metric that cannot be computed from *stored*, such as a custom one, has its logged
    value, without a history. Undefined metrics that need stored predictions (labels or
    probabilities of each image) are left out; other undefined ones have a reason. Empty if the run
    contains no rows.
    """
    record, logged = stored.record, stored.run.data.metrics
    if record is None:
        return MetricResults()
    results = evaluate_metrics(
        stored.metrics,
        record.matrix,
        record.protocol,
        predictions=stored.predictions,
        tests=stored.tests,
    )
    # Most runs store only labels, so that metrics of probabilities would be listed as undefined.
    for metric in PREDICTION_METRICS:
        if metric.name in results and results[metric.name].value is None:
            del results[metric.name]
    for name in sorted(read_versions(stored.run.data.tags).keys() & logged.keys() - results.keys()):
        results[name] = build_logged_result(name, logged[name], record.matrix.score)
    return sort_results(results)
