"""Track a custom training loop as an MLflow run."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import mlflow
import msgspec
from mlflow import MlflowClient

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.dataset import UNKNOWN, DatasetDescription
from clear_mlflow.core.disk import set_offline
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError, TrackingError
from clear_mlflow.core.matrix import SPLITS, AccuracyRow, check_protocol
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    PREDICTIONS_FOLDER,
    RowPredictions,
    format_predictions_file_name,
)
from clear_mlflow.core.record import Record, RowRecord
from clear_mlflow.core.score import RowCost, parse_row_cost
from clear_mlflow.core.text import format_count, printable, safe_repr, truncate, warn
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.metrics import (
    ALL_METRICS,
    DEFAULT_FAMILIES,
    MetricResults,
    adapt_metrics,
    scores,
    split_families,
)
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.report.displayed_run import DisplayedRun
from clear_mlflow.scoring import Scores
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import connect_store, limit_retries, mlflow_errors
from clear_mlflow.tracking.joined_run import read_joined_run
from clear_mlflow.tracking.lifecycle import (
    build_result,
    end_run,
    get_active_run_id,
    join_run,
    open_run,
)
from clear_mlflow.tracking.loop_rows import (
    add_true_labels,
    build_count_row,
    build_prediction_row,
    build_test,
    build_value_row,
    check_accuracy,
    check_same_cost_and_predictions,
    check_same_row,
    parse_int,
    parse_keys,
    parse_num_instances,
    parse_score,
    parse_texts,
)
from clear_mlflow.tracking.run_recorder import RunRecorder, log_dataset

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
    check_protocol(protocol)
    if split not in SPLITS:
        raise ConfigError(f"split is {safe_repr(split)}; expected one of {', '.join(SPLITS)}")
    keys = parse_keys(buckets)
    description = DatasetDescription(
        name=dataset,
        digest=dataset_digest or UNKNOWN,
        protocol=protocol,
        split=split,
        buckets=keys,
        num_test=parse_num_instances(keys, num_instances),
        score=parse_score(score, lower_is_better=lower_is_better),
        class_names=() if class_names is None else tuple(map(str, class_names)),
        source="own loop",
    )
    checked_seed = None if seed is None else parse_int("seed", seed)
    # A row as this loop may log: what cannot be stored raises an error before any training.
    RowRecord.build(build_value_row(description, 0, (0.0,) * len(keys)), description, checked_seed)
    if test_labels is not None:
        description = add_true_labels(description, test_labels, test_ids)
    elif test_ids is not None:
        raise ConfigError("test_ids were passed without test_labels; pass the true labels, too")
    grouping = {
        "strategy": strategy,
        "model": model,
        "dataset": dataset,
        "protocol": protocol,
        "split": split,
        "seed": checked_seed,
        "score": None if description.score.is_accuracy else score,
    }
    grouping_texts = {key: str(value) for key, value in grouping.items() if value is not None}
    further = {"params": parse_texts("params", params), "tags": parse_texts("tags", tags)}
    for name, texts in further.items():
        for key in grouping_texts.keys() & texts.keys():
            if texts[key] != grouping_texts[key]:
                raise ConfigError(
                    f"{name} have {key}={safe_repr(texts[key])}, but {key} is "
                    f"{safe_repr(grouping_texts[key])}; pass it once, as {key}"
                )
    loop_run = LoopRun(
        description,
        checked_seed,
        grouping=grouping_texts,
        params=further["params"],
        tags=further["tags"],
        families=split_families(metrics),
        run_name=run_name,
    )
    set_offline(offline)
    return loop_run


class LoopRun(DisplayedRun):
    """The MLflow run of a custom training loop, made by :func:`clear_mlflow.track`.

    It is a context manager. When :meth:`log_counts` or a similar method returns, a row is on local
    disk, and in the store unless that cannot be reached. ``metrics`` are the families that were
    passed to ``track``, and costs if any were logged; metrics of predictions and of tests within
    buckets are computed at the end of the block.

    Args:
        dataset: what the rows are measured on.
        seed: seed of the run, or None.
        grouping: strategy, seed and so on, to log as parameters and tags.
        params: further parameters to log.
        tags: further tags to log.
        families: metric families to log.
        run_name: name of a run that is opened, or None to build one from *grouping*.
    """

    expects_last_row = True  # False if a framework numbers the rows, and may stop early
    shared_run_id: str | None = None  # run of another logger to join and to end, if there is one

    def __init__(
        self,
        dataset: DatasetDescription,
        seed: int | None,
        *,
        grouping: Mapping[str, str],
        params: Mapping[str, str],
        tags: Mapping[str, str],
        families: tuple[str, ...],
        run_name: str | None,
    ) -> None:
        adapt_metrics(ALL_METRICS, dataset.score)  # raises if the score's name is taken
        self.dataset, self._seed = dataset, seed
        self._grouping, self._params, self._tags = grouping, params, tags
        self._families = families
        self._is_named = run_name is not None
        label = [grouping.get("strategy", "own loop"), dataset.name]
        label += [] if seed is None else [f"seed {seed}"]
        self.name = run_name or truncate(printable(" ".join(label)), 150)
        self.links: tuple[str, ...] = ()  # until the end of the block
        self._recorder: RunRecorder | None = None
        self._is_joined = False
        self._is_over = False
        self._process_id = os.getpid()
        self._lock = threading.RLock()  # rows may come from several threads
        self._scores: Scores | None = None
        self._rows: dict[int, AccuracyRow] = {}  # all rows of the run, by number
        self._tests: dict[tuple[int, int], AnytimeRow] = {}  # by bucket and number
        self._predictions_type: str | None = None  # "labels" or "probs"; None without predictions
        self._predictions: dict[int, bytes | None] = {}  # hash, for each row that this object wrote

    def __enter__(self) -> LoopRun:
        """Open a run or join the active one, and load its rows."""
        if self._recorder is not None:
            raise TrackingError("this run was entered before; call clear_mlflow.track again")
        dist_env = read_dist_env()
        if not dist_env.keeps_record:
            raise ConfigError(
                f"this is process {dist_env.rank} of {dist_env.size}; call track only on rank 0, "
                "or each process would open a run"
            )
        limit_retries()
        client = connect_store(opens_run=self.shared_run_id is None)
        active_id = get_active_run_id()
        self._is_joined = active_id is not None and self.shared_run_id is None
        if run_id := self.shared_run_id or active_id:
            mlflow.flush_async_logging()  # so that the other logger's parameters come first
            join_run(client, run_id)
        else:
            run_id = open_run(
                client,
                self.name,
                # An error here leaves the run as it is.
                lambda run: read_joined_run(client, run.info.run_id, self.dataset, self._seed),
                rename=self._is_named,
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
        """Upload what is left, score the run, and end it.

        Leaves a run open that this object did not open. Prints links to the run. Raises an error of
        the store, unless the block raised an error.
        """
        recorder = self._recorder
        # A forked child closes nothing, and a notebook's cell may run twice.
        if recorder is None or self._is_over or os.getpid() != self._process_id:
            return
        with StoppingSignals() as signals:  # Ctrl-C is raised after the run is closed
            signals.hand_to(recorder.uploader.hurry)
            with self._lock:
                self._is_over = True
            failure = error
            last = len(self.dataset.buckets)
            if error is None and self.expects_last_row and self._rows.keys() == set(range(last)):
                failure = _build_missing_last_row_error(last, self.run_id)
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
        self._scores, self.links = closed.scores, closed.links
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
                :class:`clear_mlflow.core.score.RowCost`, for example
                ``{"training_flops": 10**12}``.

        Raises:
            ConfigError: a value is out of range, or ``num_instances`` is not known.
            RecordError: the numbers do not fit the loop, or the row is stored with other numbers.
            TrackingError: the block has ended.
        """
        self._log(after, cost, lambda dataset: (build_count_row(dataset, after, correct), None))

    def log_accuracies(self, after: int | str, accuracies: object, *, cost: Cost = None) -> None:
        """Store one row like :meth:`log_counts`, from accuracies without counts.

        accuracies: accuracy on each bucket, or a mapping of bucket to accuracy: fractions from 0 to
        1. NaN, None or an absent key means not measured. Raises ConfigError if the run's ``score``
        is not accuracy.
        """
        check_accuracy(self.dataset.score, "accuracies")
        self.log_values(after, accuracies, cost=cost)

    def log_values(self, after: int | str, values: object, *, cost: Cost = None) -> None:
        """Store one row like :meth:`log_accuracies`, with any finite values of the ``score``.

        values: value on each bucket, or a mapping of bucket to value.
        """
        self._log(after, cost, lambda dataset: (build_value_row(dataset, after, values), None))

    def log_predictions(
        self,
        after: int | str,
        predictions: object,
        truth: Sequence[Any] | None = None,
        *,
        cost: Cost = None,
    ) -> None:
        """Store one row like :meth:`log_counts`, and its predictions.

        predictions: an array per bucket: (n,) predicted classes, or (n, classes) probabilities
        after the softmax, in the order of the true labels. truth: true labels like ``test_labels``
        of :func:`track`, if that did not have them: from the first row on, and the same in all
        rows.
        """
        self._log(
            after, cost, lambda dataset: build_prediction_row(dataset, after, predictions), truth
        )

    def _log(
        self,
        after: object,
        cost: Cost,
        build_row: Callable[[DatasetDescription], tuple[AccuracyRow, RowPredictions | None]],
        truth: Sequence[Any] | None = None,
    ) -> None:
        """Store the row that *build_row* returns, unless it is stored already.

        truth: true labels to add to the dataset, or None.
        """
        with self._lock_recorder(f"the row after {safe_repr(after)}", "rows") as recorder:
            dataset = self.dataset if truth is None else add_true_labels(self.dataset, truth)
            row, predictions = build_row(dataset)
            if dataset is not self.dataset:
                if self._rows or self._tests:
                    raise RecordError(
                        "got true labels, but rows or tests were logged without them; pass the "
                        "labels to track: test_labels=[...]"
                    )
                recorder.write_tags(dataset.tags)
                self.dataset = dataset
                recorder.write_file(LOOP_JSON, self._format_json(dataset))
            row = msgspec.structs.replace(row, cost=parse_row_cost(cost))
            content = b"" if predictions is None else predictions.to_bytes()
            digest = hashlib.sha256(content).digest() if content else None
            if (stored_row := self._rows.get(row.row)) is not None:
                check_same_row(stored_row, row)
                check_same_cost_and_predictions(stored_row, row, digest, self._predictions)
                return
            files: dict[str, bytes] = {}
            tags: dict[str, str] = {}
            if predictions is not None:
                has_labels_only = predictions.probabilities is None
                tags[names.PREDICTIONS_TAG] = "labels" if has_labels_only else "probs"
                if self._predictions_type is None and (images := dataset.evaluation_set):
                    files[f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}"] = images.to_bytes()
                files[f"{PREDICTIONS_FOLDER}/{format_predictions_file_name(row.row)}"] = content
            record = RowRecord.build(row, dataset, self._seed)
            recorder.write_row(record, files=files, tags=tags)
            self._predictions_type = tags.get(names.PREDICTIONS_TAG, self._predictions_type)
            self._predictions[row.row] = digest

    def reorder_buckets(self, buckets: tuple[str, ...]) -> None:
        """Reorder the buckets that are not trained yet, in stored rows, too."""
        with self._lock_recorder("an order of buckets", "rows") as recorder:
            dataset, counts = self.dataset, self.dataset.num_test
            if counts is not None:
                count_by_bucket = dict(zip(dataset.buckets, counts, strict=True))
                counts = tuple(count_by_bucket[key] for key in buckets)
            self.dataset = dataset = replace(dataset, buckets=buckets, num_test=counts)
            recorder.write_file(LOOP_JSON, self._format_json(dataset))
            self._rows.update({i: row.reorder(buckets) for i, row in self._rows.items()})

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
                self.dataset,
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
            for stored_row in self._tests.values():
                if stored_row.bucket == row.bucket:
                    row.check_agrees(stored_row)
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
    def record(self) -> Record:  # type: ignore[override]
        """The rows so far, or the stored ones after the block.

        Raises TrackingError if no row is logged yet.
        """
        if self._scores is not None and self._scores.record is not None:
            return self._scores.record
        if not self._rows:
            raise TrackingError("no row is logged yet; log one with log_counts")
        return Record.build(self._rows.values(), self.dataset, self._seed)

    @property
    def _results(self) -> MetricResults:  # type: ignore[override]
        if not self._rows:
            return MetricResults()
        if self._scores is None:
            return scores(self.matrix, self.dataset.protocol, self._families)
        return self._scores.results

    def _describe_problem(self) -> str | None:
        return None if self._rows else repr(self)

    def __repr__(self) -> str:
        run = "not entered" if self._recorder is None else self.run_id
        count = (
            f"{len(self._rows.keys() - {0})} of {format_count(len(self.dataset.buckets), 'row')}"
        )
        return f"LoopRun({self.name!r}, {run}, {count})"

    @contextmanager
    def _lock_recorder(self, item: str, items: str) -> Iterator[RunRecorder]:
        """Lock the recorder during the block, or raise TrackingError outside it."""
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

    def _open_recorder(self, client: MlflowClient, run_id: str) -> None:
        """Load the run's rows, log parameters and dataset, and start recording."""
        dataset = self.dataset
        recorder = RunRecorder(client, run_id, self._families)
        run, rows, self._tests = read_joined_run(client, run_id, dataset, self._seed)
        recorder.rows.update(rows)
        self._rows = recorder.rows
        if rows:
            self.expects_last_row = False  # a continued loop may end before the last row
            self._predictions_type = run.data.tags.get(names.PREDICTIONS_TAG)
        with mlflow_errors(f"log the configuration of run {run_id}"):
            recorder.log_configuration(
                run,
                params={**self._grouping, **self._params},
                grouping=self._grouping,
                tags={**self._tags, **dataset.tags, names.KIND_TAG: names.KIND_TRAIN},
            )
            # The first artifact: a store that takes no artifacts is found before any training.
            ArtifactFolder(client, run).write_file(LOOP_JSON, self._format_json(dataset))
        log_dataset(client, run_id, dataset)
        recorder.open(run)
        self._recorder, self.name = recorder, str(run.info.run_name)

    def _format_json(self, dataset: DatasetDescription) -> bytes:
        content = {
            "buckets": dataset.buckets,
            "num_instances": dataset.num_test,
            "class_names": dataset.class_names or None,
            "dataset": {"name": dataset.name, "digest": dataset.digest},
            **{key: value for key, value in self._grouping.items() if key != "dataset"},
            "params": dict(self._params),
        }
        return f"{json.dumps(content, indent=2)}\n".encode()


def _build_missing_last_row_error(last: int, run_id: str) -> RecordError:
    return RecordError(
        f"row {last} is missing; 0 means before any training. If the loop counts from 0, log i + 1 "
        f"in a new run; otherwise, log row {last} with MLFLOW_RUN_ID={run_id}"
    )
