"""Read what was measured in a run: rows, predictions and further tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
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
from clear_mlflow.core.batch_record import PREQUENTIAL_FILE, PrequentialRecord
from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    format_predictions_file_name,
)
from clear_mlflow.core.record import Record, RowRecord, assemble, is_training
from clear_mlflow.core.untrusted import (
    MAX_ANYTIME_FILES,
    MAX_PREDICTIONS_BYTES,
    MAX_ROW_BYTES,
    MAX_TAG_BYTES,
    format_size,
    parse_json_object,
)
from clear_mlflow.metrics import (
    DEFAULT_FAMILIES,
    FAMILIES,
    PREDICTION_METRICS,
    PREQUENTIAL_METRICS,
    WITHIN_BUCKET_METRICS,
    Metric,
    Predictions,
    adapt_metrics,
    add_matrix_metrics,
    get_family_metrics,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder, check_size
from clear_mlflow.store.rows import hash_rows, load_stored_rows

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
    """The measurements read from a run, and the metrics to compute."""

    run: Run
    files: Mapping[str, bytes] = field(default_factory=dict)  # content of each row's file
    rows: Mapping[str, RowRecord] = field(default_factory=dict)  # by file name, in row order
    # Accuracy matrix and costs of all rows. None without rows; then the rest is empty.
    record: Record | None = None
    families: tuple[str, ...] = ()  # families that the run logs
    metrics: tuple[Metric, ...] = ()  # metrics to compute
    predictions: Predictions | None = None  # None if not stored, or not read
    tests: AnytimeMatrix | None = None  # tests within buckets, or None likewise
    prequential: PrequentialRecord | None = None  # predictions before training, likewise
    problems: Mapping[str, str] = field(default_factory=dict)  # input that is left out, to reason

    @property
    def run_id(self) -> str:
        """Id of the MLflow run."""
        return str(self.run.info.run_id)

    @property
    def run_name(self) -> str:
        """Name of the MLflow run, its id if empty."""
        return str(self.run.info.run_name or self.run_id)

    @cached_property
    def rows_hash(self) -> str:
        """Hash of the run's id and its row files."""
        return hash_rows(self.run_id, self.files)

    @cached_property
    def times(self) -> Mapping[int, int]:
        """Each step's milliseconds since 1970, {} without rows."""
        return {} if self.record is None else compute_times(self.rows, self.record.matrix.num_rows)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Fields of a report, empty if missing or unknown; {} without rows."""
        return {} if self.record is None else _build_metadata(self, self.record)

    @property
    def rows_state(self) -> str:
        """Whether rows are stored: ``complete``, ``partial`` or ``none``."""
        if self.record is None:
            return "none"
        return "complete" if self.record.is_complete else "partial"

    @property
    def problem(self) -> str | None:
        """What could not be read, with the reasons, or None."""
        reasons = [f"its {name} were left out: {why}" for name, why in self.problems.items()]
        return "; ".join(reasons) or None


def read_record(
    client: MlflowClient,
    run: Run,
    metrics: Sequence[Metric] = (),
    *,
    read_files: bool | None = True,
) -> StoredRun:
    """Read a run's rows, or return only the run without any.

    Raises RecordError if a row is damaged or missing. metrics: metrics to compute in addition to
    the run's metric families. read_files: see :func:`load_stored_rows`.
    """
    files, rows = load_stored_rows(client, run, read_files=read_files)
    if not rows:
        return StoredRun(run=run)
    record = assemble(rows, expects_untrained=is_training(run.data.params))
    chosen = (metric.family for metric in metrics if metric.family in FAMILIES)
    families = tuple(dict.fromkeys([*get_logged_families(run.data.tags), *chosen]))
    return StoredRun(
        run=run,
        files=files,
        rows=rows,
        record=record,
        families=families,
        metrics=_select_metrics(families, metrics, record),
    )


def read_predictions_and_tests(
    client: MlflowClient, stored: StoredRun, *, is_live_page: bool = False
) -> StoredRun:
    """Download a run's predictions and tests, and add them to a copy.

    Damaged or deleted predictions and damaged tests are left out, and ``problems`` has the reasons.

    is_live_page: True to leave out predictions of more than 256 MiB as well, and what the store
    does not return. False: predictions or tests that the store does not return raise TrackingError.
    """
    run, record, tags = stored.run, stored.record, stored.run.data.tags
    if record is None:
        return stored
    tolerated = ClearError if is_live_page else RecordError
    predictions, tests = None, None
    problems: dict[str, str] = {}
    if names.PREDICTIONS_TAG in tags:
        try:
            predictions = read_predictions(
                client, run, record, max_bytes=_MAX_PAGE_BYTES if is_live_page else None
            )
            num_rows = 0 if predictions is None else len(predictions.rows)
            count = split_score_hash(tags)[2].rpartition("-")[2]
            num_scored = int(count) if count.isdecimal() and len(count) < 10 else 0
            if num_rows < num_scored:
                part = f"of {num_scored - num_rows} of {num_scored} rows, " if num_rows else ""
                raise RecordError(f"{part}{_REMOVED}")
        except tolerated as error:
            predictions, problems["predictions"] = None, str(error)
    if names.ANYTIME_TAG in tags:
        try:
            tests = read_test_matrix(client, run, record)
        except tolerated as error:
            problems["tests inside buckets"] = str(error)
    prequential = None
    if names.PREQUENTIAL_TAG in tags:
        try:
            prequential = read_prequential(client, run, record)
        except tolerated as error:
            problems["predictions before training"] = str(error)
    return replace(
        stored, predictions=predictions, tests=tests, prequential=prequential, problems=problems
    )


def get_logged_families(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Return the metric families that a run logs, known or not.

    Without a tag, these are the default families.
    """
    value = tags.get(names.METRICS_TAG)
    return DEFAULT_FAMILIES if value is None else tuple(dict.fromkeys(value.split(",")))


def build_families_tag(families: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tag that changes a run's metric families, or {}."""
    if tuple(families) == get_logged_families(tags):
        return {}
    return {names.METRICS_TAG: ",".join(families)}


def parse_logged_versions(tags: Mapping[str, str]) -> dict[str, int]:
    """Parse the versions of logged metrics, {} if the tag is damaged."""
    try:
        versions = parse_json_object(tags.get(names.VERSIONS_TAG) or "{}", MAX_TAG_BYTES)
    except RecordError:
        return {}
    return {name: version for name, version in versions.items() if isinstance(version, int)}


def get_configuration(params: Mapping[str, str]) -> dict[str, str]:
    """Return a training's parameters, with values instead of ``auto``.

    A parameter ``used/NAME`` replaces NAME, and parameters ``asked/NAME`` are left out.
    """
    used = {n.removeprefix(_USED): v for n, v in params.items() if n.startswith(_USED)}
    others = {n: v for n, v in params.items() if not n.startswith((_USED, _REQUESTED))}
    return dict(sorted((others | used).items()))


def read_predictions(
    client: MlflowClient, run: Run, record: Record, *, max_bytes: int | None = None
) -> Predictions | None:
    """Download the predictions of rows, or return None without any.

    Raises RecordError if they are damaged, contradict the rows in *record*, or are together larger
    than *max_bytes*.
    """
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    sizes = folder.list_sizes()
    files = {row: format_predictions_file_name(row) for row in record.rows}
    files = {row: name for row, name in files.items() if name in sizes}
    if not files:
        return None
    if EVALUATION_SET_FILE not in sizes:
        raise RecordError(f"there are predictions, but no {EVALUATION_SET_FILE} next to them")
    total = sum(sizes[name] or 0 for name in files.values())
    if max_bytes is not None and total > max_bytes:
        raise RecordError(f"they have {total} bytes; {format_size(max_bytes)} are read here")
    for name in (EVALUATION_SET_FILE, *files.values()):
        check_size(name, sizes[name], MAX_PREDICTIONS_BYTES)
    with folder.open_scratch() as scratch:
        images = EvaluationSet.load(folder.fetch_file(EVALUATION_SET_FILE, scratch))
        by_row = {
            row: RowPredictions.load(folder.fetch_file(name, scratch))
            for row, name in files.items()
        }
    predictions = Predictions(images, by_row, record.dataset.protocol, record.matrix.num_rows)
    predictions.check(record.matrix)
    return predictions


def read_prequential(client: MlflowClient, run: Run, record: Record) -> PrequentialRecord | None:
    """Download the predictions before training, None without any.

    Returns None if none are stored. Raises RecordError if they are damaged, or contradict the rows.
    """
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    sizes = folder.list_sizes()
    if PREQUENTIAL_FILE not in sizes or record.matrix.num_rows == 0:
        return None
    check_size(PREQUENTIAL_FILE, sizes[PREQUENTIAL_FILE], MAX_PREDICTIONS_BYTES)
    with folder.open_scratch() as scratch:
        stored = PrequentialRecord.load(folder.fetch_file(PREQUENTIAL_FILE, scratch))
    stored.check(record.matrix)
    return stored.after(record.matrix.num_rows)


def read_tests(client: MlflowClient, run: Run) -> list[AnytimeRow]:
    """Download a run's tests within buckets, in order of training.

    The list is empty if there are none. Raises RecordError if one is damaged, or there are too
    many.
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
    """Download a run's tests within buckets, and combine them with rows.

    Raises RecordError if a test is damaged.
    """
    return AnytimeMatrix.from_tests(read_tests(client, run), record.matrix, record.dataset.protocol)


def list_test_sizes(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """List the sizes of a run's test files in bytes.

    None is an unknown size. Raises RecordError if one has more than 1 MiB.
    """
    return ArtifactFolder(client, run, ANYTIME_FOLDER).list_numbered(
        parse_anytime_file_name, MAX_ROW_BYTES
    )


def to_milliseconds(written_at: str) -> int:
    """Convert an ISO 8601 time to milliseconds since the epoch."""
    return round(datetime.fromisoformat(written_at.replace("Z", "+00:00")).timestamp() * 1000)


def compute_times(rows: Mapping[str, RowRecord], num_rows: int) -> dict[int, int]:
    """Compute each step's milliseconds since 1970, repeated where rows are missing."""
    times_by_row = {r.row.row: to_milliseconds(r.written_at) for r in rows.values()}
    times: dict[int, int] = {}
    time = min(times_by_row.values())
    for step in range(num_rows + 1):
        time = times[step] = times_by_row.get(step, time)
    return times


def _build_metadata(stored: StoredRun, record: Record) -> dict[str, Any]:
    run, times = stored.run, stored.times.values()
    params, tags = dict(sorted(run.data.params.items())), run.data.tags
    configuration = get_configuration(params)
    requested = params | {
        n.removeprefix("asked/"): v for n, v in params.items() if n.startswith("asked/")
    }
    entries = run.inputs.dataset_inputs if run.inputs else ()
    profiles = {entry.dataset.name: entry.dataset.profile for entry in entries}
    profile: Mapping[str, Any] = {}
    with suppress(RecordError):  # in an unknown format
        profile = parse_json_object(profiles.get(record.dataset.name) or "{}", MAX_ROW_BYTES)
    dataset = {label: str(profile[key]) for key, label in _DATASET_LABELS.items() if key in profile}
    if isinstance(features := profile.get("features"), dict):
        dataset["features"] = str(features.get("name"))
    num_train, warnings = profile.get("num_train"), profile.get("warnings")
    first, last = (
        datetime.fromtimestamp(time / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        for time in (min(times), max(times))
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


def _select_metrics(
    families: Iterable[str], metrics: Sequence[Metric], record: Record
) -> tuple[Metric, ...]:
    built_in = (
        *get_family_metrics(family for family in families if family in FAMILIES),
        *PREDICTION_METRICS,
        *WITHIN_BUCKET_METRICS,
        *PREQUENTIAL_METRICS,
    )
    by_name = {metric.name: metric for metric in (*built_in, *metrics)}
    return adapt_metrics(
        add_matrix_metrics(by_name.values(), record.masked_matrix), record.matrix.score
    )


def split_score_hash(tags: Mapping[str, str]) -> list[str]:
    """Return the five parts of the logged hash, "" if missing.

    In order: rows, other inputs, predictions, tests within buckets, predictions before training.
    """
    return f"{tags.get(names.SCORED_TAG, '')}....".split(".")[:5]
