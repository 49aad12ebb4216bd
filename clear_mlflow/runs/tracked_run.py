"""An MLflow run while its rows arrive: each is stored as soon as it is measured."""

from __future__ import annotations

import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Run
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_file_name
from clear_mlflow.core.matrix import TEST, AccuracyMatrix, AccuracyRow
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    predictions_file_name,
)
from clear_mlflow.core.record import ROWS_FOLDER, DatasetIdentity, RowRecord, row_file_name
from clear_mlflow.core.untrusted import JSON
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.sender import Sender, exit_patience, unsent_error
from clear_mlflow.journal.spool import Entry
from clear_mlflow.learning.measured import CurvePoint, MeasuredRow
from clear_mlflow.metrics import of_families
from clear_mlflow.report.page.run_page import load_run_page
from clear_mlflow.report.pictures import heatmap_array, load_drawing
from clear_mlflow.runs.background import BackgroundWorker
from clear_mlflow.runs.tracked_curve import TrackedCurve
from clear_mlflow.scoring.apply import to_metrics
from clear_mlflow.scoring.series import Point, milliseconds, values_at
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.conflicts import retry_on_conflict
from clear_mlflow.store.heartbeat import LostRunError, beat

_STOPPED_SECONDS = 10.0
_JOIN_SECONDS = 1.0
_ROWS_OF_ALL_METRICS = 2  # of the matrix, until each summary metric has a value
_LOADING_SECONDS = 10.0  # on a machine with much else to do; loading takes one or two


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """What the record of every row says of its run."""

    dataset: DatasetIdentity
    protocol: str
    split: str  # what rows are measured on: "test" or "validation"
    seed: int | None
    extra: Mapping[str, JSON] = field(default_factory=dict)


class TrackedRun(ABC):
    """Keeps the record of rows in one MLflow run, whoever measures them.

    A row is on local disk before :meth:`log_row` returns, so before the next bucket starts; and in
    the store, too, unless the store is away. Its metrics go the same way, behind it. With each
    heartbeat the newest row is drawn, by a thread that training does not wait for, and not at all
    for a store that is away: earlier rows are in later pictures, and the post-run hook draws all.

    Args:
        client: the store.
        run_id: of the run, which is there.
        families: of metrics that each row adds a value to.
        parent: the run above this one, of an ensemble; its thread does this run's work, too, and
            no picture is drawn until the end.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        families: Sequence[str],
        *,
        parent: TrackedRun | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.families = tuple(families)
        self._run_name = run_id
        self._about: RunMetadata | None = None
        self._rows: list[AccuracyRow] = []
        self._held_back: list[Metric] = []  # accuracies of the first rows, on each bucket
        self._patience = 0.0
        self._parent = parent
        self._alive = [run_id]  # runs that the heartbeat is of
        self._undrawn: AccuracyMatrix | None = None  # up to a row that no picture shows yet
        self._can_draw = threading.Event()
        if parent is None:
            self._sender = Sender(client)
            self._behind = BackgroundWorker(self._beat)
        else:
            self._sender, self._behind = parent._sender, parent._behind
            parent._alive.append(run_id)
        self._curve = TrackedCurve(run_id, self._sender)

    def __enter__(self) -> TrackedRun:
        self._patience = exit_patience()
        with mlflow_errors(f"log the configuration of run {self.run_id}"):
            run = self.client.get_run(self.run_id)
            self._run_name = run.info.run_name or self.run_id
            self._describe(run)
        self._sender.open(self.run_id)
        if self._parent is None:
            self._sender.start()
            self._behind.send(self._load_drawing)
            self._behind.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._curve.finish()
        if self._parent is not None:
            return
        sender = self._sender
        try:
            # Whoever stops a training does not wait for long.
            sender.finish(min(self._patience, _STOPPED_SECONDS if error else math.inf))
        finally:
            self._behind.finish(
                _JOIN_SECONDS if sender.is_away else None, leave_rest=error is not None
            )
            sender.close()
        unsent = unsent_error(sender)
        if sender.lost is not None:
            kept = f"; what it lacks of that is kept in {unsent.where}" if unsent else ""
            raise LostRunError(f"{sender.lost}; what this one measured since is not stored{kept}")
        if unsent:
            raise unsent from error

    def log_row(self, measured: MeasuredRow) -> None:
        """Store a row as an artifact, now; its metrics follow by themselves.

        What the store does not take within seconds waits on local disk, and training continues.

        Raises:
            TrackingError: no disk takes it, either; the row is written to standard error.
        """
        row = measured.row
        record = self._record_of(row, self._written_at(row))
        # On the disk before all else; in the store behind what it has to follow.
        name = f"{ROWS_FOLDER}/{row_file_name(row.row)}"
        entry = self._sender.keep(self.run_id, name, record.to_json().encode())
        points: list[Entry] = []
        try:
            try:
                self._rows.append(row)
                matrix = AccuracyMatrix.from_rows(self._rows).masked(record.protocol)
                time = milliseconds(record.written_at)
                values = values_at(
                    matrix,
                    row.row,
                    of_families(self.families),
                    names.bucket_series(row.score.name),
                )
                metrics = to_metrics(Point(n, value, time, row.row) for n, value in values.items())
                # Before the state: a run that is resumed from it does not repeat these steps.
                self._curve.add(measured.curve)
                points = self._curve.keep(self._in_order(metrics, row.row))
                self._send_first(measured, record)
            finally:  # whatever happens, what is kept is handed over
                self._sender.send(entry)
            self._send_files(measured)
            self._wait_delivered()
        finally:
            self._send_all(points)
        if row.row == 0:
            self._sender.send(self._tell_of_rows)
        self._undrawn = matrix
        if self._parent is None and row.row > 0:  # beside the first bucket there is time for it
            self._can_draw.wait(_LOADING_SECONDS)

    def log_curve(self, points: Sequence[CurvePoint]) -> None:
        """Store points of the curve of a bucket that is trained on; nothing waits for it."""
        self._curve.add(points)
        self._behind.send(self._curve.send)

    def log_test(self, test: AnytimeRow) -> None:
        """Store a test inside a bucket as an artifact; as a row, it is on local disk first.

        Raises:
            TrackingError: no disk takes it, or another process has taken the run over.
        """
        name = f"{ANYTIME_FOLDER}/{anytime_file_name(test.bucket, test.test)}"
        content = test.to_json(now()).encode()
        self._sender.send(self._sender.keep(self.run_id, name, content))
        # Else the bucket's row would wait for all of them at once, and take the store for away.
        self._wait_delivered()

    @abstractmethod
    def _describe(self, run: Run) -> None:
        """Say what is being run, once it is sure that rows may be stored in the run."""

    def _written_at(self, row: AccuracyRow) -> str:
        """The time that a row's record carries."""
        return now()

    def _send_first(  # noqa: B027 (a kind of run may have nothing of the sort)
        self, measured: MeasuredRow, record: RowRecord
    ) -> None:
        """Send what has to be in the store before a row is."""

    def _log_dataset(
        self, about: RunMetadata, *, source: str, profile: Mapping[str, object]
    ) -> None:
        """Log the dataset as an MLflow input; from then on rows can be stored.

        Args:
            about: what rows will say.
            source: where the data is from, for people.
            profile: further facts, as MLflow shows them.
        """
        self._about = about
        dataset = Dataset(
            name=about.dataset.name,
            digest=names.dataset_digest(about.dataset.digest),
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps(profile),
        )
        context = "training" if about.split == TEST else about.split
        inputs = [DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, context)])]
        with mlflow_errors(f"log the dataset of run {self.run_id}"):
            retry_on_conflict(lambda: self.client.log_inputs(self.run_id, datasets=inputs))

    def _send_evaluation_set(self, content: bytes) -> None:
        """Store the images that the rows' predictions are of."""
        name = f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"
        self._sender.send(self._sender.keep(self.run_id, name, content))

    def _record_of(self, row: AccuracyRow, written_at: str) -> RowRecord:
        about = self._about
        if about is None:
            raise RuntimeError("the dataset is logged before the first row")
        return RowRecord(
            row=row,
            protocol=about.protocol,
            split=about.split,
            dataset=about.dataset,
            seed=about.seed,
            package_version=__version__,
            written_at=written_at,
            extra=dict(about.extra),
        )

    def _send_files(self, measured: MeasuredRow, there: frozenset[str] = frozenset()) -> None:
        """Send what a row was counted from, but for what is there; :meth:`log_row` waits for it."""
        row = measured.row.row
        predictions = f"{PREDICTIONS_FOLDER}/{predictions_file_name(row)}"
        model = f"{names.MODELS_FOLDER}/{names.model_file_name(row)}"
        for name, content in ((predictions, measured.predictions), (model, measured.model)):
            if content is not None and name not in there:
                self._sender.send(self._sender.keep(self.run_id, name, content))

    def _send_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._sender.send(entry)

    def _wait_delivered(self) -> None:
        """Wait for the store, for some seconds at most.

        Raises:
            LostRunError: another process has taken the run over.
        """
        self._sender.wait_delivered()
        if self._sender.lost is not None:
            raise self._sender.lost

    def _in_order(self, metrics: Sequence[Metric], row: int) -> list[Metric]:
        """A row's points as they are sent: behind all summary metrics the accuracies on buckets.

        MLflow's page of a run lists metrics in the order in which their first points came.
        """
        sent: list[Metric] = []
        for metric in metrics:
            of_bucket = names.is_of_bucket(metric.key)
            (self._held_back if of_bucket else sent).append(metric)
        if row >= _ROWS_OF_ALL_METRICS:
            sent += self._held_back
            self._held_back = []
        return sent

    def _tell_of_rows(self) -> None:
        """Say in the run that it holds a row, as points of later rows do."""
        self._sender.hold.check(self.run_id)
        with mlflow_errors(f"tag run {self.run_id}"):
            self.client.set_tag(self.run_id, names.ROWS_TAG, "partial")

    def _load_drawing(self) -> None:
        """Load what pictures and pages need, before anyone upgrades packages under the run."""
        try:
            load_drawing()
            load_run_page()
        finally:
            self._can_draw.set()

    def _beat(self) -> None:
        """Say that the runs live, and draw what was measured since this was last called."""
        if self._sender.is_away:
            return
        with suppress(LostRunError):  # the next row reports it
            for run_id in self._alive:
                beat(self.client, self._sender.hold.check(run_id))
            self._log_picture()

    def _log_picture(self) -> None:
        matrix, self._undrawn = self._undrawn, None
        if matrix is None:
            return
        picture = heatmap_array(matrix, f"{self._run_name}, after {matrix.num_rows} buckets")
        self.client.log_image(self.run_id, picture, key=names.IMAGE_PER_ROW, step=matrix.num_rows)


def now() -> str:
    """The time as records carry it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
