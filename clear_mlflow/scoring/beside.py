"""What a run stored beside its rows, predictions and tests inside buckets, and what they define."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_place
from clear_mlflow.core.errors import FailedMetricError, RecordError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import (
    MAX_ANYTIME_FILES,
    MAX_PREDICTIONS_BYTES,
    MAX_ROW_BYTES,
    read_bytes,
    size_text,
)
from clear_mlflow.metrics import anytime
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.metrics._common import over_course
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.metrics.from_predictions import (
    PredictionMetric,
    Predictions,
    class_changes,
    macro_accuracy,
)
from clear_mlflow.scoring.series import Series
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import map_in_threads, mlflow_errors

# Requests under way at once.
_JOBS = 8
_GONE = "they were there when it was scored, and are gone; what was computed of them stays"


@dataclass(frozen=True, eq=False)
class Beside:
    """What predictions, or tests inside buckets, define; nothing of a run that has none."""

    summary: Mapping[str, float] = field(default_factory=dict)
    points: Series = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric name to why it is undefined
    failed: frozenset[str] = frozenset()  # of the reasons, those whose own function is wrong
    stamp: str | None = None  # fingerprint of all this; None: some lacks, or nothing was computed
    problem: str | None = None  # why nothing was computed, though it is stored
    is_unread: bool = False  # the run's metrics hold all this already: it was not read
    predictions: Predictions | None = None  # that the page shows by class
    tests: AnytimeMatrix | None = None  # that a chart is drawn of


def read_prediction_scores(
    client: MlflowClient,
    run: Run,
    record: Record,
    *,
    metrics: Sequence[PredictionMetric] = predicted.METRICS,
    thorough: bool = False,
) -> Beside:
    """Everything that a run's stored predictions define; nothing is written."""

    def read() -> Beside:
        found = read_predictions(client, run, record)
        num_rows = 0 if found is None else len(found.answers)
        num_scored = _num_rows_of(run.data.tags.get(names.PREDICTIONS_SCORED_TAG))
        if num_rows < num_scored:
            lost = f"of {num_scored - num_rows} of {num_scored} rows, " if num_rows else ""
            return Beside(problem=f"{lost}{_GONE}")
        return Beside() if found is None else score_predictions(found, record, metrics)

    tags = (names.PREDICTIONS_TAG, names.PREDICTIONS_SCORED_TAG)
    return _unless_logged(run, *tags, record, metrics, read, thorough)


def read_anytime_scores(
    client: MlflowClient, run: Run, record: Record, *, thorough: bool = False
) -> Beside:
    """Everything that a run's tests inside its buckets define; nothing is written."""

    def read() -> Beside:
        tests = read_tests(client, run)
        matrix = AnytimeMatrix.of_tests(tests, record.matrix, record.protocol)
        found = over_course(matrix, matrix.k, anytime.METRICS)
        return Beside(
            summary=found.summary,
            points=found.series,
            reasons={name: str(error) for name, error in found.undefined.items()},
            # Tests that lack may still arrive, as by sync: they are looked for again.
            stamp=_stamp_of(record, anytime.METRICS) if matrix.is_complete else None,
            tests=matrix,
        )

    tags = (names.ANYTIME_TAG, names.ANYTIME_SCORED_TAG)
    return _unless_logged(run, *tags, record, anytime.METRICS, read, thorough)


def _unless_logged(
    run: Run,
    is_there: str,
    scored: str,
    record: Record,
    metrics: Sequence[PredictionMetric | AnytimeMetric],
    read: Callable[[], Beside],
    thorough: bool,
) -> Beside:
    """What *read* gives; of what was scored, unless *thorough*, what the run's metrics show."""
    tags, logged = run.data.tags, run.data.metrics
    if is_there not in tags:
        return Beside()
    if not thorough and tags.get(scored, "").partition("-")[0] == _stamp_of(record, metrics):
        summary = {m.name: logged[m.name] for m in metrics if m.name in logged}
        return Beside(summary, is_unread=True)
    try:
        return read()
    except RecordError as error:
        # The rows are whole without: they are scored, and this is reported beside them.
        return Beside(problem=str(error))


def read_predictions(
    client: MlflowClient, run: Run, record: Record, *, largest: int | None = None
) -> Predictions | None:
    """A run's stored predictions, of the rows of its record; None: none. RecordError: damaged."""
    run_id = run.info.run_id
    stored = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with mlflow_errors(f"list the predictions of run {run_id}"):
        sizes = stored.list_sizes()
    rows = [row for row in record.rows if predictions_file_name(row) in sizes]
    if not rows:
        return None
    if EVALUATION_SET_FILE not in sizes:
        raise RecordError(f"there are predictions, but no {EVALUATION_SET_FILE} beside them")
    total = sum(sizes[predictions_file_name(row)] or 0 for row in rows)
    if largest is not None and total > largest:
        raise RecordError(f"they have {total} bytes; {size_text(largest)} are read here")
    with stored.open_scratch() as scratch:

        def fetched(name: str) -> Path:
            size = sizes[name]
            if size is not None and size > MAX_PREDICTIONS_BYTES:
                most = size_text(MAX_PREDICTIONS_BYTES)
                raise RecordError(f"{name} has {size} bytes; predictions have at most {most}")
            with mlflow_errors(f"read {name} of run {run_id}"):
                return stored.fetch_file(name, scratch)

        images = EvaluationSet.load(fetched(EVALUATION_SET_FILE))
        answers = {row: RowPredictions.load(fetched(predictions_file_name(row))) for row in rows}
    predictions = Predictions(images, answers, record.protocol, record.matrix.num_rows)
    predictions.check(record.matrix)
    return predictions


def score_predictions(
    predictions: Predictions,
    record: Record,
    metrics: Sequence[PredictionMetric] = predicted.METRICS,
) -> Beside:
    """Everything that a run's stored predictions define, but for what repeats its rows."""
    left_out = macro_accuracy.METRICS if macro_accuracy.repeats_accuracy(predictions) else ()
    if class_changes.stay(predictions):
        left_out = (*left_out, *class_changes.METRICS)
    computed = [metric for metric in metrics if metric not in left_out]
    found = over_course(predictions, predictions.k, computed)
    failed = failed_of(found.undefined)
    # What failed is not taken for done: it is computed, and reported, again.
    stamp = _stamp_of(record, [m for m in metrics if m.name not in failed])
    return Beside(
        summary=found.summary,
        points=found.series,
        reasons={name: str(error) for name, error in found.undefined.items()},
        failed=failed,
        stamp=f"{stamp}-{_content_digest(predictions)}-{len(predictions.answers)}",
        predictions=predictions,
    )


def read_tests(client: MlflowClient, run: Run) -> list[AnytimeRow]:
    """All tests inside buckets that a run holds; a RecordError where one is damaged."""
    sizes = sizes_of_tests(client, run)
    if len(sizes) > MAX_ANYTIME_FILES:
        raise RecordError(f"{ANYTIME_FOLDER} holds {len(sizes)} files; no run has so many tests")
    for name, size in sizes.items():
        if size is not None and size > MAX_ROW_BYTES:
            raise RecordError(f"{name} has {size} bytes; a test has at most 1 MiB")
    tests = ArtifactFolder(client, run, ANYTIME_FOLDER)
    with tests.open_scratch() as scratch:
        return list(
            map_in_threads(partial(_read_test, tests, run.info.run_id, scratch), sizes, _JOBS)
        )


def sizes_of_tests(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """Names and bytes of the files of a run's tests, in their order; None: the store says none."""
    with mlflow_errors(f"list the tests inside buckets of run {run.info.run_id}"):
        sizes = ArtifactFolder(client, run, ANYTIME_FOLDER).list_sizes()
    return {name: sizes[name] for name in sorted(sizes) if anytime_place(name) is not None}


def _read_test(tests: ArtifactFolder, run_id: str, scratch: Path, name: str) -> AnytimeRow:
    with mlflow_errors(f"read {name} of run {run_id}"):
        content = read_bytes(tests.fetch_file(name, scratch), MAX_ROW_BYTES)
    return AnytimeRow.from_json(content, source=name)


def failed_of(undefined: Mapping[str, Exception]) -> frozenset[str]:
    """Names of the metrics that have no value because their own function is wrong."""
    return frozenset(n for n, error in undefined.items() if isinstance(error, FailedMetricError))


def _stamp_of(record: Record, metrics: Sequence[PredictionMetric | AnytimeMetric]) -> str:
    """A short text that changes with the rows and with any definition."""
    matrix = record.matrix
    content = [
        record.protocol,
        list(record.rows),
        matrix.values.tolist(),
        None if matrix.initial is None else matrix.initial.tolist(),
        sorted((metric.name, metric.version) for metric in metrics),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _num_rows_of(stamp: str | None) -> int:
    """How many rows had predictions when a run's were scored; 0: they were not."""
    count = (stamp or "").rpartition("-")[2]
    return int(count) if count.isdecimal() else 0


def _content_digest(predictions: Predictions) -> str:
    """What changes with any answer of any row, and with the images that they are of."""
    hasher = hashlib.sha256(predictions.images.digest.encode())
    for row, answers in sorted(predictions.answers.items()):
        hasher.update(f"\0{row}\0".encode() + answers.to_bytes())
    return hasher.hexdigest()[:16]
