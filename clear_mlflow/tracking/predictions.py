"""A run's stored predictions: read them, compute what they define, store it in the run.

Runs that kept none cost nothing here: whether there are any is told by a parameter of the run, or
by a tag, and a listing of runs brings both.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from clear_mlflow.errors import FailedMetricError, RecordError
from clear_mlflow.predicted import METRICS, PredictionMetric, Predictions, macro_matrix
from clear_mlflow.predicted import series as metric_series
from clear_mlflow.predicted import undefined as undefined_metrics
from clear_mlflow.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.record import Record
from clear_mlflow.report.files import matrix_csv
from clear_mlflow.report.predictions import calibration_csv, confusion_csv, per_class_csv
from clear_mlflow.tracking import names
from clear_mlflow.tracking.preflight import explained
from clear_mlflow.tracking.series import Series

# Fingerprint of what was computed from predictions last.
PREDICTIONS_SCORED_TAG = "clear_mlflow.predictions_scored"

PER_CLASS_CSV = f"{PREDICTIONS_FOLDER}/per_class.csv"
MACRO_CSV = f"{PREDICTIONS_FOLDER}/macro_accuracy.csv"
CALIBRATION_CSV = f"{PREDICTIONS_FOLDER}/calibration.csv"
CONFUSION_FOLDER = f"{PREDICTIONS_FOLDER}/confusion"

_LARGEST_FILE = 1 << 28  # bytes; all probabilities of CLEAR-100's 55,000 test images take 11 MB
# Of more classes, who is taken for whom fills no table that a person reads: a million cells.
_MOST_CLASSES = 1000
_REPORTS_VERSION = 1  # raised when a file above changes, so that it is written again


@dataclass(frozen=True)
class PredictionScores:
    """What a run's stored predictions say beyond its rows."""

    summary: Mapping[str, float]
    points: Series = field(default_factory=dict)  # metric name to step to value
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric name to why it is undefined
    files: Mapping[str, str] = field(default_factory=dict)  # artifact path to text, to be stored
    tags: Mapping[str, str] = field(default_factory=dict)  # to be written when all is stored
    failed: frozenset[str] = frozenset()  # those whose own function is wrong, of the reasons
    problem: str | None = None  # why nothing was computed, though predictions were kept


def keeps_predictions(run: Run) -> bool:
    """Whether a run says that it stored predictions; nothing is asked of the store."""
    return names.PREDICTIONS_TAG in run.data.tags


def read_predictions(client: MlflowClient, run: Run, record: Record) -> Predictions | None:
    """Read a run's stored predictions, of the rows that its record has.

    Files are called what the format calls them, never what a store or another file says, and live
    in a temporary folder until they are read.

    Args:
        client: the store.
        run: as it is now.
        record: its rows, which the predictions have to count up to.

    Returns:
        None where the run stored none.

    Raises:
        RecordError: a file is damaged or missing, or contradicts the rows.
        TrackingError: the artifact store does not answer.
    """
    run_id = run.info.run_id
    repository = get_artifact_repository(
        f"{run.info.artifact_uri}/{PREDICTIONS_FOLDER}", tracking_uri=client.tracking_uri
    )
    with explained(f"list the predictions of run {run_id}"):
        listed = repository.list_artifacts() or []
    sizes = {file.path.rsplit("/", 1)[-1]: file.file_size for file in listed}
    rows = [row for row in record.rows if predictions_file_name(row) in sizes]
    if not rows:
        return None
    if EVALUATION_SET_FILE not in sizes:
        raise RecordError(f"there are predictions, but no {EVALUATION_SET_FILE} beside them")
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:

        def fetched(name: str) -> Path:
            size = sizes[name]
            if size is not None and size > _LARGEST_FILE:
                raise RecordError(f"{name} has {size} bytes; predictions have at most 256 MiB")
            with explained(f"read {name} of run {run_id}"):
                local = Path(scratch, name)
                # One request; MLflow's own download of a file lists it first.
                repository._download_file(name, str(local))
                return local

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
    """Everything that a run's stored predictions define; nothing is written.

    A run that holds all of this already, as a tag of it says, is asked for nothing: what its
    metrics show is the summary.

    Args:
        client: the store.
        run: as it is now.
        record: its rows.
        metrics: to compute.
        thorough: compute it although the run says that it holds all of this already.

    Returns:
        None where the run says that it kept no predictions.

    Raises:
        TrackingError: the store does not answer.
    """
    if not keeps_predictions(run):
        return None
    stamp = _stamp(record, metrics)
    is_stored = run.data.tags.get(PREDICTIONS_SCORED_TAG) == stamp
    if is_stored and not thorough:
        logged = run.data.metrics
        return PredictionScores({m.name: logged[m.name] for m in metrics if m.name in logged})
    try:
        predictions = read_predictions(client, run, record)
    except RecordError as error:
        # The rows are whole without: they are scored, and this is told beside them.
        return PredictionScores({}, problem=str(error))
    if predictions is None:
        return PredictionScores({})  # removed since, to save room: no concern of the rows
    points = metric_series(predictions, metrics)
    undefined = undefined_metrics(predictions, metrics)
    failed = frozenset(n for n, error in undefined.items() if isinstance(error, FailedMetricError))
    # What failed is not taken for done: it is computed, and told, again.
    stamp = _stamp(record, [metric for metric in metrics if metric.name not in failed])
    has_files = run.data.tags.get(PREDICTIONS_SCORED_TAG) == stamp
    last = predictions.k
    return PredictionScores(
        summary={name: steps[last] for name, steps in points.items() if last in steps},
        points=points,
        reasons={name: str(error) for name, error in undefined.items()},
        failed=failed,
        files={} if has_files and _has_tables(client, run) else _files(predictions),
        tags={PREDICTIONS_SCORED_TAG: stamp},
    )


def write_prediction_files(client: MlflowClient, run_id: str, scores: PredictionScores) -> None:
    """Store the tables; metrics and tags are logged with those of the rows.

    Raises:
        TrackingError: the store does not take them.
    """
    with explained(f"store what the predictions of run {run_id} say"):
        for path, text in scores.files.items():
            client.log_text(run_id, text, path)


def _has_tables(client: MlflowClient, run: Run) -> bool:
    with explained(f"list the predictions of run {run.info.run_id}"):
        listed = client.list_artifacts(run.info.run_id, PREDICTIONS_FOLDER)
    return {PER_CLASS_CSV, CONFUSION_FOLDER} <= {file.path for file in listed}


def _files(predictions: Predictions) -> dict[str, str]:
    found = {PER_CLASS_CSV: per_class_csv(predictions)}
    if predictions.k in predictions.answers or predictions.k == 0:
        found[MACRO_CSV] = matrix_csv(macro_matrix(predictions))
    classes = len(predictions.images.class_names)
    for row in predictions.answers if classes <= _MOST_CLASSES else ():
        found[f"{CONFUSION_FOLDER}/row_{row:03d}.csv"] = confusion_csv(predictions, row)
    if table := calibration_csv(predictions):
        found[CALIBRATION_CSV] = table
    return found


def _stamp(record: Record, metrics: Sequence[PredictionMetric]) -> str:
    """A short text that changes with the rows, with any definition, and with the tables' form."""
    matrix = record.matrix
    content = [
        _REPORTS_VERSION,
        record.protocol,
        list(record.rows),
        matrix.values.tolist(),
        None if matrix.initial is None else matrix.initial.tolist(),
        sorted((metric.name, metric.version) for metric in metrics),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
