"""What the stored rows and predictions of one run define, whatever its store holds of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.errors import FailedMetricError
from clear_mlflow.core.record import Record, RowRecord
from clear_mlflow.metrics import DEFAULT_FAMILIES, METRICS, Metric, anytime, course, of_score
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.metrics._common import evaluated, over_course
from clear_mlflow.metrics.anytime import AnytimeMetric
from clear_mlflow.metrics.from_predictions import (
    PredictionMetric,
    Predictions,
    confusion,
    macro_accuracy,
)
from clear_mlflow.report.exports import matrix_csv
from clear_mlflow.report.pictures import confusion_png
from clear_mlflow.report.prediction_tables import calibration_csv, confusion_csv, per_class_csv
from clear_mlflow.scoring.series import Series, all_series, milliseconds
from clear_mlflow.store import names
from clear_mlflow.store.matrices import StoredRows

# Of more classes, who is taken for whom fills no table that a person reads: a million cells.
_MOST_CLASSES = 1000
_TABLES_VERSION = 1  # raised when a table of predictions changes, so that it is written again


@dataclass(frozen=True, eq=False)
class _Beside:
    """What is stored of a run beside its rows defines; nothing of a run that has none of it."""

    summary: Mapping[str, float] = field(default_factory=dict)
    points: Series = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric name to why it is undefined
    stamp: str | None = None  # fingerprint of all this; None: some lacks, or nothing was computed
    problem: str | None = None  # why nothing was computed, though it is stored
    is_unread: bool = False  # the run's metrics hold all this already: it was not read


@dataclass(frozen=True, eq=False)
class PredictionScores(_Beside):
    """What a run's stored predictions define beyond its rows."""

    failed: frozenset[str] = frozenset()  # of the reasons, those whose own function is wrong
    predictions: Predictions | None = None  # those that tables are made of
    # Draws a PNG of the last row's confusion; None: no row has evidence, or of too many classes.
    picture: Callable[[], bytes] | None = None

    @property
    def are_kept(self) -> bool:
        """Whether the run has predictions, read or not."""
        return self.is_unread or self.predictions is not None


@dataclass(frozen=True, eq=False)
class AnytimeScores(_Beside):
    """What a run's tests inside its buckets define."""

    matrix: AnytimeMatrix | None = None  # what a chart is drawn of


@dataclass(frozen=True, eq=False)
class Computed:
    """What a run's rows, and its predictions where it kept any, define."""

    run_name: str
    record: Record
    digest: str  # of the files that the rows were read from
    matrix_tag: str | None  # the rows as the run's matrix tag should have them; None: no room
    families: tuple[str, ...]  # of metrics that the run logs
    points: Series
    times: Mapping[int, int]  # step to milliseconds since the epoch
    summary: Mapping[str, float]
    reasons: Mapping[str, str]  # metric name to why it is not defined
    failed: frozenset[str]  # of the reasons, a user's own metrics that are wrong
    versions: Mapping[str, int]  # of every metric that was computed
    lower_is_better: frozenset[str]  # names of those of which less is better
    predicted: PredictionScores
    anytime: AnytimeScores

    @property
    def rows_state(self) -> str:
        """How much of the matrix is there, as the run's tag says it."""
        return "complete" if self.record.is_complete else "partial"


def compute(
    run_name: str,
    rows: StoredRows,
    record: Record,
    *,
    families: tuple[str, ...] = DEFAULT_FAMILIES,
    metrics: Sequence[Metric] = METRICS,
    prediction_metrics: Sequence[PredictionMetric] = predicted.METRICS,
    answers: PredictionScores | None = None,
    tests: AnytimeScores | None = None,
) -> Computed:
    """What a run's rows, of which *record* was assembled, predictions and tests define."""
    answers, tests = answers or PredictionScores(), tests or AnytimeScores()
    metrics = of_score(metrics, record.matrix.score)
    asked: tuple[Metric | PredictionMetric | AnytimeMetric, ...]
    asked = (*metrics, *prediction_metrics, *anytime.METRICS)
    over_steps = course(record.evidence, record.protocol, metrics)
    own = {metric.name for metric in prediction_metrics} - {m.name for m in predicted.METRICS}
    own |= {metric.name for metric in metrics}
    reasons = {name: str(error) for name, error in over_steps.undefined.items()}
    # Those that come with this program are missing in most runs, which kept labels alone.
    reasons |= {name: reason for name, reason in answers.reasons.items() if name in own}
    reasons |= tests.reasons
    return Computed(
        run_name=run_name,
        record=record,
        digest=rows.digest,
        matrix_tag=rows.tag,
        families=families,
        points=all_series(
            record.evidence, over_steps.series, names.bucket_series(record.matrix.score.name)
        )
        | dict(answers.points)
        | dict(tests.points),
        times=_times(rows.records, record.matrix.num_rows),
        summary=over_steps.summary | dict(answers.summary) | dict(tests.summary),
        reasons=reasons,
        failed=_failed(over_steps.undefined) | answers.failed,
        versions={m.name: m.version for m in asked},
        lower_is_better=frozenset(m.name for m in asked if not m.higher_is_better),
        predicted=answers,
        anytime=tests,
    )


def compute_predictions(
    predictions: Predictions,
    record: Record,
    run_name: str,
    metrics: Sequence[PredictionMetric] = predicted.METRICS,
) -> PredictionScores:
    """Everything that a run's stored predictions define, but for what repeats its rows."""
    left_out = macro_accuracy.METRICS if macro_accuracy.repeats_accuracy(predictions) else ()
    computed = [metric for metric in metrics if metric not in left_out]
    points = over_course(predictions, computed)
    _, undefined = evaluated(predictions, computed)
    failed = _failed(undefined)
    return PredictionScores(
        summary={
            name: steps[predictions.k] for name, steps in points.items() if predictions.k in steps
        },
        points=points,
        reasons={name: str(error) for name, error in undefined.items()},
        failed=failed,
        # What failed is not taken for done: it is computed, and reported, again.
        stamp=stamp_of(record, [m for m in metrics if m.name not in failed]),
        predictions=predictions,
        picture=_picture(predictions, run_name),
    )


def stamp_of(record: Record, metrics: Sequence[PredictionMetric | AnytimeMetric]) -> str:
    """A short text that changes with the rows, with any definition, and with the tables' form."""
    matrix = record.matrix
    content = [
        _TABLES_VERSION,
        record.protocol,
        list(record.rows),
        matrix.values.tolist(),
        None if matrix.initial is None else matrix.initial.tolist(),
        sorted((metric.name, metric.version) for metric in metrics),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def prediction_tables(predictions: Predictions) -> dict[str, str]:
    """Artifact path to text of every table that is made of a run's predictions."""
    found = {names.PER_CLASS_CSV: per_class_csv(predictions)}
    if predictions.k in predictions.answers or predictions.k == 0:
        found[names.MACRO_CSV] = matrix_csv(predicted.macro_matrix(predictions))
    classes = len(predictions.images.class_names)
    for row in predictions.answers if classes <= _MOST_CLASSES else ():
        found[f"{names.CONFUSION_FOLDER}/row_{row:03d}.csv"] = confusion_csv(predictions, row)
    if table := calibration_csv(predictions):
        found[names.CALIBRATION_CSV] = table
    return found


def _picture(predictions: Predictions, run_name: str) -> Callable[[], bytes] | None:
    """Of the last row that holds any evidence: under streaming, that is not the last of all."""
    if len(predictions.images.class_names) > _MOST_CLASSES:
        return None
    for row in sorted(predictions.answers, reverse=True):
        counts = confusion(predictions, row)
        if counts.any():
            after = "initial" if row == 0 else f"after {predictions.images.buckets[row - 1]}"
            class_names = predictions.images.class_names
            return partial(confusion_png, counts, class_names, f"{run_name}, {after}")
    return None


def _failed(undefined: Mapping[str, Exception]) -> frozenset[str]:
    return frozenset(n for n, error in undefined.items() if isinstance(error, FailedMetricError))


def _times(records: Mapping[str, RowRecord], num_rows: int) -> dict[int, int]:
    """When each step was measured, in milliseconds since the epoch.

    A step whose own row is missing may still define a metric: it has the time of the row before.
    """
    written = {record.row.row: milliseconds(record.written_at) for record in records.values()}
    times = {}
    time = min(written.values())
    for step in range(num_rows + 1):
        time = times[step] = written.get(step, time)
    return times
