"""Score a run, and write the scores that the tracking store lacks."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_IMAGES

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, stack_all_rows
from clear_mlflow.core.record import Record, format_row_file_name
from clear_mlflow.metrics import (
    PREQUENTIAL_METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
    MetricResults,
    Predictions,
    compute_values,
)
from clear_mlflow.report.exports import format_matrix_csv, format_matrix_json
from clear_mlflow.report.markdown import format_run_description
from clear_mlflow.report.page.matrix_map import sample_evenly
from clear_mlflow.report.page.run_page import PAGE_VERSION, RunReport, render_run_page
from clear_mlflow.report.pictures import decode_png, draw_heatmap_png
from clear_mlflow.scoring import Changes, Scores, evaluate
from clear_mlflow.scoring.run_record import (
    StoredRun,
    build_families_tag,
    parse_logged_versions,
    read_predictions_and_tests,
    read_prequential,
    read_record,
    read_test_matrix,
    split_score_hash,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import (
    get_run,
    log_in_batches,
    log_tags,
    mlflow_errors,
)
from clear_mlflow.store.rows import (
    build_missing_rows_error,
    pack_matrix_tag,
    unpack_matrix_tag,
)
from clear_mlflow.store.sqlite import lock_store_writes
from clear_mlflow.store.ui_urls import format_artifact_link

_NO_TAG = "none"
_REPORTS = frozenset({names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG})


def score(client: MlflowClient, run_id: str) -> Scores:
    """Compute a run's metrics, and log those missing or outdated.

    Returns the metrics with the changes that were logged. Raises RecordError if a row is damaged,
    or was deleted since the run was last scored.
    """
    run = get_run(client, run_id)
    scores = read_scores(client, run)
    log_results(client, scores)
    return scores


def read_scores(
    client: MlflowClient, run: Run, metrics: Sequence[Metric] = (), *, reread: bool = True
) -> Scores:
    """Read a run, compute its metrics, and find what to log.

    metrics: metrics to compute in addition to the run's metric families. reread: True to read all
    files of the run, and to look for deleted files and metric values; False to trust the tags about
    what was logged. Raises RecordError like :func:`score`.
    """
    stored = read_measurements(client, run, metrics, reread=reread)
    if (
        stored.record is not None
        and run.data.tags.get(names.ROWS_TAG) == "complete"
        and not stored.record.is_complete
    ):
        # The tag with a copy of the rows is wrong as well, except for a matrix too large for it.
        missing = set(range(1, stored.record.matrix.num_buckets + 1)) - set(stored.record.rows)
        raise build_missing_rows_error(run, format_row_file_name(min(missing)))
    results = evaluate(stored)
    return Scores(stored, results, find_changes(client, stored, results, reread=reread))


def read_measurements(
    client: MlflowClient, run: Run, metrics: Sequence[Metric] = (), *, reread: bool
) -> StoredRun:
    """Read a run's measurements, without scored ones unless *reread*.

    For metrics and errors, see :func:`read_record`. reread: True to read the row files even if a
    tag contains all rows, and predictions and tests even if their scores are logged.
    """
    stored = read_record(client, run, metrics, read_files=reread or None)
    if not reread and (stored.record is None or _is_scored(stored, stored.record)):
        return stored
    return read_predictions_and_tests(client, stored)


def read_test_values(client: MlflowClient, run: Run, record: Record) -> dict[str, float]:
    """Read metrics of tests within buckets, or compute those not logged.

    The values are the logged ones if all tests are scored, or else computed. Raises RecordError if
    a test is damaged.
    """
    tags, logged = run.data.tags, run.data.metrics
    if _has_logged_tests(tags, record):
        return {m.name: logged[m.name] for m in WITHIN_BUCKET_METRICS if m.name in logged}
    return compute_values(read_test_matrix(client, run, record), WITHIN_BUCKET_METRICS)[0]


def read_prequential_values(client: MlflowClient, run: Run, record: Record) -> dict[str, float]:
    """Compute metrics of downloaded predictions before training, {} without any."""
    stored = read_prequential(client, run, record)
    return {} if stored is None else compute_values(stored, PREQUENTIAL_METRICS)[0]


def find_changes(
    client: MlflowClient,
    stored: StoredRun,
    results: MetricResults,
    *,
    reread: bool = True,
) -> Changes:
    """Compare results with the store, and return what it lacks.

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
    versions = _get_versions(stored, failed)  # a failed metric is computed, and reported, again
    score_hash = compute_score_hash(stored, record, versions)
    is_scored = tags.get(names.SCORED_TAG) == score_hash
    has_same_rows = split_score_hash(tags)[0] == score_hash.partition(".")[0]
    missing_files = _find_missing_reports(client, run) if reread else frozenset()
    needed_tags = {
        names.ROWS_TAG: stored.rows_state,
        names.SCORED_TAG: score_hash,
        names.VERSIONS_TAG: json.dumps(versions, sort_keys=True, separators=(",", ":")),
        **build_families_tag(stored.families, tags),
    }
    matrix_tag = tags.get(names.MATRIX_TAG)
    if unpack_matrix_tag(stored.run_id, matrix_tag) != stored.files:
        packed = pack_matrix_tag(stored.run_id, stored.files)
        matrix_tag = packed or (None if matrix_tag is None else _NO_TAG)
    if matrix_tag is not None:
        needed_tags[names.MATRIX_TAG] = matrix_tag
    new_tags = {key: value for key, value in needed_tags.items() if tags.get(key) != value}
    # Before the first scoring, training logged the values of the rows so far.
    before = run.data.metrics if names.SCORED_TAG in tags else {}
    changes = Changes(
        reports=not has_same_rows or bool(missing_files & _REPORTS),
        page=not is_scored or names.REPORT_HTML in missing_files,
        metric_values=tuple(
            _find_missing_values(client, stored, results, check_all=reread or not has_same_rows)
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
    """Write the changes of *scores* to the store, the tags last.

    Does nothing if there are none. If this is interrupted, the old tags make the next scoring write
    the changes again.
    """
    stored, changes, run_id = scores.stored, scores.changes, scores.stored.run_id
    if changes.is_empty:
        return
    with mlflow_errors(f"log the scores of run {run_id}"), lock_store_writes(client.tracking_uri):
        # Reports can be computed again, so they need not survive a power cut.
        write_report = partial(ArtifactFolder(client, stored.run).write_file, is_durable=False)
        if changes.reports and stored.record is not None:
            matrix = stored.record.masked_matrix
            image = draw_heatmap_png(matrix, stored.run_name)
            write_report(names.MATRIX_JSON, format_matrix_json(matrix).encode())
            write_report(names.MATRIX_CSV, format_matrix_csv(matrix).encode())
            write_report(names.HEATMAP_PNG, image)
            _log_final_image(client, run_id, image)
        if changes.page:
            page = render_run_page(build_report(stored, scores.results)).encode()
            write_report(names.REPORT_HTML, page)
        log_in_batches(client, run_id, changes.metric_values, tags=changes.tags)


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
    """Build a run's HTML report, or raise RecordError without rows."""
    record = stored.record
    if record is None:
        raise RecordError(f"run {stored.run_id} contains no rows of an accuracy matrix")
    problems = dict(stored.problems)
    explanation = ""
    if "predictions" in problems:
        explanation = f"Its predictions were left out: {problems.pop('predictions')}."
    elif stored.predictions is None and record.matrix.score.is_accuracy:
        explanation = "Accuracy per class needs the predictions, and the run kept none."
    fields = {**stored.metadata}
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
    """Build a unique metric name per bucket, such as ``test_accuracy/bucket_03``.

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


def build_row_points(
    masked_matrix: AccuracyMatrix, row: int, values: Mapping[str, float], time: int
) -> list[MlflowMetric]:
    """Build a row's points: metrics, then scores on up to 100 buckets.

    masked_matrix: NaN where the protocol excludes a value; such values are left out. Of more
    buckets, evenly spaced ones are included. row: its number, which is the step of the points; 0 is
    before training. values: metric name to value. time: milliseconds since 1970.
    """
    cells = masked_matrix.values[row - 1] if row else masked_matrix.initial
    scores: dict[str, float] = {}
    if cells is not None:
        charted_names = _name_charted_buckets(masked_matrix.buckets, masked_matrix.score.name)
        scores = {n: float(cells[j]) for j, n in charted_names.items() if not math.isnan(cells[j])}
    return [MlflowMetric(name, value, time, row) for name, value in {**values, **scores}.items()]


def _list_series(stored: StoredRun, results: MetricResults) -> dict[str, Mapping[int, float]]:
    """List the series to log, by name and step: metrics, then buckets."""
    if stored.record is None:
        return {}
    matrix = stored.record.masked_matrix
    series = {name: r.series for name, r in results.items() if r.version is not None}
    cells = stack_all_rows(matrix)[: matrix.num_rows + 1]
    for j, name in _name_charted_buckets(matrix.buckets, matrix.score.name).items():
        column = enumerate(cells[:, j].tolist())
        series[name] = {row: cell for row, cell in column if not math.isnan(cell)}
    return {name: steps for name, steps in series.items() if steps}


def _find_missing_values(
    client: MlflowClient, stored: StoredRun, results: MetricResults, *, check_all: bool
) -> Iterator[MlflowMetric]:
    """Yield the metric values that the store lacks or has differently.

    A value that replaces another number has a later timestamp, since MLflow shows the latest.
    """
    logged, logged_versions = stored.run.data.metrics, parse_logged_versions(stored.run.data.tags)
    for name, steps in _list_series(stored, results).items():
        latest: dict[int, MlflowMetric] = {}
        if name in logged:
            has_same_version = (
                logged_versions.get(name) == results[name].version
                if name in results
                else bool(logged_versions)
            )
            if logged[name] == steps[max(steps)] and has_same_version and not check_all:
                continue
            with mlflow_errors(f"read {name} of run {stored.run_id}"):
                history = client.get_metric_history(stored.run_id, name)
            latest = {m.step: m for m in sorted(history, key=lambda metric: metric.timestamp)}
        for step, value in steps.items():
            current = latest.get(step)
            if current is None:
                yield MlflowMetric(name, value, stored.times[step], step)
            elif current.value != value:
                # MLflow shows the later of two values at a step.
                time = max(current.timestamp + 1, stored.times[step])
                yield MlflowMetric(name, value, time, step)


@lru_cache(maxsize=32)
def _name_charted_buckets(buckets: tuple[str, ...], score_name: str) -> dict[int, str]:
    """Return metric names by bucket index, of at most 100 buckets."""
    series = build_bucket_series_names(buckets, score_name)
    return {j: series[j] for j in sample_evenly(len(buckets))}


def _has_logged_tests(tags: Mapping[str, str], record: Record) -> bool:
    """Return True if all tests of these rows are logged as metrics."""
    return split_score_hash(tags)[3] == _hash_tests(record)


def compute_score_hash(stored: StoredRun, record: Record, versions: Mapping[str, int]) -> str:
    """Return the hashes of everything that scores and report depend on.

    They are joined by dots: rows, other inputs, and predictions and tests if there are any. The
    logged hash stands for predictions and tests that were not read.
    versions: metric name to :attr:`Metric.version`.
    """
    other_inputs = _hash([PAGE_VERSION, stored.run_name, versions, stored.metadata])
    predictions_hash, tests_hash, prequential_hash = split_score_hash(stored.run.data.tags)[2:]
    if stored.predictions is not None:
        predictions_hash = _hash_predictions(stored.predictions)
    if stored.tests is not None:
        # Missing tests may still arrive, for example by sync: they are looked for again.
        tests_hash = _hash_tests(record) if stored.tests.is_complete else ""
    if stored.prequential is not None:
        prequential_hash = hashlib.sha256(stored.prequential.to_bytes()).hexdigest()[:16]
    hashes = (stored.rows_hash, other_inputs, predictions_hash, tests_hash, prequential_hash)
    return ".".join(hashes).rstrip(".")


def _is_scored(stored: StoredRun, record: Record) -> bool:
    """Return True if tags state that all measurements are scored."""
    tags = stored.run.data.tags
    return (
        compute_score_hash(stored, record, _get_versions(stored)) == tags.get(names.SCORED_TAG)
        and (bool(split_score_hash(tags)[2]) or names.PREDICTIONS_TAG not in tags)
        and (bool(split_score_hash(tags)[4]) or names.PREQUENTIAL_TAG not in tags)
        and (_has_logged_tests(tags, record) or names.ANYTIME_TAG not in tags)
    )


def _get_versions(stored: StoredRun, failed: Collection[str] = ()) -> dict[str, int]:
    """Return the versions of computed and logged metrics by name.

    failed: names of metrics that have only their logged version.
    """
    versions = {m.name: m.version for m in stored.metrics if m.name not in failed}
    return parse_logged_versions(stored.run.data.tags) | versions


def _hash(content: object) -> str:
    """Hash *content* as JSON to 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _hash_tests(record: Record) -> str:
    """Hash what the scores of tests depend on, except the tests."""
    matrix = record.matrix
    initial = None if matrix.initial is None else matrix.initial.tolist()
    versions = [(metric.name, metric.version) for metric in WITHIN_BUCKET_METRICS]
    return _hash(
        [record.dataset.protocol, [*record.rows], matrix.values.tolist(), initial, versions]
    )


def _hash_predictions(predictions: Predictions) -> str:
    """Hash predictions as ``HASH-N``, where N counts their rows."""
    hasher = hashlib.sha256(predictions.images.digest.encode())
    for row, row_predictions in sorted(predictions.rows.items()):
        hasher.update(f"\0{row}\0".encode() + row_predictions.to_bytes())
    return f"{hasher.hexdigest()[:16]}-{len(predictions.rows)}"


def _find_missing_reports(client: MlflowClient, run: Run) -> frozenset[str]:
    paths = set()
    for folder in ("", names.MATRIX_FOLDER):
        with mlflow_errors(f"list {folder or 'the artifacts'} of run {run.info.run_id}"):
            paths |= {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    return (_REPORTS | {names.REPORT_HTML}) - paths


def _build_description_tags(
    stored: StoredRun, record: Record, results: MetricResults
) -> dict[str, str]:
    """Build a new description's tags, {} if a person edited it."""
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
    return hashlib.sha256(note.encode()).hexdigest()[:32]
