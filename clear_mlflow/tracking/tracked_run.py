"""An MLflow run while it trains: what is being run, then each row the moment it is measured."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

import clear_mlflow
from clear_mlflow.config import AUTO, NONE, TrainConfig, parameter_defaults
from clear_mlflow.errors import TrackingError
from clear_mlflow.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    predictions_file_name,
)
from clear_mlflow.record import JSON, ROWS_FOLDER, DatasetIdentity, RowRecord, row_file_name
from clear_mlflow.report.heatmap import heatmap_array
from clear_mlflow.tracking import names
from clear_mlflow.tracking.behind import Behind
from clear_mlflow.tracking.contention import despite_others
from clear_mlflow.tracking.liveness import heartbeat
from clear_mlflow.tracking.outbox import Outbox, exit_patience, unsent_error
from clear_mlflow.tracking.preflight import explained
from clear_mlflow.tracking.resume import ResumePoint, data_of, rows_before
from clear_mlflow.tracking.rows import refuse_foreign_rows
from clear_mlflow.tracking.series import all_series, as_metrics, milliseconds
from clear_mlflow.tracking.training_state import Manifest, remove_states, store_state
from clear_mlflow.tracking.warning import warn
from clear_mlflow.training import MeasuredRow, StreamFacts, Training

_STOPPED_SECONDS = 10.0
_JOIN_SECONDS = 1.0
_LONGEST_DIGEST = 36  # characters that MLflow keeps of a dataset's digest


class TrackedRun:
    """Keeps the record of one training in one MLflow run.

    A row is on local disk before :meth:`log_row` returns, so before the next bucket starts; and in
    the store, too, unless the store is away. Its metrics go the same way, behind it. Pictures are
    drawn and sent from a thread that training does not wait for, and not at all to a store that is
    away; the post-run hook draws the last one in any case.

    Args:
        client: the store.
        run_id: of the run, which is there.
        config: the parameters in force.
        asked: parameters as text, as the user gave them.
        kind: what the run is tagged as.
        leader: the run above this one, of an ensemble; its thread does this run's work, too, and
            no picture is drawn per row.
        resumed: what the run holds that is gone on with; None of a run that begins.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        config: TrainConfig,
        asked: Mapping[str, str],
        *,
        kind: str = names.KIND_TRAIN,
        leader: TrackedRun | None = None,
        resumed: ResumePoint | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.config = config
        self.asked = asked
        self._run_name = run_id
        self._facts: StreamFacts | None = None
        self._rows: list[AccuracyRow] = []
        sender = None if leader is None else leader._outbox.sender
        self._outbox: Outbox = Outbox(client, run_id, sender)
        self._patience = 0.0
        self._outboxes = [self._outbox]  # of an ensemble: its members', too
        self._kind = kind
        self._leader = leader
        self._resumed = resumed
        self._holds_states = resumed is not None
        self._told_no_state = False
        self._alive = [run_id]  # runs that the heartbeat is of
        self._behind = Behind(self._beat)
        if leader is not None:
            self._behind = leader._behind
            leader._alive.append(run_id)
            leader._outboxes.append(self._outbox)

    def __enter__(self) -> TrackedRun:
        self._patience = exit_patience()
        with explained(f"log the configuration of run {self.run_id}"):
            run = self.client.get_run(self.run_id)
            self._run_name = run.info.run_name or self.run_id
            self._describe(run)
        self._outbox.open()
        if self._leader is None:
            self._outbox.sender.start()
            self._behind.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._leader is not None:
            return
        sender = self._outbox.sender
        try:
            # Whoever stops a training does not wait for long.
            sender.finish(min(self._patience, _STOPPED_SECONDS if error else math.inf))
        finally:
            self._behind.finish(
                _JOIN_SECONDS if sender.is_away else None, leave_rest=error is not None
            )
            for outbox in self._outboxes:
                outbox.close()
        if unsent := unsent_error(sender):
            raise unsent from error
        if error is None:
            self._let_go_of_states()

    def log_facts(self, facts: StreamFacts) -> None:
        """Log the dataset as an MLflow input, with its digest and its counts per bucket."""
        self._facts = facts
        if self._resumed is not None and self._resumed.is_described(facts):
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
            **_features_of(facts),
            **_left_out_of(facts),
        }
        dataset = Dataset(
            name=facts.name,
            digest=facts.digest.removeprefix("sha256:")[:_LONGEST_DIGEST],
            source_type="local",
            source=json.dumps({"uri": facts.source}),
            profile=json.dumps(profile),
        )
        tags = [InputTag(MLFLOW_DATASET_CONTEXT, "training")]
        with explained(f"log the dataset of run {self.run_id}"):
            inputs = [DatasetInput(dataset, tags)]
            despite_others(lambda: self.client.log_inputs(self.run_id, datasets=inputs))
            found = {"dataset_digest": facts.digest}
            if facts.features is not None and facts.features_digest is not None:
                found |= {"features": facts.features, "features_digest": facts.features_digest}
            if facts.evaluation_set is not None:
                found[names.PREDICTIONS_TAG] = self.config.predictions
            self.client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in found.items()])
        if facts.evaluation_set is not None:
            self._send(f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}", facts.evaluation_set)

    def log_row(self, measured: MeasuredRow) -> None:
        """Store a row as an artifact, now; its metrics and its picture follow by themselves.

        What the store does not take within seconds waits on local disk, and training goes on.

        Raises:
            TrackingError: no disk takes it, either; the row is written to standard error.
        """
        row = measured.row
        if self._facts is None:
            raise RuntimeError("log_facts comes before the first row")
        written_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        if self._resumed is not None:
            if (stored := self._resumed.stored(row)) is not None:
                self._complete_row(measured, stored, self._resumed)
                return
            written_at = self._resumed.time_of(row) or written_at
        record = self._record_of(row, self._facts, written_at)
        # On the disk before all else; in the store behind its state.
        name = f"{ROWS_FOLDER}/{row_file_name(row.row)}"
        entry = self._outbox.keep(name, record.to_json().encode())
        self._keep_state(measured, self._facts, written_at)
        self._outbox.hand_over(entry)
        self._send_files(measured)
        self._rows.append(row)
        matrix = AccuracyMatrix.from_rows(self._rows)
        protocol = record.protocol
        time = milliseconds(record.written_at)
        self._outbox.sender.settle()
        self._outbox.put_metrics(_metrics_of(matrix, protocol, row.row, time))
        if self._leader is None:
            self._behind.send(lambda: self._log_picture(matrix.masked(protocol), row.row))

    def _describe(self, run: Run) -> None:
        """Say what is being run, once it is sure that the run may be trained into."""
        if self._resumed is None:
            refuse_foreign_rows(self.client, run)
        self._log_params(run)
        self._set_tags(run)
        if self._resumed is None:
            # The first artifact: a store that takes no artifacts is found before any training.
            self.client.log_text(self.run_id, self.config.to_json(), names.CONFIG_JSON)
        else:
            self._rows = rows_before(self._resumed)

    def _record_of(self, row: AccuracyRow, facts: StreamFacts, written_at: str) -> RowRecord:
        return RowRecord(
            row=row,
            protocol=facts.protocol,
            dataset=DatasetIdentity(facts.name, facts.digest),
            seed=self.config.seed,
            package_version=clear_mlflow.__version__,
            written_at=written_at,
            extra={**_features_of(facts), **_left_out_of(facts)},
        )

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
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        beside = None
        if stored != row and self._facts is not None:
            folder = f"{names.MEASURED_AGAIN_FOLDER}/resume_{resumed.number}"
            record = self._record_of(row, self._facts, now)
            content = record.to_json().encode()
            beside = self._outbox.keep(f"{folder}/{row_file_name(row.row)}", content)
            warn(
                f"row {row.row} of run {self.run_id} was measured again and differs "
                f"({_difference(stored, row)}): the device does not repeat what it computes to the "
                f"last digit; the stored row stays, the other is kept in {folder}, and training "
                "goes on"
            )
        if measured.state is not None and self._facts is not None:
            # It was trained on again from the state before, which goes when this one is stored.
            self._keep_state(measured, self._facts, now)
        if beside is None:
            self._send_files(measured, resumed.files)
        else:
            self._outbox.hand_over(beside)
        self._outbox.sender.settle()

    def _send_files(self, measured: MeasuredRow, there: frozenset[str] = frozenset()) -> None:
        """Send what a row was counted from, but for what is there."""
        row = measured.row.row
        predictions = f"{PREDICTIONS_FOLDER}/{predictions_file_name(row)}"
        model = f"{names.MODELS_FOLDER}/{names.model_file_name(row)}"
        for name, content in ((predictions, measured.predictions), (model, measured.model)):
            if content is not None and name not in there:
                self._send(name, content)

    def _keep_state(self, measured: MeasuredRow, facts: StreamFacts, written_at: str) -> None:
        """Store what training goes on from, before its row: then no row is ever trained twice.

        A state that the store does not take is let go: the one before it stays, from which the same
        rows follow. None is kept on local disk, which a large model would fill.
        """
        if measured.no_state is not None and not self._told_no_state:
            self._told_no_state = True
            warn(f"run {self.run_id} could not be resumed from here: {measured.no_state}")
        state = measured.state
        if state is None or self._outbox.sender.is_away:
            return
        manifest = Manifest(
            row=measured.row.row,
            written_at=written_at,
            size=len(state),
            sha256=hashlib.sha256(state).hexdigest(),
            config=self.config.as_text(),
            data=data_of(facts),
            package_version=clear_mlflow.__version__,
            torch_version=version("torch"),
        )
        self._outbox.sender.do(lambda: self._store_state(manifest, state))

    def _store_state(self, manifest: Manifest, state: bytes) -> None:
        try:
            store_state(self.client, self.run_id, manifest, state)
        except (TrackingError, OSError) as error:
            if not self._told_no_state:
                warn(f"{error}; a resumed run will go on from an earlier row")
            self._told_no_state = True
            return
        self._holds_states = True
        self._told_no_state = False
        # Not behind the pictures: each takes longer than a small model's training.
        self._let_go_of_states(before=manifest.row)

    def _let_go_of_states(self, *, before: int | None = None) -> None:
        """Remove states: of a run that goes on, those that a newer one has taken the place of."""
        num_buckets = 0 if self._facts is None else len(self._facts.buckets)
        if before is None and not (self._rows and self._rows[-1].row == num_buckets):
            return
        if self._holds_states and not self._outbox.sender.is_away:
            with suppress(Exception):
                remove_states(self.client, self.client.get_run(self.run_id), before=before)

    def _log_params(self, run: Run) -> None:
        """Log what was asked for and what it resolved to, leaving alone what is there.

        ``mlflow run`` has logged the entry point's parameters already, as it got them (``auto``
        among them); MLflow refuses any other text for those. What a run really used has names of
        its own: always where a parameter may be ``auto``, so that runs can be compared by it, and
        where a configuration file said otherwise than the parameter.
        """
        there = run.data.params
        told = {**self.asked, **there}
        used = {
            f"used/{name}": text
            for name, text in self.config.as_text().items()
            if parameter_defaults()[name] == AUTO
            or not self.config.is_said_by(name, told.get(name))
        }
        # One name per argument: a column of its own to sort and compare runs by.
        if self.config.strategy_args != NONE:
            for argument in self.config.strategy_args.split(","):
                key, _, value = argument.partition("=")
                used[f"strategy/{key}"] = value
        params = {**self.asked, **used}
        missing = [Param(name, text) for name, text in params.items() if name not in there]
        self.client.log_batch(self.run_id, params=missing)

    def _set_tags(self, run: Run) -> None:
        config = self.config
        tags = {
            "strategy": config.strategy,
            "dataset": config.dataset,
            "protocol": config.protocol,
            **({"seed": str(config.seed)} if config.seeds == NONE else {"seeds": config.seeds}),
            "model": config.model,
        }
        if commit := _git_commit():
            tags["git_commit"] = commit
        # In a run of the user's own, tags of these plain names are theirs.
        tags = {key: value for key, value in tags.items() if key not in run.data.tags}
        tags |= {
            names.KIND_TAG: self._kind,
            "clear_mlflow.version": clear_mlflow.__version__,
            names.PROCESS_TAG: heartbeat(),
        }
        for tag in (names.ERROR_TAG, names.DIVERGED_TAG):  # of an earlier try
            if tag in run.data.tags:
                self.client.delete_tag(self.run_id, tag)
        self.client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def _log_picture(self, matrix: AccuracyMatrix, step: int) -> None:
        if self._outbox.sender.is_away:
            return
        picture = heatmap_array(matrix, f"{self._run_name}, after {step} buckets")
        self.client.log_image(self.run_id, picture, key=names.IMAGE_PER_ROW, step=step)

    def _beat(self) -> None:
        if self._outbox.sender.is_away:
            return
        for run_id in self._alive:
            self.client.set_tag(run_id, names.PROCESS_TAG, heartbeat())

    def _send(self, artifact: str, content: bytes) -> None:
        """Keep a file, and send it after all that wait; :meth:`log_row` waits for them."""
        self._outbox.put(artifact, content)


def track(training: Training, run: TrackedRun) -> None:
    """Train, and store each row before the next bucket starts."""
    run.log_facts(training.facts)
    for measured in training.rows():
        run.log_row(measured)


def _metrics_of(matrix: AccuracyMatrix, protocol: str, step: int, time: int) -> list[Metric]:
    """What a row adds to every series."""
    points = {
        name: {step: steps[step]}
        for name, steps in all_series(matrix, protocol).items()
        if step in steps
    }
    return as_metrics(points, {step: time})


def _difference(stored: AccuracyRow, again: AccuracyRow) -> str:
    """``3 of 10 counts, by at most 2 images``; of two rows on the same test images."""
    counts = list(zip(stored.correct or (), again.correct or (), strict=True))
    steps = [abs(before - now) for before, now in counts if before != now]
    return f"{len(steps)} of {len(counts)} counts, by at most {max(steps, default=0)} images"


def run_name(config: TrainConfig) -> str:
    """What a run is called where nobody named it: "replay digits seed 3" tells more than a bird."""
    seeds = len(config.seeds.split(","))
    which = f"seed {config.seed}" if config.seeds == NONE else f"{seeds} seeds"
    return f"{config.strategy} {config.dataset} {which}"


def _features_of(facts: StreamFacts) -> dict[str, JSON]:
    """What a record says of the features that a run trained on; nothing of a run on images."""
    if facts.features is None:
        return {}
    return {"features": {"name": facts.features, "digest": facts.features_digest}}


def _left_out_of(facts: StreamFacts) -> dict[str, JSON]:
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
