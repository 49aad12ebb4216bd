"""Step 3 of scoring: write what the store lacks of a run's scores, and nothing if it has them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import Record
from clear_mlflow.metrics import METRICS, Metric, MetricResults, summarize
from clear_mlflow.report.exports import matrix_csv, matrix_json
from clear_mlflow.report.markdown import description
from clear_mlflow.report.page.matrix_map import spread_positions
from clear_mlflow.report.page.run_page import RunReport, run_page
from clear_mlflow.report.pictures import heatmap_png, png_array
from clear_mlflow.scoring.run_record import (
    StoredRun,
    build_families_tag,
    read_versions,
    split_score_hash,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_bytes
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.sqlite import lock_store_writes
from clear_mlflow.store.ui_urls import format_artifact_link

_NO_TAG = "none"
_REPORTS = frozenset({names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG})
_BATCH = 900  # MLflow accepts 1,000 entries in one call


class Point(NamedTuple):
    """A value of a metric at a step. A point that is written twice is one entry of the store."""

    name: str
    value: float
    time: int  # milliseconds since the epoch
    step: int  # number of buckets trained


@dataclass(frozen=True)
class Changes:
    """What the store lacks of a run's scores, in the order in which it is written."""

    reports: bool = False  # the matrix as JSON, CSV and heat map
    page: bool = False
    points: tuple[Point, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # metrics whose logged value differs

    @property
    def is_empty(self) -> bool:
        """Return True if the store lacks nothing."""
        return not (self.reports or self.page or self.points or self.tags)

    def __str__(self) -> str:
        """Describe the changes in one line."""
        parts = {
            f"{len(self.points)} metric values": self.points,
            "the reports": self.reports,
            "the page": self.page,
            f"the tags {', '.join(sorted(self.tags))}": self.tags,
        }
        return ", ".join(part for part, is_needed in parts.items() if is_needed) or "nothing"


def find_changes(
    client: MlflowClient, stored: StoredRun, results: MetricResults, *, reread: bool = True
) -> Changes:
    """Compare the scores of a run with its store.

    Nothing is missing if the logged score hash and the logged values are the same. With *reread*,
    or if rows have changed, the history of every metric and the files are checked, too.
    """
    run, record, tags = stored.run, stored.record, stored.run.data.tags
    if record is None:
        should_have_rows = names.ROWS_TAG in tags or tags.get(names.KIND_TAG) == names.KIND_TRAIN
        is_new = should_have_rows and tags.get(names.ROWS_TAG) != stored.rows_state
        return Changes(tags={names.ROWS_TAG: stored.rows_state} if is_new else {})
    failed = {name for name, result in results.items() if result.is_failed}
    logged_versions = read_versions(tags)
    # A failed metric is computed, and reported, again.
    versions = logged_versions | {m.name: m.version for m in stored.metrics if m.name not in failed}
    score_hash = stored.compute_score_hash(versions)
    is_scored = tags.get(names.SCORED_TAG) == score_hash
    has_same_rows = split_score_hash(tags)[0] == stored.rows_hash
    missing_files = _find_missing_files(client, run) if reread else frozenset()
    needed_tags = {
        names.ROWS_TAG: stored.rows_state,
        names.SCORED_TAG: score_hash,
        names.VERSIONS_TAG: json.dumps(versions, sort_keys=True, separators=(",", ":")),
        **build_families_tag(stored.families, tags),
    }
    if stored.matrix_tag is not None or names.MATRIX_TAG in tags:
        needed_tags[names.MATRIX_TAG] = stored.matrix_tag or _NO_TAG
    new_tags = {key: value for key, value in needed_tags.items() if tags.get(key) != value}
    # Before the first scoring, training logged the values of the rows so far.
    before = run.data.metrics if names.SCORED_TAG in tags else {}
    changes = Changes(
        reports=not has_same_rows or bool(missing_files & _REPORTS),
        page=not is_scored or names.REPORT_HTML in missing_files,
        points=tuple(_find_points(client, stored, results, reread or not has_same_rows)),
        tags=new_tags,
        changed=tuple(
            name
            for name, result in results.items()
            if result.value is not None and before.get(name, result.value) != result.value
        ),
    )
    if changes.is_empty:
        return changes
    return replace(changes, tags=new_tags | _build_note_tags(stored, record, results))


def log_results(
    client: MlflowClient, stored: StoredRun, results: MetricResults, changes: Changes
) -> None:
    """Write the changes. The tags are last, so that an interrupted scoring is repeated."""
    record, run_id = stored.record, stored.run_id
    if changes.is_empty:
        return
    with lock_store_writes(client.tracking_uri), mlflow_errors(f"log the scores of run {run_id}"):
        if changes.reports and record is not None:
            matrix = record.masked_matrix
            client.log_text(run_id, matrix_json(matrix), names.MATRIX_JSON)
            client.log_text(run_id, matrix_csv(matrix), names.MATRIX_CSV)
            content = heatmap_png(matrix, stored.run_name)
            log_bytes(client, run_id, content, names.HEATMAP_PNG)
            # MLflow's chart view shows images with one key side by side, one run next to another.
            # It starts at the first step, so the final matrix has its own key with one step.
            client.log_image(run_id, png_array(content), key=names.IMAGE_FINAL, step=0)
        if changes.page:
            client.log_text(run_id, run_page(build_report(stored, results)), names.REPORT_HTML)
        for start in range(0, len(changes.points), _BATCH):
            batch = to_mlflow_metrics(changes.points[start : start + _BATCH])
            client.log_batch(run_id, metrics=batch)
        if changes.tags:
            log_tags(client, run_id, changes.tags)


def build_report(stored: StoredRun, results: MetricResults) -> RunReport:
    """Return what the page of a run shows.

    Raises RecordError if the run contains no rows.
    """
    record, metadata = stored.record, stored.metadata
    if record is None or metadata is None:
        raise RecordError(f"run {stored.run_id} contains no rows of an accuracy matrix")
    problems = stored.problems
    explanation = ""
    if "predictions" in problems:
        explanation = f"Its predictions were left out: {problems['predictions']}."
    elif stored.predictions is None and record.matrix.score.is_accuracy:
        explanation = "Accuracy per class needs the predictions, and the run kept none."
    notes = [*metadata.warnings]
    notes += [f"Its {n} were left out: {why}." for n, why in problems.items() if n != "predictions"]
    return RunReport(
        name=stored.run_name,
        run_id=stored.run_id,
        record=record,
        results=results,
        predictions=stored.predictions,
        without_predictions=explanation,
        configuration=metadata.configuration,
        requested=metadata.requested,
        dataset=metadata.dataset,
        num_train=metadata.num_train,
        environment=metadata.environment,
        notes=notes,
        tests=stored.tests,
    )


def name_bucket_series(buckets: Sequence[str], prefix: str = names.BUCKET_SERIES) -> list[str]:
    """Return ``test_accuracy/bucket_03`` for each bucket: all different, in MLflow's characters."""
    width = max([2, *(len(key) for key in buckets if key.isdecimal())])
    unique: dict[str, None] = {}
    for position, key in enumerate(buckets):
        label = re.sub(r"[^A-Za-z0-9_.-]", "_", key.zfill(width) if key.isdecimal() else key)
        name = f"{prefix}{label}"
        while name in unique:
            name += f".{position}"
        unique[name] = None
    return list(unique)


def collect_series(
    masked_matrix: AccuracyMatrix,
    metric_series: Mapping[str, Mapping[int, float]],
    prefix: str = names.BUCKET_SERIES,
) -> dict[str, dict[int, float]]:
    """Return the series that MLflow charts: those of metrics, then the score on each bucket."""
    # Metrics first: MLflow's page of a run lists names in the order in which they arrived.
    series = {name: dict(steps) for name, steps in metric_series.items() if steps}
    for step in range(masked_matrix.num_rows + 1):
        for name, value in _get_bucket_values(masked_matrix, step, prefix).items():
            series.setdefault(name, {})[step] = value
    return series


def evaluate_step(
    masked_matrix: AccuracyMatrix,
    step: int,
    metrics: Sequence[Metric] = METRICS,
    prefix: str = names.BUCKET_SERIES,
) -> dict[str, float]:
    """Return the values that one row adds to :func:`collect_series`."""
    values = summarize(masked_matrix.after(step), "iid", metrics) if step else {}
    return values | _get_bucket_values(masked_matrix, step, prefix)


def build_points(stored: StoredRun, results: MetricResults) -> list[Point]:
    """Return all points of a run's metrics and buckets, each at the time of its row."""
    if stored.record is None:
        return []
    matrix = stored.record.masked_matrix
    metric_series = {name: r.series for name, r in results.items() if r.version is not None}
    series = collect_series(matrix, metric_series, names.format_bucket_prefix(matrix.score.name))
    return [
        Point(name, value, stored.times[step], step)
        for name, steps in series.items()
        for step, value in steps.items()
    ]


def to_mlflow_metrics(points: Iterable[Point]) -> list[MlflowMetric]:
    """Convert points to MLflow's metrics."""
    return [MlflowMetric(*point) for point in points]


def _find_points(
    client: MlflowClient,
    stored: StoredRun,
    results: MetricResults,
    should_check_all: bool,
) -> Iterator[Point]:
    """Yield the points that the store lacks or has with another value.

    A metric whose version and last value are logged is skipped, unless all are to be checked.
    """
    logged, logged_versions = stored.run.data.metrics, read_versions(stored.run.data.tags)
    points_by_name: dict[str, list[Point]] = {}
    for point in build_points(stored, results):
        points_by_name.setdefault(point.name, []).append(point)
    for name, points in points_by_name.items():
        if name not in logged:
            yield from points
            continue
        has_same_version = (
            logged_versions.get(name) == results[name].version
            if name in results
            else bool(logged_versions)
        )
        if logged[name] == points[-1].value and has_same_version and not should_check_all:
            continue
        with mlflow_errors(f"read {name} of run {stored.run_id}"):
            history = client.get_metric_history(stored.run_id, name)
        latest = {m.step: m for m in sorted(history, key=lambda metric: metric.timestamp)}
        for point in points:
            if point.step not in latest:
                yield point
            elif (current := latest[point.step]).value != point.value:
                # MLflow shows the later of two values at a step.
                yield point._replace(time=max(current.timestamp + 1, point.time))


def _get_bucket_values(masked_matrix: AccuracyMatrix, step: int, prefix: str) -> dict[str, float]:
    row = masked_matrix.values[step - 1] if step else masked_matrix.initial
    if row is None:
        return {}
    values = {name: float(row[j]) for j, name in _choose_buckets(masked_matrix.buckets, prefix)}
    return {name: value for name, value in values.items() if not math.isnan(value)}


@lru_cache(maxsize=32)
def _choose_buckets(buckets: tuple[str, ...], prefix: str) -> tuple[tuple[int, str], ...]:
    """Return index and series of each bucket that is charted."""
    series = name_bucket_series(buckets, prefix)
    return tuple((j, series[j]) for j in spread_positions(len(buckets)))


def _find_missing_files(client: MlflowClient, run: Run) -> frozenset[str]:
    """Return the paths of reports and page that the artifacts of a run lack."""
    paths = set()
    for folder in ("", names.MATRIX_FOLDER):
        with mlflow_errors(f"list {folder or 'the artifacts'} of run {run.info.run_id}"):
            paths |= {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    return (_REPORTS | {names.REPORT_HTML}) - paths


def _build_note_tags(stored: StoredRun, record: Record, results: MetricResults) -> dict[str, str]:
    """Return tags with the run's description, or nothing if a person has written another one."""
    tags = stored.run.data.tags
    current = tags.get(names.MLFLOW_NOTE)
    if current and _hash_note(current) != tags.get(names.NOTE_TAG):
        return {}
    note = description(
        record,
        results,
        metadata={name: tags[name] for name in ("strategy", "model") if name in tags},
        report=format_artifact_link(stored.run, names.REPORT_HTML),
    )
    return {} if note == current else {names.MLFLOW_NOTE: note, names.NOTE_TAG: _hash_note(note)}


def _hash_note(note: str) -> str:
    return hashlib.sha256(note.encode()).hexdigest()[:32]
