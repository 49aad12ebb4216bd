"""Track a custom training loop as an MLflow run."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import mlflow
import msgspec
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.environment_variables import MLFLOW_RUN_ID

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.disk import set_offline
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError, TrackingError
from clear_mlflow.core.loop_metadata import (
    LoopMetadata,
    add_true_labels,
    build_count_row,
    build_prediction_row,
    build_test,
    build_value_row,
    check_accuracy,
    describe_loop,
)
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow, RowCost, parse_row_cost
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import Record, RowRecord, assemble, row_file_name
from clear_mlflow.core.text import printable, safe_repr, truncate, warn
from clear_mlflow.journal.uploader import store_outcome, upload_left_folders
from clear_mlflow.learning.measured import StreamMetadata
from clear_mlflow.metrics import (
    ALL_METRICS,
    DEFAULT_FAMILIES,
    MetricResults,
    adapt_metrics,
    scores,
    split_families,
)
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.report.page.run_page import render_run_html
from clear_mlflow.report.terminal_tables import render_run, render_text
from clear_mlflow.scoring import Scores
from clear_mlflow.scoring.run_record import read_tests
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import limit_retries, mlflow_errors, preflight
from clear_mlflow.store.rows import read_rows
from clear_mlflow.tracking.lifecycle import (
    build_result,
    end_run,
    get_active_run_id,
    join_run,
    open_run,
)
from clear_mlflow.tracking.run_recorder import RunRecorder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOP_JSON = "own_loop.json"
Cost: TypeAlias = RowCost | Mapping[str, object] | None


def track(
    *,
    buckets: int | Iterable[object],
    num_instances: int | Sequence[int] | Mapping[Any, int] | None = None,
    dataset: str = "own",
    dataset_digest: str | None = None,
    protocol: str = "iid",
    split: Literal["test", "validation"] = "test",
    seed: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    params: Mapping[str, object] | None = None,
    tags: Mapping[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    test_labels: Sequence[Any] | None = None,
    test_ids: Sequence[Sequence[object]] | None = None,
    score: str = "accuracy",
    lower_is_better: bool = False,
    run_name: str | None = None,
    metrics: str | Sequence[str] = ",".join(DEFAULT_FAMILIES),
    offline: bool | str | Path = False,
) -> LoopRun:
    """Track a custom training loop, which calls ``run.log_counts(i, correct)`` after bucket i.

    Use it as ``with clear_mlflow.track(...) as run:``. An active MLflow run is joined and left
    open. Without one, a run is opened, and closed with the right status. Each call stores one row
    of the accuracy matrix: the results on all buckets after training on one. After the block, even
    after an error, ``run.metrics`` and ``run.matrix`` contain the scores of the stored rows, and
    ``clear_mlflow.load(run.run_id)`` returns the run. A run that contains rows of the same loop is
    continued.

    Args:
        buckets: names of all buckets in stream order, which may be whole numbers and dates, or
            their number ("1" to "T").
        num_instances: test images per bucket; one number if all have the same. None if only
            accuracies are known, which leaves out metrics that need counts.
        dataset: name of the dataset, for people.
        dataset_digest: digest of its content; runs of different digests are not compared. None
            means "unknown", or the digest of the evaluation set.
        protocol: ``iid``: a held-out test set per bucket; ``streaming``: tested on its own
            training data.
        split: images that the rows are measured on. Numbers on validation images are for choosing
            parameters, and are never compared with those on test images.
        seed: seed of the run.
        strategy: name of the strategy, to group runs by.
        model: name of the model, to group runs by.
        params: parameters to log, unless the run has some of the same name.
        tags: tags to log.
        class_names: name of each class, by label.
        test_labels: true class of each test image, a list per bucket, for
            ``run.log_predictions(i, ...)``, which also accepts it. ``num_instances`` follows.
        test_ids: name of each test image, a list per bucket.
        score: what the rows measure if it is not accuracy, for example "rmse". Rows are then
            logged by ``run.log_values(i, [...])``, with any finite numbers.
        lower_is_better: whether a lower score is better.
        run_name: name of a run that is opened.
        metrics: metric families to log, for example ["clear", "gem"]; docs/metrics.md lists them.
        offline: True to record in the folder ``offline_runs`` without any tracking store, or the
            path of such a folder. ``clear-mlflow sync`` copies its runs to a store later. This
            process uses the folder as its store from then on.

    Raises:
        ConfigError: a value is out of range, or two values contradict each other.
        RecordError: a key, a count or a name cannot be stored in a record.
        TrackingError: on entering, if MLflow cannot store the run, or it contains rows with
            another dataset, seed or other values than these.
    """
    options = locals()
    del options["run_name"], options["metrics"], options["offline"]
    set_offline(offline)
    return LoopRun(describe_loop(**options), run_name, metrics)


class LoopRun:
    """The MLflow run of a custom training loop, made by :func:`clear_mlflow.track`.

    A context manager. When :meth:`log_counts` or a similar method returns, a row is on local disk,
    and in the store unless that cannot be reached. ``print`` and notebooks show the rows so far.

    Args:
        metadata: buckets, dataset and parameters of the loop.
        run_name: name of a run that is opened, or None to build one from the metadata.
        metrics: metric families to log, as a list or separated by commas.
    """

    expects_last_row = True  # False if a framework numbers the rows, and may stop early
    shared_run_id: str | None = None  # run of another logger to join and to end, if there is one

    def __init__(
        self, metadata: LoopMetadata, run_name: str | None, metrics: str | Sequence[str]
    ) -> None:
        self._metadata = metadata
        self._families = split_families(metrics if isinstance(metrics, str) else ",".join(metrics))
        adapt_metrics(ALL_METRICS, metadata.score)  # raises if the score's name is taken
        self._run_name = run_name
        self._recorder: RunRecorder | None = None
        self._is_joined = False
        self._is_over = False
        self._process_id = os.getpid()
        self._lock = threading.RLock()  # rows may come from several threads
        self._scores: Scores | None = None
        self._links: tuple[str, ...] = ()
        self._rows: dict[int, AccuracyRow] = {}  # all rows of the run, by number
        self._tests: dict[tuple[int, int], AnytimeRow] = {}  # by bucket and number
        self._predictions_type: str | None = None  # "labels" or "probs"; None without predictions
        self._predictions: dict[int, bytes | None] = {}  # hash, for each row that this object wrote

    def __enter__(self) -> LoopRun:
        """Open a run or join the active one, load its rows, and log the loop's metadata."""
        if self._recorder is not None:
            raise TrackingError("this run was entered before; call clear_mlflow.track again")
        dist_env = read_dist_env()
        if not dist_env.keeps_record:
            raise ConfigError(
                f"this is process {dist_env.rank} of {dist_env.size}; call track only on rank 0, "
                "or each process would open a run"
            )
        limit_retries()
        client = preflight(opens_run=self.shared_run_id is None)
        active_id = get_active_run_id()
        self._is_joined = active_id is not None and self.shared_run_id is None
        if run_id := self.shared_run_id or active_id:
            mlflow.flush_async_logging()  # so that the other logger's parameters come first
            join_run(client, run_id)
        else:
            run_id = open_run(
                client,
                self._name,
                # An error here leaves the run as it is.
                lambda run: self._load_stored_rows(client, run.info.run_id),
                rename=self._run_name is not None,
            )
        try:
            self._open_recorder(client, run_id)
        except BaseException as error:
            outcome = build_result(error, run_id).build_outcome(sets_status=not self._is_joined)
            with suppress(ClearError):
                store_outcome(client, run_id, outcome)
            raise
        self._process_id = os.getpid()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: object,
    ) -> None:
        """Upload what is not stored yet, score the run, and end it if this object opened it.

        Prints links to the run. Raises an error of the store, unless the block raised an error.
        """
        recorder = self._recorder
        if recorder is None or os.getpid() != self._process_id:  # a forked child closes nothing
            return
        with StoppingSignals() as signals:  # Ctrl-C is raised after the run is closed
            signals.hand_to(recorder.uploader.hurry)
            with self._lock:
                self._is_over = True
            failure = error or self._find_missing_row()
            try:
                recorder.close(error)
            except ClearError as unsent:
                unsent.__cause__ = unsent.__cause__ or failure
                failure = unsent
            closed = end_run(
                recorder.client,
                self.run_id,
                build_result(failure, self.run_id),
                sets_status=not self._is_joined,
                stored_rows=recorder.rows,
            )
        self._scores, self._links = closed.scores, tuple(closed.links)
        with suppress(OSError):  # standard error may be closed
            for line in closed.links:
                print(printable(line), file=sys.stderr, flush=True)
        problem = closed.problem or (None if failure is error else failure)
        if problem is not None and (error is not None or signals.received):
            warn(str(problem))  # the error that the user's code raised comes first
        signals.raise_received()
        if problem is not None and error is None:
            raise problem

    def log_counts(self, after: int | str, correct: object, *, cost: Cost = None) -> None:
        """Store one row of the accuracy matrix: correct test images per bucket.

        Rows may come in any order. A row that is logged twice with the same numbers is stored once.

        Args:
            after: bucket that was trained on last: its number, from 1, or its name as a string. 0
                is the model before any training.
            correct: test images classified correctly per bucket: integers, or a mapping of bucket
                to integer.
            cost: cost of the training since the previous row, as far as it is known: fields of
                :class:`clear_mlflow.core.matrix.RowCost`, for example
                ``{"training_flops": 10**12}``.

        Raises:
            ConfigError: a value is out of range, or ``num_instances`` is not known.
            RecordError: the numbers do not fit the loop, or the row is stored with other numbers.
            TrackingError: the block has ended.
        """
        self._log(after, cost, lambda metadata: (build_count_row(metadata, after, correct), None))

    def log_accuracies(self, after: int | str, accuracies: object, *, cost: Cost = None) -> None:
        """Store one row like :meth:`log_counts`, from accuracies without counts.

        accuracies: accuracy on each bucket, or a mapping of bucket to accuracy: fractions from 0 to
        1. NaN, None or an absent key means not measured. Raises ConfigError if the run's ``score``
        is not accuracy.
        """
        check_accuracy(self._metadata, "accuracies")
        self.log_values(after, accuracies, cost=cost)

    def log_values(self, after: int | str, values: object, *, cost: Cost = None) -> None:
        """Store one row like :meth:`log_accuracies`, with any finite values of the ``score``.

        values: value on each bucket, or a mapping of bucket to value.
        """
        self._log(after, cost, lambda metadata: (build_value_row(metadata, after, values), None))

    def log_predictions(
        self,
        after: int | str,
        predictions: object,
        truth: Sequence[Any] | None = None,
        *,
        cost: Cost = None,
    ) -> None:
        """Store one row like :meth:`log_counts`, and the predictions that it is counted from.

        predictions: an array per bucket: (n,) predicted classes, or (n, classes) probabilities
        after the softmax, in the order of the true labels. truth: true labels like ``test_labels``
        of :func:`track`, if that did not have them: from the first row on, and the same in all
        rows.
        """
        self._log(after, cost, lambda loop: build_prediction_row(loop, after, predictions), truth)

    def _log(
        self,
        after: object,
        cost: Cost,
        build_row: Callable[[LoopMetadata], tuple[AccuracyRow, RowPredictions | None]],
        truth: Sequence[Any] | None = None,
    ) -> None:
        """Store the row that *build_row* returns, unless it is stored already.

        truth: true labels to add to the metadata, or None.
        """
        with self._lock_recorder(f"the row after {safe_repr(after)}", "rows") as recorder:
            metadata = self._metadata if truth is None else add_true_labels(self._metadata, truth)
            row, predictions = build_row(metadata)
            if metadata is not self._metadata:
                if self._rows or self._tests:
                    raise RecordError(
                        "got true labels, but rows or tests were logged without them; pass the "
                        "labels to track: test_labels=[...]"
                    )
                recorder.write_tags({"dataset_digest": metadata.dataset.digest})
                recorder.write_file(LOOP_JSON, _format_loop_json(metadata).encode())
                recorder.row_fields["dataset"] = metadata.dataset
                self._metadata = metadata
            row = msgspec.structs.replace(row, cost=parse_row_cost(cost))
            content = b"" if predictions is None else predictions.to_bytes()
            digest = hashlib.sha256(content).digest() if content else None
            stored_row = self._rows.get(row.row)
            if stored_row == row:
                self._check_nothing_new(row, digest)
                return
            if stored_row is not None:
                stored_numbers, numbers = (
                    safe_repr(r.cells if r.correct is None else r.correct)
                    for r in (stored_row, row)
                )
                raise RecordError(
                    f"row {row.row} is stored already with other numbers ({stored_numbers}, and "
                    f"now {numbers}); a row is what was measured once: start a new run"
                )
            files: dict[str, bytes] = {}
            tags: dict[str, str] = {}
            predictions_type = self._predictions_type
            if predictions is not None:
                predictions_type = "labels" if predictions.probabilities is None else "probs"
                if self._predictions_type is None and (images := metadata.evaluation_set):
                    files[f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"] = images.to_bytes()
                path = f"{PREDICTIONS_FOLDER}/{predictions_file_name(row.row)}"
                files[path] = content
                tags = {names.PREDICTIONS_TAG: predictions_type}
            recorder.write_row(recorder.build_record(row), files=files, tags=tags)
            self._predictions_type = predictions_type
            self._predictions[row.row] = digest

    def reorder_buckets(self, buckets: tuple[str, ...]) -> None:
        """Change the order of the buckets that are not trained yet, in stored rows, too."""
        with self._lock_recorder("an order of buckets", "rows") as recorder:
            metadata = self._metadata
            counts = metadata.num_instances
            if counts is not None:
                count_by_bucket = dict(zip(metadata.buckets, counts, strict=True))
                counts = tuple(count_by_bucket[key] for key in buckets)
            self._metadata = msgspec.structs.replace(
                metadata, buckets=buckets, num_instances=counts
            )
            recorder.write_file(LOOP_JSON, _format_loop_json(self._metadata).encode())
            self._rows.update({i: row.reorder(buckets) for i, row in self._rows.items()})

    def _check_nothing_new(self, row: AccuracyRow, predictions: bytes | None) -> None:
        """Raise RecordError if a stored row arrives with other cost or predictions.

        Only warns that the cost is kept if an earlier process stored the row.
        """
        stored_cost = self._rows[row.row].cost
        is_new_cost = row.cost not in (None, stored_cost)
        if row.row in self._predictions:
            stored = self._predictions[row.row]
            if is_new_cost or predictions not in (None, stored):
                item = "cost" if is_new_cost else "predictions"
                adjective = "other" if (stored_cost if is_new_cost else stored) else "no"
                raise RecordError(
                    f"row {row.row} is stored already with {adjective} {item}; log a row once, "
                    "together with all that belongs to it"
                )
        elif is_new_cost:
            warn(f"row {row.row} is stored already with another cost, which is kept")

    def log_test(
        self,
        bucket: int | str,
        correct: object,
        *,
        test: int,
        num_tests: int,
        step: int,
        num_steps: int,
    ) -> None:
        """Store a test of all buckets within the training of one bucket.

        Metrics of continual evaluation are computed from such tests. Pass the test at the end of a
        bucket to :meth:`log_counts`, which raises the same errors.

        Args:
            bucket: bucket in training: its number, from 1, or its name as a string.
            correct: test images classified correctly per bucket: integers, or a mapping of bucket
                to integer.
            test: number of this test within the bucket, from 1.
            num_tests: number of tests within the bucket, the same in all of them.
            step: optimiser steps on this bucket so far, from 1.
            num_steps: all optimiser steps of the bucket; more than *step*.
        """
        with self._lock_recorder(f"a test inside bucket {safe_repr(bucket)}", "tests") as recorder:
            row = build_test(
                self._metadata,
                bucket,
                correct,
                test=test,
                num_tests=num_tests,
                step=step,
                num_steps=num_steps,
            )
            stored_row = self._tests.get((row.bucket, row.test))
            if stored_row == row:
                return
            if stored_row is not None:
                raise RecordError(
                    f"test {row.test} inside bucket {row.bucket} is stored already with other "
                    "numbers; a test is what was measured once: start a new run"
                )
            if not self._tests:
                recorder.write_tags({names.ANYTIME_TAG: "own"})  # in place of an interval
            recorder.write_test(row)
            self._tests[row.bucket, row.test] = row

    @property
    def run_id(self) -> str:
        """The id of the MLflow run. Raises TrackingError before the block."""
        if self._recorder is None:
            raise TrackingError("no run is open yet; 'with' opens it")
        return self._recorder.run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """The accuracy matrix of the rows so far. After the block, it is read back from the store.

        Raises TrackingError if no row is logged yet.
        """
        if (record := self._record) is None:
            raise TrackingError("no row is logged yet; log one with log_counts")
        return record.matrix

    @property
    def metrics(self) -> MetricResults:
        """Metrics of the rows so far, with value and history, or the reason for no value.

        They are the families that were passed to :func:`track`, and costs if any were logged.
        Metrics of predictions and of tests within buckets are computed at the end of the block.
        Empty before the first row.
        """
        if not self._rows:
            return MetricResults()
        if self._scores is None:
            return scores(self.matrix, self._metadata.protocol, self._families)
        return self._scores.results

    def plot(self, title: str = "", *, width: float | None = None) -> Figure:
        """Draw the matrix like :meth:`AccuracyMatrix.plot`.

        Leaves out the cells that the protocol excludes. Raises TrackingError if no row is logged
        yet.
        """
        return self.matrix.mask(self._metadata.protocol).plot(title, width=width)

    def _repr_html_(self) -> str:
        """Return the matrix and metrics so far as HTML, for notebooks."""
        if (record := self._record) is None:
            return render_run_html(repr(self), None)
        return render_run_html(self._name, record.masked_matrix, self.metrics.values(), self._links)

    def __str__(self) -> str:
        """Return the matrix and metrics so far as text tables."""
        if (record := self._record) is None:
            return repr(self)
        return render_text(*render_run(record, self.metrics.values()), "", *self._links)

    def __repr__(self) -> str:
        run = "not entered" if self._recorder is None else self.run_id
        count = f"{len(self._rows.keys() - {0})} of {len(self._metadata.buckets)} rows"
        return f"LoopRun({self._name!r}, {run}, {count})"

    @property
    def _record(self) -> Record | None:
        """The rows so far with their metadata, or None before the first row."""
        if self._scores is not None and self._scores.record is not None:
            return self._scores.record
        if self._recorder is None or not self._rows:
            return None
        build_record = self._recorder.build_record
        return assemble({row_file_name(i): build_record(row) for i, row in self._rows.items()})

    @property
    def _name(self) -> str:
        """The name that the user chose, or one built from the metadata."""
        metadata = self._metadata
        parts = [metadata.grouping.get("strategy", "own loop"), metadata.dataset.name]
        if metadata.seed is not None:
            parts.append(f"seed {metadata.seed}")
        return self._run_name or truncate(printable(" ".join(parts)), 150)

    @contextmanager
    def _lock_recorder(self, item: str, items: str) -> Iterator[RunRecorder]:
        """Yield the recorder, locked for this thread. item, items: for messages."""
        # Before the lock, which a fork may have copied while it was locked.
        if os.getpid() != self._process_id:
            raise TrackingError(
                f"{item} was logged in process {os.getpid()}, forked from process "
                f"{self._process_id}; log {items} in the process that opened the run"
            )
        with self._lock:
            if self._recorder is None or self._is_over:
                raise TrackingError(
                    f"{item} was logged outside of the block; log {items} inside of 'with "
                    "clear_mlflow.track(...) as run:'"
                )
            yield self._recorder

    def _find_missing_row(self) -> RecordError | None:
        """Return an error if only the last row is missing, else None."""
        last = len(self._metadata.buckets)
        if not self.expects_last_row or self._rows.keys() != set(range(last)):
            return None
        return RecordError(
            f"row {last} is missing; 0 means before any training. If the loop counts from 0, log "
            f"i + 1 in a new run; otherwise, log row {last} with MLFLOW_RUN_ID={self.run_id}"
        )

    def _open_recorder(self, client: MlflowClient, run_id: str) -> None:
        """Load the run's rows, log the loop's metadata, and start recording."""
        metadata = self._metadata
        recorder = RunRecorder(client, run_id, self._families)
        run = self._load_stored_rows(client, run_id)
        recorder.rows.update(self._rows)
        self._rows = recorder.rows
        values = {**metadata.grouping, **metadata.params}
        for name, value in values.items():
            if (stored := run.data.params.get(name, value)) != value:
                warn(
                    f"run {run_id} has the parameter {name}={safe_repr(stored)} already, and got "
                    f"{safe_repr(value)}; the first one is kept"
                )
        with mlflow_errors(f"log the configuration of run {run_id}"):
            recorder.log_configuration(
                run,
                params={k: v for k, v in values.items() if k not in run.data.params},
                grouping=metadata.grouping,
                tags={
                    **metadata.tags,
                    "dataset_digest": metadata.dataset.digest,
                    names.KIND_TAG: names.KIND_TRAIN,
                },
            )
            # The first artifact: a store that takes no artifacts is found before any training.
            client.log_text(run_id, _format_loop_json(metadata), LOOP_JSON)
        dataset = StreamMetadata(
            name=metadata.dataset.name,
            digest=metadata.dataset.digest,
            source="own loop",
            buckets=metadata.buckets,
            num_classes=len(metadata.class_names),
            num_test=metadata.num_instances or (),
            protocol=metadata.protocol,
            split=metadata.split,
            warnings=None,
        )
        recorder.log_dataset(dataset, metadata.seed)
        recorder.open(run)
        self._recorder, self._run_name = recorder, run.info.run_name

    def _load_stored_rows(self, client: MlflowClient, run_id: str) -> Run:
        """Load the run's rows and tests into this object, and return it."""
        run, records = _read_rows(client, run_id)
        self._rows = {}
        for file_name, record in records.items():
            row = record.row.reorder(self._metadata.buckets)
            record = msgspec.structs.replace(record, row=row)
            _check_same_loop(record, self._metadata, f"run {run_id} contains {file_name}")
            self._rows[row.row] = row
        if names.ANYTIME_TAG in run.data.tags:
            self._tests = {(t.bucket, t.test): t for t in read_tests(client, run)}
        if self._rows:
            self.expects_last_row = False  # a continued loop may end before the last row
            self._predictions_type = run.data.tags.get(names.PREDICTIONS_TAG)
            if self._predictions_type is not None and self._metadata.evaluation_set is not None:
                _check_test_images(client, run, self._metadata.evaluation_set)
        return run


def read_joined_rows(shared_run_id: str | None) -> tuple[str | None, dict[int, AccuracyRow]]:
    """Return the id and the rows of the run that a loop would join, or None and no rows.

    shared_run_id: run of another logger, if there is one.
    """
    run_id = shared_run_id or get_active_run_id() or MLFLOW_RUN_ID.get()
    if run_id is None:
        return None, {}
    _, records = _read_rows(preflight(opens_run=False), run_id)
    return run_id, {record.row.row: record.row for record in records.values()}


def _read_rows(client: MlflowClient, run_id: str) -> tuple[Run, dict[str, RowRecord]]:
    """Upload what earlier processes left on local disk, and return the run and its rows."""
    with mlflow_errors(f"read run {run_id}"):
        upload_left_folders(client, client.get_run(run_id))
        run = client.get_run(run_id)
    return run, read_rows(client, run)


def _format_loop_json(metadata: LoopMetadata) -> str:
    """Return the content of own_loop.json: buckets, dataset, classes and parameters."""
    content = {
        "buckets": metadata.buckets,
        "num_instances": metadata.num_instances,
        "class_names": metadata.class_names or None,
        "dataset": {"name": metadata.dataset.name, "digest": metadata.dataset.digest},
        **{key: value for key, value in metadata.grouping.items() if key != "dataset"},
        "params": dict(metadata.params),
    }
    return json.dumps(content, indent=2) + "\n"


def _check_same_loop(record: RowRecord, loop: LoopMetadata, location: str) -> None:
    """Raise TrackingError if a stored row belongs to another loop."""
    row, dataset = record.row, record.dataset
    pairs: dict[str, tuple[object, object]] = {
        "buckets": (row.buckets, loop.buckets),
        "num_instances": (row.num_instances, loop.num_instances),
        "score": (row.score, loop.score),
        "protocol": (record.protocol, loop.protocol),
        "split": (record.split, loop.split),
        "dataset": (dataset.name, loop.dataset.name),
        "dataset_digest": (dataset.digest, loop.dataset.digest),
        "seed": (record.seed, loop.seed),
    }
    for name, (stored, passed) in pairs.items():
        if stored != passed:
            advice = "pass it to track, or " if passed is None else ""
            raise TrackingError(
                f"{location} with {name} {safe_repr(stored)}, but this loop has "
                f"{safe_repr(passed)}; {advice}start a new run"
            )


def _check_test_images(client: MlflowClient, run: Run, images: EvaluationSet) -> None:
    """Raise TrackingError if the predictions stored in a run are for other images than *images*."""
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with folder.open_scratch() as scratch:
        with mlflow_errors(f"read the evaluation set of run {run.info.run_id}"):
            file = folder.fetch_file(EVALUATION_SET_FILE, scratch)
        stored = EvaluationSet.load(file)
    if stored.digest != images.digest:
        raise TrackingError(
            f"the predictions in run {run.info.run_id} belong to other test images; start a new run"
        )
