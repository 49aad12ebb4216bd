"""Writes what is measured into one MLflow run, as soon as it is measured, whoever measures it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Run
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_file_name
from clear_mlflow.core.matrix import TEST, AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import ROWS_FOLDER, RowRecord, row_file_name
from clear_mlflow.core.text import warn
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.journal import TAGS_JSON, Entry
from clear_mlflow.journal.resend import StoredSteps, lacking
from clear_mlflow.journal.sender import Sender, exit_patience, unsent_error
from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.metrics import add_cost_metrics, get_family_metrics
from clear_mlflow.report.page.run_page import load_run_page
from clear_mlflow.report.pictures import heatmap_png, load_drawing, png_array
from clear_mlflow.scoring.run_log import Point, evaluate_step, to_mlflow_metrics
from clear_mlflow.scoring.run_record import to_milliseconds
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.conflicts import retry_on_conflict
from clear_mlflow.store.heartbeat import LostRunError, beat

_HEARTBEAT_SECONDS = 30.0
_STOPPED_SECONDS = 10.0
_JOIN_SECONDS = 1.0
_ROWS_OF_ALL_METRICS = 2  # of the matrix, until each summary metric has a value
_LOADING_SECONDS = 10.0  # on a machine with much else to do; loading takes one or two


class RunWriter:
    """Writes into one run: to local disk first, then to the store, by the sender of *above*."""

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        families: Sequence[str],
        *,
        above: RunWriter | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.families = tuple(families)
        self.record_of: Callable[..., RowRecord] = RowRecord  # row=, written_at=: a row's record
        self.steps_there: StoredSteps = {}  # of the curve, where a run is resumed
        self.sender: Sender = above.sender if above else Sender(client)
        self.rows = self.sender.rows.setdefault(run_id, {})  # that the matrix so far is of
        self._above = above
        self._run_name = run_id
        self._held_back: list[Metric] = []  # accuracies of the first rows, on each bucket
        self._curve: list[Metric] = []  # points that are not on local disk yet
        self._patience = 0.0
        self._alive = [run_id]  # runs that the heartbeat is of
        if above is not None:
            above._alive.append(run_id)
        self._undrawn: AccuracyMatrix | None = None  # up to a row that no picture shows yet
        self._loaded, self._over = threading.Event(), threading.Event()
        # A call that hangs must not keep the process: nothing here is needed.
        self._heart = threading.Thread(target=self._live, name="clear_mlflow heart", daemon=True)

    def open(self, run: Run) -> None:
        """Open the run's journal and begin to send; load what draws at the run's end."""
        self._patience = exit_patience()
        self._run_name = run.info.run_name or self.run_id
        self.sender.open(self.run_id)
        if self._above is None:
            self.sender.start()
            self._heart.start()

    def close(self, error: BaseException | None) -> None:
        """Send what is left: UnsentError where the store does not take it, LostRunError."""
        sender = self.sender
        if sender.lost is None:  # else whoever has the run now comes by the same steps
            self.write_curve(())
            if self._curve:
                warn(f"run {self.run_id}: {len(self._curve)} points of its curve fit on no disk")
        if self._above is not None:
            return
        try:
            # Whoever stops a training does not wait for long.
            sender.finish(min(self._patience, _STOPPED_SECONDS if error else math.inf))
        finally:
            self._over.set()  # no beat after the run's end
            self._heart.join(_JOIN_SECONDS if sender.is_away else None)
            sender.close()
        unsent = unsent_error(sender)
        if sender.lost is not None:
            left = f"; {unsent}" if unsent else ""
            raise LostRunError(f"{sender.lost}; what this one measured since is not stored{left}")
        if unsent:
            raise unsent from error

    def log_dataset(self, *, source: str, profile: Mapping[str, object], **of_rows: Any) -> None:
        """Log the dataset as an MLflow input, from then on rows can be written: by *of_rows*."""
        self.describe_rows(**of_rows)
        identity, split = of_rows["dataset"], of_rows["split"]
        dataset = Dataset(
            name=identity.name,
            digest=names.dataset_digest(identity.digest),
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps(profile),
        )
        context = "training" if split == TEST else split
        inputs = [DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, context)])]
        with mlflow_errors(f"log the dataset of run {self.run_id}"):
            retry_on_conflict(lambda: self.client.log_inputs(self.run_id, datasets=inputs))

    def describe_rows(self, **of_rows: Any) -> None:
        """What the record of every row says beside its numbers, as RowRecord has it."""
        self.record_of = partial(RowRecord, package_version=__version__, **of_rows)

    def write_row(
        self,
        record: RowRecord,
        *,
        files: Mapping[str, bytes],
        curve: Iterable[CurvePoint] = (),
    ) -> None:
        """Write a row, now, then *files* it was counted from."""
        row = record.row
        # On the disk before all else; in the store behind what it has to follow.
        self.write_file(f"{ROWS_FOLDER}/{row_file_name(row.row)}", record.to_json().encode())
        points: list[Entry] = []
        try:
            self._add_to_curve(curve)
            self._write_files(files)
            if row.row == 0:
                self.write_tags({names.ROWS_TAG: "partial"})
            self.rows[row.row] = row  # from here on all of it is on the disk
            matrix = AccuracyMatrix.from_rows(self.rows.values()).masked(record.protocol)
            time = to_milliseconds(record.written_at)
            begin = names.bucket_series(row.score.name)
            values = evaluate_step(
                matrix, row.row, add_cost_metrics(get_family_metrics(self.families), matrix), begin
            )
            metrics = to_mlflow_metrics(
                Point(n, value, time, row.row) for n, value in values.items()
            )
            points = self._append_points(self._in_order(metrics, row.row))
        finally:  # whatever happens, what is on the disk is sent
            self._deliver(points)
        self._undrawn = matrix
        if self._above is None and row.row > 0:  # beside the first bucket there is time for it
            self._loaded.wait(_LOADING_SECONDS)

    def write_beside_row(
        self,
        stored: AccuracyRow,
        *,
        artifact: tuple[str, bytes] | None,
        files: Mapping[str, bytes],
        curve: Iterable[CurvePoint],
    ) -> None:
        """Write what a resumed run lacks of a row that is stored, and an artifact beside it."""
        self.rows[stored.row] = stored  # what is scored, now and later, is what is stored
        self._add_to_curve(curve)
        points = self._append_points()
        try:
            self._write_files({**dict(filter(None, [artifact])), **files})
        finally:
            self._deliver(points)

    def write_file(self, path: str, content: bytes) -> None:
        """Write an artifact; nothing waits for it."""
        self.sender.send(self.sender.append(self.run_id, path, content))

    def _write_files(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            self.write_file(path, content)

    def write_tags(self, tags: Mapping[str, str]) -> None:
        """Write tags of the run; nothing waits for them."""
        self.write_file(TAGS_JSON, json.dumps(tags).encode())

    def write_curve(self, points: Iterable[CurvePoint]) -> None:
        """Write points of the curve of a bucket that is trained on; nothing waits for them."""
        self._add_to_curve(points)
        self.sender.send(*self._append_points())

    def write_test(self, test: AnytimeRow) -> None:
        """Write a test inside a bucket, as a row."""
        path = f"{ANYTIME_FOLDER}/{anytime_file_name(test.bucket, test.test)}"
        self.write_file(path, test.to_json(now()).encode())
        # Else the bucket's row would wait for all of them at once, and take the store for away.
        self._wait_delivered()

    def _deliver(self, points: Sequence[Entry]) -> None:
        try:
            self._wait_delivered()
        finally:
            self.sender.send(*points)

    def _wait_delivered(self) -> None:
        """Wait for the store, for some seconds; LostRunError: another process has the run."""
        self.sender.wait_delivered()
        if self.sender.lost is not None:
            raise self.sender.lost

    def _add_to_curve(self, points: Iterable[CurvePoint]) -> None:
        metrics = [
            Metric(name, value, point.time, point.step)
            for point in points
            for name, value in (
                (names.CURVE_LOSS, point.loss),
                (names.CURVE_LR, point.lr),
                (names.CURVE_SPEED, point.images_per_second),
            )
            if math.isfinite(value)  # nothing else has a place in a chart
        ]
        self._curve += lacking(metrics, self.steps_there)

    def _append_points(self, others: Sequence[Metric] = ()) -> list[Entry]:
        """Put the curve that waits on local disk, with other points; give what is to be sent."""
        metrics = [*others, *self._curve]
        entries = self.sender.append_metrics(self.run_id, metrics) if metrics else []
        if entries is None:
            return []
        self._curve.clear()
        return entries

    def _in_order(self, metrics: Sequence[Metric], row: int) -> list[Metric]:
        """A row's points as MLflow's page lists them: those of buckets behind all others."""
        sent: list[Metric] = []
        for metric in metrics:
            of_bucket = names.is_of_bucket(metric.key)
            (self._held_back if of_bucket else sent).append(metric)
        if row >= _ROWS_OF_ALL_METRICS:
            sent += self._held_back
            self._held_back = []
        return sent

    def _live(self) -> None:
        """Load what the end needs, beside the first bucket; then beat."""
        try:
            load_drawing()
            load_run_page()
        except Exception as error:
            warn(f"pictures may be left out: {error}")
        finally:
            self._loaded.set()
        while not self._over.wait(_HEARTBEAT_SECONDS):
            self._beat()

    def _beat(self) -> None:
        """Say that the runs live, and draw what was measured since this was last called."""
        try:
            for run_id in self._alive:
                beat(self.client, self.sender.hold.check(run_id))
        except Exception:  # the sender reports a store that is away, the next row a lost run
            return
        if self.sender.is_away or self._undrawn is None:
            return
        matrix, self._undrawn = self._undrawn, None
        title = f"{self._run_name}, after {matrix.num_rows} buckets"
        try:
            self.client.log_image(
                self.run_id,
                png_array(heatmap_png(matrix, title)),
                key=names.IMAGE_PER_ROW,
                step=matrix.num_rows,
            )
        except Exception as error:  # the row itself is stored
            warn(f"a picture is left out, the last one is drawn at the end: {error}")


def now() -> str:
    """The time as records carry it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
