"""Your own training loop as a tracked run: it hands its rows over, and the rest is done here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Param, Run, RunTag

from clear_mlflow.core.anytime.anytime_row import AnytimeRow
from clear_mlflow.core.distributed import place_of_environment
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError, TrackingError
from clear_mlflow.core.loop_metadata import LoopMetadata, measured_row, measured_test
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.predictions import EVALUATION_SET_FILE, PREDICTIONS_FOLDER, EvaluationSet
from clear_mlflow.core.text import printable, shortened, shown
from clear_mlflow.core.version import __version__
from clear_mlflow.core.warning import warn
from clear_mlflow.learning.measured import MeasuredRow
from clear_mlflow.metrics import (
    ALL_METRICS,
    DEFAULT_FAMILIES,
    explain,
    family_names,
    of_families,
    of_score,
    summarize,
)
from clear_mlflow.runs.lifecycle import close, end, join, open_run, result_of_block
from clear_mlflow.runs.tracked_run import RunMetadata, TrackedRun
from clear_mlflow.scoring.anytime_scores import read_tests
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.scoring.scores import Scores
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import bound_retries, mlflow_errors, preflight
from clear_mlflow.store.rows import read_rows

LOOP_JSON = "own_loop.json"
_LONGEST_NAME = 150
_OWN_TESTS = "own"  # how often a loop of a user's tests inside its buckets is its own affair


class LoopRun:
    """The run of a loop that is not ours; made by :func:`clear_mlflow.track`.

    A row is stored before :meth:`log_row` returns. When the block ends, however it ends, the rows
    are read back and scored. A run that this opened is closed with the status that is true; one
    that was active is left open.

    Args:
        facts: what is known of the loop.
        run_name: of a run that is opened; made of the facts when not given.
        metrics: families of metrics to log, or their names with commas between.

    Raises:
        ConfigError: there is no such family, or the score is called as a metric is.
    """

    def __init__(
        self,
        facts: LoopMetadata,
        run_name: str | None = None,
        metrics: str | Sequence[str] = DEFAULT_FAMILIES,
    ) -> None:
        self._facts = facts
        self._families = family_names(metrics if isinstance(metrics, str) else ",".join(metrics))
        of_score(ALL_METRICS, facts.score)  # refuses a name that cannot be part of theirs
        self._run_name = run_name
        self._client: MlflowClient | None = None
        self._run: _TrackedLoopRun | None = None
        self._joined = False
        self._scores: Scores | None = None

    def __enter__(self) -> LoopRun:
        if self._run is not None:
            raise TrackingError("this run was entered before; call clear_mlflow.track again")
        place = place_of_environment()
        if not place.keeps_record:
            raise ConfigError(
                f"this is process {place.rank} of {place.size}; track in the process of rank 0 "
                "alone, or each of them would open a run"
            )
        bound_retries()
        client = self._client = preflight()
        active = mlflow.active_run()
        self._joined = active is not None
        if active is None:
            run_id = _open_run(client, self._facts, self._run_name)
        else:
            run_id = active.info.run_id
            join(client, run_id)
        try:
            self._run = _TrackedLoopRun(client, run_id, self._facts, self._families)
            self._run.__enter__()
            try:
                self._run.log_loop()
            except BaseException as error:
                self._run.__exit__(type(error), error, error.__traceback__)
                raise
        except BaseException as error:
            if not self._joined:
                with suppress(ClearError):
                    end(client, run_id, "FAILED", f"{type(error).__name__}: {error}")
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._run is None or self._client is None:
            return
        self._run.is_over = True
        failure = error
        try:
            self._run.__exit__(kind, error, traceback)
        except ClearError as refusal:  # the store did not take all
            failure = refusal
        result = result_of_block(failure, self.run_id)
        closed = close(self._client, self.run_id, result, ours=not self._joined)
        self._scores = closed.scores
        with suppress(OSError):  # whoever reads this may have gone
            for line in closed.links:
                print(printable(line), file=sys.stderr, flush=True)
        if closed.problem is not None and error is None:
            raise closed.problem
        if closed.problem is not None:  # the caller's own error must not lose its place
            warn(str(closed.problem))

    def log_row(
        self,
        row: int,
        correct: object = None,
        *,
        accuracy: object = None,
        values: object = None,
        labels: object = None,
        probabilities: object = None,
    ) -> None:
        """Store what a test of all buckets gave, now; metrics and pictures follow by themselves.

        Rows may come in any order. One that comes twice with the same numbers is stored once.

        Args:
            row: buckets trained so far; 0 is the model before any training.
            correct: test images classified correctly, per bucket: integers, or bucket key to
                integer. Not needed where predictions are given.
            accuracy: in place of *correct*, fractions from 0 to 1; NaN, None or an absent key =
                not measured.
            values: in a loop of another score (``track(score="rmse", ...)``), that score on each
                bucket, likewise: any finite numbers.
            labels: predicted class of each test image, in the order of the evaluation set: one
                array, or one for each bucket.
            probabilities: (images, classes), after the softmax, likewise.

        Raises:
            ConfigError: too much or too little arrived, or it has a value that it cannot have.
            RecordError: the numbers do not fit the loop, or the row is stored with others.
            TrackingError: the block has ended.
        """
        if self._run is None or self._run.is_over:
            raise TrackingError(
                f"row {shown(row)} arrived outside of the block; log rows inside of 'with "
                "clear_mlflow.track(...) as run:'"
            )
        found, answers = measured_row(
            self._facts, row, correct, accuracy, labels, probabilities, values
        )
        has_probabilities = answers is not None and answers.probabilities is not None
        self._run.log_once(
            MeasuredRow(found, None if answers is None else answers.to_bytes()),
            kept="probs" if has_probabilities else "labels",
        )

    def log_test(
        self, bucket: int, correct: object, *, test: int, num_tests: int, step: int, num_steps: int
    ) -> None:
        """Store what a test of all buckets gave while one of them is trained on.

        From such tests follow the metrics of continual evaluation (docs/metrics.md). The test at
        the end of a bucket is its row, and goes to :meth:`log_row`.

        Args:
            bucket: that is trained on, counted from 1: row *bucket* follows.
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
        if self._run is None or self._run.is_over:
            raise TrackingError(
                f"a test inside bucket {shown(bucket)} arrived outside of the block; log tests "
                "inside of 'with clear_mlflow.track(...) as run:'"
            )
        self._run.log_test_once(
            measured_test(
                self._facts,
                bucket,
                correct,
                test=test,
                num_tests=num_tests,
                step=step,
                num_steps=num_steps,
            )
        )

    @property
    def run_id(self) -> str:
        """The MLflow run's."""
        if self._run is None:
            raise TrackingError("there is no run yet; it is opened by 'with'")
        return self._run.run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """The rows so far; after the block, as they were read back from the store.

        Raises:
            TrackingError: there is no row.
        """
        if self._scores is not None and self._scores.record is not None:
            return self._scores.record.matrix
        rows = {} if self._run is None else self._run.known
        if not rows:
            raise TrackingError("there is no row yet; log one with log_row")
        return AccuracyMatrix.from_rows(rows.values())

    @property
    def scores(self) -> dict[str, float]:
        """Metric name to value, of the rows so far; what is not defined is not there."""
        if self._scores is not None:
            return dict(self._scores.summary)
        if self._run is None or not self._run.known:
            return {}
        return summarize(self.matrix, self._facts.protocol, of_families(self._families))

    @property
    def reasons(self) -> dict[str, str]:
        """Metric name to why it is not among the scores."""
        if self._scores is not None:
            return dict(self._scores.reasons)
        if self._run is None or not self._run.known:
            return {}
        return explain(self.matrix, self._facts.protocol, of_families(self._families))


class _TrackedLoopRun(TrackedRun):
    """Stores a loop's rows as a training's are; describes the run by what the loop says of itself.

    Args:
        client: the store.
        run_id: of the run, which is there.
        facts: what is known of the loop.
        families: of metrics to log.
    """

    def __init__(
        self, client: MlflowClient, run_id: str, facts: LoopMetadata, families: Sequence[str]
    ) -> None:
        super().__init__(client, run_id, families)
        self._loop = facts
        self._keeps: str | None = None
        self._tests: dict[tuple[int, int], AnytimeRow] = {}  # by bucket and number
        self.known: dict[int, AccuracyRow] = {}  # rows that the run holds
        self.is_over = False

    def log_once(self, measured: MeasuredRow, *, kept: str) -> None:
        """Store a row, unless it is stored.

        Args:
            measured: the row.
            kept: what its predictions are, where it has some.

        Raises:
            RecordError: it is stored with other numbers.
        """
        row = measured.row
        there = self.known.get(row.row)
        if there is not None:
            if there != row:
                raise RecordError(
                    f"row {row.row} is stored already with other numbers "
                    f"({shown(_numbers(there))}, and now {shown(_numbers(row))}); a row is what "
                    "was measured once: start a new run"
                )
            return
        self.log_row(measured)
        self.known[row.row] = row
        if measured.predictions is not None and self._keeps != kept:
            self._keeps = kept
            with mlflow_errors(f"say that run {self.run_id} keeps predictions"):
                self.client.set_tag(self.run_id, names.PREDICTIONS_TAG, kept)

    def log_test_once(self, test: AnytimeRow) -> None:
        """Store a test inside a bucket, unless it is stored.

        Args:
            test: the test.

        Raises:
            RecordError: it is stored with other numbers.
        """
        place = test.bucket, test.test
        if place in self._tests:
            if self._tests[place] != test:
                raise RecordError(
                    f"test {test.test} inside bucket {test.bucket} is stored already with other "
                    "numbers; a test is what was measured once: start a new run"
                )
            return
        if not self._tests:
            with mlflow_errors(f"say that run {self.run_id} is tested inside its buckets"):
                self.client.set_tag(self.run_id, names.ANYTIME_TAG, _OWN_TESTS)
        self.log_test(test)
        self._tests[place] = test

    def log_loop(self) -> None:
        """Log the dataset as an MLflow input, and the images that predictions will be of."""
        loop = self._loop
        profile: dict[str, Any] = {
            "digest": loop.dataset.digest,
            "protocol": loop.protocol,
            "split": loop.split,
        }
        if loop.num_instances is not None:
            profile["num_test"] = dict(zip(loop.buckets, loop.num_instances, strict=True))
        if loop.class_names:
            profile["num_classes"] = len(loop.class_names)
        about = RunMetadata(
            dataset=loop.dataset, protocol=loop.protocol, split=loop.split, seed=loop.seed
        )
        self._log_dataset(about, source="own loop", profile=profile)
        if loop.evaluation_set is not None and self._keeps is None:
            self._send_evaluation_set(loop.evaluation_set.to_bytes())

    def _describe(self, run: Run) -> None:
        """Say what the loop is; rows that the run holds already have to be of the same loop."""
        self._take_up(run)
        params = {**self._loop.facts, **self._loop.params}
        missing = [
            Param(name, text) for name, text in params.items() if name not in run.data.params
        ]
        # In a run of the user's own, what is there is theirs.
        tags = {k: v for k, v in self._loop.facts.items() if k not in run.data.tags}
        tags |= {
            **self._loop.tags,
            "dataset_digest": self._loop.dataset.digest,
            names.KIND_TAG: names.KIND_TRAIN,
            names.VERSION_TAG: __version__,
            **families_tag(self.families, run.data.tags),
        }
        if names.ERROR_TAG in run.data.tags:  # of an earlier try
            self.client.delete_tag(self.run_id, names.ERROR_TAG)
        told = [RunTag(key, text) for key, text in tags.items()]
        self.client.log_batch(self.run_id, params=missing, tags=told)
        # The first artifact: a store that takes no artifacts is found before any training.
        self.client.log_text(self.run_id, _as_json(self._loop), LOOP_JSON)

    def _take_up(self, run: Run) -> None:
        """Know the rows that are there."""
        self.known = _rows_of(self.client, run, self._loop)
        self._rows.extend(self.known.values())
        if names.ANYTIME_TAG in run.data.tags:
            self._tests = {(t.bucket, t.test): t for t in read_tests(self.client, run)}
        if self.known and names.PREDICTIONS_TAG in run.data.tags:
            self._keeps = run.data.tags[names.PREDICTIONS_TAG]
            if self._loop.evaluation_set is not None:
                _check_images(self.client, run, self._loop.evaluation_set)


def _rows_of(client: MlflowClient, run: Run, loop: LoopMetadata) -> dict[int, AccuracyRow]:
    """The rows that a run holds.

    Raises:
        TrackingError: they are not of this loop.
    """
    found = {}
    for name, record in read_rows(client, run).items():
        row = record.row
        told: Mapping[str, tuple[object, object]] = {
            "buckets": (row.buckets, loop.buckets),
            "num_instances": (row.num_instances, loop.num_instances),
            "score": (row.score, loop.score),
            "protocol": (record.protocol, loop.protocol),
            "split": (record.split, loop.split),
            "dataset": (record.dataset.name, loop.dataset.name),
            "dataset_digest": (record.dataset.digest, loop.dataset.digest),
            "seed": (record.seed, loop.seed),
        }
        for what, (there, here) in told.items():
            if there != here:
                raise TrackingError(
                    f"run {run.info.run_id} holds {name} with {what} {shown(there)}, but this loop "
                    f"has {shown(here)}; start a new run"
                )
        found[row.row] = row
    return found


def _open_run(client: MlflowClient, facts: LoopMetadata, run_name: str | None) -> str:
    """Start an MLflow run, or take up the one that the environment names."""
    return open_run(
        client,
        run_name or _run_name(facts),
        lambda run: _rows_of(client, run, facts),  # a run of another loop is left as it is
        rename=run_name is not None,
    )


def _check_images(client: MlflowClient, run: Run, images: EvaluationSet) -> None:
    """Make sure that the images that a run's predictions are of are these.

    Raises:
        TrackingError: they are others.
    """
    folder = ArtifactFolder(client, run, PREDICTIONS_FOLDER)
    with folder.scratch() as scratch:
        with mlflow_errors(f"read the evaluation set of run {run.info.run_id}"):
            file = folder.file(EVALUATION_SET_FILE, scratch)
        stored = EvaluationSet.load(file)
    if stored.digest != images.digest:
        raise TrackingError(
            f"the predictions in run {run.info.run_id} are of other test images; start a new run"
        )


def _run_name(facts: LoopMetadata) -> str:
    """What a run is called where nobody named it."""
    parts = [facts.facts.get("strategy", "own loop"), facts.dataset.name]
    if facts.seed is not None:
        parts.append(f"seed {facts.seed}")
    return shortened(printable(" ".join(parts)), _LONGEST_NAME)


def _numbers(row: AccuracyRow) -> object:
    return row.cells if row.correct is None else row.correct


def _as_json(facts: LoopMetadata) -> str:
    told = {
        "buckets": facts.buckets,
        "num_instances": facts.num_instances,
        "class_names": facts.class_names or None,
        "dataset": {"name": facts.dataset.name, "digest": facts.dataset.digest},
        **{key: value for key, value in facts.facts.items() if key != "dataset"},
        "params": dict(facts.params),
    }
    return json.dumps(told, indent=2) + "\n"
