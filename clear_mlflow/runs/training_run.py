"""An MLflow run into which this program trains: its parameters, its states, its resumes."""

from __future__ import annotations

import functools
import hashlib
import importlib
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Param, Run
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_file_name
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.matrix import AccuracyRow, measured_split
from clear_mlflow.core.record import TIMES, DatasetIdentity, RowRecord, row_file_name
from clear_mlflow.core.untrusted import JSON
from clear_mlflow.core.version import __version__
from clear_mlflow.core.warning import note, warn
from clear_mlflow.journal.stored_points import stored_steps
from clear_mlflow.learning.anytime.schedule import cost_of_tests
from clear_mlflow.learning.measured import MeasuredRow, StreamMetadata, Training
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import parameters_to_log
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.metrics import family_names
from clear_mlflow.runs.lifecycle import open_run
from clear_mlflow.runs.resume import ResumePoint, data_of, rows_before
from clear_mlflow.runs.tracked_run import RunMetadata, TrackedRun, now
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import log_durably
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.heartbeat import LostRunError
from clear_mlflow.store.rows import refuse_foreign_rows
from clear_mlflow.store.states import Manifest, remove_states, store_state


class TrainingRun(TrackedRun):
    """Keeps the record of one training, and what it can be resumed from.

    Args:
        client: the store.
        run_id: of the run, which is there.
        config: the parameters in force.
        asked: parameters as text, as the user gave them.
        kind: what the run is tagged as.
        parent: the run above this one, of an ensemble.
        resumed: what the run holds, if it is resumed; None for a new run.
    """

    member_ids: Mapping[int, str] | None = None  # seed to run, of an ensemble alone

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        config: TrainConfig,
        asked: Mapping[str, str],
        *,
        kind: str = names.KIND_TRAIN,
        parent: TrackedRun | None = None,
        resumed: ResumePoint | None = None,
    ) -> None:
        super().__init__(client, run_id, family_names(config.metrics), parent=parent)
        self.config = config
        self.asked = asked
        self._facts: StreamMetadata | None = None
        self._kind = kind
        self._resumed = resumed
        self._newest_state: int | None = None  # the row of the one that was stored last
        self._holds_states = resumed is not None
        self._told_no_state = False
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="clear_mlflow hash")
        self._state_hash: Future[str] | None = None
        # Now, and not at each row: whoever upgrades packages meanwhile takes them away for seconds.
        self._torch_version = version("torch")

    def __enter__(self) -> TrainingRun:
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._hashing.shutdown()
        super().__exit__(kind, error, traceback)
        if self._parent is None and error is None:
            self._let_go_of_states()

    def track(self, training: Training) -> None:
        """Train, and store each row before the next bucket starts."""
        self.log_facts(training.facts)
        for measured in training.rows(self.log_curve, self.log_test):
            self.log_row(measured)

    def log_facts(self, facts: StreamMetadata) -> None:
        """Log the dataset as an MLflow input, with its digest and its counts per bucket."""
        self._facts = facts
        about = RunMetadata(
            dataset=DatasetIdentity(facts.name, facts.digest),
            protocol=facts.protocol,
            split=measured_split(facts.split),
            seed=self.config.seed,
            extra={**_features_of(facts), **_left_out_of(facts), **_times_of(facts)},
        )
        config = self.config
        if (interval := config.test_interval) is not None:
            sizes = (config.epochs, config.batch_size)
            note(cost_of_tests(interval, *sizes, facts.num_train, facts.num_test))
        if self._resumed is not None and self._resumed.is_described(facts):
            self._about = about
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
            **about.extra,
        }
        self._log_dataset(about, source=facts.source, profile=profile)
        found = {"dataset_digest": facts.digest}
        if facts.features is not None and facts.features_digest is not None:
            found |= {"features": facts.features, "features_digest": facts.features_digest}
        if facts.evaluation_set is not None:
            found[names.PREDICTIONS_TAG] = self.config.predictions
        with mlflow_errors(f"log the dataset of run {self.run_id}"):
            log_tags(self.client, self.run_id, found)
        if facts.evaluation_set is not None:
            self._send_evaluation_set(facts.evaluation_set)

    def log_row(self, measured: MeasuredRow) -> None:
        """Store a row as every run does; one that a resumed run holds already stays as it is."""
        if (state := measured.state) is not None:
            # While the row is brought to the disk, since nobody trains meanwhile.
            self._state_hash = self._hashing.submit(lambda: hashlib.sha256(state).hexdigest())
        resumed = self._resumed
        stored = None if resumed is None else resumed.stored(measured.row)
        if resumed is not None and stored is not None:
            self._complete_row(measured, stored, resumed)
        else:
            super().log_row(measured)
        if self._newest_state is not None:  # behind all that training waits for
            before, self._newest_state = self._newest_state, None
            self._sender.send(lambda: self._let_go_of_states(before=before))

    def log_test(self, test: AnytimeRow) -> None:
        """Store a test inside a bucket; what a resumed run measures again takes its place.

        Except where the bucket's row is stored: what led to that row stays beside it.
        """
        name = f"{ANYTIME_FOLDER}/{anytime_file_name(test.bucket, test.test)}"
        resumed = self._resumed
        if resumed is None or test.bucket not in resumed.records or name not in resumed.files:
            super().log_test(test)

    def _describe(self, run: Run) -> None:
        if self._resumed is None:
            refuse_foreign_rows(self.client, run)
        self._log_params(run)
        self._set_tags(run)
        if self._resumed is None:
            # The first artifact: a store that takes no artifacts is found before any training.
            content = self.config.to_json().encode()
            log_durably(self.client, self.run_id, content, names.CONFIG_JSON)
        else:
            self._rows = rows_before(self._resumed)
            # Now that nobody else adds to them.
            self._curve.there = stored_steps(self.client, run)

    def _load_drawing(self) -> None:
        """What stored models are made by, too, where there will be any."""
        try:
            if self.config.log_models != NONE:
                importlib.import_module("mlflow.pyfunc")
        finally:
            super()._load_drawing()

    def _written_at(self, row: AccuracyRow) -> str:
        """Of a row whose metrics were stored and that itself was not: the time that they carry."""
        known = None if self._resumed is None else self._resumed.time_of(row)
        return known or super()._written_at(row)

    def _complete_row(
        self, measured: MeasuredRow, stored: AccuracyRow, resumed: ResumePoint
    ) -> None:
        """A stored row was measured again: it stays; send of it what is lacking.

        Where it came out otherwise, what was counted now belongs to no row of the record: it is
        kept beside them, and predictions and models, which would contradict the row, are not sent.
        """
        row = measured.row
        # What is scored, now and later, is what is stored.
        self._rows.append(stored)
        again = self._record_of(row, now())
        self._curve.add(measured.curve)
        points = self._curve.keep()
        beside = None
        if stored != row:
            folder = f"{names.MEASURED_AGAIN_FOLDER}/resume_{resumed.number}"
            content = again.to_json().encode()
            beside = self._sender.keep(self.run_id, f"{folder}/{row_file_name(row.row)}", content)
            warn(
                f"row {row.row} of run {self.run_id} was measured again and differs "
                f"({_difference(stored, row)}): the device does not repeat what it computes to the "
                f"last digit; the stored row stays, the other is kept in {folder}, and training "
                "goes on"
            )
        try:
            if measured.state is not None:
                # It was trained on again from the state before, which goes when this is stored.
                self._send_first(measured, again)
        finally:
            self._sender.send(beside)
        try:
            if beside is None:
                self._send_files(measured, resumed.files)
            self._wait_delivered()
        finally:
            self._send_all(points)

    def _send_first(self, measured: MeasuredRow, record: RowRecord) -> None:
        """Store the state after a row before the row itself, so that no row is ever trained twice.

        A state that the store does not take is dropped: the one before it stays, and the same rows
        follow from that one. No state is kept on local disk: a large model would fill it.
        """
        if measured.no_state is not None and not self._told_no_state:
            self._told_no_state = True
            warn(f"run {self.run_id} could not be resumed from here: {measured.no_state}")
        state, found = measured.state, self._state_hash
        if state is None or found is None or self._facts is None or self._sender.is_away:
            return
        manifest = Manifest(
            row=measured.row.row,
            written_at=record.written_at,
            size=len(state),
            sha256=found.result(),
            config=self.config.as_text(),
            data=data_of(self._facts),
            package_version=__version__,
            torch_version=self._torch_version,
        )
        self._sender.send(lambda: self._store_state(manifest, state))

    def _store_state(self, manifest: Manifest, state: bytes) -> None:
        try:
            self._sender.hold.check(self.run_id)
            store_state(self.client, self.run_id, manifest, state)
        except LostRunError:  # the row, which is sent next, reports it
            return
        except (TrackingError, OSError) as error:
            if not self._told_no_state:
                warn(f"{error}; a resume will start from an earlier row")
            self._told_no_state = True
            return
        self._holds_states = True
        self._told_no_state = False
        self._newest_state = manifest.row

    def _let_go_of_states(self, *, before: int | None = None) -> None:
        """Remove the states that a newer one replaces or, of a run that has all its rows, all."""
        num_buckets = 0 if self._facts is None else len(self._facts.buckets)
        if before is None and not (self._rows and self._rows[-1].row == num_buckets):
            return
        if self._holds_states and not self._sender.is_away:
            with suppress(Exception):
                run = self._sender.hold.check(self.run_id)
                remove_states(self.client, run, before=before)

    def _log_params(self, run: Run) -> None:
        """Log the parameters in force, and what was asked for, leaving alone what is there."""
        params = parameters_to_log(
            self.config,
            self.asked,
            run.data.params,
            of_project=MLFLOW_PROJECT_ENTRY_POINT in run.data.tags,
        )
        missing = [Param(name, text) for name, text in params.items()]
        self.client.log_batch(self.run_id, params=missing)

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
        if commit := _git_commit():
            tags["git_commit"] = commit
        # In a run of the user's own, tags of these plain names are theirs.
        tags = {key: value for key, value in tags.items() if key not in run.data.tags}
        tags |= {
            names.KIND_TAG: self._kind,
            names.VERSION_TAG: __version__,
            **self._anytime_tag(),
            **families_tag(self.families, run.data.tags),
        }
        for tag in (names.ERROR_TAG, names.DIVERGED_TAG):  # of an earlier try
            if tag in run.data.tags:
                self.client.delete_tag(self.run_id, tag)
        log_tags(self.client, self.run_id, tags)

    def _anytime_tag(self) -> dict[str, str]:
        """What says that the run tests inside its buckets; a run above others tests nothing."""
        if self.config.test_interval is None or self._kind != names.KIND_TRAIN:
            return {}
        return {names.ANYTIME_TAG: self.config.test_every}


def open_training_run(client: MlflowClient, config: TrainConfig, name: str | None = None) -> str:
    """Start a run for a training, or take up the one that the environment names.

    Args:
        client: the store.
        config: what is trained.
        name: of the run; made of the configuration when not given.

    Raises:
        TrackingError: that run holds rows already, or another process trains into it; it is left
            as it is.
    """
    check = functools.partial(refuse_foreign_rows, client)
    return open_run(client, name or run_name(config), check, system_metrics=True)


def _difference(stored: AccuracyRow, again: AccuracyRow) -> str:
    """``3 of 10 counts, by at most 2 images``; of two rows on the same test images."""
    counts = list(zip(stored.correct or (), again.correct or (), strict=True))
    steps = [abs(before - now) for before, now in counts if before != now]
    return f"{len(steps)} of {len(counts)} counts, by at most {max(steps, default=0)} images"


def run_name(config: TrainConfig) -> str:
    """The name of a run that the user did not name, for example "replay digits seed 3"."""
    seeds = len(config.seeds.split(","))
    which = f"seed {config.seed}" if config.seeds == NONE else f"{seeds} seeds"
    return f"{config.strategy} {config.stream_name} {which}"


def _features_of(facts: StreamMetadata) -> dict[str, JSON]:
    """What a record says of the features that a run trained on; nothing of a run on images."""
    if facts.features is None:
        return {}
    return {"features": {"name": facts.features, "digest": facts.features_digest}}


def _times_of(facts: StreamMetadata) -> dict[str, JSON]:
    """The dates of a stream's buckets; nothing where they have none."""
    return {TIMES: list(facts.times)} if facts.times else {}


def _left_out_of(facts: StreamMetadata) -> dict[str, JSON]:
    """How many damaged images were left out; nothing of a run on all images."""
    return {"left_out": facts.num_left_out} if facts.num_left_out else {}


def _git_commit() -> str | None:
    """The commit of the code that runs, where it runs from a checkout; ``-dirty`` if changed."""
    package = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(  # noqa: S603
            ["git", "-C", str(package), *arguments],  # noqa: S607
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # an installed copy is in no checkout
        dirty = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return None
