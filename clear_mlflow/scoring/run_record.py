"""Step 1 of scoring: read the rows of a run, and further input whose scores are not logged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_USER

from clear_mlflow.core.anytime import (
    ANYTIME_FOLDER,
    AnytimeMatrix,
    AnytimeRow,
    parse_anytime_file_name,
)
from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import Record, RowRecord, assemble
from clear_mlflow.core.untrusted import (
    MAX_ANYTIME_FILES,
    MAX_PREDICTIONS_BYTES,
    MAX_ROW_BYTES,
    MAX_TAG_BYTES,
    json_object,
    size_text,
)
from clear_mlflow.metrics import (
    DEFAULT_FAMILIES,
    FAMILIES,
    PREDICTION_METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
    Predictions,
    adapt_metrics,
    add_matrix_metrics,
    compute_values,
    get_family_metrics,
)
from clear_mlflow.report.page.run_page import PAGE_VERSION
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder, check_size
from clear_mlflow.store.rows import load_stored_rows

_JOBS = 8  # parallel requests
# For the predictions of all rows on a live page: labels of CLEAR-100's 55,000 test images take half
# a megabyte, their probabilities 120.
_MAX_PAGE_BYTES = 256 * 2**20
_REMOVED = "they were there when it was scored, and are gone; what was computed of them stays"
_USED, _REQUESTED = "used/", "asked/"
# Tag to its label on the page of a run.
_ENVIRONMENT = {
    names.VERSION_TAG: "clear_mlflow",
    names.SOFTWARE_TAG: "software",
    names.COMMIT_TAG: "commit of clear_mlflow",
    "git_commit": "commit",
    names.PROCESSES_TAG: "processes",
    names.RESUMES_TAG: "times resumed",
    names.IMPORT_FORMAT_TAG: "imported from a file of",
    MLFLOW_USER: "user",
}
_DATASET_LABELS = {
    "num_classes": "classes",
    "split": "split",
    "left_out": "damaged images left out",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredRun:
    """The measurements that were read from a run, and the metrics to compute from them."""

    run: Run
    # Accuracy matrix and costs of all rows. None without rows; then the rest is empty.
    record: Record | None = None
    rows_hash: str = ""  # hash of all rows
    matrix_tag: str | None = None  # text for the tag with a copy of the rows; None if too long
    times: Mapping[int, int] = field(default_factory=dict)  # step to milliseconds since the epoch
    families: tuple[str, ...] = ()  # families that the run logs
    metrics: tuple[Metric, ...] = ()  # metrics to compute
    # Configuration, dataset, environment and warnings, as the fields of RunReport.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    predictions: Predictions | None = None  # None if not stored, or not read
    tests: AnytimeMatrix | None = None  # tests within buckets, or None likewise
    problems: Mapping[str, str] = field(default_factory=dict)  # input that is left out, to reason
    predictions_hash: str = ""  # hash and number of rows; empty if there are none
    tests_hash: str = ""  # empty if there are none, or if some are missing

    @property
    def run_id(self) -> str:
        """Id of the MLflow run."""
        return str(self.run.info.run_id)

    @property
    def run_name(self) -> str:
        """Name of the MLflow run, or its id if the name is empty."""
        return str(self.run.info.run_name or self.run_id)

    @property
    def rows_state(self) -> str:
        """``complete`` if all rows are stored, ``partial`` if some are, else ``none``."""
        if self.record is None:
            return "none"
        return "complete" if self.record.is_complete else "partial"

    @property
    def problem(self) -> str | None:
        """Predictions or tests that could not be read, with the reasons, or None if all could."""
        reasons = [f"its {name} were left out: {why}" for name, why in self.problems.items()]
        return "; ".join(reasons) or None

    def get_versions(self, failed: Collection[str] = ()) -> dict[str, int]:
        """Return metric name to version, for the metrics to compute and those logged.

        failed: names of metrics that have only their logged version.
        """
        versions = {m.name: m.version for m in self.metrics if m.name not in failed}
        return read_versions(self.run.data.tags) | versions

    def compute_score_hash(self, versions: Mapping[str, int]) -> str:
        """Return the hashes of everything that the scores and the HTML report depend on.

        They are joined by dots: rows, other inputs, and predictions and tests if there are any.
        versions: metric name to :attr:`Metric.version`.
        """
        other_inputs = _hash([PAGE_VERSION, self.run_name, versions, self.metadata])
        parts = (self.rows_hash, other_inputs, self.predictions_hash, self.tests_hash)
        return ".".join(parts).rstrip(".")


def read_record(
    client: MlflowClient,
    run: Run,
    metrics: Sequence[Metric] = (),
    *,
    reread: bool = True,
    is_live_page: bool = False,
) -> StoredRun:
    """Read the rows of a run, its predictions and its tests within buckets.

    Raises RecordError if a row is damaged or missing. Damaged or deleted predictions and damaged
    tests are left out, and ``problems`` has the reasons. A run without rows has only ``run`` set.

    Args:
        client: client of the tracking store.
        run: run returned by the client.
        metrics: metrics to compute in addition to the run's metric families.
        reread: True to read the row files of the run even if a tag contains all rows, and
            predictions and tests even if their scores are logged. False uses what is logged.
        is_live_page: True to prefer the tag with the rows, and to leave out predictions of more
            than 256 MiB, and what the store does not return. False: predictions or tests that the
            store does not return raise TrackingError.
    """
    tags = run.data.tags
    read_files = False if is_live_page else reread or None
    tolerated = ClearError if is_live_page else RecordError
    rows = load_stored_rows(client, run, read_files=read_files)
    if not rows.records:
        return StoredRun(run=run)
    record = assemble(rows.records)
    chosen = (metric.family for metric in metrics if metric.family in FAMILIES)
    families = tuple(dict.fromkeys([*read_families(tags), *chosen]))
    times = _read_times(rows.records, record.matrix.num_rows)
    predictions_hash, tests_hash = split_score_hash(tags)[2:]
    stored = StoredRun(
        run=run,
        record=record,
        rows_hash=rows.rows_hash,
        matrix_tag=rows.tag,
        times=times,
        families=families,
        metrics=_select_metrics(families, metrics, record),
        metadata=_read_metadata(run, record, times),
        predictions_hash=predictions_hash,
        tests_hash=tests_hash,
    )
    has_predictions, has_tests = names.PREDICTIONS_TAG in tags, names.ANYTIME_TAG in tags
    is_scored = (
        stored.compute_score_hash(stored.get_versions()) == tags.get(names.SCORED_TAG)
        and (bool(predictions_hash) or not has_predictions)
        and (has_logged_tests(tags, record) or not has_tests)
    )
    if is_scored and not reread:
        return stored
    predictions, tests = None, None
    problems: dict[str, str] = {}
    if has_predictions:
        try:
            predictions = read_predictions(
                client, run, record, max_bytes=_MAX_PAGE_BYTES if is_live_page else None
            )
            num_rows = 0 if predictions is None else len(predictions.rows)
            count = predictions_hash.rpartition("-")[2]
            num_scored = int(count) if count.isdecimal() and len(count) < 10 else 0
            if num_rows < num_scored:
                part = f"of {num_scored - num_rows} of {num_scored} rows, " if num_rows else ""
                raise RecordError(f"{part}{_REMOVED}")
            predictions_hash = "" if predictions is None else _hash_predictions(predictions)
        except tolerated as error:
            predictions, problems["predictions"] = None, str(error)
    if has_tests:
        try:
            tests = read_test_matrix(client, run, record)
            # Missing tests may still arrive, for example by sync: they are looked for again.
            tests_hash = _hash_tests(record) if tests.is_complete else ""
        except tolerated as error:
            problems["tests inside buckets"] = str(error)
    return replace(
        stored,
        predictions=predictions,
        tests=tests,
        problems=problems,
        predictions_hash=predictions_hash,
        tests_hash=tests_hash,
    )


def read_families(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the metric families that a run logs, even if this version lacks them.

    Without a tag, these are the default families.
    """
    value = tags.get(names.METRICS_TAG)
    return DEFAULT_FAMILIES if value is None else tuple(dict.fromkeys(value.split(",")))


def build_families_tag(families: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tag that replaces a run's metric families, or {} if they are the same already."""
    if tuple(families) == read_families(tags):
        return {}
    return {names.METRICS_TAG: ",".join(families)}


def read_versions(tags: Mapping[str, str]) -> dict[str, int]:
    """Return metric name to logged :attr:`Metric.version`, or {} if the tag is damaged."""
    try:
        versions = json_object(tags.get(names.VERSIONS_TAG) or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in versions.items() if isinstance(version, int)}


def read_configuration(params: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a training by name, with the values used instead of ``auto``.

    A parameter ``used/NAME`` replaces NAME, and parameters ``asked/NAME`` are left out.
    """
    used = {n.removeprefix(_USED): v for n, v in params.items() if n.startswith(_USED)}
    others = {n: v for n, v in params.items() if not n.startswith((_USED, _REQUESTED))}
    return dict(sorted((others | used).items()))


def read_predictions(
    client: MlflowClient, run: Run, record: Record, *, max_bytes: int | None = None
) -> Predictions | None:
    """Download the predictions for the rows in *record*, or return None if the run stores none.

    Raises RecordError if they are damaged, contradict the rows in *record*, or are together larger
    than *max_bytes*.
    """
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    sizes = folder.list_sizes()
    files = {row: predictions_file_name(row) for row in record.rows}
    files = {row: name for row, name in files.items() if name in sizes}
    if not files:
        return None
    if EVALUATION_SET_FILE not in sizes:
        raise RecordError(f"there are predictions, but no {EVALUATION_SET_FILE} next to them")
    total = sum(sizes[name] or 0 for name in files.values())
    if max_bytes is not None and total > max_bytes:
        raise RecordError(f"they have {total} bytes; {size_text(max_bytes)} are read here")
    for name in (EVALUATION_SET_FILE, *files.values()):
        check_size(name, sizes[name], MAX_PREDICTIONS_BYTES)
    with folder.open_scratch() as scratch:
        images = EvaluationSet.load(folder.fetch_file(EVALUATION_SET_FILE, scratch))
        by_row = {
            row: RowPredictions.load(folder.fetch_file(name, scratch))
            for row, name in files.items()
        }
    predictions = Predictions(images, by_row, record.protocol, record.matrix.num_rows)
    predictions.check(record.matrix)
    return predictions


def read_tests(client: MlflowClient, run: Run) -> list[AnytimeRow]:
    """Download the tests that a run made during the training of buckets, in the order of training.

    Empty if there are none. Raises RecordError if one is damaged, or there are too many.
    """
    file_names = list_test_sizes(client, run)
    if len(file_names) > MAX_ANYTIME_FILES:
        raise RecordError(
            f"{ANYTIME_FOLDER} contains {len(file_names)} files, more than any run has"
        )
    folder = ArtifactFolder(client, run, ANYTIME_FOLDER)
    files = folder.read_files(file_names, MAX_ROW_BYTES, _JOBS)
    return [AnytimeRow.from_json(content, source=name) for name, content in files.items()]


def read_test_matrix(client: MlflowClient, run: Run, record: Record) -> AnytimeMatrix:
    """Return all tests of a run: those within buckets, and the rows at the ends of buckets.

    Raises RecordError if a test is damaged.
    """
    return AnytimeMatrix.from_tests(read_tests(client, run), record.matrix, record.protocol)


def read_test_values(client: MlflowClient, run: Run, record: Record) -> dict[str, float]:
    """Return metric name to value, for metrics of tests within buckets that are defined.

    The values are the logged ones if all tests are scored, or else computed. Empty without such
    tests. Raises RecordError if a test is damaged.
    """
    tags, logged = run.data.tags, run.data.metrics
    if names.ANYTIME_TAG not in tags:
        return {}
    if has_logged_tests(tags, record):
        return {m.name: logged[m.name] for m in WITHIN_BUCKET_METRICS if m.name in logged}
    return compute_values(read_test_matrix(client, run, record), WITHIN_BUCKET_METRICS)[0]


def has_logged_tests(tags: Mapping[str, str], record: Record) -> bool:
    """Return True if the metrics of all tests within buckets are logged for these rows."""
    return split_score_hash(tags)[3] == _hash_tests(record)


def list_test_sizes(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """Return file name to size (bytes, or None if unknown) for a run's tests within buckets.

    Raises RecordError if one has more than 1 MiB.
    """
    return ArtifactFolder(client, run, ANYTIME_FOLDER).list_numbered(
        parse_anytime_file_name, MAX_ROW_BYTES
    )


def to_milliseconds(written_at: str) -> int:
    """Convert an ISO 8601 time to milliseconds since the epoch, the unit of MLflow."""
    return round(datetime.fromisoformat(written_at.replace("Z", "+00:00")).timestamp() * 1000)


def _select_metrics(
    families: Iterable[str], metrics: Sequence[Metric], record: Record
) -> tuple[Metric, ...]:
    """Return the metrics to compute for a run, each name once."""
    built_in = (
        *get_family_metrics(family for family in families if family in FAMILIES),
        *PREDICTION_METRICS,
        *WITHIN_BUCKET_METRICS,
    )
    by_name = {metric.name: metric for metric in (*built_in, *metrics)}
    return adapt_metrics(
        add_matrix_metrics(by_name.values(), record.masked_matrix), record.matrix.score
    )


def _read_times(records: Mapping[str, RowRecord], num_rows: int) -> dict[int, int]:
    """Return milliseconds since the epoch by step, repeated where rows are missing."""
    times_by_row = {r.row.row: to_milliseconds(r.written_at) for r in records.values()}
    times: dict[int, int] = {}
    time = min(times_by_row.values())
    for step in range(num_rows + 1):
        time = times[step] = times_by_row.get(step, time)
    return times


def _read_metadata(run: Run, record: Record, times: Mapping[int, int]) -> dict[str, Any]:
    """Read the fields of a run's report, empty if missing or unknown."""
    params, tags = dict(sorted(run.data.params.items())), run.data.tags
    configuration = read_configuration(params)
    requested = {n: v for n, v in params.items() if not n.startswith((_USED, _REQUESTED))} | {
        n.removeprefix(_REQUESTED): v for n, v in params.items() if n.startswith(_REQUESTED)
    }
    entries = run.inputs.dataset_inputs if run.inputs else ()
    profiles = {entry.dataset.name: entry.dataset.profile for entry in entries}
    profile: Mapping[str, Any] = {}
    with suppress(RecordError):  # in an unknown format
        profile = json_object(profiles.get(record.dataset.name) or "{}", MAX_ROW_BYTES)
    dataset = {label: str(profile[key]) for key, label in _DATASET_LABELS.items() if key in profile}
    if isinstance(features := profile.get("features"), dict):
        dataset["features"] = str(features.get("name"))
    num_train, warnings = profile.get("num_train"), profile.get("warnings")
    first, last = (
        datetime.fromtimestamp(time / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        for time in (min(times.values()), max(times.values()))
    )
    environment = {label: tags[tag] for tag, label in _ENVIRONMENT.items() if tag in tags}
    environment["rows measured"] = first if first == last else f"{first} to {last}"
    if not any(record.matrix.costs):
        environment["cost of its training"] = "not in its rows"
    return {
        "configuration": configuration,
        "requested": {
            name: value
            for name, value in requested.items()
            if name in configuration and value != configuration[name]
        },
        "dataset": dataset,
        "num_train": {key: count for key, count in num_train.items() if isinstance(count, int)}
        if isinstance(num_train, dict)
        else {},
        "environment": environment,
        "warnings": [str(line) for line in warnings] if isinstance(warnings, list) else [],
    }


def split_score_hash(tags: Mapping[str, str]) -> list[str]:
    """Return the logged hashes of rows, other inputs, predictions and tests, "" if missing."""
    return f"{tags.get(names.SCORED_TAG, '')}...".split(".")[:4]


def _hash(content: object) -> str:
    """Return 32 hexadecimal digits of the SHA-256 hash of *content* as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _hash_tests(record: Record) -> str:
    """Hash what the scores of tests depend on, except the tests."""
    matrix = record.matrix
    initial = None if matrix.initial is None else matrix.initial.tolist()
    versions = [(metric.name, metric.version) for metric in WITHIN_BUCKET_METRICS]
    return _hash([record.protocol, [*record.rows], matrix.values.tolist(), initial, versions])


def _hash_predictions(predictions: Predictions) -> str:
    """Return ``HASH-N``: a hash of all predictions and images, and the number of rows."""
    hasher = hashlib.sha256(predictions.images.digest.encode())
    for row, row_predictions in sorted(predictions.rows.items()):
        hasher.update(f"\0{row}\0".encode() + row_predictions.to_bytes())
    return f"{hasher.hexdigest()[:16]}-{len(predictions.rows)}"
