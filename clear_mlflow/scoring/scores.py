"""Score one run from its row artifacts: after a training, and by ``evaluate``."""

from __future__ import annotations

from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.record import assemble, row_file_name
from clear_mlflow.scoring.beside import read_anytime_scores, read_prediction_scores
from clear_mlflow.scoring.computed import Scores, Scoring, compute
from clear_mlflow.scoring.plan import earlier_summary, plan, plan_without_rows, write_scores
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.rows import StoredRows, build_missing_rows_error, load_stored_rows


def read_scores(client: MlflowClient, run: Run, scoring: Scoring | None = None) -> Scores:
    """Read a run's rows, compute what they define, and plan what its store lacks."""
    scoring = scoring or Scoring()
    rows = load_stored_rows(client, run, read_files=scoring.thorough or None)
    if not rows.records:
        run_id, name = run.info.run_id, run.info.run_name or run.info.run_id
        return Scores(run_id=run_id, run_name=name, plan=plan_without_rows(run))
    record = assemble(rows.records)
    if run.data.tags.get(names.ROWS_TAG) == "complete" and not record.is_complete:
        # The tag of its rows shows it, too, except of a matrix too large for one.
        missing = set(range(1, record.matrix.num_buckets + 1)) - set(record.rows)
        raise build_missing_rows_error(run, row_file_name(min(missing)))

    def planned(thorough: bool) -> Scores:
        scores = _computed(client, run, rows, scoring, thorough=thorough)
        return replace(scores, plan=plan(client, run, scores, thorough=scoring.thorough))

    scores = planned(scoring.thorough)
    if scores.plan.page is not None and (scores.predicted.is_unread or scores.anytime.is_unread):
        return planned(True)  # the page shows what they say, of each class and moment
    return scores


def stored_scores(client: MlflowClient, run: Run) -> Scores:
    """What a run's artifacts define and what else was logged of them; nothing is planned."""
    rows = load_stored_rows(client, run, read_files=True)
    if not rows.records:
        return Scores(run_id=run.info.run_id, run_name=run.info.run_name or run.info.run_id)
    scores = _computed(client, run, rows, Scoring(), thorough=True)
    earlier, points = earlier_summary(run, scores), dict(scores.points)
    with mlflow_errors(f"read the metrics of run {run.info.run_id}"):
        for name in earlier:
            logged = client.get_metric_history(run.info.run_id, name)
            points[name] = {m.step: m.value for m in sorted(logged, key=lambda m: m.timestamp)}
    return replace(scores, summary={**scores.summary, **earlier}, points=points)


def _computed(
    client: MlflowClient, run: Run, rows: StoredRows, scoring: Scoring, *, thorough: bool
) -> Scores:
    record, wanted = assemble(rows.records), scoring.prediction_metrics
    answers = read_prediction_scores(client, run, record, metrics=wanted, thorough=thorough)
    tests = read_anytime_scores(client, run, record, thorough=thorough)
    return compute(run, rows, record, scoring, answers=answers, tests=tests)


def score(client: MlflowClient, run_id: str) -> Scores:
    """Read a run's rows back, log the scores that MLflow lacks, and give them."""
    with mlflow_errors(f"read run {run_id}"):
        run = client.get_run(run_id)
    scores = read_scores(client, run)
    if not scores.plan.is_empty:
        write_scores(client, scores)
    return scores
