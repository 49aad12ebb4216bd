"""Record a training in an MLflow run: its configuration, dataset, rows and training states."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Param, Run
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_file_name
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.matrix import AccuracyRow, measured_split
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    predictions_file_name,
)
from clear_mlflow.core.record import TIMES, DatasetIdentity, row_file_name
from clear_mlflow.core.text import warn
from clear_mlflow.core.untrusted import JSON
from clear_mlflow.core.version import __version__, software
from clear_mlflow.journal.uploader import read_curve_steps
from clear_mlflow.learning.measured import (
    MeasuredRow,
    StreamMetadata,
    Training,
    TrainingState,
)
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import parameters_to_log
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.metrics import split_families
from clear_mlflow.scoring.run_record import build_families_tag
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.lease import LeaseLostError
from clear_mlflow.store.rows import check_has_no_rows
from clear_mlflow.store.states import Manifest, remove_states, store_state
from clear_mlflow.tracking.lifecycle import open_run
from clear_mlflow.tracking.resume import ResumePoint, describe_data
from clear_mlflow.tracking.run_recorder import RunRecorder, utc_now

_SOURCE_FOLDER = Path(__file__).parents[2]  # the checkout of this program, if it is one


class TrainingRun:
    """Records one training in a run, with what it can be resumed from.

    Entering logs the configuration; leaving uploads what is left.

    Args:
        client: client of the run's store.
        run_id: id of an open run, whose lease this process holds.
        config: the parameters of the training.
        requested: the parameters that the user passed, as text.
        kind: value of the run's tag of its kind.
        parent: the ensemble's run, of which this is a member, or None.
        resume_point: what is stored of the run, if it is resumed.
    """

    member_ids: Mapping[int, str] | None = None  # seed to run id; only of an ensemble

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        config: TrainConfig,
        requested: Mapping[str, str],
        *,
        kind: str = names.KIND_TRAIN,
        parent: TrainingRun | None = None,
        resume_point: ResumePoint | None = None,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._config = config
        self._requested = requested
        self._kind = kind
        self._is_member = parent is not None
        self._resume_point = resume_point
        self.recorder: RunRecorder = RunRecorder(
            client,
            run_id,
            split_families(config.metrics),
            parent=parent.recorder if parent else None,
        )
        self._metadata: StreamMetadata | None = None
        self._row_time = ""  # when the last row was measured
        self._has_states = resume_point is not None
        self._has_warned = False  # that a state is not stored

    def __enter__(self) -> TrainingRun:
        with mlflow_errors(f"log the configuration of run {self._run_id}"):
            run = self._client.get_run(self._run_id)
            self._log_configuration(run)
        self.recorder.open(run)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.recorder.close(error)
        metadata = self._metadata
        has_last_row = bool(metadata and len(metadata.buckets) in self.recorder.rows)
        if has_last_row and error is None and not self._is_member:
            self._remove_states(before=None)

    def track(self, training: Training) -> None:
        """Train; store each row before the next bucket starts, and its state during that bucket."""
        self.log_dataset(training.facts)
        for measured in training.rows(self.recorder.write_curve, self._log_test, self._log_state):
            self.log_row(measured)

    def log_dataset(self, metadata: StreamMetadata) -> None:
        """Log the dataset as an MLflow input, with its digest and its counts per bucket."""
        self._metadata = metadata
        extra = _build_extra(metadata)
        row_fields = {
            "dataset": DatasetIdentity(metadata.name, metadata.digest),
            "protocol": metadata.protocol,
            "split": measured_split(metadata.split),
            "seed": self._config.seed,
            "extra": extra,
        }
        if self._resume_point is not None and self._resume_point.has_dataset(metadata):
            self.recorder.set_row_fields(**row_fields)
            return
        for warning in metadata.warnings:
            warn(f"dataset {metadata.name}: {warning}")
        profile = {
            "num_classes": metadata.num_classes,
            "num_train": dict(zip(metadata.buckets, metadata.num_train, strict=True)),
            "num_test": dict(zip(metadata.buckets, metadata.num_test, strict=True)),
            "digest": metadata.digest,
            "protocol": metadata.protocol,
            "split": metadata.split,
            "warnings": metadata.warnings,
            **({"licence": metadata.licence} if metadata.licence else {}),
            **({"absent_classes": metadata.absent} if metadata.absent else {}),
            **extra,
        }
        self.recorder.log_dataset(source=metadata.source, profile=profile, **row_fields)
        tags = {"dataset_digest": metadata.digest}
        if metadata.features is not None and metadata.features_digest is not None:
            tags |= {"features": metadata.features, "features_digest": metadata.features_digest}
        if metadata.evaluation_set is not None:
            tags[names.PREDICTIONS_TAG] = self._config.predictions
        with mlflow_errors(f"log the dataset of run {self._run_id}"):
            log_tags(self._client, self._run_id, tags)
        if metadata.evaluation_set is not None:
            path = f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"
            self.recorder.write_file(path, metadata.evaluation_set)

    def log_row(self, measured: MeasuredRow) -> None:
        """Store a row. A row that a resumed run has already is kept as it is."""
        row, point = measured.row, self._resume_point
        stored_row = None if point is None else point.find_stored_row(row)
        if point is not None and stored_row is not None:
            self._complete_row(measured, stored_row, point)
            return
        # If its state was stored and the row was not, the row gets the time in the state.
        row_time = (None if point is None else point.get_state_time(row.row)) or utc_now()
        record = self.recorder.build_record(row=row, written_at=row_time)
        # Before the state, so that a run resumed from the state does not repeat the curve.
        self.recorder.write_row(record, files=_build_files(measured), curve=measured.curve)
        self._row_time = row_time

    def _complete_row(
        self, measured: MeasuredRow, stored_row: AccuracyRow, point: ResumePoint
    ) -> None:
        """Store the files that a stored row lacks.

        If it was measured again with other numbers, the stored row and its files are kept, and the
        other row is stored in a folder of its own.
        """
        row = measured.row
        self._row_time = utc_now()
        files = {
            path: content
            for path, content in _build_files(measured).items()
            if path not in point.artifacts
        }
        if stored_row != row:
            folder = f"{names.MEASURED_AGAIN_FOLDER}/resume_{point.resume_number}"
            record = self.recorder.build_record(row=row, written_at=self._row_time)
            files = {f"{folder}/{row_file_name(row.row)}": record.to_json().encode()}
            warn(
                f"row {row.row} of run {self._run_id} was measured again and differs: the device "
                "does not repeat what it computes to the last digit; the stored row stays, the "
                f"other is kept in {folder}, and training goes on"
            )
        self.recorder.complete_row(stored_row, files=files, curve=measured.curve)

    def _log_test(self, test: AnytimeRow) -> None:
        """Store a test within a bucket, unless it and the bucket's row are stored."""
        path = f"{ANYTIME_FOLDER}/{anytime_file_name(test.bucket, test.test)}"
        point = self._resume_point
        if point is None or test.bucket not in point.records or path not in point.artifacts:
            self.recorder.write_test(test)

    def _log_state(self, state: TrainingState) -> None:
        """Have the uploader store the state after the last row, and remove older ones.

        A state is never kept on local disk, which a large model would fill: while the store is
        away, it is dropped.
        """
        if state.problem is not None:
            self._warn_once(f"run {self._run_id} could not be resumed from here: {state.problem}")
        if state.file is None or self._metadata is None or self.recorder.uploader.is_away:
            return
        data = describe_data(self._metadata)
        self.recorder.uploader.enqueue(
            partial(self._store_state, state.row, state.file, self._row_time, data)
        )

    def _store_state(
        self, row: int, content: bytes, row_time: str, data: Mapping[str, JSON]
    ) -> None:
        manifest = Manifest(
            row=row,
            written_at=row_time,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            data=data,
            package_version=__version__,
            torch_version=version("torch"),
        )
        try:
            self.recorder.uploader.get_lease(self._run_id).check()
            store_state(self._client, self._run_id, manifest, content)
        except LeaseLostError:  # the next row reports it
            return
        except (TrackingError, OSError) as error:
            self._warn_once(f"{error}; a resume will start from an earlier row")
            return
        self._has_states = True
        self._has_warned = False
        self._remove_states(before=row)

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            warn(message)
        self._has_warned = True

    def _remove_states(self, *, before: int | None) -> None:
        """Remove the states of rows before *before*, or all states if it is None.

        Failures are ignored: what is left costs only space.
        """
        uploader = self.recorder.uploader
        if self._has_states and not uploader.is_away:
            with suppress(Exception):
                run = uploader.get_lease(self._run_id).check()
                remove_states(self._client, run, before=before)

    def _log_configuration(self, run: Run) -> None:
        """Log parameters, tags and config.json. Raises if a new run contains rows of another."""
        point = self._resume_point
        if point is None:
            check_has_no_rows(self._client, run)
        params = parameters_to_log(self._config, self._requested, run.data.params)
        self._client.log_batch(
            self._run_id, params=[Param(name, value) for name, value in params.items()]
        )
        self._set_tags(run)
        if point is None:
            # The first artifact: a store that takes no artifacts is noticed before training.
            content = self._config.to_json().encode()
            log_durably(self._client, self._run_id, content, names.CONFIG_JSON)
        else:
            self.recorder.rows.update(point.earlier_rows)
            # Read under the lease: no other process adds points any more.
            self.recorder.curve_steps = read_curve_steps(self._client, run)

    def _set_tags(self, run: Run) -> None:
        config = self._config
        tags = {
            "strategy": config.strategy,
            "dataset": config.stream_name,
            "protocol": config.protocol,
            "split": measured_split(config.split),
            **({"seed": str(config.seed)} if config.seeds == NONE else {"seeds": config.seeds}),
            "model": config.model,
        }
        user_commit = _read_commit(Path.cwd())
        if user_commit is not None:
            tags["git_commit"] = user_commit
        # A run that the user opened may have tags of the same names, which are kept.
        tags = {name: value for name, value in tags.items() if name not in run.data.tags}
        tags |= {
            names.KIND_TAG: self._kind,
            names.VERSION_TAG: __version__,
            names.SOFTWARE_TAG: software("torch", "torchvision"),
            **build_families_tag(self.recorder.families, run.data.tags),
        }
        if config.test_interval is not None and self._kind == names.KIND_TRAIN:
            tags[names.ANYTIME_TAG] = config.test_every
        outdated = [names.ERROR_TAG, names.DIVERGED_TAG]  # of an earlier attempt
        is_checkout = (_SOURCE_FOLDER / ".git").exists()
        if is_checkout and (commit := _read_commit(_SOURCE_FOLDER)) is not None:
            tags[names.COMMIT_TAG] = commit
            # MLflow takes the checkout of this program for that of the user.
            if run.data.tags.get(MLFLOW_GIT_COMMIT) == commit.removesuffix("-dirty"):
                outdated.append(MLFLOW_GIT_COMMIT)
                tags |= {} if user_commit is None else {MLFLOW_GIT_COMMIT: user_commit[:40]}
        for tag in outdated:
            if tag in run.data.tags:
                self._client.delete_tag(self._run_id, tag)
        log_tags(self._client, self._run_id, tags)


def open_training_run(
    client: MlflowClient, config: TrainConfig, run_name: str | None = None
) -> str:
    """Start the run that MLFLOW_RUN_ID names, or a new one, and return its id.

    run_name: name of a new run; None for a name made of the parameters. Raises TrackingError if the
    named run contains rows, or another process trains into it.
    """
    check = partial(check_has_no_rows, client)
    return open_run(client, run_name or format_run_name(config), check, system_metrics=True)


def format_run_name(config: TrainConfig) -> str:
    """Return a name made of the parameters, for example "replay digits seed 3"."""
    num_seeds = len(config.seeds.split(","))
    seeds = f"seed {config.seed}" if config.seeds == NONE else f"{num_seeds} seeds"
    return f"{config.strategy} {config.stream_name} {seeds}"


def _build_files(measured: MeasuredRow) -> dict[str, bytes]:
    """Return predictions and model of a row, as far as they are kept, by artifact path."""
    row = measured.row.row
    files = {
        f"{PREDICTIONS_FOLDER}/{predictions_file_name(row)}": measured.predictions,
        f"{names.MODELS_FOLDER}/{names.format_model_file_name(row)}": measured.model,
    }
    return {path: content for path, content in files.items() if content is not None}


def _build_extra(metadata: StreamMetadata) -> dict[str, JSON]:
    """Return optional fields of a record: features, images left out, scenario, dates."""
    extra: dict[str, JSON] = {}
    if metadata.features is not None:
        extra["features"] = {"name": metadata.features, "digest": metadata.features_digest}
    if metadata.num_left_out:
        extra["left_out"] = metadata.num_left_out
    if metadata.scenario:
        extra["scenario"] = metadata.scenario
    if metadata.times:
        extra[TIMES] = list(metadata.times)
    return extra


def _read_commit(folder: Path) -> str | None:
    """Return the git commit of a folder, with ``-dirty`` if files differ, or None without git."""
    describe = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *describe],  # noqa: S607
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
