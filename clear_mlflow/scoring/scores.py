"""Scores from stored rows: read the rows back, rebuild the matrix, log what MLflow lacks.

The post-run hook and ``evaluate`` are both this. Nothing here trusts what a training process
remembers: the row artifacts are the record.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS, MLFLOW_RUN_NOTE

from clear_mlflow.core.errors import FailedMetricError, RecordError
from clear_mlflow.core.matrix import named_rows
from clear_mlflow.core.record import Record, RowRecord, assemble
from clear_mlflow.core.text import percent
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object, json_value
from clear_mlflow.metrics import METRICS, summarize, undefined
from clear_mlflow.metrics import Metric as Definition
from clear_mlflow.metrics import from_predictions as predicted
from clear_mlflow.report.canvas import png_array
from clear_mlflow.report.exports import matrix_csv, matrix_json
from clear_mlflow.report.heatmap import heatmap_png
from clear_mlflow.report.markdown import description
from clear_mlflow.scoring.prediction_scores import (
    PredictionScores,
    read_prediction_scores,
    write_prediction_files,
)
from clear_mlflow.scoring.series import Series, all_series, as_metrics, milliseconds
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_bytes
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.matrices import StoredRows, stored_rows_of

_BATCH = 900  # entries that MLflow takes in one call are 1,000: metrics, and the tags behind them
_PICTURES = "pictures"
_NO_TAG = "none"


@dataclass(frozen=True)
class Scores:
    """What the stored rows of one run say."""

    run_id: str
    run_name: str
    record: Record | None  # None: the run holds no row
    summary: Mapping[str, float]
    reasons: Mapping[str, str]  # metric name to why it is not defined
    points: Series
    lacking: tuple[Metric, ...]  # points that MLflow does not have, or has otherwise
    rows_state: str  # "complete", "partial" or "none"
    tags: Mapping[str, str]  # tags that MLflow does not have, or has otherwise
    reports: bool  # the stored reports (matrix, heat map) are of other rows, or not there
    pictures: bool  # heat maps are among the reports
    # Metric name to the version that the stored values are of, where this program computes another.
    outdated: Mapping[str, int]
    from_tag: bool  # the rows were taken from the run's tag
    failed: frozenset[str] = frozenset()  # a user's own metrics that are wrong, of the reasons
    # What its stored predictions say; their points, values and tags are among those above, too.
    predicted: PredictionScores = field(default_factory=lambda: PredictionScores({}))

    @property
    def is_stored(self) -> bool:
        """Whether MLflow holds all of this already."""
        reports = self.reports or self.predicted.files or self.predicted.picture is not None
        return not self.lacking and not self.tags and not reports


def read_scores(
    client: MlflowClient,
    run: Run,
    *,
    thorough: bool = False,
    verify: str = "all",
    metrics: Sequence[Definition] = METRICS,
    prediction_metrics: Sequence[predicted.PredictionMetric] = predicted.METRICS,
    accept_new: bool = False,
    pictures: bool = True,
) -> Scores:
    """Read a run's rows and compute every score that they define; nothing is written.

    Args:
        client: the store.
        run: as it is now.
        thorough: look at every point of every series and at every report. Otherwise a series whose
            last value agrees, in a run that was scored from these very rows, is taken to be whole.
        verify: when row artifacts are looked at although a tag holds the rows; see
            :func:`~clear_mlflow.store.matrices.stored_rows_of`.
        metrics: to compute.
        prediction_metrics: to compute of its stored predictions, where it kept any.
        accept_new: values that are of another version of a metric's definition are to be
            overwritten; otherwise they are left alone, and told as outdated.
        pictures: of the matrix, and of which class is taken for which; where there is one, it is
            kept up to date in any case.

    Raises:
        RecordError: a row is damaged, or rows contradict each other.
        TrackingError: the store does not answer.
    """
    rows = stored_rows_of(client, run, verify)
    run_id, run_name = run.info.run_id, run.info.run_name or run.info.run_id
    tags = run.data.tags
    if not rows.records:
        is_ours = names.ROWS_TAG in tags or tags.get(names.KIND_TAG) == names.KIND_TRAIN
        return Scores(
            run_id=run_id,
            run_name=run_name,
            record=None,
            summary={},
            reasons={},
            points={},
            lacking=(),
            rows_state="none",
            tags=_differing(tags, {names.ROWS_TAG: "none"} if is_ours else {}),
            reports=False,
            pictures=False,
            outdated={},
            from_tag=rows.from_tag,
        )
    record = assemble(rows.records)
    answers = read_prediction_scores(
        client,
        run,
        record,
        metrics=prediction_metrics,
        thorough=thorough,
        pictures=pictures,
    ) or PredictionScores({})
    summary = summarize(record.matrix, record.protocol, metrics) | dict(answers.summary)
    versions = {metric.name: metric.version for metric in metrics}
    versions |= {metric.name: metric.version for metric in prediction_metrics}
    outdated = dict(_outdated(run, versions, summary))
    left_alone = frozenset() if accept_new else outdated.keys()
    everything = all_series(record.matrix, record.protocol, metrics) | dict(answers.points)
    points = {name: steps for name, steps in everything.items() if name not in left_alone}
    scored_digest, had_pictures = _last_scoring(run)
    same_rows = scored_digest == rows.digest
    settled = {
        name
        for name in points
        if same_rows and not thorough and name not in outdated and _is_told_of(tags, name)
    }
    times = _times(rows.records.values(), record.matrix.num_rows)
    errors = undefined(record.matrix, record.protocol, metrics)
    reasons = {name: str(error) for name, error in errors.items()}
    failed = {name for name, error in errors.items() if isinstance(error, FailedMetricError)}
    # Those that come with this program are missing in most runs, which kept labels alone.
    own = versions.keys() - {metric.name for metric in predicted.METRICS}
    reasons |= {name: reason for name, reason in answers.reasons.items() if name in own}
    for name in left_alone:
        summary.pop(name, None)
        reasons[name] = f"the run holds values of version {outdated[name]} of its definition"
    pictures = pictures or had_pictures
    rows_state = "complete" if record.is_complete else "partial"
    return Scores(
        run_id=run_id,
        run_name=run_name,
        record=record,
        summary=summary,
        reasons=reasons,
        points=points,
        lacking=tuple(_lacking(client, run, points, times, settled)),
        rows_state=rows_state,
        tags=_differing(
            tags,
            {
                names.ROWS_TAG: rows_state,
                names.SCORED_TAG: f"{rows.digest} {_PICTURES}" if pictures else rows.digest,
                **_matrix_tag(tags, rows),
                **_version_tags(tags, points, versions, outdated if accept_new else {}),
                # Not before all of it is stored: what is left alone is looked at again.
                **({} if left_alone & answers.points.keys() else answers.tags),
            },
        ),
        reports=not same_rows
        or pictures != had_pictures
        or (thorough and _lacks_reports(client, run, pictures)),
        pictures=pictures,
        outdated=outdated,
        from_tag=rows.from_tag,
        failed=frozenset(failed | answers.failed) - left_alone,
        predicted=answers,
    )


def write_scores(client: MlflowClient, run: Run, scores: Scores) -> None:
    """Log what :func:`read_scores` found lacking: reports, metrics, and the tags, in this order.

    The tags come last: a run is called scored only when all the rest is stored. Metrics and tags
    are one request, which MLflow stores in that order.
    """
    run_id = scores.run_id
    tags = dict(scores.tags)
    with mlflow_errors(f"log the scores of run {run_id}"):
        if scores.record is not None:
            if scores.reports:
                tags |= _log_reports(client, run, scores, scores.record)
            write_prediction_files(client, run_id, scores.predicted)
            tags |= _note_tags(run, scores, scores.record)
        *whole, last = _batches(scores.lacking)
        for batch in whole:
            client.log_batch(run_id, metrics=batch)
        client.log_batch(
            run_id, metrics=last, tags=[RunTag(key, value) for key, value in tags.items()]
        )


def score(client: MlflowClient, run_id: str) -> Scores:
    """Read a run's rows back, log the scores that MLflow lacks, and give them."""
    with mlflow_errors(f"read run {run_id}"):
        run = client.get_run(run_id)
    scores = read_scores(client, run)
    if not scores.is_stored:
        write_scores(client, run, scores)
    return scores


def _batches(points: Sequence[Metric]) -> list[Sequence[Metric]]:
    return [points[start : start + _BATCH] for start in range(0, len(points), _BATCH)] or [()]


def _last_scoring(run: Run) -> tuple[str, bool]:
    """Digest of the rows that a run was last scored from, and whether heat maps were drawn."""
    digest, _, pictures = run.data.tags.get(names.SCORED_TAG, "").partition(" ")
    return digest, pictures == _PICTURES


def _outdated(
    run: Run, computed: Mapping[str, int], summary: Mapping[str, float]
) -> Iterator[tuple[str, int]]:
    """Metrics whose stored values are of another version of the definition, with that version.

    Values that no scoring told the version of are of version 1, unless they are what this program
    computes anyway: a training logs them one by one, and is closed by a scoring.
    """
    versions = _read_versions(run.data.tags.get(names.VERSIONS_TAG))
    for name, version in computed.items():
        if name not in run.data.metrics or versions.get(name, 1) == version:
            continue
        if name in versions or run.data.metrics[name] != summary.get(name):
            yield name, versions.get(name, 1)


def _read_versions(text: str | None) -> dict[str, int]:
    try:
        found = json_object(text or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in found.items() if isinstance(version, int)}


def _is_told_of(tags: Mapping[str, str], name: str) -> bool:
    """Whether a scoring of the run stored this series: a bucket's, or that of a metric."""
    return name.startswith("accuracy/") or name in _read_versions(tags.get(names.VERSIONS_TAG))


def _version_tags(
    tags: Mapping[str, str],
    points: Series,
    computed: Mapping[str, int],
    replaced: Mapping[str, int],
) -> dict[str, str]:
    """The tags that say which definitions the logged values are of, and were of before.

    What another scoring logged, of metrics that this one does not compute, stays told.
    """
    versions = _read_versions(tags.get(names.VERSIONS_TAG))
    versions |= {name: version for name, version in computed.items() if name in points}
    told = {names.VERSIONS_TAG: json.dumps(versions, sort_keys=True, separators=(",", ":"))}
    if replaced:
        before = {name: [version] for name, version in replaced.items()}
        with suppress(RecordError, TypeError):
            earlier_versions = json_object(tags.get(names.REPLACED_TAG, "{}"), MAX_TAG_BYTES)
            for name, earlier in earlier_versions.items():
                before[name] = [*earlier, *before.get(name, [])]
        told[names.REPLACED_TAG] = json.dumps(before, sort_keys=True, separators=(",", ":"))
    return told


def _matrix_tag(tags: Mapping[str, str], rows: StoredRows) -> dict[str, str]:
    if rows.tag is None and names.MATRIX_TAG not in tags:
        return {}
    return {names.MATRIX_TAG: rows.tag or _NO_TAG}


def _differing(there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def _times(records: Iterable[RowRecord], num_rows: int) -> dict[int, int]:
    """When each step was measured, in milliseconds since the epoch.

    A step whose own row is missing may still define a metric: it has the time of the row before.
    """
    written = {record.row.row: milliseconds(record.written_at) for record in records}
    times = {}
    time = min(written.values())
    for step in range(num_rows + 1):
        time = times[step] = written.get(step, time)
    return times


def _lacking(
    client: MlflowClient,
    run: Run,
    points: Series,
    times: Mapping[int, int],
    settled: Set[str],
) -> list[Metric]:
    """Points that the store has not, or whose value in force is another.

    Args:
        client: the store.
        run: as it is now.
        points: what it should hold.
        times: of each step.
        settled: series that are whole if their last value is there, so that what a listing of
            runs brings anyway is enough, instead of one request per metric.
    """
    found = []
    for name, steps in points.items():
        if name in settled and run.data.metrics.get(name) == steps[max(steps)]:
            continue
        in_force: dict[int, Metric] = {}
        if name in run.data.metrics:
            with mlflow_errors(f"read {name} of run {run.info.run_id}"):
                history = client.get_metric_history(run.info.run_id, name)
            for stored in history:
                before = in_force.get(stored.step)
                if before is None or stored.timestamp >= before.timestamp:
                    in_force[stored.step] = stored
        for point in as_metrics({name: steps}, times):
            if point.step not in in_force:
                found.append(point)
            elif (other := in_force[point.step]).value != point.value:
                # Of two values at one step MLflow shows the later one.
                later = max(other.timestamp + 1, point.timestamp)
                found.append(Metric(name, point.value, later, point.step))
    return found


def _lacks_reports(client: MlflowClient, run: Run, pictures: bool) -> bool:
    with mlflow_errors(f"list the reports of run {run.info.run_id}"):
        listed = {f.path for f in client.list_artifacts(run.info.run_id, names.MATRIX_FOLDER)}
    reports = {names.MATRIX_JSON, names.MATRIX_CSV, names.MATRIX_TABLE}
    return not (reports | ({names.HEATMAP_PNG} if pictures else set())) <= listed


def _log_reports(client: MlflowClient, run: Run, scores: Scores, record: Record) -> dict[str, str]:
    """Store the matrix in the forms people look at; give the tags that belong to them."""
    run_id, matrix = run.info.run_id, record.matrix.masked(record.protocol)
    client.log_text(run_id, matrix_json(matrix), names.MATRIX_JSON)
    client.log_text(run_id, matrix_csv(matrix), names.MATRIX_CSV)
    # Written as a file, not with log_table: that appends to the table of an earlier scoring.
    client.log_text(run_id, _table(record), names.MATRIX_TABLE)
    if scores.pictures:
        content = heatmap_png(matrix, scores.run_name)
        log_bytes(client, run_id, content, names.HEATMAP_PNG)
        # MLflow's chart view sets images of one key side by side, runs beside runs; it starts at
        # the first step, so the matrix as it stands has a key of its own with a single step.
        client.log_image(run_id, png_array(content), key=names.IMAGE_FINAL, step=0)

    this_table = {"path": names.MATRIX_TABLE, "type": "table"}
    try:
        tables = json_value(run.data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"), MAX_TAG_BYTES)
    except RecordError:
        tables = None  # MLflow cuts long tags off; a list that cannot be read is left as it is
    if isinstance(tables, list) and this_table not in tables:
        return {MLFLOW_LOGGED_ARTIFACTS: json.dumps([*tables, this_table])}
    return {}


def _note_tags(run: Run, scores: Scores, record: Record) -> dict[str, str]:
    """The run's description, unless a person has written another one there."""
    tags = run.data.tags
    current = tags.get(MLFLOW_RUN_NOTE)
    if current and _short_hash(current) != tags.get(names.NOTE_TAG):
        return {}
    told = ("strategy", "model")
    facts = {str(name): tags[name] for name in told if name in tags}
    note = description(record, scores.summary, scores.reasons, facts=facts)
    return {} if note == current else {MLFLOW_RUN_NOTE: note, names.NOTE_TAG: _short_hash(note)}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _table(record: Record) -> str:
    """The matrix as a table that MLflow's evaluation view compares across runs.

    That view groups by the first column and sets the second one of all runs side by side: so these
    are what was trained through, and its row in one text. The cells follow, a column a bucket.
    """
    matrix = record.matrix.masked(record.protocol)
    rows = [
        [
            "initial" if i < 0 else f"after {i + 1:02d}",
            "  ".join(percent(value) for value in values),
            *(None if math.isnan(value) else float(value) for value in values),
        ]
        for i, _, values in named_rows(matrix)
    ]
    cells = (f"on {key}" for key in matrix.buckets)
    return json.dumps({"columns": ["trained", "accuracy in %", *cells], "data": rows})
