"""Resume an interrupted run: read what is stored of it, check it, and reserve it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from clear_mlflow.core.anytime import ANYTIME_FOLDER
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import ConfigError, DataError, RecordError, TrackingError
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.core.record import RowRecord, assemble, parse_row_index
from clear_mlflow.core.text import one_line, warn
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, parse_json_texts
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import FolderLockedError, find_run_folders
from clear_mlflow.journal.uploader import upload_remaining_folders
from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig
from clear_mlflow.learning.parameters.logged import ARGUMENTS, list_custom_code
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import check_artifact_root, mlflow_errors
from clear_mlflow.store.lease import (
    Lease,
    check_not_being_trained,
    format_lease,
    is_recent_reservation,
)
from clear_mlflow.store.rows import is_truncated_row, list_row_sizes, parse_rows, read_row_files
from clear_mlflow.store.search import read_run
from clear_mlflow.store.states import StoredState, list_state_rows, read_newest_state
from clear_mlflow.tracking.lifecycle import reopen_run
from clear_mlflow.tracking.loop_run import LOOP_JSON

_RESERVATION_PREFIX = "resumed/"  # of a parameter's name; the number of the resume follows
_WAIT = "wait until it has ended, or start a new run"


@dataclass(frozen=True, eq=False)
class ResumePoint:
    """The stored rows and training state from which a run is resumed."""

    run: Run  # as it was when it was read
    config: TrainConfig
    records: Mapping[int, RowRecord]  # by row
    damaged_rows: frozenset[int]  # rows whose files are damaged; they are measured again
    state_rows: tuple[int, ...]  # rows after which a training state is stored, intact or not
    state: StoredState | None  # the newest intact state; None if nothing was measured yet
    artifacts: frozenset[str]  # paths of predictions, models and tests within buckets

    @property
    def is_complete(self) -> bool:
        """True if all rows are stored and no training is left.

        That is, the run is FINISHED or no training state is stored.
        """
        if not self.records:
            return False
        num_buckets = len(next(iter(self.records.values())).row.buckets)
        if set(self.records) != set(range(num_buckets + 1)):
            return False
        return not self.state_rows or str(self.run.info.status) == "FINISHED"


def detect_rows(client: MlflowClient, run_id: str) -> bool:
    """Return True if a run has rows, waiting for another process's lease.

    Raises TrackingError if another process is training into the run.
    """
    run = client.get_run(run_id)
    check_not_being_trained(client, run, "unset MLFLOW_RUN_ID to open a new run")
    return bool(find_run_folders(run_id)) or bool(list_row_sizes(client, run))


def read_resume_point(client: MlflowClient, run_id: str, download_folder: Path) -> ResumePoint:
    """Upload what earlier processes left, and read the resume point.

    Skips damaged training states with a warning, and warns if torch has another version. Raises
    RecordError if the configuration or a row is damaged, and TrackingError if the run cannot be
    resumed, for example without an intact training state, or another process is training into it.

    download_folder: folder for the training state, which is read from there later.
    """
    run = _read_resumable_run(client, run_id)
    config = _read_config(client, run)
    try:
        upload_remaining_folders(client, run)
    except FolderLockedError as error:  # that process had no lease yet when the run was read
        raise _build_in_use_error(run_id) from error
    state_rows = list_state_rows(client, run)
    state, problems = read_newest_state(client, run, download_folder)
    for problem in problems:
        instead = "the one before is used" if state else "no other exists"
        warn(f"run {run_id}: {problem}; {instead}")
    records_by_file, damaged_rows = _read_rows(client, run, state)
    records = {record.row.row: record for record in records_by_file.values()}
    folders = (PREDICTIONS_FOLDER, names.MODELS_FOLDER, ANYTIME_FOLDER)
    artifacts = frozenset(
        f"{folder}/{name}"
        for folder in folders
        for name in ArtifactFolder(client, run, folder).list_sizes()
    )
    point = ResumePoint(run, config, records, damaged_rows, state_rows, state, artifacts)
    if point.is_complete:
        return point
    if records:
        assemble(records_by_file)  # raises if rows contradict each other
    missing_state = one_line(run.data.tags.get(names.STATE_PROBLEM_TAG, ""))
    if config.resumable == "off":
        missing_state = "it was trained with resumable=off"
    # A run that was interrupted while its first state was stored, in bucket 2, begins again.
    can_restart = config.resumable == "on" and records.keys() <= {0, 1}
    if state is None and (records or problems) and not can_restart:
        rows = f"rows {min(records)} to {max(records)}" if records else "no row"
        reason = (
            "all of its training states are damaged"
            if problems
            else f"no training state: {missing_state or 'none was stored'}"
        )
        raise _build_resume_error(
            run_id,
            f"it contains {rows} and {reason}; start a new run (its config.json repeats this one: "
            "clear-mlflow train --config FILE)",
        )
    if missing_state and state is not None and state.manifest.row < max(records):
        row = state.manifest.row
        warn(f"run {run_id} is resumed after row {row}, its last state: {missing_state}")
    if state is not None and state.manifest.torch_version != version("torch"):
        warn(
            f"the run was trained with torch {state.manifest.torch_version} and this is "
            f"{version('torch')}: rows to come may differ in their last digits from what they "
            "would have been"
        )
    return point


def resolve_resume_parameters(point: ResumePoint, requested: Mapping[str, str]) -> TrainConfig:
    """Combine stored and requested parameters, or raise ConfigError.

    Raises ConfigError if *requested* differs from the run's parameters, or does not name the
    user's code that the run needs. A requested ``auto`` is the run's value.
    """
    overrides = {name: value for name, value in requested.items() if value != AUTO}
    config, run_id = point.config, point.run.info.run_id
    stored_values = config.as_text()
    for name in list_custom_code(stored_values):
        value = stored_values[name]
        if overrides.get(name) != value:
            raise ConfigError(
                f"run {run_id} was trained with {name} {value}, code of somebody's own; what a "
                f"store names is not imported unless you name it, too: pass {name}={value} if you "
                "know it"
            )
    resolved = TrainConfig.resolve({**stored_values, **overrides})
    # Arguments of a strategy or dataset are compared later, when their defaults are known.
    check_parameters(point, resolved, ignored=ARGUMENTS)
    return resolved


def check_parameters(point: ResumePoint, config: TrainConfig, ignored: Sequence[str] = ()) -> None:
    """Raise ConfigError if parameters differ from the run's.

    Skips those that only choose where to train, for example the device, and those in *ignored*.
    """
    values = {
        name: value
        for name, value in config.as_text().items()
        if name not in ignored and not PARAMETERS[name].changeable_on_resume
    }
    if differences := _describe_differences(values, point.config.as_text()):
        raise ConfigError(
            f"run {point.run.info.run_id} cannot be resumed with other parameters: {differences}; "
            "leave them out, or start a new run"
        )


def check_data(point: ResumePoint, dataset: DatasetDescription) -> None:
    """Raise DataError if a run was trained on another dataset."""
    if point.state is None:
        stored = {(r.dataset.name, r.dataset.digest) for r in point.records.values()}
        is_other = stored - {(dataset.name, dataset.digest)}
        differences = "its row 0 belongs to another" if is_other else ""
    else:
        differences = _describe_differences(describe_data(dataset), point.state.manifest.data)
    if differences:
        raise DataError(
            f"run {point.run.info.run_id} cannot be resumed with this dataset: {differences}; pass "
            "the data_root that it was trained on, or start a new run"
        )


def describe_data(dataset: DatasetDescription) -> dict[str, Any]:
    """Describe what a resume must not change, in JSON types."""
    order = dataset.time_order_digest
    return {
        "dataset": dataset.name,
        "digest": dataset.digest,
        "protocol": dataset.protocol,
        "split": dataset.division,
        "features": dataset.features.get("name"),
        "features_digest": dataset.features.get("digest"),
        "buckets": list(dataset.buckets),
        "num_train": list(dataset.num_train or ()),
        "num_test": list(dataset.num_test or ()),
        "left_out": dataset.num_left_out,
        **({"time_order_digest": order} if order else {}),
    }


def take_over(client: MlflowClient, point: ResumePoint) -> None:
    """Acquire the lease of an interrupted run, and set it to RUNNING.

    Raises TrackingError if another process is training into it, is about to resume it, or has
    stored rows since *point* was read.
    """
    run_id = point.run.info.run_id
    with mlflow_errors(f"take over run {run_id}"):
        run = client.get_run(run_id)
        check_not_being_trained(client, run, _WAIT)
        number = reserve_resume(client, run)
    lease = Lease(client, run_id)
    lease.acquire()
    run = lease.read_run()
    rows = {int(name[4:-5]) for name in list_row_sizes(client, run)}
    if rows != point.records.keys() | point.damaged_rows or (
        list_state_rows(client, run) != point.state_rows
    ):
        lease.release()
        raise TrackingError(
            f"run {run_id} was resumed by another process just now; resume it again"
        )
    reopen_run(run_id, {names.RESUMES_TAG: str(number)})


def reserve_resume(client: MlflowClient, run: Run) -> int:
    """Reserve the next resume for this process, and return its number.

    If several processes try, one succeeds: the reservation is an MLflow parameter, which cannot be
    overwritten. Raises TrackingError in the others.
    """
    run_id = run.info.run_id
    if is_resume_reserved(run):
        raise _build_in_use_error(run_id)
    number = len(_list_reservations(run)) + 1
    try:
        client.log_param(run_id, f"{_RESERVATION_PREFIX}{number}", format_lease())
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise _build_in_use_error(run_id) from error
        raise
    return number


def is_resume_reserved(run: Run) -> bool:
    """Return True if another process is about to resume a run."""
    reservations = _list_reservations(run)
    return len(reservations) > _get_num_resumes(run) and is_recent_reservation(reservations[-1])


def _read_config(client: MlflowClient, run: Run) -> TrainConfig:
    """Read a run's parameters, or raise why it cannot be resumed."""
    run_id, folder = run.info.run_id, ArtifactFolder(client, run)
    with mlflow_errors(f"read {names.CONFIG_JSON} of run {run_id}"):
        sizes = folder.list_sizes()
        if LOOP_JSON in sizes:
            raise _build_resume_error(
                run_id,
                "a custom loop trained it; start the loop with MLFLOW_RUN_ID set to the run's id",
            )
        if names.CONFIG_JSON not in sizes:
            list_row_sizes(client, run)  # raises if rows are missing, too: a damaged store
            raise TrackingError(
                f"run {run_id} lacks {names.CONFIG_JSON}, which has its parameters; start a new run"
            )
        try:
            files = folder.read_files([names.CONFIG_JSON], MAX_CONFIG_BYTES)
            content = parse_json_texts(files[names.CONFIG_JSON], MAX_CONFIG_BYTES)
            return TrainConfig.resolve(content)
        except (RecordError, ConfigError) as error:
            raise RecordError(f"{names.CONFIG_JSON} of run {run_id} is damaged: {error}") from error


def _read_resumable_run(client: MlflowClient, run_id: str) -> Run:
    run = read_run(client, run_id)
    run_type = run.data.tags.get(names.KIND_TAG)
    if run_type != names.KIND_TRAIN:
        description = run_type or "no run of clear_mlflow"
        raise _build_resume_error(
            run_id, f"it is {description}, not a training; pass the id of one"
        )
    check_not_being_trained(client, run, _WAIT)
    if (run_version := run.data.tags.get(names.VERSION_TAG, "unknown")) != __version__:
        raise _build_resume_error(
            run_id,
            f"it was trained with clear_mlflow {run_version} and this is {__version__}, which may "
            "compute differently; resume it with that version, or start a new run",
        )
    check_artifact_root(client.tracking_uri, f"run {run_id}", str(run.info.artifact_uri))
    return run


def _read_rows(
    client: MlflowClient, run: Run, state: StoredState | None
) -> tuple[dict[str, RowRecord], frozenset[int]]:
    """Read rows by file name, and damaged row numbers to measure again."""
    records_by_file: dict[str, RowRecord] = {}
    damaged_rows = set()
    for name, content in read_row_files(client, run).items():
        row = parse_row_index(name)
        try:
            records_by_file |= parse_rows({name: content})
        except RecordError as error:
            is_replaced = state is not None and row is not None and row >= state.manifest.row
            if row is None or not is_replaced or not is_truncated_row(content):
                raise
            warn(f"run {run.info.run_id}: {error}; it is written again from the training state")
            damaged_rows.add(row)
    return records_by_file, frozenset(damaged_rows)


def _list_reservations(run: Run) -> list[str]:
    """Return the JSON lease of each reserved resume, in order."""
    reservations = (
        run.data.params.get(f"{_RESERVATION_PREFIX}{number}", "") for number in itertools.count(1)
    )
    return list(itertools.takewhile(bool, reservations))


def _get_num_resumes(run: Run) -> int:
    value = run.data.tags.get(names.RESUMES_TAG, "0")
    return int(value) if re.fullmatch("[0-9]{1,9}", value) else 0


def _build_in_use_error(run_id: str) -> TrackingError:
    return TrackingError(f"another process trains into run {run_id} now; {_WAIT}")


def _build_resume_error(run_id: str, reason: str) -> TrackingError:
    return TrackingError(f"run {run_id} cannot be resumed: {reason}")


def _describe_differences(values: Mapping[str, Any], run_values: Mapping[str, Any]) -> str:
    """Format differences: "epochs is 5 and the run has 3", or ""."""
    return "; ".join(
        f"{name} is {str(value)[:200]} and the run has "
        + " ".join(str(run_values.get(name, "nothing")).split())[:200]
        for name, value in values.items()
        if value != run_values.get(name)
    )
