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
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

from clear_mlflow.core.anytime import ANYTIME_FOLDER, AnytimeRow, format_anytime_file_name
from clear_mlflow.core.batch_record import PREQUENTIAL_FILE
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.matrix import AccuracyRow, get_measured_split
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    format_predictions_file_name,
)
from clear_mlflow.core.record import RowRecord, utc_now
from clear_mlflow.core.text import warn
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.uploader import read_curve_steps
from clear_mlflow.learning.measured import Measurement, Training
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import describe_parameters, select_parameters_to_log
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import OFF
from clear_mlflow.metrics import split_families
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.lease import LeaseLostError
from clear_mlflow.store.rows import check_has_no_rows
from clear_mlflow.store.states import Manifest, remove_states, store_state
from clear_mlflow.tracking.lifecycle import open_run
from clear_mlflow.tracking.resume import ResumePoint, describe_data
from clear_mlflow.tracking.run_recorder import RunRecorder, log_dataset

_PREQUENTIAL_PATH = f"{PREDICTIONS_FOLDER}/{PREQUENTIAL_FILE}"
_SOURCE_FOLDER = Path(__file__).parents[2]  # the checkout of this program, if it is one


class TrainingRun:
    """Records one training in an MLflow run.

    A context manager: entering it logs the configuration, leaving it uploads what is not stored.

    Args:
        client: client of the tracking store.
        run_id: id of a RUNNING run. This process must have its lease, the right to write to it.
        config: the parameters of the training.
        requested: the parameters that the user passed, as text.
        resume_point: stored rows and training state of a run that is resumed, or None.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        config: TrainConfig,
        requested: Mapping[str, str],
        *,
        resume_point: ResumePoint | None = None,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._config = config
        self._requested = requested
        self._resume_point = resume_point
        self.recorder = RunRecorder(client, run_id, split_families(config.metrics))
        self._dataset: DatasetDescription | None = None
        self._last_row, self._row_time = 0, ""  # the row measured last, and when
        self._has_warned = False  # that a state is not stored

    def __enter__(self) -> TrainingRun:
        """Log the configuration, and start the threads that upload and draw."""
        with mlflow_errors(f"log the configuration of run {self._run_id}"):
            run = self._client.get_run(self._run_id)
            self._log_configuration(run)
        self.recorder.open(run)
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """Upload what is left, and delete states of a finished training."""
        self.recorder.close(error)
        has_last_row = self._dataset and len(self._dataset.buckets) in self.recorder.rows
        if has_last_row and error is None:
            self._remove_states(before=None)

    def track(self, training: Training) -> None:
        """Train, and store rows, curve, tests and training states during training.

        Each row is stored before the next bucket starts, and its training state during that bucket.
        """
        self.log_dataset(training.dataset)
        for measured in training.rows(self.log):
            self.log(measured)

    def log(self, measured: Measurement) -> None:
        """Store a row, test, curve or state that the training measured."""
        if measured.row is not None and self._dataset is not None:
            self._log_row(self._dataset, measured.row, measured)
        elif measured.test is not None:
            self._log_test(measured.test)
        elif measured.curve:
            self.recorder.write_curve(measured.curve)
        else:
            self._log_state(measured)

    def log_dataset(self, dataset: DatasetDescription) -> None:
        """Log the dataset as input and tags, and store its test images.

        Call it before :meth:`log`, also for a resumed run, where it changes nothing in the store.
        """
        self._dataset = dataset
        log_dataset(self._client, self._run_id, dataset)
        tags = dataset.tags
        if (images := dataset.evaluation_set) is not None:
            tags[names.PREDICTIONS_TAG] = self._config.predictions
        with mlflow_errors(f"log the dataset of run {self._run_id}"):
            log_tags(self._client, self._run_id, tags)
        if images is not None:
            path = f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"
            self.recorder.write_file(path, images.to_bytes())

    def _log_row(
        self, dataset: DatasetDescription, row: AccuracyRow, measured: Measurement
    ) -> None:
        """Store a row with its predictions and model weights.

        If a resumed run has the row, only missing files are stored. If the stored row has other
        numbers, nothing is stored, and a warning is printed.
        """
        point = self._resume_point
        files = {
            f"{PREDICTIONS_FOLDER}/{format_predictions_file_name(row.row)}": measured.predictions,
            f"{names.MODELS_FOLDER}/{names.format_model_file_name(row.row)}": measured.model,
            _PREQUENTIAL_PATH: measured.prequential,
        }
        contents = {path: content for path, content in files.items() if content is not None}
        self._last_row, self._row_time = row.row, utc_now()
        stored = None if point is None else point.records.get(row.row)
        if point is None or stored is None:
            # If its state was stored and the row was not, the row gets the time in the state.
            if point is not None and point.state and point.state.manifest.row == row.row:
                self._row_time = point.state.manifest.written_at
            record = RowRecord.build(row, dataset, self._config.seed, self._row_time)
            # Before the state, so that a run resumed from the state does not repeat the curve.
            self.recorder.write_row(record, files=contents, curve=measured.curve)
            return
        missing = {
            path: content
            for path, content in contents.items()
            # One file contains what belongs to all rows: the stored one may be of an earlier row.
            if path not in point.artifacts or path == _PREQUENTIAL_PATH
        }
        if stored.row != row:
            missing = {}  # they would belong to the other numbers
            warn(
                f"row {row.row} of run {self._run_id} was measured again and differs: the device "
                "does not repeat its results to the last digit; the stored row is kept, and "
                "training continues"
            )
        self.recorder.write_missing_files(stored.row, files=missing, curve=measured.curve)

    def _log_test(self, test: AnytimeRow) -> None:
        """Store a test within a bucket, unless a resumed run has it."""
        path = f"{ANYTIME_FOLDER}/{format_anytime_file_name(test.bucket, test.test)}"
        point = self._resume_point
        if point is None or test.bucket not in point.records or path not in point.artifacts:
            self.recorder.write_test(test)

    def _log_state(self, measured: Measurement) -> None:
        """Enqueue a training state, or warn and tag why there is none.

        Drops it while the store cannot be reached: states of a large model would fill the disk.
        """
        state, problem = measured.state, measured.state_problem
        if problem is not None and not self._has_warned:
            self._warn_once(f"run {self._run_id} could not be resumed from here: {problem}")
            reason = f"after row {self._last_row}, {problem}"
            self.recorder.write_tags({names.STATE_PROBLEM_TAG: reason[:2000]})
        if state is None or self._dataset is None or self.recorder.uploader.is_failing:
            return
        manifest = Manifest(
            row=self._last_row,
            written_at=self._row_time,
            size=len(state),
            sha256=hashlib.sha256(state).hexdigest(),
            data=describe_data(self._dataset),
            package_version=__version__,
            torch_version=version("torch"),
        )
        self.recorder.uploader.enqueue(partial(self._store_state, manifest, state))

    def _store_state(self, manifest: Manifest, content: bytes) -> None:
        """Store a training state, then delete the states of earlier rows."""
        try:
            run = self.recorder.uploader.lease.read_run()
            store_state(self._client, run, manifest, content)
        except LeaseLostError:  # the next row reports it
            return
        except (TrackingError, OSError) as error:
            self._warn_once(f"{error}; a resume will start from an earlier row")
            return
        self._has_warned = False
        self._remove_states(before=manifest.row)

    def _warn_once(self, message: str) -> None:
        """Print a warning, unless one was printed since the last state."""
        if not self._has_warned:
            warn(message)
        self._has_warned = True

    def _remove_states(self, *, before: int | None) -> None:
        """Delete the training states before a row (None: all), ignoring errors."""
        uploader = self.recorder.uploader
        if not uploader.is_failing:
            with suppress(Exception):
                run = uploader.lease.read_run()
                remove_states(self._client, run, before=before)

    def _log_configuration(self, run: Run) -> None:
        """Log parameters, tags and config.json, which a resumed run keeps."""
        config, point = self._config, self._resume_point
        if point is None:
            check_has_no_rows(self._client, run)
        else:
            first = 0 if point.state is None else point.state.manifest.row
            earlier = {row: record.row for row, record in point.records.items() if row < first}
            self.recorder.rows.update(earlier)
        grouping = {
            "strategy": config.strategy,
            "dataset": config.stream_name,
            "protocol": config.protocol,
            "split": get_measured_split(config.split),
            **({"seed": str(config.seed)} if config.seeds == NONE else {"seeds": config.seeds}),
            "model": config.format_record()["model"],
        }
        tags = {
            names.KIND_TAG: _select_run_type(config),
            names.PARAMETERS_TAG: describe_parameters(config),
        }
        if (num_processes := read_dist_env().size) > 1:
            tags[names.PROCESSES_TAG] = str(num_processes)
        if config.test_every != OFF:
            tags[names.ANYTIME_TAG] = config.test_every
        if config.prequential != OFF:
            tags[names.PREQUENTIAL_TAG] = config.prequential
        user_commit = _read_commit(Path.cwd())
        if user_commit is not None and "git_commit" not in run.data.tags:
            grouping["git_commit"] = user_commit
        if (_SOURCE_FOLDER / ".git").exists() and (commit := _read_commit(_SOURCE_FOLDER)):
            tags[names.COMMIT_TAG] = commit
            # MLflow takes the checkout of this program for the user's.
            if run.data.tags.get(MLFLOW_GIT_COMMIT) == commit.removesuffix("-dirty"):
                self._client.delete_tag(self._run_id, MLFLOW_GIT_COMMIT)
                tags |= {} if user_commit is None else {MLFLOW_GIT_COMMIT: user_commit[:40]}
        params = select_parameters_to_log(config, self._requested, run.data.params)
        self.recorder.log_configuration(
            run, params=params, grouping=grouping, tags=tags, libraries=("torch", "torchvision")
        )
        if point is None:
            # The first artifact: a store that takes no artifacts is noticed before training.
            content = config.to_json().encode()
            ArtifactFolder(self._client, run).write_file(names.CONFIG_JSON, content)
        else:
            # Read under the lease: no other process adds points any more.
            self.recorder.curve_steps = read_curve_steps(self._client, run)


def open_training_run(
    client: MlflowClient, config: TrainConfig, run_name: str | None = None
) -> str:
    """Start a new active run, or continue MLFLOW_RUN_ID without rows.

    Returns its id. Raises TrackingError if the run contains rows already, or another process is
    training into it. Makes the run active and waits like :func:`open_run`.

    run_name: name of a new run; None for a name made of the parameters.
    """
    check = partial(check_has_no_rows, client)
    name, run_type = run_name or format_run_name(config), _select_run_type(config)
    return open_run(client, name, check, run_type=run_type, system_metrics=True)


def format_run_name(config: TrainConfig) -> str:
    """Build a name like "replay digits seed 3"."""
    num_seeds = len(config.seeds.split(","))
    seeds = f"seed {config.seed}" if config.seeds == NONE else f"{num_seeds} seeds"
    return f"{config.strategy} {config.stream_name} {seeds}"


def _select_run_type(config: TrainConfig) -> str:
    return names.KIND_TRAIN if config.seeds == NONE else names.KIND_ENSEMBLE


def _read_commit(folder: Path) -> str | None:
    """Ask git for the commit, with ``-dirty`` if files differ, or None."""
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
