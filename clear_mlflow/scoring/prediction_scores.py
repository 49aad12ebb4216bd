"""A run's stored predictions: read them, and compute what they define."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_PREDICTIONS_BYTES, size_text
from clear_mlflow.metrics.from_predictions import METRICS, PredictionMetric, Predictions
from clear_mlflow.scoring.computed import PredictionScores, compute_predictions, stamp_of
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors


def keeps_predictions(run: Run) -> bool:
    """Whether a run says that it stored predictions; nothing is asked of the store."""
    return names.PREDICTIONS_TAG in run.data.tags


def read_predictions(
    client: MlflowClient, run: Run, record: Record, *, largest: int | None = None
) -> Predictions | None:
    """Read a run's stored predictions, of the rows that its record has; None: it stored none.

    Files are called what the format calls them, never what a store or another file says. A
    RecordError where one is damaged, missing, contradicts the rows, or where all have more than
    *largest* bytes together.
    """
    run_id = run.info.run_id
    stored = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with mlflow_errors(f"list the predictions of run {run_id}"):
        sizes = stored.sizes()
    rows = [row for row in record.rows if predictions_file_name(row) in sizes]
    if not rows:
        return None
    if EVALUATION_SET_FILE not in sizes:
        raise RecordError(f"there are predictions, but no {EVALUATION_SET_FILE} beside them")
    total = sum(sizes[predictions_file_name(row)] or 0 for row in rows)
    if largest is not None and total > largest:
        raise RecordError(f"they have {total} bytes; {size_text(largest)} are read here")
    with stored.scratch() as scratch:

        def fetched(name: str) -> Path:
            size = sizes[name]
            if size is not None and size > MAX_PREDICTIONS_BYTES:
                most = size_text(MAX_PREDICTIONS_BYTES)
                raise RecordError(f"{name} has {size} bytes; predictions have at most {most}")
            with mlflow_errors(f"read {name} of run {run_id}"):
                return stored.file(name, scratch)

        images = EvaluationSet.load(fetched(EVALUATION_SET_FILE))
        answers = {row: RowPredictions.load(fetched(predictions_file_name(row))) for row in rows}
    predictions = Predictions(images, answers, record.protocol, record.matrix.num_rows)
    predictions.check(record.matrix)
    return predictions


def read_prediction_scores(
    client: MlflowClient,
    run: Run,
    record: Record,
    *,
    metrics: Sequence[PredictionMetric] = METRICS,
    thorough: bool = False,
) -> PredictionScores | None:
    """Everything that a run's stored predictions define; None where it says that it kept none.

    A run that holds all of this already, as a tag of it says, is asked for nothing unless
    *thorough*: what its metrics show is the summary.
    """
    if not keeps_predictions(run):
        return None
    is_whole = run.data.tags.get(names.PREDICTIONS_SCORED_TAG) == stamp_of(record, metrics)
    if is_whole and not thorough:
        logged = run.data.metrics
        summary = {m.name: logged[m.name] for m in metrics if m.name in logged}
        return PredictionScores(summary, is_unread=True)
    try:
        predictions = read_predictions(client, run, record)
    except RecordError as error:
        # The rows are whole without: they are scored, and this is reported beside them.
        return PredictionScores(problem=str(error))
    if predictions is None:
        return PredictionScores()  # removed since, to save room: no concern of the rows
    run_name = run.info.run_name or run.info.run_id
    return compute_predictions(predictions, record, run_name, metrics)
