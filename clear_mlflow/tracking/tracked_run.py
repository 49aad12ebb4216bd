"""An MLflow run while it trains: what is being run, then each row the moment it is measured."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Param, Run, RunTag
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
from clear_mlflow.tracking.liveness import heartbeat
from clear_mlflow.tracking.outbox import Outbox
from clear_mlflow.tracking.preflight import explained
from clear_mlflow.tracking.rows import refuse_foreign_rows
from clear_mlflow.tracking.series import all_series, as_metrics, milliseconds
from clear_mlflow.training import MeasuredRow, StreamFacts, Training

_HEARTBEAT_SECONDS = 30.0
_LONGEST_DIGEST = 36  # characters that MLflow keeps of a dataset's digest


class TrackedRun:
    """Keeps the record of one training in one MLflow run.

    A row's artifact is stored before :meth:`log_row` returns, so before the next bucket starts.
    All that is derived from rows (metrics, images) is sent from a thread behind it: training does
    not wait for it. Metrics that are lost of it the post-run hook restores from the rows; of the
    pictures it restores the last one.

    Args:
        client: the store.
        run_id: of the run, which is there.
        config: the parameters in force.
        asked: parameters as text, as the user gave them.
        kind: what the run is tagged as.
        leader: the run above this one, of an ensemble; its thread does this run's work, too, and
            no picture is drawn per row.
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
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.config = config
        self.asked = asked
        self._run_name = run_id
        self._facts: StreamFacts | None = None
        self._rows: list[AccuracyRow] = []
        self._outbox = Outbox(client, run_id)
        self._kind = kind
        self._leader = leader
        self._alive = [run_id]  # runs that the heartbeat is of
        self._behind = _Behind(self._beat)
        if leader is not None:
            self._behind = leader._behind
            leader._alive.append(run_id)

    def __enter__(self) -> TrackedRun:
        with explained(f"log the configuration of run {self.run_id}"):
            run = self.client.get_run(self.run_id)
            self._run_name = run.info.run_name or self.run_id
            self._describe(run)
        if self._leader is None:
            self._behind.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._outbox.retry()
        finally:
            if self._leader is None:
                self._behind.finish()
        if self._outbox:
            raise TrackingError(
                f"the tracking store did not take {len(self._outbox)} files of rows; they are in "
                f"{self._outbox.folder}: send them with 'mlflow artifacts log-artifacts --run-id "
                f"{self.run_id} --local-dir {self._outbox.folder}', then run evaluate on that run"
            ) from error

    def log_facts(self, facts: StreamFacts) -> None:
        """Log the dataset as an MLflow input, with its digest and its counts per bucket."""
        self._facts = facts
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
            self.client.log_inputs(self.run_id, datasets=[DatasetInput(dataset, tags)])
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

        A file that the store does not take is kept and sent again with the next one.
        """
        row = measured.row
        if self._facts is None:
            raise RuntimeError("log_facts comes before the first row")
        record = RowRecord(
            row=row,
            protocol=self._facts.protocol,
            dataset=DatasetIdentity(self._facts.name, self._facts.digest),
            seed=self.config.seed,
            package_version=clear_mlflow.__version__,
            written_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            extra={**_features_of(self._facts), **_left_out_of(self._facts)},
        )
        self._send(f"{ROWS_FOLDER}/{row_file_name(row.row)}", record.to_json().encode())
        if measured.predictions is not None:
            name = predictions_file_name(row.row)
            self._send(f"{PREDICTIONS_FOLDER}/{name}", measured.predictions)
        if measured.model is not None:
            self._send(f"{names.MODELS_FOLDER}/{names.model_file_name(row.row)}", measured.model)
        self._rows.append(row)
        matrix = AccuracyMatrix.from_rows(self._rows)
        protocol = record.protocol
        time = milliseconds(record.written_at)
        self._behind.send(lambda: self._log_metrics(matrix, protocol, row.row, time))
        if self._leader is None:
            self._behind.send(lambda: self._log_picture(matrix.masked(protocol), row.row))

    def _describe(self, run: Run) -> None:
        """Say what is being run, once it is sure that the run may be trained into."""
        refuse_foreign_rows(self.client, run)
        self._log_params(run)
        self._set_tags(run)
        # The first artifact: a store that takes no artifacts is found before any training.
        self.client.log_text(self.run_id, self.config.to_json(), names.CONFIG_JSON)

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
        if names.ERROR_TAG in run.data.tags:  # of an earlier try that stored no row
            self.client.delete_tag(self.run_id, names.ERROR_TAG)
        self.client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def _log_metrics(self, matrix: AccuracyMatrix, protocol: str, step: int, time: int) -> None:
        points = {
            name: {step: steps[step]}
            for name, steps in all_series(matrix, protocol).items()
            if step in steps
        }
        self.client.log_batch(self.run_id, metrics=as_metrics(points, {step: time}))

    def _log_picture(self, matrix: AccuracyMatrix, step: int) -> None:
        picture = heatmap_array(matrix, f"{self._run_name}, after {step} buckets")
        self.client.log_image(self.run_id, picture, key=names.IMAGE_PER_ROW, step=step)

    def _beat(self) -> None:
        for run_id in self._alive:
            self.client.set_tag(run_id, names.PROCESS_TAG, heartbeat())

    def _send(self, artifact: str, content: bytes) -> None:
        if problem := self._outbox.send(artifact, content):
            warn(f"{problem}; it is kept in {self._outbox.folder} and will be sent again")


def track(training: Training, run: TrackedRun) -> None:
    """Train, and store each row before the next bucket starts."""
    run.log_facts(training.facts)
    for measured in training.rows():
        run.log_row(measured)


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


class _Behind:
    """One thread that does what training need not wait for, in order."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._beat = beat
        # An adapter is closed as the interpreter ends, which would wait for this thread first.
        self._thread = threading.Thread(
            target=self._work, name="clear_mlflow tracking", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def finish(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        failed = False
        while True:
            try:
                job = self._jobs.get(timeout=_HEARTBEAT_SECONDS)
            except queue.Empty:
                job = self._beat
            if job is None:
                return
            try:
                job()
            except Exception as error:  # the row itself is stored: see TrackedRun
                if not failed:
                    warn(f"metrics are late and will be logged at the end: {error}")
                failed = True


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


def warn(message: str) -> None:
    """Say something on standard error, in one line."""
    line = " ".join(message.split())
    with suppress(OSError):  # nobody may be reading any more
        print(f"warning: {line}", file=sys.stderr, flush=True)
