"""Your own training loop as a tracked run: it hands its rows over, and the rest is done here."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Param, Run, RunTag

from clear_mlflow.core.anytime.anytime_row import AnytimeRow
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError, TrackingError
from clear_mlflow.core.loop_metadata import (
    LoopMetadata,
    check_accuracy,
    measured_test,
    row_of_counts,
    row_of_predictions,
    row_of_values,
    with_truth,
)
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow, RowCost, row_cost
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import Record, assemble, row_file_name
from clear_mlflow.core.text import printable, safe_repr, truncate, warn
from clear_mlflow.core.version import __version__, software
from clear_mlflow.journal.run_folder import TAGS_JSON, Outcome
from clear_mlflow.journal.uploader import store_outcome, upload_left_folders
from clear_mlflow.metrics import ALL_METRICS, DEFAULT_FAMILIES, family_names, of_score
from clear_mlflow.metrics._results import MetricResults, scores
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.report.page.fragment import run_html
from clear_mlflow.report.terminal_tables import as_text, run_text
from clear_mlflow.scoring.beside import read_tests
from clear_mlflow.scoring.computed import Scores
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import limit_retries, mlflow_errors, preflight
from clear_mlflow.store.rows import read_rows
from clear_mlflow.tracking.lifecycle import build_result, end_run, join_run, open_run
from clear_mlflow.tracking.run_recorder import RunRecorder, utc_now

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOP_JSON = "own_loop.json"
_LONGEST_NAME = 150
Cost: TypeAlias = RowCost | Mapping[str, object] | None
_OWN_TESTS = "own"  # how often a loop of a user's tests inside its buckets is its own affair


class LoopRun:
    """The run of a loop that is not ours; made by :func:`clear_mlflow.track`.

    A row is stored before :meth:`log_counts` and its like return. When the block ends, however it
    ends, the rows are read back and scored. A run that this opened is closed with the status that
    is true; one that was active is left open. ``print`` and a notebook show the rows so far;
    ``clear_mlflow.load(run.run_id)`` is the stored run, with frames and JSON.

    Args:
        facts: what is known of the loop.
        run_name: of a run that is opened; made of the facts when not given.
        metrics: families of metrics to log, or their names with commas between.
        run_id: run that another logger opened, to join and to end; None to join the active run,
            or to open one.

    Raises:
        ConfigError: there is no such family, or the score is called as a metric is.
    """

    expects_last_row = True  # False: a framework numbers the rows, and may stop early

    def __init__(
        self,
        facts: LoopMetadata,
        run_name: str | None = None,
        metrics: str | Sequence[str] = DEFAULT_FAMILIES,
        run_id: str | None = None,
    ) -> None:
        self._facts = facts
        self._shared_run_id = run_id
        self._families = family_names(metrics if isinstance(metrics, str) else ",".join(metrics))
        of_score(ALL_METRICS, facts.score)  # refuses a name that cannot be part of theirs
        self._run_name = run_name
        self._recorder: RunRecorder | None = None
        self._joined = False
        self._is_over = False
        self._process_id = os.getpid()
        self._lock = threading.RLock()  # one row at a time, from whichever thread
        self._scores: Scores | None = None
        self._links: tuple[str, ...] = ()
        self._rows: dict[int, AccuracyRow] = {}  # that the run holds
        self._tests: dict[tuple[int, int], AnytimeRow] = {}  # by bucket and number
        self._predictions: str | None = None  # what the run keeps of them: labels or probs

    def __enter__(self) -> LoopRun:
        if self._recorder is not None:
            raise TrackingError("this run was entered before; call clear_mlflow.track again")
        place = read_dist_env()
        if not place.keeps_record:
            raise ConfigError(
                f"this is process {place.rank} of {place.size}; track in the process of rank 0 "
                "alone, or each of them would open a run"
            )
        limit_retries()
        client = preflight(opens_run=self._shared_run_id is None)
        active = mlflow.active_run()
        shared_run_id = self._shared_run_id or (active and active.info.run_id)
        self._joined = active is not None and self._shared_run_id is None
        if shared_run_id is None:
            run_id = open_run(
                client,
                self._name,
                lambda run: self._load_stored(client, run.info.run_id),  # else it is left as it is
                rename=self._run_name is not None,
            )
        else:
            run_id = str(shared_run_id)
            mlflow.flush_async_logging()  # the other logger's parameters come first
            join_run(client, run_id)
        try:
            recorder = RunRecorder(client, run_id, self._families)
            run = self._load_stored(client, run_id)
            recorder.rows.update(self._rows)
            self._rows = recorder.rows
            with mlflow_errors(f"log the configuration of run {run_id}"):
                self._describe(client, run)
            recorder.open(run)
            try:
                self._log_dataset(recorder)
            except BaseException as error:
                recorder.close(error)
                raise
        except BaseException as error:
            result = build_result(error, run_id)
            with suppress(ClearError):
                outcome = Outcome(None) if self._joined else result.build_outcome()
                store_outcome(client, run_id, outcome)
            raise
        self._recorder, self._run_name = recorder, run.info.run_name
        self._process_id = os.getpid()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        recorder = self._recorder
        if recorder is None or os.getpid() != self._process_id:  # a forked child closes nothing
            return
        with StoppingSignals() as signals:  # Ctrl-C is raised when the run has its end status
            signals.hand_to(recorder.uploader.hurry)
            with self._lock:
                self._is_over = True
            failure = error or self._find_missing_row()
            try:
                recorder.close(error)
            except ClearError as refusal:  # the store did not take all
                refusal.__cause__ = refusal.__cause__ or failure
                failure = refusal
            result = build_result(failure, self.run_id)
            closed = end_run(
                recorder.client,
                self.run_id,
                result,
                sets_status=not self._joined,
                stored_rows=recorder.rows_by_run,
            )
        self._scores, self._links = closed.scores, tuple(closed.links)
        with suppress(OSError):  # whoever reads this may have gone
            for line in closed.links:
                print(printable(line), file=sys.stderr, flush=True)
        problem = closed.problem or (None if failure is error else failure)
        if problem is not None and (error is not None or signals.received):
            warn(str(problem))  # the caller's own error must not lose its place
        signals.raise_received()
        if problem is not None and error is None:
            raise problem

    def log_counts(self, after: int | str, correct: object, *, cost: Cost = None) -> None:
        """Store what a test of all buckets gave, now; metrics and pictures follow by themselves.

        Rows may come in any order. One that comes twice with the same numbers is stored once.

        Args:
            after: the bucket that was trained on last: its number, from 1, or its name as a text;
                0 is the model before any training.
            correct: test images classified correctly, per bucket: integers, or bucket key to
                integer.
            cost: of the training since the row before, as far as it is known: fields of
                :class:`clear_mlflow.core.matrix.RowCost`, as
                ``{"training_flops": 10**12}``.

        Raises:
            ConfigError: it has a value that it cannot have, or ``num_instances`` is not known.
            RecordError: the numbers do not fit the loop, or the row is stored with others.
            TrackingError: the block has ended.
        """
        self._log(after, cost, lambda: (row_of_counts(self._facts, after, correct), None))

    def log_accuracies(self, after: int | str, accuracies: object, *, cost: Cost = None) -> None:
        """As :meth:`log_counts`, where only accuracies are known.

        Args:
            after: as of :meth:`log_counts`.
            accuracies: on each bucket, or bucket key to accuracy: fractions from 0 to 1; NaN, None
                or an absent key = not measured.
            cost: as of :meth:`log_counts`.
        """
        check_accuracy(self._facts, "accuracies")
        self.log_values(after, accuracies, cost=cost)

    def log_values(self, after: int | str, values: object, *, cost: Cost = None) -> None:
        """As :meth:`log_accuracies`, of the loop's ``score``: any finite numbers."""
        self._log(after, cost, lambda: (row_of_values(self._facts, after, values), None))

    def log_predictions(
        self,
        after: int | str,
        predictions: object,
        truth: Sequence[Any] | None = None,
        *,
        cost: Cost = None,
    ) -> None:
        """As :meth:`log_counts`, by the answer for each test image; the counts follow.

        Args:
            after: as of :meth:`log_counts`.
            predictions: for each bucket, (n,) predicted classes, or (n, classes) probabilities
                after the softmax, in the order of the true labels.
            truth: as ``test_labels`` of :func:`track`, where that did not have them: from the
                first row on, and the same in all.
            cost: as of :meth:`log_counts`.
        """

        def measured() -> tuple[AccuracyRow, RowPredictions]:
            loop = self._facts if truth is None else with_truth(self._facts, truth)
            found = row_of_predictions(loop, after, predictions)
            if loop is not self._facts:
                self._learn(loop)
            return found

        self._log(after, cost, measured)

    def _learn(self, loop: LoopMetadata) -> None:
        """Store the true labels' digest in the run, and in all rows from now on."""
        if self._rows or self._tests:
            raise RecordError(
                "true labels arrived after rows without them; pass them to track: test_labels=[...]"
            )
        with self._writing("the truth", "rows") as recorder:
            recorder.write_tags({"dataset_digest": loop.dataset.digest})
            recorder.write_file(LOOP_JSON, _describe_loop(loop).encode())
            recorder.build_record = partial(recorder.build_record, dataset=loop.dataset)
            self._facts = loop

    def _log(
        self,
        after: object,
        cost: Cost,
        measured: Callable[[], tuple[AccuracyRow, RowPredictions | None]],
    ) -> None:
        with self._writing(f"the row after {safe_repr(after)}", "rows") as recorder:
            row, predictions = measured()
            row = replace(row, cost=row_cost(cost))
            stored_row = self._rows.get(row.row)
            if stored_row == row:
                return
            if stored_row is not None:
                raise RecordError(
                    f"row {row.row} is stored already with other numbers "
                    f"({safe_repr(_numbers(stored_row))}, and now {safe_repr(_numbers(row))}); a "
                    "row is what was measured once: start a new run"
                )
            files: dict[str, bytes] = {}
            predictions_type = self._predictions
            if predictions is not None:
                predictions_type = "labels" if predictions.probabilities is None else "probs"
                if self._predictions is None and (images := self._facts.evaluation_set):
                    files[f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"] = images.to_bytes()
                path = f"{PREDICTIONS_FOLDER}/{predictions_file_name(row.row)}"
                files[path] = predictions.to_bytes()
                files[TAGS_JSON] = json.dumps({names.PREDICTIONS_TAG: predictions_type}).encode()
            recorder.write_row(recorder.build_record(row=row, written_at=utc_now()), files=files)
            self._predictions = predictions_type

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
        """Store what a test of all buckets gave while one of them is trained on.

        From such tests follow the metrics of continual evaluation (docs/metrics.md). The test at
        the end of a bucket is its row, and goes to :meth:`log_counts`.

        Args:
            bucket: that is trained on: its number, from 1, or its name as a text.
            correct: test images classified correctly, per bucket: integers, or bucket key to
                integer.
            test: which of the tests inside this bucket it is, from 1.
            num_tests: inside this bucket, the same in all of them.
            step: optimiser steps on this bucket so far, from 1.
            num_steps: that the bucket takes in all; more than *step*.

        Raises:
            ConfigError: the loop has no counts of test images, or a value is one that it cannot
                have.
            RecordError: the numbers do not fit the loop, or the test is stored with others.
            TrackingError: the block has ended.
        """
        with self._writing(f"a test inside bucket {safe_repr(bucket)}", "tests") as recorder:
            row = measured_test(
                self._facts,
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
                recorder.write_tags({names.ANYTIME_TAG: _OWN_TESTS})
            recorder.write_test(row)
            self._tests[row.bucket, row.test] = row

    @property
    def run_id(self) -> str:
        """The MLflow run's."""
        if self._recorder is None:
            raise TrackingError("there is no run yet; it is opened by 'with'")
        return self._recorder.run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """The rows so far; after the block, as they were read back from the store.

        Raises:
            TrackingError: there is no row.
        """
        if (record := self._record) is None:
            raise TrackingError("there is no row yet; log one with log_counts")
        return record.matrix

    @property
    def metrics(self) -> MetricResults:
        """Every metric of the rows so far: its value and course, or why it has none."""
        if not self._rows:
            return MetricResults()
        if self._scores is None:
            return scores(self.matrix, self._facts.protocol, self._families)
        return self._scores.results()

    def plot(self, title: str = "", *, width: float | None = None) -> Figure:
        """The cells that are evidence, as :meth:`AccuracyMatrix.plot`."""
        return self.matrix.masked(self._facts.protocol).plot(title, width=width)

    def _repr_html_(self) -> str:
        if (record := self._record) is None:
            return run_html(repr(self), None)
        return run_html(self._name, record.evidence, self.metrics.values(), self._links)

    def __str__(self) -> str:
        if (record := self._record) is None:
            return repr(self)
        return as_text(*run_text(record, self.metrics.values()), "", *self._links)

    def __repr__(self) -> str:
        run = "not entered" if self._recorder is None else self.run_id
        count = f"{len(self._rows)} rows of {len(self._facts.buckets)} buckets"
        return f"LoopRun({self._name!r}, {run}, {count})"

    @property
    def _record(self) -> Record | None:
        """The rows so far; after the block, as they were read back from the store."""
        if self._scores is not None and self._scores.record is not None:
            return self._scores.record
        if self._recorder is None or not self._rows:
            return None
        build_record, time = self._recorder.build_record, utc_now()
        return assemble(
            {row_file_name(i): build_record(row=r, written_at=time) for i, r in self._rows.items()}
        )

    @property
    def _name(self) -> str:
        """What the run is called where nobody else named it."""
        parts = [self._facts.facts.get("strategy", "own loop"), self._facts.dataset.name]
        if self._facts.seed is not None:
            parts.append(f"seed {self._facts.seed}")
        return self._run_name or truncate(printable(" ".join(parts)), _LONGEST_NAME)

    @contextmanager
    def _writing(self, what: str, how: str) -> Iterator[RunRecorder]:
        """Return the recorder of the open run, locked for this thread."""
        if os.getpid() != self._process_id:  # before the lock: a thread may have had it at the fork
            raise TrackingError(
                f"{what} arrived in process {os.getpid()}, forked from process {self._process_id}; "
                f"log {how} in the process that opened the run"
            )
        with self._lock:
            if self._recorder is None or self._is_over:
                raise TrackingError(
                    f"{what} arrived outside of the block; log {how} inside of 'with "
                    "clear_mlflow.track(...) as run:'"
                )
            yield self._recorder

    def _find_missing_row(self) -> RecordError | None:
        """Return an error if the last row is missing and row 0 took its place."""
        last = len(self._facts.buckets)
        message = (
            f"row {last} is missing; 0 means before any training. If the loop counts from 0, log "
            f"i + 1 in a new run; otherwise, log row {last} with MLFLOW_RUN_ID={self.run_id}"
        )
        is_missing = self.expects_last_row and self._rows.keys() == set(range(last))
        return RecordError(message) if is_missing else None

    def _load_stored(self, client: MlflowClient, run_id: str) -> Run:
        """Send what waits on this machine, then load the run, which must be of this loop."""
        with mlflow_errors(f"read run {run_id}"):
            upload_left_folders(client, client.get_run(run_id))
            run = client.get_run(run_id)
        loop = self._facts
        self._rows = _rows_of(client, run, loop)
        if self._rows:
            self.expects_last_row = False  # a loop that is continued may end before the last row
        if names.ANYTIME_TAG in run.data.tags:
            self._tests = {(t.bucket, t.test): t for t in read_tests(client, run)}
        if self._rows and names.PREDICTIONS_TAG in run.data.tags:
            self._predictions = run.data.tags[names.PREDICTIONS_TAG]
            if loop.evaluation_set is not None:
                _check_images(client, run, loop.evaluation_set)
        return run

    def _describe(self, client: MlflowClient, run: Run) -> None:
        """Log the loop's parameters and tags."""
        loop, run_id = self._facts, run.info.run_id
        params = {**loop.facts, **loop.params}
        missing = [
            Param(name, text) for name, text in params.items() if name not in run.data.params
        ]
        # In a run of the user's own, what is there is theirs.
        tags = {k: v for k, v in loop.facts.items() if k not in run.data.tags}
        tags |= {
            **loop.tags,
            "dataset_digest": loop.dataset.digest,
            names.KIND_TAG: names.KIND_TRAIN,
            names.VERSION_TAG: __version__,
            names.SOFTWARE_TAG: software(),
            **families_tag(self._families, run.data.tags),
        }
        if names.ERROR_TAG in run.data.tags:  # of an earlier try
            client.delete_tag(run_id, names.ERROR_TAG)
        client.log_batch(run_id, params=missing, tags=[RunTag(k, v) for k, v in tags.items()])
        # The first artifact: a store that takes no artifacts is found before any training.
        client.log_text(run_id, _describe_loop(loop), LOOP_JSON)

    def _log_dataset(self, recorder: RunRecorder) -> None:
        """Log the dataset as an MLflow input, which stays what was known as the run began."""
        loop = self._facts
        profile: dict[str, Any] = {
            "digest": loop.dataset.digest,
            "protocol": loop.protocol,
            "split": loop.split,
        }
        if loop.num_instances is not None:
            profile["num_test"] = dict(zip(loop.buckets, loop.num_instances, strict=True))
        if loop.class_names:
            profile["num_classes"] = len(loop.class_names)
        recorder.log_dataset(
            source="own loop",
            profile=profile,
            **{name: getattr(loop, name) for name in ("dataset", "protocol", "split", "seed")},
        )


def _describe_loop(loop: LoopMetadata) -> str:
    """Return the text of own_loop.json."""
    content = {
        "buckets": loop.buckets,
        "num_instances": loop.num_instances,
        "class_names": loop.class_names or None,
        "dataset": {"name": loop.dataset.name, "digest": loop.dataset.digest},
        **{key: value for key, value in loop.facts.items() if key != "dataset"},
        "params": dict(loop.params),
    }
    return json.dumps(content, indent=2) + "\n"


def _rows_of(client: MlflowClient, run: Run, loop: LoopMetadata) -> dict[int, AccuracyRow]:
    """The rows that a run holds; TrackingError where they are not of this loop."""
    found = {}
    for name, record in read_rows(client, run).items():
        row = record.row
        both: Mapping[str, tuple[object, object]] = {
            "buckets": (row.buckets, loop.buckets),
            "num_instances": (row.num_instances, loop.num_instances),
            "score": (row.score, loop.score),
            "protocol": (record.protocol, loop.protocol),
            "split": (record.split, loop.split),
            "dataset": (record.dataset.name, loop.dataset.name),
            "dataset_digest": (record.dataset.digest, loop.dataset.digest),
            "seed": (record.seed, loop.seed),
        }
        for what, (there, here) in both.items():
            if there != here:
                raise TrackingError(
                    f"run {run.info.run_id} holds {name} with {what} {safe_repr(there)}, but this "
                    f"loop has {safe_repr(here)}; "
                    f"{'pass it to track, or ' if here is None else ''}start a new run"
                )
        found[row.row] = row
    return found


def _check_images(client: MlflowClient, run: Run, images: EvaluationSet) -> None:
    """Make sure that the images that a run's predictions are of are these."""
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with folder.open_scratch() as scratch:
        with mlflow_errors(f"read the evaluation set of run {run.info.run_id}"):
            file = folder.fetch_file(EVALUATION_SET_FILE, scratch)
        stored = EvaluationSet.load(file)
    if stored.digest != images.digest:
        raise TrackingError(
            f"the predictions in run {run.info.run_id} are of other test images; start a new run"
        )


def _numbers(row: AccuracyRow) -> object:
    return row.cells if row.correct is None else row.correct
