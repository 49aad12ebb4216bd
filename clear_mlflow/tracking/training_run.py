"""An MLflow run into which this program trains: its parameters, its states, its resumes."""

from __future__ import annotations

import functools
import hashlib
import subprocess
from collections.abc import Mapping
from contextlib import suppress
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
from clear_mlflow.tracking.resume import ResumePoint, data_of
from clear_mlflow.tracking.run_recorder import RunRecorder, utc_now

_CHECKOUT = Path(__file__).parents[2]  # of this program, where it is one


class TrainingRun:
    """Keeps the record of one training, and what it can be resumed from."""

    member_ids: Mapping[int, str] | None = None  # seed to run, of an ensemble alone

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        config: TrainConfig,
        asked: Mapping[str, str],
        *,
        kind: str = names.KIND_TRAIN,
        above: TrainingRun | None = None,
        resumed: ResumePoint | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.config = config
        self.asked = asked
        families = split_families(config.metrics)
        of_all: RunRecorder | None = above.recorder if above else None
        self.recorder: RunRecorder = RunRecorder(client, run_id, families, parent=of_all)
        self._facts: StreamMetadata | None = None
        self._kind = kind
        self._is_member = above is not None
        self._resumed = resumed
        self._written_at = ""  # time of the last row
        self._holds_states = resumed is not None
        self._warned_of_no_state = False

    def __enter__(self) -> TrainingRun:
        with mlflow_errors(f"log the configuration of run {self.run_id}"):
            run = self.client.get_run(self.run_id)
            self._describe(run)
        self.recorder.open(run)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.recorder.close(error)
        rows, facts = self.recorder.rows, self._facts
        is_whole = bool(facts and len(facts.buckets) in rows)
        if is_whole and error is None and not self._is_member:
            self._remove_states(before=None)

    def track(self, training: Training) -> None:
        """Train; store each row before the next bucket starts, and the state during it."""
        self.log_facts(training.facts)
        for measured in training.rows(self.recorder.write_curve, self.log_test, self.log_state):
            self.log_row(measured)

    def log_facts(self, facts: StreamMetadata) -> None:
        """Log the dataset as an MLflow input, with its digest and its counts per bucket."""
        self._facts = facts
        of_rows = {
            "dataset": DatasetIdentity(facts.name, facts.digest),
            "protocol": facts.protocol,
            "split": measured_split(facts.split),
            "seed": self.config.seed,
            "extra": _extra_of(facts),
        }
        if self._resumed is not None and self._resumed.is_described(facts):
            self.recorder.set_row_fields(**of_rows)
            return
        for warning in facts.warnings:
            warn(f"dataset {facts.name}: {warning}")
        profile = {
            "num_classes": facts.num_classes,
            "num_train": dict(zip(facts.buckets, facts.num_train, strict=True)),
            "num_test": dict(zip(facts.buckets, facts.num_test, strict=True)),
            "digest": facts.digest,
            "protocol": facts.protocol,
            "split": facts.split,
            "warnings": facts.warnings,
            **({"licence": facts.licence} if facts.licence else {}),
            **({"absent_classes": facts.absent} if facts.absent else {}),
            **_extra_of(facts),
        }
        self.recorder.log_dataset(source=facts.source, profile=profile, **of_rows)
        tags = {"dataset_digest": facts.digest}
        if facts.features is not None and facts.features_digest is not None:
            tags |= {"features": facts.features, "features_digest": facts.features_digest}
        if facts.evaluation_set is not None:
            tags[names.PREDICTIONS_TAG] = self.config.predictions
        with mlflow_errors(f"log the dataset of run {self.run_id}"):
            log_tags(self.client, self.run_id, tags)
        if facts.evaluation_set is not None:
            self.recorder.write_file(
                f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}", facts.evaluation_set
            )

    def log_row(self, measured: MeasuredRow) -> None:
        """Store a row; one that a resumed run holds already stays as it is."""
        row, resumed = measured.row, self._resumed
        stored = None if resumed is None else resumed.stored(row)
        if resumed is not None and stored is not None:
            self._complete_row(measured, stored, resumed)
        else:
            # Of a row whose state was stored and that itself was not: the time that it carries.
            written_at = (None if resumed is None else resumed.time_of(row)) or utc_now()
            record = self.recorder.build_record(row=row, written_at=written_at)
            # Before the state: a run that is resumed from it does not repeat these steps.
            self.recorder.write_row(record, files=_files_of(measured), curve=measured.curve)
            self._written_at = written_at

    def log_test(self, test: AnytimeRow) -> None:
        """Store a test inside a bucket, unless the bucket's row is stored: what led to it stays."""
        name = f"{ANYTIME_FOLDER}/{anytime_file_name(test.bucket, test.test)}"
        resumed = self._resumed
        if resumed is None or test.bucket not in resumed.records or name not in resumed.files:
            self.recorder.write_test(test)

    def _describe(self, run: Run) -> None:
        """Say what is being run, once it is sure that rows may be stored in the run."""
        if self._resumed is None:
            check_has_no_rows(self.client, run)
        params = parameters_to_log(self.config, self.asked, run.data.params)
        missing = [Param(name, text) for name, text in params.items()]
        self.client.log_batch(self.run_id, params=missing)
        self._set_tags(run)
        if self._resumed is None:
            # The first artifact: a store that takes no artifacts is found before any training.
            content = self.config.to_json().encode()
            log_durably(self.client, self.run_id, content, names.CONFIG_JSON)
        else:
            self.recorder.rows.update(self._resumed.rows_before)
            # Now that nobody else adds to them.
            self.recorder.curve_steps = read_curve_steps(self.client, run)

    def _set_tags(self, run: Run) -> None:
        config = self.config
        tags = {
            "strategy": config.strategy,
            "dataset": config.stream_name,
            "protocol": config.protocol,
            "split": measured_split(config.split),
            **({"seed": str(config.seed)} if config.seeds == NONE else {"seeds": config.seeds}),
            "model": config.model,
        }
        if (theirs := _commit_of(Path.cwd())) is not None:
            tags["git_commit"] = theirs
        # In a run of the user's own, tags of these plain names are theirs.
        tags = {key: value for key, value in tags.items() if key not in run.data.tags}
        tags |= {
            names.KIND_TAG: self._kind,
            names.VERSION_TAG: __version__,
            names.SOFTWARE_TAG: software("torch", "torchvision"),
            **build_families_tag(self.recorder.families, run.data.tags),
        }
        # A run above others tests nothing.
        if config.test_interval is not None and self._kind == names.KIND_TRAIN:
            tags[names.ANYTIME_TAG] = config.test_every
        outdated = [names.ERROR_TAG, names.DIVERGED_TAG]  # of an earlier try
        if (ours := _commit_of(_CHECKOUT) if (_CHECKOUT / ".git").exists() else None) is not None:
            tags[names.COMMIT_TAG] = ours
            # MLflow takes the checkout that holds the command for the user's.
            if run.data.tags.get(MLFLOW_GIT_COMMIT) == ours.removesuffix("-dirty"):
                outdated.append(MLFLOW_GIT_COMMIT)
                tags |= {} if theirs is None else {MLFLOW_GIT_COMMIT: theirs[:40]}
        for tag in outdated:
            if tag in run.data.tags:
                self.client.delete_tag(self.run_id, tag)
        log_tags(self.client, self.run_id, tags)

    def _complete_row(
        self, measured: MeasuredRow, stored: AccuracyRow, resumed: ResumePoint
    ) -> None:
        """Send what a stored row lacks; it stays, another is kept beside it."""
        row = measured.row
        self._written_at = utc_now()
        again = self.recorder.build_record(row=row, written_at=self._written_at)
        files = {
            path: content
            for path, content in _files_of(measured).items()
            if path not in resumed.files
        }
        if stored != row:
            folder = f"{names.MEASURED_AGAIN_FOLDER}/resume_{resumed.number}"
            files = {f"{folder}/{row_file_name(row.row)}": again.to_json().encode()}
            warn(
                f"row {row.row} of run {self.run_id} was measured again and differs: the device "
                "does not repeat what it computes to the last digit; the stored row stays, the "
                f"other is kept in {folder}, and training goes on"
            )
        self.recorder.complete_row(stored, files=files, curve=measured.curve)

    def log_state(self, made: TrainingState) -> None:
        """Store the state after the last row, then remove the one before; nothing waits for it."""
        if made.problem is not None and not self._warned_of_no_state:
            self._warned_of_no_state = True
            warn(f"run {self.run_id} could not be resumed from here: {made.problem}")
        content, facts, written_at = made.file, self._facts, self._written_at
        # No state is kept on local disk: a large model would fill it.
        if content is None or facts is None or self.recorder.uploader.is_away:
            return

        def store() -> None:
            manifest = Manifest(
                row=made.row,
                written_at=written_at,
                size=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                data=data_of(facts),
                package_version=__version__,
                torch_version=version("torch"),
            )
            try:
                self.recorder.uploader.get_lease(self.run_id).check()
                store_state(self.client, self.run_id, manifest, content)
            except LeaseLostError:  # the next row reports it
                return
            except (TrackingError, OSError) as error:  # the one before stays
                if not self._warned_of_no_state:
                    warn(f"{error}; a resume will start from an earlier row")
                self._warned_of_no_state = True
                return
            self._holds_states = True
            self._warned_of_no_state = False
            self._remove_states(before=made.row)

        self.recorder.uploader.enqueue(store)

    def _remove_states(self, *, before: int | None) -> None:
        """Remove the states that a newer one replaces or, of a run that has all its rows, all."""
        uploader = self.recorder.uploader
        if self._holds_states and not uploader.is_away:
            with suppress(Exception):
                run = uploader.get_lease(self.run_id).check()
                remove_states(self.client, run, before=before)


def open_training_run(client: MlflowClient, config: TrainConfig, name: str | None = None) -> str:
    """Start a run for a training, or take up the one that the environment names."""
    check = functools.partial(check_has_no_rows, client)
    return open_run(client, name or run_name(config), check, system_metrics=True)


def run_name(config: TrainConfig) -> str:
    """The name of a run that the user did not name, for example "replay digits seed 3"."""
    seeds = len(config.seeds.split(","))
    which = f"seed {config.seed}" if config.seeds == NONE else f"{seeds} seeds"
    return f"{config.strategy} {config.stream_name} {which}"


def _files_of(measured: MeasuredRow) -> dict[str, bytes]:
    """Path among the run's artifacts to content, of what a row was counted from."""
    row = measured.row.row
    files = {
        f"{PREDICTIONS_FOLDER}/{predictions_file_name(row)}": measured.predictions,
        f"{names.MODELS_FOLDER}/{names.format_model_file_name(row)}": measured.model,
    }
    return {path: content for path, content in files.items() if content is not None}


def _extra_of(facts: StreamMetadata) -> dict[str, JSON]:
    """What a record says beside its numbers: features, images left out, scenario, dates."""
    extra: dict[str, JSON] = {}
    if facts.features is not None:
        extra["features"] = {"name": facts.features, "digest": facts.features_digest}
    if facts.num_left_out:
        extra["left_out"] = facts.num_left_out
    if facts.scenario:
        extra["scenario"] = facts.scenario
    if facts.times:
        extra[TIMES] = list(facts.times)
    return extra


def _commit_of(folder: Path) -> str | None:
    """The commit of a checkout, ``-dirty`` where files of it were changed; None: it is none."""
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
