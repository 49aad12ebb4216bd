"""What a store lacks of a run's scores, and writing it: nothing, where it holds all already.

Tags of the run say what it was scored from; where one differs, what follows is written again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object
from clear_mlflow.report.exports import matrix_csv, matrix_json
from clear_mlflow.report.markdown import description
from clear_mlflow.report.page.run_page import run_page
from clear_mlflow.report.pictures import heatmap_png, png_array
from clear_mlflow.scoring.computed import Plan, Scores
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.scoring.run_report import run_report
from clear_mlflow.scoring.series import Point, points_of
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_bytes
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.ui_urls import format_artifact_link

_NO_TAG = "none"
_REPORTS = frozenset({names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG})
_BATCH = 900  # MLflow takes 1,000 entries in one call


def plan_without_rows(run: Run) -> Plan:
    """What is written into a run that holds no row: that it holds none, if it should hold some."""
    tags = run.data.tags
    is_ours = names.ROWS_TAG in tags or tags.get(names.KIND_TAG) == names.KIND_TRAIN
    return Plan(tags=_differing(tags, {names.ROWS_TAG: "none"} if is_ours else {}))


def plan(client: MlflowClient, run: Run, scores: Scores, *, thorough: bool = False) -> Plan:
    """What a store lacks of a run's scores; *thorough*: also points and files that are gone."""
    record, tags = scores.record, run.data.tags
    if record is None:
        return plan_without_rows(run)
    same_rows = tags.get(names.SCORED_TAG) == scores.digest
    versions = _read_versions(tags)
    lost = _lost(client, run) if thorough else frozenset()
    points = tuple(_lacking(client, run, scores, versions if same_rows and not thorough else {}))
    page = run_report(record, scores, run, {**earlier_summary(run, scores), **scores.summary})
    stamps = {
        names.PREDICTIONS_SCORED_TAG: scores.predicted.stamp,
        names.ANYTIME_SCORED_TAG: scores.anytime.stamp,
    }
    known_versions = versions | {n: v for n, v in scores.versions.items() if n in scores.points}
    new = {tag: stamp for tag, stamp in stamps.items() if stamp and tags.get(tag) != stamp}
    wanted = {
        names.ROWS_TAG: scores.rows_state,
        names.SCORED_TAG: scores.digest,
        names.REPORT_TAG: page.stamp(scores.digest),
        names.VERSIONS_TAG: json.dumps(known_versions, sort_keys=True, separators=(",", ":")),
        **families_tag(scores.families, tags),
        **new,
    }
    if scores.matrix_tag is not None or names.MATRIX_TAG in tags:
        wanted[names.MATRIX_TAG] = scores.matrix_tag or _NO_TAG
    # Predictions that a person removed stay on the page that was made of them.
    has_page = tags.get(names.REPORT_TAG) == wanted[names.REPORT_TAG]
    reports = not same_rows or bool(lost & _REPORTS)
    is_shown = has_page and not new and names.REPORT_HTML not in lost
    differing = _differing(tags, wanted)
    if not (points or reports or differing) and is_shown:
        return Plan()
    differing |= _note_tags(run, record, scores)
    # Of a run that was never scored, training logged the values on the way to its last ones.
    before = run.data.metrics if names.SCORED_TAG in tags else {}
    changed = tuple(n for n, value in scores.summary.items() if before.get(n, value) != value)
    return Plan(reports, None if is_shown else page, points, differing, changed)


def write_scores(client: MlflowClient, scores: Scores) -> None:
    """Write what :func:`plan` found lacking; the tags last: then a run is called scored."""
    plan, run_id = scores.plan, scores.run_id
    with mlflow_errors(f"log the scores of run {run_id}"):
        if plan.reports and scores.record is not None:
            _log_reports(client, scores, scores.record)
        if plan.page is not None:
            client.log_text(run_id, run_page(plan.page), names.REPORT_HTML)
        for start in range(0, len(plan.points), _BATCH):
            client.log_batch(run_id, metrics=to_metrics(plan.points[start : start + _BATCH]))
        if plan.tags:
            log_tags(client, run_id, plan.tags)


def to_metrics(points: Iterable[Point]) -> list[Metric]:
    """Points as MLflow takes them."""
    return [Metric(*point) for point in points]


def _log_reports(client: MlflowClient, scores: Scores, record: Record) -> None:
    run_id, matrix = scores.run_id, record.evidence
    client.log_text(run_id, matrix_json(matrix), names.MATRIX_JSON)
    client.log_text(run_id, matrix_csv(matrix), names.MATRIX_CSV)
    content = heatmap_png(matrix, scores.run_name)
    log_bytes(client, run_id, content, names.HEATMAP_PNG)
    # MLflow's chart view sets images of one key side by side, runs beside runs; it starts at the
    # first step, so the final matrix has a key of its own with one step.
    client.log_image(run_id, png_array(content), key=names.IMAGE_FINAL, step=0)


def _lacking(
    client: MlflowClient, run: Run, scores: Scores, versions: Mapping[str, int]
) -> Iterator[Point]:
    """Points that the store lacks or has otherwise; series of known *versions* may be whole."""
    for name, steps in scores.points.items():
        in_force: dict[int, Point] = {}
        if name in run.data.metrics:
            same = versions.get(name) == scores.versions.get(name)
            was_scored = name in versions or (names.is_bucket_series(name) and bool(versions))
            if same and was_scored and run.data.metrics[name] == steps[max(steps)]:
                continue
            with mlflow_errors(f"read {name} of run {run.info.run_id}"):
                history = client.get_metric_history(run.info.run_id, name)
            for held in sorted(history, key=lambda metric: metric.timestamp):
                in_force[held.step] = Point(name, held.value, held.timestamp, held.step)
        for point in points_of({name: steps}, scores.times):
            if point.step not in in_force:
                yield point
            elif (other := in_force[point.step]).value != point.value:
                # Of two values at one step MLflow shows the later one.
                yield point._replace(time=max(other.time + 1, point.time))


def _lost(client: MlflowClient, run: Run) -> frozenset[str]:
    """Paths of reports and page that a scored run's artifacts lack."""
    found = set()
    for folder in ("", names.MATRIX_FOLDER):
        with mlflow_errors(f"list {folder or 'the artifacts'} of run {run.info.run_id}"):
            found |= {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    return (_REPORTS | {names.REPORT_HTML}) - found


def earlier_summary(run: Run, scores: Scores) -> dict[str, float]:
    """Values that this scoring has not computed and an earlier one has logged.

    A user's own metrics, and those of predictions that were removed.
    """
    logged, versions = run.data.metrics, _read_versions(run.data.tags)
    known = scores.summary.keys() | scores.reasons.keys() | scores.points.keys()
    return {name: logged[name] for name in sorted(versions.keys() & logged.keys() - known)}


def _read_versions(tags: Mapping[str, str]) -> dict[str, int]:
    """Metric name to the version of the definition that its logged values are of."""
    try:
        found = json_object(tags.get(names.VERSIONS_TAG) or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in found.items() if isinstance(version, int)}


def _note_tags(run: Run, record: Record, scores: Scores) -> dict[str, str]:
    """The run's description, unless a person has written another one."""
    tags = run.data.tags
    current = tags.get(names.MLFLOW_NOTE)
    if current and _short_hash(current) != tags.get(names.NOTE_TAG):
        return {}
    note = description(
        record,
        scores.summary,
        scores.reasons,
        facts={name: tags[name] for name in ("strategy", "model") if name in tags},
        report=format_artifact_link(run, names.REPORT_HTML),
        lower_is_better=scores.lower_is_better,
    )
    if note == current:
        return {}
    return {names.MLFLOW_NOTE: note, names.NOTE_TAG: _short_hash(note)}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _differing(there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}
