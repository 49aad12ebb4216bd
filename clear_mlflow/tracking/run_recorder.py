"""Record what is measured in one MLflow run: on local disk at once, then in the store."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from clear_mlflow.core.anytime import ANYTIME_FOLDER, AnytimeRow, format_anytime_file_name
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.matrix import TEST, AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import ROWS_FOLDER, RowRecord, format_row_file_name, utc_now
from clear_mlflow.core.text import format_count, safe_repr, warn
from clear_mlflow.core.version import __version__, list_software_versions
from clear_mlflow.journal.run_folder import (
    METRICS_JSON,
    TAGS_JSON,
    Entry,
    RunFolder,
    list_candidate_folders,
)
from clear_mlflow.journal.uploader import Uploader, read_exit_wait
from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.metrics import add_matrix_metrics, get_family_metrics, summarize
from clear_mlflow.report.page.run_page import load_run_page
from clear_mlflow.report.pictures import decode_png, draw_heatmap_png, load_drawing
from clear_mlflow.scoring.run_log import build_row_points
from clear_mlflow.scoring.run_record import build_families_tag, to_milliseconds
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    MAX_POINTS,
    mlflow_errors,
    retry_on_conflict,
    split_into_batches,
)
from clear_mlflow.store.lease import RENEW_SECONDS, LeaseLostError

_MAX_STOPPED_WAIT_SECONDS = 10.0  # at the end of a training that failed or was stopped
_JOIN_SECONDS = 1.0


class RunRecorder:
    """Writes what a run measures to disk, and uploads it.

    run_id: id of a RUNNING run. families: names of the groups of metrics to log after each row.
    """

    def __init__(self, client: MlflowClient, run_id: str, families: Sequence[str]) -> None:
        self.client = client
        self.run_id = run_id
        self.families = tuple(families)
        self.curve_steps: set[tuple[str, int]] = set()  # of a resumed run: metric name and step
        self.uploader = Uploader(client, run_id)
        self.rows: dict[int, AccuracyRow] = {}  # rows of the run's matrix so far, by number
        self._run_name = run_id
        self._candidates = iter(list_candidate_folders(run_id))  # folders that were not tried yet
        self._folders: list[RunFolder] = []  # the last one is written to
        self._exit_wait = 0.0  # seconds
        # The matrix, if no picture shows it yet. One thread appends and another pops.
        self._unplotted = deque[AccuracyMatrix](maxlen=1)
        self._is_loaded, self._is_over = threading.Event(), threading.Event()
        # A daemon, since a call that hangs must not keep the process.
        self._background_thread = threading.Thread(
            target=self._run_background_tasks, name="clear_mlflow lease and pictures", daemon=True
        )

    def open(self, run: Run) -> None:
        """Create the run's folder on local disk, and start two threads.

        One uploads what is recorded. The other renews the lease and draws the accuracy matrix.
        Raises TrackingError if no disk can be written, or CLEAR_MLFLOW_EXIT_WAIT is invalid.
        """
        self._exit_wait = read_exit_wait()
        self._run_name = run.info.run_name or self.run_id
        self._open_folder()
        self.uploader.start()
        self._background_thread.start()

    def close(self, error: BaseException | None) -> None:
        """Upload what is left, stop the threads, and delete empty folders.

        Waits up to CLEAR_MLFLOW_EXIT_WAIT seconds for a store that does not respond, at most 10
        after an error. Raises UnsentError if the store did not take everything, which stays on
        local disk, and LeaseLostError if another process has taken over the run.

        error: why training ended early, or None.
        """
        uploader = self.uploader
        try:
            uploader.finish(min(self._exit_wait, _MAX_STOPPED_WAIT_SECONDS if error else math.inf))
        finally:
            self._is_over.set()  # no renewal of the lease after the end of the run
            self._background_thread.join(_JOIN_SECONDS if uploader.is_failing else None)
            for folder in self._folders:
                folder.close(remove=not folder.list_entries())
        unsent = uploader.build_unsent_error()
        if uploader.lease.error is not None:
            suffix = f"; {unsent}" if unsent else ""
            raise LeaseLostError(
                f"{uploader.lease.error}; what this one measured since is not stored{suffix}"
            )
        if unsent:
            raise unsent from error

    def log_configuration(
        self,
        run: Run,
        *,
        params: Mapping[str, str],
        grouping: Mapping[str, str],
        tags: Mapping[str, str],
        libraries: Sequence[str] = (),
    ) -> None:
        """Log parameters and tags, and delete the tags of an earlier error.

        params: those that the run has are kept, with a warning if they differ. grouping: tags such
        as strategy and seed. They replace tags of a run without rows, with a warning; a person may
        have changed tags of a continued run, which are kept. libraries: packages whose versions are
        logged.
        """
        stored_params, stored_tags = run.data.params, run.data.tags if self.rows else {}
        self._warn_of_conflicts("parameter", stored_params, params, "kept")
        outcome = "kept" if self.rows else "replaced"
        self._warn_of_conflicts("tag", run.data.tags, grouping, outcome)
        all_tags = {
            **{name: value for name, value in grouping.items() if name not in stored_tags},
            **tags,
            names.VERSION_TAG: __version__,
            names.SOFTWARE_TAG: list_software_versions(*libraries),
            **build_families_tag(self.families, run.data.tags),
        }
        for tag in {names.ERROR_TAG, names.DIVERGED_TAG} & run.data.tags.keys():
            self.client.delete_tag(self.run_id, tag)
        self.client.log_batch(
            self.run_id,
            params=[Param(*item) for item in params.items() if item[0] not in stored_params],
            tags=[RunTag(*item) for item in all_tags.items()],
        )

    def _warn_of_conflicts(
        self, item: str, stored: Mapping[str, str], values: Mapping[str, str], outcome: str
    ) -> None:
        for name, value in values.items():
            if (stored_value := stored.get(name, value)) != value:
                warn(
                    f"run {self.run_id} has the {item} {name}={safe_repr(stored_value)} already, "
                    f"and got {safe_repr(value)}; the first one is {outcome}"
                )

    def write_row(
        self,
        record: RowRecord,
        *,
        files: Mapping[str, bytes],
        curve: Iterable[CurvePoint] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write a row to disk, and wait seconds until it is uploaded.

        Waits up to 5 seconds until the row and its files are stored, and up to 10 seconds until
        plotting code is loaded, unless it is row 0. Raises LeaseLostError if another process has
        taken over the run, and TrackingError if no disk can be written.

        files: artifact path to content. curve: values of the loss curve since the last row. tags:
        tags of the run, as for :meth:`write_tags`.
        """
        row = record.row
        self.write_file(f"{ROWS_FOLDER}/{format_row_file_name(row.row)}", record.to_json())
        try:
            for path, content in files.items():
                self.write_file(path, content)
            if row.row == 0:
                tags = {**(tags or {}), names.ROWS_TAG: "partial"}
            if tags:
                self.write_tags(tags)
            self.rows[row.row] = row  # from here on the row is on disk with all of its files
            matrix = AccuracyMatrix.from_rows(self.rows.values()).mask(record.dataset.protocol)
            metrics = add_matrix_metrics(get_family_metrics(self.families), matrix)
            values = summarize(matrix.after(row.row), metrics=metrics) if row.row else {}
            time = to_milliseconds(record.written_at)
            points = build_row_points(matrix, row.row, values, time)
            self._write_points([*points, *self._convert_curve(curve)])
        finally:  # whatever happens, what is on disk is uploaded
            self.uploader.wait_until_stored()
        self._unplotted.append(matrix)
        if row.row > 0:  # there is time during the first bucket
            self._is_loaded.wait(10.0)  # on a busy machine; usually it takes one or two seconds

    def write_missing_files(
        self, stored: AccuracyRow, *, files: Mapping[str, bytes], curve: Iterable[CurvePoint]
    ) -> None:
        """Write files that a stored row lacks, and wait for their upload.

        stored: the row in the store, from which later metrics are computed. files: artifact path to
        content. curve: values of the loss curve since the last row.
        """
        self.rows[stored.row] = stored  # metrics are computed from what is stored
        self.write_curve(curve)
        try:
            for path, content in files.items():
                self.write_file(path, content)
        finally:
            self.uploader.wait_until_stored()

    def write_file(self, path: str, content: bytes) -> None:
        """Write an artifact to disk, and enqueue its upload.

        Tries another disk if one is full. Raises TrackingError if no disk can be written.
        """
        self._append_and_enqueue(path, lambda folder: folder.append(path, content))

    def write_tags(self, tags: Mapping[str, str]) -> None:
        """Write tags of the run to disk, and enqueue their upload.

        Only the tags of rows, predictions, tests within buckets, missing training states and the
        dataset's digest can be uploaded.
        """
        self._append_and_enqueue(TAGS_JSON, lambda folder: folder.append_json(TAGS_JSON, tags))

    def _append_and_enqueue(self, name: str, append: Callable[[RunFolder], Entry]) -> None:
        while True:
            folder = self._folders[-1]
            try:
                entry = append(folder)
                break
            except OSError as error:
                full = f"cannot write to {folder.folder}: {error.strerror}"
                try:
                    self._open_folder()
                except TrackingError as no_folder:
                    raise TrackingError(f"{full}; {no_folder}; {name} is lost") from error
                warn(f"{full}; further files are written to {self._folders[-1].folder}")
        self.uploader.enqueue(entry)

    def write_curve(self, curve: Iterable[CurvePoint]) -> None:
        """Write loss, learning rate and speed, and enqueue their upload.

        If no disk can be written, they are lost, with a warning.
        """
        self._write_points(self._convert_curve(curve))

    def write_test(self, test: AnytimeRow) -> None:
        """Write a test within a bucket, and wait until it is stored.

        Waits up to 5 seconds. Raises the errors of :meth:`write_row`.
        """
        path = f"{ANYTIME_FOLDER}/{format_anytime_file_name(test.bucket, test.test)}"
        self.write_file(path, test.to_json(utc_now()))
        # Otherwise the bucket's row would wait for all of them, and warn that the store fails.
        self.uploader.wait_until_stored()

    def _open_folder(self) -> None:
        problems = []
        for path in self._candidates:
            try:
                folder = RunFolder.create(path, self.run_id, self.client.tracking_uri)
            except OSError as error:
                problems.append(f"{error.filename or path}: {error.strerror}")
                continue
            self._folders.append(folder)
            if problems:
                others = "; ".join(problems)
                warn(f"rows on their way to the store are kept in {path} (not in {others})")
            return
        reasons = f" ({'; '.join(problems)})" if problems else ""
        raise TrackingError(
            f"no disk can keep what is measured{reasons}; make room, or set CLEAR_MLFLOW_CACHE to "
            "a folder that can be written"
        )

    def _convert_curve(self, curve: Iterable[CurvePoint]) -> list[Metric]:
        """Convert points to finite values that the run does not have."""
        metrics = [
            Metric(name, value, point.time, point.step)
            for point in curve
            for name, value in (
                (names.CURVE_LOSS, point.loss),
                (names.CURVE_LR, point.lr),
                (names.CURVE_SPEED, point.images_per_second),
            )
            if math.isfinite(value)  # charts cannot show other values
        ]
        return [m for m in metrics if (m.key, m.step) not in self.curve_steps]

    def _write_points(self, points: Iterable[Metric]) -> None:
        """Write metric values to disk, and enqueue their upload.

        If no disk can be written, prints a warning: scoring computes a row's metrics again.
        """
        try:
            for batch in split_into_batches(points, MAX_POINTS):
                append = partial(RunFolder.append_metrics, points=batch)
                self._append_and_enqueue(METRICS_JSON, append)
        except TrackingError as error:
            warn(str(error))

    def _run_background_tasks(self) -> None:
        """Load plotting code, then renew the lease until the run closes."""
        try:
            load_drawing()
            load_run_page()
        except Exception as error:
            warn(f"heat maps and pages may be missing: {error}")
        finally:
            self._is_loaded.set()
        while not self._is_over.wait(RENEW_SECONDS):
            self._renew_leases_and_plot()

    def _renew_leases_and_plot(self) -> None:
        """Renew the lease, and log a picture of the latest rows."""
        try:
            self.uploader.lease.renew(self._is_over)
        except Exception:  # reported by the uploader, or with the next row
            return
        if self.uploader.is_failing or not self._unplotted:
            return
        matrix = self._unplotted.pop()
        title = f"{self._run_name}, after {format_count(matrix.num_rows, 'bucket')}"
        try:
            self.client.log_image(
                self.run_id,
                decode_png(draw_heatmap_png(matrix, title)),
                key=names.IMAGE_PER_ROW,
                step=matrix.num_rows,
            )
        except Exception as error:  # the row itself is stored
            warn(f"the heat map of this row is missing; the last one is drawn at the end: {error}")


def log_dataset(client: MlflowClient, run_id: str, dataset: DatasetDescription) -> None:
    """Log a dataset with its profile as an input of a run."""
    profile = json.dumps(dataset.profile)
    # MLflow stores one dataset for each name and digest, and would show an earlier run's profile.
    profile_hash = hashlib.sha256(profile.encode()).hexdigest()[:8]
    entity = Dataset(
        name=dataset.name,
        digest=f"{dataset.digest.removeprefix('sha256:')[:27]}-{profile_hash}",  # at most 36
        source_type="local",
        source=json.dumps({"uri": dataset.source}),
        profile=profile,
    )
    context = "training" if dataset.split == TEST else dataset.split
    inputs = [DatasetInput(entity, [InputTag(MLFLOW_DATASET_CONTEXT, context)])]
    with mlflow_errors(f"log the dataset of run {run_id}"):
        retry_on_conflict(lambda: client.log_inputs(run_id, datasets=inputs))
