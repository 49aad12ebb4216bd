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


class MLflowAccuracyMatrix(Adapter, BaseLogger):
    """Stores a row of the accuracy matrix after each evaluation of a stream.

    ``EvaluationPlugin(accuracy_metrics(experience=True), loggers=[MLflowAccuracyMatrix()])``

    R[i, j] is the value of Avalanche's metric on experience j after training on experience i. An
    evaluation before any training is row 0. Evaluations during the training of an experience are
    ignored, except for one after its last iteration.

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
        self._num_trained: int | None = None  # experiences; None before the first hook
        self._is_training = False  # an experience is being trained
        self._accuracies: dict[int, float] = {}  # of the current evaluation
        self._pending_row: dict[int, float] = {}  # measured since the last training iteration
        self._row_iteration = -1
        self._online_bucket: Any = None  # experience of which an online stream trains parts
        self._num_parts = 0  # parts of that experience trained so far
        self._num_images: tuple[int, ...] = ()  # test images per experience
        self._num_train = 0  # experiences of the training stream; 0 if unknown

    def before_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Log the row of tests since the last training, if any, and start to measure training time.

        Before the first experience this is row 0. Experiences that were not tested are NaN. Raises
        ConfigError if the numbers of training and test experiences differ.
        """
        experience = strategy.experience.logging()
        # An online stream splits each experience of another stream into parts.
        bucket = getattr(experience, "origin_experience", None) or experience
        if bucket is not experience and self._num_trained is None:
            self._num_trained = bucket.current_experience
        num_trained = self._count_trained(strategy)
        if bucket is not self._online_bucket:
            if self._is_training and self._num_parts:  # some parts were skipped
                self._num_trained = num_trained + 1
            self._is_training = False
            self._drop_outdated_accuracies(strategy)
            self._log_pending_row()
            self._online_bucket, self._num_parts = bucket, 0
        stream = bucket.origin_stream
        self._num_train = len(stream) if hasattr(stream, "__len__") else 0
        self._check_num_experiences()
        self._is_training = True
        self._start_clock()

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
        self._num_trained = self._count_trained(strategy) + 1
        if self._num_trained == len(self._num_images) == len(self._pending_row):
            self._log_pending_row()

    def before_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Pause the measured training time, and discard accuracies of an earlier evaluation."""
        self._count_trained(strategy)
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
        """Log the row if all experiences were tested since the last training iteration.

        Otherwise the accuracies wait for another evaluation. During training, nothing is logged.
        """
        if self._is_training:
            self._start_clock()
        if not self._accuracies:
            return
        self._drop_outdated_accuracies(strategy)
        self._row_iteration = strategy.clock.train_iterations
        self._pending_row.update(self._accuracies)
        if not self._is_training and len(self._pending_row) == len(self._num_images):
            self._log_pending_row()
        else:
            self._close_at_exit()

    def _drop_outdated_accuracies(self, strategy: Any) -> None:
        """Discard accuracies that were measured before the last training iteration."""
        if self._row_iteration != strategy.clock.train_iterations:
            self._pending_row = {}

    def _count_trained(self, strategy: Any) -> int:
        """Return the number of trained experiences, initially from the strategy's own counter."""
        if self._num_trained is None:
            self._num_trained = int(strategy.clock.train_exp_counter)
        return self._num_trained

    def _check_num_experiences(self) -> None:
        """Raise ConfigError if training and test streams have different known lengths."""
        if self._num_images and self._num_train not in (0, len(self._num_images)):
            raise ConfigError(
                f"the stream {self._stream!r} has {len(self._num_images)} experiences, and "
                f"{self._num_train} are trained; an accuracy matrix needs a test set for each"
            )

    def _log_pending_row(self) -> None:
        """Log the accuracies measured so far as a row, NaN for other experiences.

        Does nothing without accuracies, or while an experience is being trained.
        """
        if self._pending_row and not self._is_training:
            experiences = range(len(self._num_images))
            cells = [self._pending_row.get(j, math.nan) for j in experiences]
            self._pending_row = {}
            buckets = [str(j + 1) for j in experiences]  # as in imported results of Avalanche
            self._log_row(self._num_trained or 0, buckets, cells, self._num_images)


def _count_test_images(stream: Any) -> tuple[int, ...]:
    """Return the number of images in each experience of a stream.

    Counts the complete stream of the benchmark, even if *stream* is a slice of it.
    """
    streams = {} if stream.benchmark is None else stream.benchmark.streams
    return tuple(len(experience.dataset) for experience in streams.get(stream.name, stream))
