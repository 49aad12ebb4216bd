"""Step 3 of scoring: write the scores of a run that the tracking store lacks."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_IMAGES

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import Record
from clear_mlflow.metrics import METRICS, Metric, MetricResults, summarize
from clear_mlflow.report.exports import format_matrix_csv, format_matrix_json
from clear_mlflow.report.markdown import format_run_description
from clear_mlflow.report.page.matrix_map import sample_evenly
from clear_mlflow.report.page.run_page import RunReport, render_run_page
from clear_mlflow.report.pictures import decode_png, draw_heatmap_png
from clear_mlflow.scoring.run_record import (
    StoredRun,
    build_families_tag,
    read_versions,
    split_score_hash,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_bytes
from clear_mlflow.store.client import log_tags, mlflow_errors, retry_on_conflict
from clear_mlflow.store.sqlite import lock_store_writes
from clear_mlflow.store.ui_urls import format_artifact_link

_NO_TAG = "none"
REPORTS = frozenset({names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG})
_BATCH = 900  # MLflow accepts 1,000 entries in one call


@dataclass(frozen=True)
class Changes:
    """Files, metric values and tags of a run that have to be written, in this order."""

    reports: bool = False  # the matrix as JSON, CSV and heat map
    page: bool = False  # the HTML report
    metric_values: tuple[MlflowMetric, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # names of metrics whose logged value differs

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to write."""
        return not (self.reports or self.page or self.metric_values or self.tags)

    def __str__(self) -> str:
        """Return the changes in one line, for example "3 metric values, the page", or "nothing"."""
        parts = {
            f"{len(self.metric_values)} metric values": self.metric_values,
            "the reports": self.reports,
            "the page": self.page,
            f"the tags {', '.join(sorted(self.tags))}": self.tags,
        }
        return ", ".join(part for part, is_needed in parts.items() if is_needed) or "nothing"


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of a run, and the input from which they were computed."""

    stored: StoredRun
    results: MetricResults  # metric name to its value and history, or why it is undefined
    changes: Changes = field(default_factory=Changes)  # what the store lacks

    @property
    def record(self) -> Record | None:
        """Accuracy matrix and costs of all stored rows, or None if no row is stored."""
        return self.stored.record


def find_changes(
    client: MlflowClient, stored: StoredRun, results: MetricResults, *, reread: bool = True
) -> Changes:
    """Return the changes that bring the tracking store up to date with *results*.

    Compares hashes in tags and the last value of each metric; if rows have changed, the complete
    history of each metric. Writes nothing. Without rows, only the tag with the state of the rows
    can change.

    reread: True to compare all histories and to look for deleted report files.
    """
    run, record, tags = stored.run, stored.record, stored.run.data.tags
    if record is None:
        should_have_rows = names.ROWS_TAG in tags or tags.get(names.KIND_TAG) == names.KIND_TRAIN
        is_new = should_have_rows and tags.get(names.ROWS_TAG) != stored.rows_state
        return Changes(tags={names.ROWS_TAG: stored.rows_state} if is_new else {})
    failed = {name for name, result in results.items() if result.is_failed}
    versions = stored.get_versions(failed)  # a failed metric is computed, and reported, again
    score_hash = stored.compute_score_hash(versions)
    is_scored = tags.get(names.SCORED_TAG) == score_hash
    has_same_rows = split_score_hash(tags)[0] == stored.rows_hash
    missing_files = _find_missing_reports(client, run) if reread else frozenset()
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
        reports=not has_same_rows or bool(missing_files & REPORTS),
        page=not is_scored or names.REPORT_HTML in missing_files,
        metric_values=tuple(
            _find_missing_values(client, stored, results, reread or not has_same_rows)
        ),
        tags=new_tags,
        changed=tuple(
            name
            for name, result in results.items()
            if result.value is not None and before.get(name, result.value) != result.value
        ),
    )
    if changes.is_empty:
        return changes
    return replace(changes, tags=new_tags | _build_description_tags(stored, record, results))


def log_results(client: MlflowClient, scores: Scores) -> None:
    """Write the changes of *scores* to the tracking store, the tags last.

    Does nothing if there are none. If this is interrupted, the old tags make the next scoring write
    the changes again.
    """
    stored, changes, run_id = scores.stored, scores.changes, scores.stored.run_id
    if changes.is_empty:
        return
    with mlflow_errors(f"log the scores of run {run_id}"), lock_store_writes(client.tracking_uri):
        if changes.reports and stored.record is not None:
            matrix = stored.record.masked_matrix
            client.log_text(run_id, format_matrix_json(matrix), names.MATRIX_JSON)
            client.log_text(run_id, format_matrix_csv(matrix), names.MATRIX_CSV)
            content = draw_heatmap_png(matrix, stored.run_name)
            log_bytes(client, run_id, content, names.HEATMAP_PNG)
            _log_final_image(client, run_id, content)
        if changes.page:
            page = render_run_page(build_report(stored, scores.results))
            client.log_text(run_id, page, names.REPORT_HTML)
        for start in range(0, len(changes.metric_values), _BATCH):
            batch = changes.metric_values[start : start + _BATCH]
            retry_on_conflict(partial(client.log_batch, run_id, metrics=batch))
        if changes.tags:
            log_tags(client, run_id, changes.tags)


def _log_final_image(client: MlflowClient, run_id: str, content: bytes) -> None:
    """Log the PNG of the heat map under its own key.

    MLflow's chart view begins at the first step, so the final matrix needs a key with one step.
    """
    try:
        client.log_image(run_id, decode_png(content), key=names.IMAGE_FINAL, step=0)
    except MlflowException as error:
        # MLflow stores the image, then sets a tag. If another process sets that tag for the first
        # time in the same moment, a server with PostgreSQL refuses one of the two.
        if error.error_code != "BAD_REQUEST":
            raise
        log_tags(client, run_id, {MLFLOW_LOGGED_IMAGES: "True"})


def build_report(stored: StoredRun, results: MetricResults) -> RunReport:
    """Build the content of a run's HTML report. Raises RecordError if the run contains no rows."""
    record = stored.record
    if record is None:
        raise RecordError(f"run {stored.run_id} contains no rows of an accuracy matrix")
    problems = dict(stored.problems)
    explanation = ""
    if "predictions" in problems:
        explanation = f"Its predictions were left out: {problems.pop('predictions')}."
    elif stored.predictions is None and record.matrix.score.is_accuracy:
        explanation = "Accuracy per class needs the predictions, and the run kept none."
    fields = dict(stored.metadata)
    notes = [*fields.pop("warnings")]
    notes += [f"Its {name} were left out: {reason}." for name, reason in problems.items()]
    return RunReport(
        name=stored.run_name,
        run_id=stored.run_id,
        record=record,
        results=results,
        predictions=stored.predictions,
        without_predictions=explanation,
        notes=notes,
        tests=stored.tests,
        **fields,
    )


def build_bucket_series_names(buckets: Sequence[str], score_name: str = "accuracy") -> list[str]:
    """Return a unique MLflow metric name for each bucket, such as ``test_accuracy/bucket_03``.

    Numbers are padded with zeros to the same width. Characters that are not letters, digits or
    ``_.-`` become ``_``. A name that exists already gets a suffix.
    """
    width = max([2, *(len(key) for key in buckets if key.isdecimal())])
    unique: dict[str, None] = {}
    for position, key in enumerate(buckets):
        label = re.sub(r"[^A-Za-z0-9_.-]", "_", key.zfill(width) if key.isdecimal() else key)
        name = f"test_{score_name}/bucket_{label}"
        while name in unique:
            name += f".{position}"
        unique[name] = None
    return list(unique)


def collect_series(
    masked_matrix: AccuracyMatrix, metric_series: Mapping[str, Mapping[int, float]]
) -> dict[str, dict[int, float]]:
    """Return name to history, for the metrics and then for the score on each bucket.

    metric_series: metric name to history, which is step to value; step 0 is before training.
    masked_matrix: NaN where the protocol excludes a value; such values are left out. Of more than
    100 buckets, 100 evenly spaced ones are included.
    """
    # Metrics first: MLflow's page of a run lists names in the order in which they arrived.
    series = {name: dict(steps) for name, steps in metric_series.items() if steps}
    for step in range(masked_matrix.num_rows + 1):
        for name, value in _get_scores_by_series(masked_matrix, step).items():
            series.setdefault(name, {})[step] = value
    return series


def evaluate_step(
    masked_matrix: AccuracyMatrix, step: int, metrics: Sequence[Metric] = METRICS
) -> dict[str, float]:
    """Return name to value after *step* buckets: of *metrics*, and of the score on each bucket.

    Undefined values are left out. Step 0, before training, has only scores.
    """
    values = summarize(masked_matrix.after(step), "iid", metrics) if step else {}
    return values | _get_scores_by_series(masked_matrix, step)


def build_metric_values(stored: StoredRun, results: MetricResults) -> list[MlflowMetric]:
    """Return the values to log: each computed metric and the score on each bucket after every row.

    Step and timestamp are the row's number and time; step 0 is before training. Undefined values
    and metrics that have only a logged value are left out. Empty if the run contains no rows.
    """
    if stored.record is None:
        return []
    metric_series = {name: r.series for name, r in results.items() if r.version is not None}
    series = collect_series(stored.record.masked_matrix, metric_series)
    return [
        MlflowMetric(name, value, stored.times[step], step)
        for name, steps in series.items()
        for step, value in steps.items()
    ]


def _find_missing_values(
    client: MlflowClient, stored: StoredRun, results: MetricResults, check_all: bool
) -> Iterator[MlflowMetric]:
    """Yield the metric values that the store lacks or has differently.

    A value that replaces another number has a later timestamp, since MLflow shows the latest.
    """
    logged, logged_versions = stored.run.data.metrics, read_versions(stored.run.data.tags)
    values_by_name: dict[str, list[MlflowMetric]] = {}
    for value in build_metric_values(stored, results):
        values_by_name.setdefault(value.key, []).append(value)
    for name, values in values_by_name.items():
        if name not in logged:
            yield from values
            continue
        has_same_version = (
            logged_versions.get(name) == results[name].version
            if name in results
            else bool(logged_versions)
        )
        if logged[name] == values[-1].value and has_same_version and not check_all:
            continue
        with mlflow_errors(f"read {name} of run {stored.run_id}"):
            history = client.get_metric_history(stored.run_id, name)
        latest = {m.step: m for m in sorted(history, key=lambda metric: metric.timestamp)}
        for value in values:
            current = latest.get(value.step)
            if current is None:
                yield value
            elif current.value != value.value:
                # MLflow shows the later of two values at a step.
                time = max(current.timestamp + 1, value.timestamp)
                yield MlflowMetric(name, value.value, time, value.step)


def _get_scores_by_series(masked_matrix: AccuracyMatrix, step: int) -> dict[str, float]:
    """Return metric name to score on at most 100 buckets, without NaN."""
    row = masked_matrix.values[step - 1] if step else masked_matrix.initial
    if row is None:
        return {}
    charted_names = _name_charted_buckets(masked_matrix.buckets, masked_matrix.score.name)
    return {name: float(row[j]) for j, name in charted_names.items() if not math.isnan(row[j])}


@lru_cache(maxsize=32)
def _name_charted_buckets(buckets: tuple[str, ...], score_name: str) -> dict[int, str]:
    """Return bucket index to metric name for all buckets, or 100 evenly spaced ones of more."""
    series = build_bucket_series_names(buckets, score_name)
    return {j: series[j] for j in sample_evenly(len(buckets))}


def _find_missing_reports(client: MlflowClient, run: Run) -> frozenset[str]:
    """Return the artifact paths of the JSON, CSV, PNG and HTML reports that a run lacks."""
    paths = set()
    for folder in ("", names.MATRIX_FOLDER):
        with mlflow_errors(f"list {folder or 'the artifacts'} of run {run.info.run_id}"):
            paths |= {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    return (REPORTS | {names.REPORT_HTML}) - paths


def _build_description_tags(
    stored: StoredRun, record: Record, results: MetricResults
) -> dict[str, str]:
    """Return the tags of a new description, unless a person edited it."""
    tags = stored.run.data.tags
    current = tags.get(names.MLFLOW_NOTE)
    if current and _hash_description(current) != tags.get(names.NOTE_TAG):
        return {}
    note = format_run_description(
        record,
        results,
        metadata={name: tags[name] for name in ("strategy", "model") if name in tags},
        report=format_artifact_link(stored.run, names.REPORT_HTML),
    )
    if note == current:
        return {}
    return {names.MLFLOW_NOTE: note, names.NOTE_TAG: _hash_description(note)}


def _hash_description(note: str) -> str:
    """Return a hash by which a later scoring notices that a person edited the description."""
    return hashlib.sha256(note.encode()).hexdigest()[:32]
