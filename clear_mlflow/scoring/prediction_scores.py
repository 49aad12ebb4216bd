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

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from numpy.typing import NDArray

from clear_mlflow.core.errors import FailedMetricError, RecordError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_PREDICTIONS_BYTES
from clear_mlflow.metrics.from_predictions import (
    METRICS,
    PredictionMetric,
    Predictions,
    confusion,
    macro_matrix,
)
from clear_mlflow.metrics.from_predictions import series as metric_series
from clear_mlflow.metrics.from_predictions import undefined as undefined_metrics
from clear_mlflow.report.confusion import confusion_png
from clear_mlflow.report.exports import matrix_csv
from clear_mlflow.report.prediction_tables import calibration_csv, confusion_csv, per_class_csv
from clear_mlflow.scoring.series import Series
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_bytes
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.compat import download_file

# Fingerprint of what was computed from predictions last.
PREDICTIONS_SCORED_TAG = "clear_mlflow.predictions_scored"

PER_CLASS_CSV = f"{PREDICTIONS_FOLDER}/per_class.csv"
MACRO_CSV = f"{PREDICTIONS_FOLDER}/macro_accuracy.csv"
CALIBRATION_CSV = f"{PREDICTIONS_FOLDER}/calibration.csv"
CONFUSION_FOLDER = f"{PREDICTIONS_FOLDER}/confusion"
CONFUSION_PNG = f"{PREDICTIONS_FOLDER}/confusion.png"

# Of more classes, who is taken for whom fills no table that a person reads: a million cells.
_MOST_CLASSES = 1000
_PICTURE = "picture"
_REPORTS_VERSION = 1  # raised when a file above changes, so that it is written again


@dataclass(frozen=True, eq=False)
class ConfusionPicture:
    """What :data:`CONFUSION_PNG` shows; it is drawn when it is stored."""

    counts: NDArray[np.int64]  # (classes, classes); true by predicted
    class_names: tuple[str, ...]
    title: str

    def png(self) -> bytes:
        """The file."""
        return confusion_png(self.counts, self.class_names, self.title)


@dataclass(frozen=True)
class PredictionScores:
    """What a run's stored predictions say beyond its rows."""

    summary: Mapping[str, float]
    points: Series = field(default_factory=dict)  # metric name to step to value
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric name to why it is undefined
    files: Mapping[str, str] = field(default_factory=dict)  # artifact path to text, to be stored
    tags: Mapping[str, str] = field(default_factory=dict)  # to be written when all is stored
    failed: frozenset[str] = frozenset()  # those whose own function is wrong, of the reasons
    picture: ConfusionPicture | None = None  # to be drawn and stored
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
    with mlflow_errors(f"list the predictions of run {run_id}"):
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
            if size is not None and size > MAX_PREDICTIONS_BYTES:
                raise RecordError(f"{name} has {size} bytes; predictions have at most 256 MiB")
            with mlflow_errors(f"read {name} of run {run_id}"):
                local = Path(scratch, name)
                # One request; MLflow's own download of a file lists it first.
                download_file(repository, name, local)
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
    pictures: bool = False,
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
        pictures: a picture of the last row is wanted; where there is one, it is kept up to date.

    Returns:
        None where the run says that it kept no predictions.

    Raises:
        TrackingError: the store does not answer.
    """
    if not keeps_predictions(run):
        return None
    last_stamp, _, drawn = run.data.tags.get(PREDICTIONS_SCORED_TAG, "").partition(" ")
    had_picture = drawn == _PICTURE
    if last_stamp == _stamp(record, metrics) and not thorough and (had_picture or not pictures):
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
    has_stamp = last_stamp == stamp
    stored = _stored_files(client, run) if has_stamp else set()
    picture = _picture(predictions, run) if pictures or had_picture else None
    last = predictions.k
    return PredictionScores(
        summary={name: steps[last] for name, steps in points.items() if last in steps},
        points=points,
        reasons={name: str(error) for name, error in undefined.items()},
        failed=failed,
        files={} if {PER_CLASS_CSV, CONFUSION_FOLDER} <= stored else _files(predictions),
        picture=None if had_picture and CONFUSION_PNG in stored else picture,
        tags={PREDICTIONS_SCORED_TAG: f"{stamp} {_PICTURE}" if pictures or had_picture else stamp},
    )


def write_prediction_files(client: MlflowClient, run_id: str, scores: PredictionScores) -> None:
    """Store the tables and the picture; metrics and tags are logged with those of the rows.

    Raises:
        TrackingError: the store does not take them.
    """
    with mlflow_errors(f"store what the predictions of run {run_id} say"):
        for path, text in scores.files.items():
            client.log_text(run_id, text, path)
        if scores.picture is not None:
            log_bytes(client, run_id, scores.picture.png(), CONFUSION_PNG)


def _stored_files(client: MlflowClient, run: Run) -> set[str]:
    with mlflow_errors(f"list the predictions of run {run.info.run_id}"):
        listed = client.list_artifacts(run.info.run_id, PREDICTIONS_FOLDER)
    return {file.path for file in listed}


def _picture(predictions: Predictions, run: Run) -> ConfusionPicture | None:
    """Of the last row that holds any evidence: under streaming, that is not the last of all."""
    if len(predictions.images.class_names) > _MOST_CLASSES:
        return None
    for row in sorted(predictions.answers, reverse=True):
        counts = confusion(predictions, row)
        if counts.any():
            name = run.info.run_name or run.info.run_id
            after = "initial" if row == 0 else f"after {predictions.images.buckets[row - 1]}"
            return ConfusionPicture(counts, predictions.images.class_names, f"{name}, {after}")
    return None


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
