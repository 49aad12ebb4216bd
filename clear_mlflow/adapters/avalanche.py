"""Avalanche's evaluations as a tracked run: a logger for its EvaluationPlugin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metrics import ExperienceAccuracy
from avalanche.logging import BaseLogger

from clear_mlflow.adapters._run import Adapter, convert_metric
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.tracking.joined_run import read_rows_to_join


class MLflowAccuracyMatrix(Adapter, BaseLogger):
    """Stores a row of the matrix after each evaluation of a stream.

    ``EvaluationPlugin(accuracy_metrics(experience=True), loggers=[MLflowAccuracyMatrix()])``

    R[i, j] is the value of Avalanche's metric on experience j after training on experience i, in
    the order in which the experiences are trained. An evaluation before any training is row 0.
    Evaluations during the training of an experience are ignored, except for one after its last
    iteration. A loop that joins a run with rows continues after the experiences trained there.

    Args:
        stream: name of the test stream; evaluations of other streams are ignored.
        metric: class of Avalanche's metric whose values are stored.
        **options: arguments of :func:`clear_mlflow.track`: ``dataset``, ``strategy``, ``seed``, ...
    """

    def __init__(
        self, *, stream: str = "test", metric: type = ExperienceAccuracy, **options: Any
    ) -> None:
        BaseLogger.__init__(self)
        Adapter.__init__(self, options)
        self._stream = stream
        self._metric = metric
        # Experiences in the order of their training, from 0. None if some were trained before this
        # process: its first training decides how many.
        self._order: list[int] | None = None
        self._earlier: list[int] | None = None  # trained before this process; None = not looked up
        self._stored_row = 0  # last row of the joined run
        self._is_training = False  # an experience is being trained
        self._accuracies: dict[int, float] = {}  # of the current evaluation
        self._pending_row: dict[int, float] = {}  # measured since the last training iteration
        self._row_iteration = -1
        self._online_bucket: Any = None  # experience of which an online stream trains parts
        self._num_parts = 0  # parts of that experience trained so far
        self._num_images: tuple[int, ...] = ()  # test images per experience
        self._num_train = 0  # experiences of the training stream; 0 if unknown

    def before_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Log the row of tests since the last training, if any.

        Starts to measure training time. Before the first experience this is row 0. Experiences that
        were not tested are NaN. Raises ConfigError if the numbers of training and test experiences
        differ, if an experience is trained again, or if the joined run has a row of another
        experience in its place.
        """
        experience = strategy.experience.logging()
        # An online stream splits each experience of another stream into parts.
        bucket = getattr(experience, "origin_experience", None) or experience
        if bucket is not self._online_bucket:
            self._is_training = False
            self._drop_outdated_accuracies(strategy)
            stream = bucket.origin_stream
            self._num_train = len(stream) if hasattr(stream, "__len__") else 0
            is_part = bucket is not experience
            self._add_experience(strategy, bucket.current_experience, is_part=is_part)
            self._online_bucket, self._num_parts = bucket, 0
            self._check_num_experiences()
        self._is_training = True
        self._start_clock()

    def _add_experience(self, strategy: Any, experience: int, *, is_part: bool) -> None:
        """Log the pending row, and append an experience, or raise ConfigError."""
        earlier = self._read_earlier(strategy)
        if self._order is None:
            if is_part and self._stored_row == 0:  # the strategy has counted parts
                earlier = list(range(experience))
            position = earlier.index(experience) if experience in earlier else len(earlier)
            self._order = earlier[:position]
        self._log_pending_row()
        order = [*self._order, experience]
        if experience in self._order:
            raise ConfigError(
                f"experience {experience + 1} is trained again, after {_join(self._order)}; an "
                "accuracy matrix has one row for each. Train it once, with train_epochs, or "
                "without this logger"
            )
        stored = earlier[: self._stored_row]
        if order[: len(stored)] != stored[: len(order)]:
            raise ConfigError(
                f"the joined run has rows of training on experiences {_join(stored)}, but now "
                f"{_join(order)} are trained; start a new run"
            )
        self._order = order

    def after_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Stop the clock and count the trained experience.

        An online stream trains an experience in parts: it counts after the last part. After the
        last experience, logs the row if all were tested since the last training iteration.
        """
        self._stop_clock(strategy.model)
        self._drop_outdated_accuracies(strategy)
        experience = strategy.experience.logging()
        self._num_parts += 1
        if self._num_parts < (getattr(experience, "sub_stream_length", None) or 1):
            return
        self._is_training = False
        if len(self._order or ()) == len(self._num_images) == len(self._pending_row):
            self._log_pending_row()

    def before_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Pause the measured training time, and discard accuracies of an earlier evaluation."""
        self._read_earlier(strategy)
        self._stop_clock(strategy.model)
        self._accuracies = {}

    def after_eval_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Remember the accuracy on an experience of the configured test stream.

        Raises ConfigError if the numbers of training and test experiences differ.
        """
        experience = strategy.experience
        stream = experience.origin_stream
        if stream.name != self._stream:
            return
        self._num_images = self._num_images or _count_test_images(stream)
        self._check_num_experiences()
        for value in metric_values:
            if isinstance(value.origin, self._metric):
                name = f"{value.origin} of experience {experience.current_experience}"
                self._accuracies[experience.current_experience] = convert_metric(name, value.value)

    def after_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Log the row if all experiences were tested since the last training.

        Otherwise the accuracies wait for another evaluation. During training, nothing is logged.
        """
        if self._is_training:
            self._start_clock()
        if not self._accuracies:
            return
        self._drop_outdated_accuracies(strategy)
        self._row_iteration = strategy.clock.train_iterations
        self._pending_row.update(self._accuracies)
        is_complete = len(self._pending_row) == len(self._num_images)
        if is_complete and not self._is_training and self._order is not None:
            self._log_pending_row()
        else:
            self._register_close_at_exit()

    def _drop_outdated_accuracies(self, strategy: Any) -> None:
        """Discard accuracies that were measured before the last training iteration."""
        if self._row_iteration != strategy.clock.train_iterations:
            self._pending_row = {}

    def _read_earlier(self, strategy: Any) -> list[int]:
        """Upload what earlier processes left, once, and read the trained experiences."""
        if self._earlier is None:
            run_id, rows = read_rows_to_join(self._shared_run_id)
            self._stored_row = max(rows, default=0)
            self._earlier = list(range(int(strategy.clock.train_exp_counter)))
            if rows:
                buckets = rows[self._stored_row].buckets
                keys = [str(j + 1) for j in range(len(buckets))]
                if set(buckets) != set(keys):
                    raise ConfigError(
                        f"run {run_id} has rows of the buckets {safe_repr(buckets)}, and not of "
                        "numbered experiences; start a new run"
                    )
                self._earlier = [keys.index(key) for key in buckets[: self._stored_row]]
            if self._order is None and not self._earlier:
                self._order = []
        return self._earlier

    def _check_num_experiences(self) -> None:
        num_train = self._num_train or max(self._order or (-1,)) + 1
        num_test = len(self._num_images)
        if num_test and num_test != num_train and (self._num_train or num_test < num_train):
            raise ConfigError(
                f"the stream {self._stream!r} has {format_count(num_test, 'experience')}, and "
                f"{num_train} are trained; an accuracy matrix needs a test set for each"
            )

    def _log_pending_row(self) -> None:
        """Log the accuracies measured after training as a row, if any."""
        if self._pending_row and not self._is_training:
            earlier = self._earlier or []
            trained = earlier if self._order is None else self._order
            # Those that are not trained yet follow, as in the joined run or else by number.
            order = list(dict.fromkeys([*trained, *earlier, *range(len(self._num_images))]))
            cells = [self._pending_row.get(j, math.nan) for j in order]
            self._pending_row = {}
            buckets = [str(j + 1) for j in order]  # as in imported results of Avalanche
            self._log_row(len(trained), buckets, cells, [self._num_images[j] for j in order])


def _join(experiences: Sequence[int]) -> str:
    """Return the numbers of experiences, from 1, separated by commas."""
    return ", ".join(str(j + 1) for j in experiences)


def _count_test_images(stream: Any) -> tuple[int, ...]:
    """Count the images of all experiences, even of a slice."""
    streams = {} if stream.benchmark is None else stream.benchmark.streams
    return tuple(len(experience.dataset) for experience in streams.get(stream.name, stream))
