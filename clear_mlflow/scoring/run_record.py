"""Step 1 of scoring: read what a run stores, as far as its scores are not logged yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_USER

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_place
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
    read_bytes,
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
    add_cost_metrics,
    compute_values,
    get_family_metrics,
)
from clear_mlflow.report.page.run_page import PAGE_VERSION
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import map_in_threads, mlflow_errors
from clear_mlflow.store.rows import load_stored_rows

_JOBS = 8  # parallel requests
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


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """How a run came about, from its parameters, tags and dataset."""

    configuration: Mapping[str, str]  # parameters as used
    requested: Mapping[str, str]  # parameters whose requested value differs from the used one
    dataset: Mapping[str, str]
    num_train: Mapping[str, int]  # training images per bucket
    environment: Mapping[str, str]
    warnings: Sequence[str]


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredRun:
    """The measurements that a run stores, and the metrics that apply to them."""

    run: Run
    record: Record | None = None  # None if the run contains no rows; then the rest is empty
    rows_hash: str = ""
    matrix_tag: str | None = None  # text for the tag with a copy of the rows; None if too long
    from_tag: bool = False  # True if the rows were read from that tag
    times: Mapping[int, int] = field(default_factory=dict)  # step to milliseconds since the epoch
    families: tuple[str, ...] = ()  # families that the run logs
    metrics: tuple[Metric, ...] = ()
    metadata: RunMetadata | None = None
    predictions: Predictions | None = None  # None if there are none, or if they were not read
    tests: AnytimeMatrix | None = None  # tests within buckets; None as for predictions
    problems: Mapping[str, str] = field(default_factory=dict)  # unusable input to the reason
    predictions_hash: str = ""  # hash and number of rows; empty if there are none
    tests_hash: str = ""  # empty if there are none, or if some are missing

    @property
    def run_id(self) -> str:
        """Id of the MLflow run."""
        return str(self.run.info.run_id)

    @property
    def run_name(self) -> str:
        """Name of the MLflow run, or its id if it has no name."""
        return str(self.run.info.run_name or self.run_id)

    @property
    def rows_state(self) -> str:
        """Value of the tag of the rows: ``none``, ``partial`` or ``complete``."""
        if self.record is None:
            return "none"
        return "complete" if self.record.is_complete else "partial"

    @property
    def problem(self) -> str | None:
        """Stored inputs that could not be used, with the reasons, or None if there are none."""
        reasons = [f"its {name} were left out: {why}" for name, why in self.problems.items()]
        return "; ".join(reasons) or None

    @property
    def versions(self) -> dict[str, int]:
        """Metric name to version, for the metrics of this scoring and of earlier ones."""
        return read_versions(self.run.data.tags) | {m.name: m.version for m in self.metrics}

    def compute_score_hash(self, versions: Mapping[str, int]) -> str:
        """Return the hash of everything that the scores and the page depend on."""
        other_inputs = _hash([PAGE_VERSION, self.run_name, versions, vars(self.metadata)])
        parts = (self.rows_hash, other_inputs, self.predictions_hash, self.tests_hash)
        return ".".join(parts).rstrip(".")


def read_record(
    client: MlflowClient,
    run: Run,
    metrics: Sequence[Metric] = (),
    *,
    reread: bool = True,
    read_files: bool | None = None,
    max_prediction_bytes: int | None = None,
    tolerate: type[ClearError] = RecordError,
) -> StoredRun:
    """Read the rows of a run, and those predictions and tests whose scores are not logged.

    Args:
        client: client of the store.
        run: run, as MLflow returned it.
        metrics: metrics to compute in addition to those of the families that the run logs, of
            predictions and of tests within buckets.
        reread: read predictions and tests even if their scores are logged.
        read_files: False reads rows from the run's tag if it contains all of them. None: row files
            if *reread*, or if they are on this machine.
        max_prediction_bytes: size above which predictions are reported as a problem.
        tolerate: errors in predictions and tests that are reported as a problem.

    Raises:
        RecordError: a row is damaged.
        TrackingError: the store does not answer.
    """
    tags = run.data.tags
    if read_files is None and reread:
        read_files = True
    rows = load_stored_rows(client, run, read_files=read_files)
    if not rows.records:
        return StoredRun(run=run)
    record = assemble(rows.records)
    chosen = (metric.family for metric in metrics if metric.family in FAMILIES)
    families = tuple(dict.fromkeys([*read_families(tags), *chosen]))
    times = _read_times(rows.records, record.matrix.num_rows)
    stored = StoredRun(
        run=run,
        record=record,
        rows_hash=rows.digest,
        matrix_tag=rows.tag,
        from_tag=rows.from_tag,
        times=times,
        families=families,
        metrics=_select_metrics(families, metrics, record),
        metadata=_read_metadata(run, record, times),
    )
    score_hash = split_score_hash(tags)
    predictions_hash, tests_hash = score_hash[2:]
    has_predictions, has_tests = names.PREDICTIONS_TAG in tags, names.ANYTIME_TAG in tags
    stored = replace(stored, predictions_hash=predictions_hash, tests_hash=tests_hash)
    is_scored = (
        stored.compute_score_hash(stored.versions) == tags.get(names.SCORED_TAG)
        and (bool(predictions_hash) or not has_predictions)
        and (has_logged_tests(tags, record) or not has_tests)
    )
    if is_scored and not reread:
        return stored
    predictions, tests = None, None
    problems: dict[str, str] = {}
    if has_predictions:
        try:
            predictions = read_predictions(client, run, record, max_bytes=max_prediction_bytes)
            num_rows = 0 if predictions is None else len(predictions.rows)
            count = predictions_hash.rpartition("-")[2]
            num_scored = int(count) if count.isdecimal() else 0
            if num_rows < num_scored:
                part = f"of {num_scored - num_rows} of {num_scored} rows, " if num_rows else ""
                raise RecordError(f"{part}{_REMOVED}")
            predictions_hash = "" if predictions is None else _hash_predictions(predictions)
        except tolerate as error:
            predictions, problems["predictions"] = None, str(error)
    if has_tests:
        try:
            tests = read_test_matrix(client, run, record)
            # Missing tests may still arrive, for example by sync: they are looked for again.
            tests_hash = _hash_tests(record) if tests.is_complete else ""
        except tolerate as error:
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
    """Return the families that a run logs, including those of later versions of this package."""
    value = tags.get(names.METRICS_TAG)
    return DEFAULT_FAMILIES if value is None else tuple(dict.fromkeys(value.split(",")))


def build_families_tag(families: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tag that names the families of a run, or nothing if *tags* name the same ones."""
    if tuple(families) == read_families(tags):
        return {}
    return {names.METRICS_TAG: ",".join(families)}


def read_versions(tags: Mapping[str, str]) -> dict[str, int]:
    """Return metric name to version of the definition, for the metrics that a run has logged."""
    try:
        versions = json_object(tags.get(names.VERSIONS_TAG) or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in versions.items() if isinstance(version, int)}


def read_configuration(params: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that a run was trained with: ``auto`` replaced by the value used."""
    used = {n.removeprefix(_USED): v for n, v in params.items() if n.startswith(_USED)}
    others = {n: v for n, v in params.items() if not n.startswith((_USED, _REQUESTED))}
    return dict(sorted((others | used).items()))


def read_predictions(
    client: MlflowClient, run: Run, record: Record, *, max_bytes: int | None = None
) -> Predictions | None:
    """Read the predictions of the rows of a record, or return None if a run stores none.

    Raises RecordError if they are damaged, contradict the rows, or exceed *max_bytes* in total.
    """
    run_id = run.info.run_id
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with mlflow_errors(f"list the predictions of run {run_id}"):
        sizes = folder.list_sizes()
    rows = [row for row in record.rows if predictions_file_name(row) in sizes]
    if not rows:
        return None
    if EVALUATION_SET_FILE not in sizes:
        raise RecordError(f"there are predictions, but no {EVALUATION_SET_FILE} next to them")
    total = sum(sizes[predictions_file_name(row)] or 0 for row in rows)
    if max_bytes is not None and total > max_bytes:
        raise RecordError(f"they have {total} bytes; {size_text(max_bytes)} are read here")
    with folder.open_scratch() as scratch:

        def download(name: str) -> Path:
            size = sizes[name]
            if size is not None and size > MAX_PREDICTIONS_BYTES:
                limit = size_text(MAX_PREDICTIONS_BYTES)
                raise RecordError(f"{name} has {size} bytes; predictions have at most {limit}")
            with mlflow_errors(f"read {name} of run {run_id}"):
                return folder.fetch_file(name, scratch)

        images = EvaluationSet.load(download(EVALUATION_SET_FILE))
        by_row = {row: RowPredictions.load(download(predictions_file_name(row))) for row in rows}
    predictions = Predictions(images, by_row, record.protocol, record.matrix.num_rows)
    predictions.check(record.matrix)
    return predictions


def read_tests(client: MlflowClient, run: Run) -> list[AnytimeRow]:
    """Read all tests within buckets of a run.

    Raises RecordError if one is damaged.
    """
    sizes = list_test_sizes(client, run)
    if len(sizes) > MAX_ANYTIME_FILES:
        raise RecordError(f"{ANYTIME_FOLDER} contains {len(sizes)} files, more than any run has")
    for name, size in sizes.items():
        if size is not None and size > MAX_ROW_BYTES:
            raise RecordError(f"{name} has {size} bytes; a test has at most 1 MiB")
    folder = ArtifactFolder(client, run, ANYTIME_FOLDER)
    with folder.open_scratch() as scratch:
        return list(
            map_in_threads(partial(_read_test, folder, run.info.run_id, scratch), sizes, _JOBS)
        )


def read_test_matrix(client: MlflowClient, run: Run, record: Record) -> AnytimeMatrix:
    """Read all tests within buckets of a run, together with the rows at the ends of buckets."""
    return AnytimeMatrix.of_tests(read_tests(client, run), record.matrix, record.protocol)


def read_test_values(client: MlflowClient, run: Run, record: Record) -> dict[str, float]:
    """Return the metrics of tests within buckets: as logged, or computed if they are not.

    Empty for a run without such tests. Raises RecordError if a test is damaged.
    """
    tags, logged = run.data.tags, run.data.metrics
    if names.ANYTIME_TAG not in tags:
        return {}
    if has_logged_tests(tags, record):
        return {m.name: logged[m.name] for m in WITHIN_BUCKET_METRICS if m.name in logged}
    return compute_values(read_test_matrix(client, run, record), WITHIN_BUCKET_METRICS)[0]


def has_logged_tests(tags: Mapping[str, str], record: Record) -> bool:
    """Return True if the scores of all tests within buckets are logged for these rows."""
    return split_score_hash(tags)[3] == _hash_tests(record)


def list_test_sizes(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """Return file name to size in bytes, or None if unknown, of a run's tests within buckets."""
    with mlflow_errors(f"list the tests inside buckets of run {run.info.run_id}"):
        sizes = ArtifactFolder(client, run, ANYTIME_FOLDER).list_sizes()
    return {name: sizes[name] for name in sorted(sizes) if anytime_place(name) is not None}


def to_milliseconds(written_at: str) -> int:
    """Convert the ISO 8601 time of a row to MLflow's milliseconds since the epoch."""
    return round(datetime.fromisoformat(written_at.replace("Z", "+00:00")).timestamp() * 1000)


def _read_test(folder: ArtifactFolder, run_id: str, scratch: Path, name: str) -> AnytimeRow:
    with mlflow_errors(f"read {name} of run {run_id}"):
        content = read_bytes(folder.fetch_file(name, scratch), MAX_ROW_BYTES)
    return AnytimeRow.from_json(content, source=name)


def _select_metrics(
    families: Iterable[str], metrics: Sequence[Metric], record: Record
) -> tuple[Metric, ...]:
    """Return the metrics of known families, of other inputs, and further ones, each name once."""
    built_in = (
        *get_family_metrics(family for family in families if family in FAMILIES),
        *PREDICTION_METRICS,
        *WITHIN_BUCKET_METRICS,
    )
    by_name = {metric.name: metric for metric in (*built_in, *metrics)}
    return adapt_metrics(add_cost_metrics(by_name.values(), record.matrix), record.matrix.score)


def _read_times(records: Mapping[str, RowRecord], num_rows: int) -> dict[int, int]:
    """Return the time of each step. A step without a row has the time of the step before."""
    times_by_row = {r.row.row: to_milliseconds(r.written_at) for r in records.values()}
    times: dict[int, int] = {}
    time = min(times_by_row.values())
    for step in range(num_rows + 1):
        time = times[step] = times_by_row.get(step, time)
    return times


def _read_metadata(run: Run, record: Record, times: Mapping[int, int]) -> RunMetadata:
    params, tags = dict(sorted(run.data.params.items())), run.data.tags
    configuration = read_configuration(params)
    requested = {n: v for n, v in params.items() if not n.startswith((_USED, _REQUESTED))} | {
        n.removeprefix(_REQUESTED): v for n, v in params.items() if n.startswith(_REQUESTED)
    }
    profile = _read_profile(run, record.dataset.name)
    dataset = {label: str(profile[key]) for key, label in _DATASET_LABELS.items() if key in profile}
    if isinstance(features := profile.get("features"), dict):
        dataset["features"] = str(features.get("name"))
    num_train, warnings = profile.get("num_train"), profile.get("warnings")
    moments = dict.fromkeys(map(_format_moment, (min(times.values()), max(times.values()))))
    environment = {label: tags[tag] for tag, label in _ENVIRONMENT.items() if tag in tags}
    environment["rows measured"] = " to ".join(moments)
    if not any(record.matrix.costs):
        environment["cost of its training"] = "not in its rows"
    return RunMetadata(
        configuration=configuration,
        requested={
            name: value
            for name, value in requested.items()
            if name in configuration and value != configuration[name]
        },
        dataset=dataset,
        num_train={key: count for key, count in num_train.items() if isinstance(count, int)}
        if isinstance(num_train, dict)
        else {},
        environment=environment,
        warnings=[str(line) for line in warnings] if isinstance(warnings, list) else [],
    )


def _read_profile(run: Run, dataset: str) -> Mapping[str, Any]:
    """Return the profile of a dataset, or nothing if another program wrote its own format."""
    entries = run.inputs.dataset_inputs if run.inputs else ()
    profiles = {entry.dataset.name: entry.dataset.profile for entry in entries}
    try:
        return json_object(profiles.get(dataset) or "{}", MAX_ROW_BYTES)
    except RecordError:
        return {}


def _format_moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def split_score_hash(tags: Mapping[str, str]) -> list[str]:
    """Return the parts of the logged score hash: rows, other inputs, predictions, tests."""
    return f"{tags.get(names.SCORED_TAG, '')}...".split(".")[:4]


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _hash_tests(record: Record) -> str:
    """Return a hash that changes with the rows and with any definition of these metrics."""
    matrix = record.matrix
    initial = None if matrix.initial is None else matrix.initial.tolist()
    versions = [(metric.name, metric.version) for metric in WITHIN_BUCKET_METRICS]
    return _hash([record.protocol, [*record.rows], matrix.values.tolist(), initial, versions])


def _hash_predictions(predictions: Predictions) -> str:
    """Return a hash that changes with any prediction and any image, and the number of rows."""
    hasher = hashlib.sha256(predictions.images.digest.encode())
    for row, row_predictions in sorted(predictions.rows.items()):
        hasher.update(f"\0{row}\0".encode() + row_predictions.to_bytes())
    return f"{hasher.hexdigest()[:16]}-{len(predictions.rows)}"
