"""Resuming a run that holds rows: what it was, whether it may be resumed, and by which process."""

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

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER
from clear_mlflow.core.errors import ConfigError, DataError, RecordError, TrackingError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.predictions import EVALUATION_SET_FILE, PREDICTIONS_FOLDER
from clear_mlflow.core.record import DatasetIdentity, RowRecord, assemble, row_index
from clear_mlflow.core.text import warn
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, json_texts, read_bytes
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import FolderHeldError, find_run_folders
from clear_mlflow.journal.uploader import list_artifacts, upload_left_folders
from clear_mlflow.learning.measured import StreamMetadata
from clear_mlflow.learning.parameters.config import TrainConfig, parameters_with
from clear_mlflow.learning.parameters.logged import ARGUMENTS, dataset_runs_code
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.registry import known_strategies
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import check_artifact_root, mlflow_errors
from clear_mlflow.store.lease import (
    Lease,
    check_not_held,
    format_lease,
    is_recent_claim,
)
from clear_mlflow.store.rows import is_torn_row, list_row_sizes, parse_rows, read_row_files
from clear_mlflow.store.search import MissingRun, select_runs
from clear_mlflow.store.states import StoredState, list_state_rows, read_newest_state
from clear_mlflow.tracking.lifecycle import reopen_run
from clear_mlflow.tracking.loop_run import LOOP_JSON

_CLAIM = "resumed/"  # a parameter's name, followed by the number of the claim
_WAIT = "wait until it has ended, or start a new run"


@dataclass(frozen=True, eq=False)
class ResumePoint:
    """What a run that is to be resumed holds."""

    run: Run  # as it was when it was read
    config: TrainConfig
    records: Mapping[int, RowRecord]
    damaged: frozenset[int]  # rows that are measured again, because their files are damaged
    states: tuple[int, ...]  # the rows after which a state is stored, whole or not
    state: StoredState | None  # the newest whole one; None where nothing was measured yet
    files: frozenset[str]  # paths of the predictions, models and tests inside buckets

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to train or to store."""
        if not self.records:
            return False
        buckets = next(iter(self.records.values())).row.buckets
        if set(self.records) != set(range(len(buckets) + 1)):
            return False
        return not self.states or str(self.run.info.status) == "FINISHED"

    @property
    def rows_before(self) -> dict[int, AccuracyRow]:
        """Return the stored rows, by number, before the one that training begins with."""
        first = 0 if self.state is None else self.state.manifest.row
        return {row: record.row for row, record in self.records.items() if row < first}

    def is_described(self, facts: StreamMetadata) -> bool:
        """Whether the run holds the dataset as an MLflow input, and its evaluation set, if any."""
        wanted = {f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"} if facts.evaluation_set else set()
        inputs = self.run.inputs
        return bool(inputs and inputs.dataset_inputs) and wanted <= self.files

    def time_of(self, row: AccuracyRow) -> str | None:
        """When the row of the newest whole state was measured; None for any other row."""
        if self.state is None or self.state.manifest.row != row.row:
            return None
        return self.state.manifest.written_at

    @property
    def number(self) -> int:
        """How often the run has been resumed, this time included."""
        return _resumes(self.run) + 1

    def stored(self, row: AccuracyRow) -> AccuracyRow | None:
        """The stored row in the place of one measured again; other test images are refused."""
        record = self.records.get(row.row)
        if record is None:
            return None
        there = record.row
        same_images = (there.buckets, there.num_instances) == (row.buckets, row.num_instances)
        if there.correct is None or not same_images:
            raise TrackingError(
                f"row {row.row} of run {self.run.info.run_id} was measured again on "
                f"{row.num_instances} images, and is stored as on {there.num_instances}: these are "
                "not the same test images; the stored row stays, start a new run"
            )
        return there


def has_rows(client: MlflowClient, run_id: str) -> bool:
    """Whether a run holds rows of an earlier training; TrackingError: one trains into it now."""
    run = client.get_run(run_id)
    check_not_held(client, run, "unset MLFLOW_RUN_ID for a run of its own")
    return bool(find_run_folders(run_id)) or bool(list_row_sizes(client, run))


def read_resume_point(
    client: MlflowClient, run_id: str, folder: Path, *, assume_dead: bool = False
) -> ResumePoint:
    """Send what waits here, and read what training resumes from; *folder* takes fetched files."""
    run = _run(client, run_id, assume_dead)
    try:
        config = TrainConfig.resolve(stored_config(client, run))
    except (RecordError, ConfigError) as error:
        raise RecordError(f"{names.CONFIG_JSON} of run {run_id} is damaged: {error}") from error
    try:
        upload_left_folders(client, run)
    except FolderHeldError as error:  # its process had not reported yet when the run was read
        raise _taken(run_id) from error
    states = list_state_rows(client, run)
    state, problems = read_newest_state(client, run, folder)
    for problem in problems:
        instead = "the one before is used" if state else "there is no other"
        warn(f"run {run_id}: {problem}; {instead}")
    whole, damaged = _whole_rows(client, run, state)
    records = {record.row.row: record for record in whole.values()}
    folders = (PREDICTIONS_FOLDER, names.MODELS_FOLDER, ANYTIME_FOLDER)
    files = frozenset().union(*(list_artifacts(client, run_id, name) for name in folders))
    point = ResumePoint(run, config, records, damaged, states, state, files)
    if point.is_complete:
        return point
    if records:
        assemble(whole)  # rows that contradict each other are refused
    # One that was cut off while its first state was stored, beside bucket 1, begins anew.
    begins_anew = config.resumable == "on" and records.keys() <= {0, 1}
    if state is None and (records or problems) and not begins_anew:
        rows = f"rows {min(records)} to {max(records)}" if records else "no row"
        why = (
            "none of its training states is whole"
            if problems
            else "no training state: it was trained with resumable=off, or as a member of an "
            "ensemble"
        )
        raise _refused(
            run_id,
            f"it holds {rows} and {why}; start a new run (config.json of this one repeats it: "
            "clear-mlflow train --config FILE)",
        )
    trained_with, here = state.manifest.torch_version if state else None, version("torch")
    if trained_with not in (None, here):
        warn(
            f"the run was trained with torch {trained_with} and this is {here}: rows to come "
            "may differ in their last digits from what they would have been"
        )
    return point


def _whole_rows(
    client: MlflowClient, run: Run, state: StoredState | None
) -> tuple[dict[str, RowRecord], frozenset[int]]:
    """The whole rows of a run, by file name, and the damaged ones that training writes anew."""
    whole: dict[str, RowRecord] = {}
    damaged = set()
    for name, content in read_row_files(client, run).items():
        row = row_index(name)
        try:
            whole |= parse_rows({name: content})
        except RecordError as error:
            if state is None or row is None or row < state.manifest.row or not is_torn_row(content):
                raise
            warn(f"run {run.info.run_id}: {error}; it is written anew from the training state")
            damaged.add(row)
    return whole, frozenset(damaged)


def resolve_resume_parameters(
    point: ResumePoint, given: Mapping[str, str]
) -> tuple[dict[str, str], TrainConfig]:
    """The parameters that a run is resumed with, as text and resolved; *given* may not differ."""
    named = {name: text for name, text in given.items() if text != AUTO}
    config, run_id = point.config, point.run.info.run_id
    texts = config.as_text()
    for name, runs_code in (
        ("strategy", config.strategy not in known_strategies()),
        ("dataset", dataset_runs_code(texts)),
    ):
        value = getattr(config, name)
        if runs_code and named.get(name) != value:
            raise ConfigError(
                f"run {run_id} was trained with {name} {value}, code of somebody's own; what a "
                f"store names is not imported unless you name it, too: pass {name}={value} if you "
                "know it"
            )
    asked = {**texts, **named}
    wanted = TrainConfig.resolve(asked)
    # A strategy's and a dataset's own are compared when those that are left out are known.
    check_parameters(point, wanted, but=ARGUMENTS)
    return asked, wanted


def check_parameters(point: ResumePoint, config: TrainConfig, but: Sequence[str] = ()) -> None:
    """Refuse parameters that are not the run's."""
    movable = (*parameters_with("may_move"), *but)  # the digest shows other data
    ours = {name: text for name, text in config.as_text().items() if name not in movable}
    if differing := _differences(ours, point.config.as_text()):
        raise ConfigError(
            f"run {point.run.info.run_id} cannot be resumed with other parameters: {differing}; "
            "leave them out, or start a new run"
        )


def check_data(point: ResumePoint, facts: StreamMetadata) -> None:
    """Refuse a dataset that is not the one that the run trained on."""
    if point.state is None:
        expected = DatasetIdentity(facts.name, facts.digest)
        others = any(record.dataset != expected for record in point.records.values())
        differing = "its row 0 is of another" if others else ""
    else:
        differing = _differences(data_of(facts), point.state.manifest.data)
    if differing:
        raise DataError(
            f"run {point.run.info.run_id} cannot be resumed with this dataset: {differing}; pass "
            "the data_root that it was trained on, or start a new run"
        )


def data_of(facts: StreamMetadata) -> dict[str, Any]:
    """What has to be the same of a dataset; values as JSON gives them back."""
    return {
        "dataset": facts.name,
        "digest": facts.digest,
        "protocol": facts.protocol,
        "split": facts.split,
        "features": facts.features,
        "features_digest": facts.features_digest,
        "buckets": list(facts.buckets),
        "num_train": list(facts.num_train),
        "num_test": list(facts.num_test),
        "left_out": facts.num_left_out,
    }


def take_over(client: MlflowClient, point: ResumePoint, *, assume_dead: bool = False) -> None:
    """Take a run over, and make it MLflow's active one; of several processes, one can."""
    run_id = point.run.info.run_id
    with mlflow_errors(f"take over run {run_id}"):
        run = client.get_run(run_id)
        check_not_held(client, run, _WAIT, assume_dead=assume_dead)
        number = claim(client, run)
    lease = Lease(client, run_id)
    lease.acquire()
    now = lease.check()
    rows = {int(name[4:-5]) for name in list_row_sizes(client, now)}
    if rows != point.records.keys() | point.damaged or list_state_rows(client, now) != point.states:
        lease.release()
        raise TrackingError(
            f"run {run_id} was resumed by another process just now; resume it again"
        )
    reopen_run(run_id, {names.RESUMES_TAG: str(number)})


def claim(client: MlflowClient, run: Run) -> int:
    """Say that this process continues a run, for which time; of several at once, one can."""
    run_id = run.info.run_id
    if is_claimed(run):
        raise _taken(run_id)
    number = len(_list_claims(run)) + 1
    # Of those that begin at once, one can write it: MLflow lets nobody write it again.
    try:
        client.log_param(run_id, f"{_CLAIM}{number}", format_lease())
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise _taken(run_id) from error
        raise
    return number


def is_claimed(run: Run) -> bool:
    """Return True if another process has claimed a run just now and has not begun to train."""
    claims = _list_claims(run)
    return len(claims) > _resumes(run) and is_recent_claim(claims[-1])


def _list_claims(run: Run) -> list[str]:
    """Return the claims on a run in order, up to the first number that is missing."""
    texts = (run.data.params.get(f"{_CLAIM}{number}", "") for number in itertools.count(1))
    return list(itertools.takewhile(bool, texts))


def _taken(run_id: str) -> TrackingError:
    return TrackingError(f"another process trains into run {run_id} now; {_WAIT}")


def _resumes(run: Run) -> int:
    """How often the run was resumed, by its own tag; anyone may write tags."""
    told = run.data.tags.get(names.RESUMES_TAG, "0")
    return int(told) if re.fullmatch("[0-9]{1,9}", told) else 0


def _run(client: MlflowClient, run_id: str, assume_dead: bool) -> Run:
    with mlflow_errors(f"read run {run_id[:80]}"):
        (run,) = select_runs(client, run_ids=(run_id,))
    if isinstance(run, MissingRun):
        raise _refused(run_id[:80], run.problem)
    kind = run.data.tags.get(names.KIND_TAG)
    if kind != names.KIND_TRAIN:
        what = kind or "no run of clear_mlflow"
        raise _refused(run_id, f"it is {what}, not a training; pass the id of one")
    check_not_held(client, run, _WAIT, assume_dead=assume_dead)
    if (trained_with := run.data.tags.get(names.VERSION_TAG, "unknown")) != __version__:
        raise _refused(
            run_id,
            f"it was trained with clear_mlflow {trained_with} and this is {__version__}, which may "
            "compute differently; resume it with that version, or start a new run",
        )
    check_artifact_root(client.tracking_uri, f"run {run_id}", str(run.info.artifact_uri))
    return run


def _refused(run_id: str, why: str) -> TrackingError:
    return TrackingError(f"run {run_id} cannot be resumed: {why}")


def stored_config(client: MlflowClient, run: Run) -> dict[str, str]:
    """The parameters of a run as its config.json has them; RecordError where it is damaged."""
    folder = ArtifactFolder(client, run)
    with mlflow_errors(f"read {names.CONFIG_JSON} of run {run.info.run_id}"):
        files = folder.list_sizes()
        if LOOP_JSON in files:
            raise _refused(
                run.info.run_id,
                "a loop of your own trained it; start that with MLFLOW_RUN_ID set to the run's id",
            )
        if names.CONFIG_JSON not in files:
            list_row_sizes(client, run)  # where its rows are gone, too, the store is not all there
            raise TrackingError(
                f"run {run.info.run_id} lacks {names.CONFIG_JSON}, which has its parameters; start "
                "a new run"
            )
        with folder.open_scratch() as scratch:
            content = read_bytes(folder.fetch_file(names.CONFIG_JSON, scratch), MAX_CONFIG_BYTES)
        return json_texts(content, MAX_CONFIG_BYTES)


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """``epochs is 5 and the run has 3``, for each that differs."""
    return "; ".join(
        f"{name} is {str(value)[:200]} and the run has "
        + " ".join(str(theirs.get(name, "nothing")).split())[:200]
        for name, value in ours.items()
        if value != theirs.get(name)
    )
