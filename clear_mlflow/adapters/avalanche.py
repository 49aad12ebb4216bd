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

    A cell is the value of Avalanche's metric for an experience. An evaluation before any training
    is row 0. Evaluations during the training of an experience are ignored, except for one after its
    last iteration.

    Args:
        stream: name of the test stream; evaluations of other streams are ignored.
        metric: class of the metric whose values are the cells.
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
        self._cells: dict[int, float] = {}  # of the current evaluation
        self._row: dict[int, float] = {}  # of evaluations since the last training iteration
        self._row_iteration = -1
        self._bucket: Any = None  # experience of which an online stream trains parts
        self._num_parts = 0  # parts of that experience trained so far
        self._num_images: tuple[int, ...] = ()  # test images per experience
        self._num_train = 0  # experiences of the training stream; 0 if unknown

    def before_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Start the clock for an experience, and log a row that was measured before it."""
        experience = strategy.experience.logging()
        # An online stream splits each experience of another stream into parts.
        bucket = getattr(experience, "origin_experience", None) or experience
        if bucket is not experience and self._num_trained is None:
            self._num_trained = bucket.current_experience
        num_trained = self._count_trained(strategy)
        if bucket is not self._bucket:
            if self._is_training and self._num_parts:  # some parts were skipped
                self._num_trained = num_trained + 1
            self._is_training = False
            self._drop_outdated(strategy)
            self._flush()
            self._bucket, self._num_parts = bucket, 0
        stream = bucket.origin_stream
        self._num_train = len(stream) if hasattr(stream, "__len__") else 0
        self._check_num_experiences()
        self._is_training = True
        self._start_clock()

    def after_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Count a trained experience, after the last of its parts."""
        self._stop_clock(strategy.model)
        self._drop_outdated(strategy)
        experience = strategy.experience.logging()
        self._num_parts += 1
        if self._num_parts < (getattr(experience, "sub_stream_length", None) or 1):
            return
        self._is_training = False
        self._num_trained = self._count_trained(strategy) + 1
        if self._num_trained == len(self._num_images) == len(self._row):
            self._flush()

    def before_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Pause the clock and start an evaluation without cells."""
        self._count_trained(strategy)
        self._stop_clock(strategy.model)
        self._cells = {}

    def after_eval_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Keep the cell of an evaluated experience."""
        experience = strategy.experience
        stream = experience.origin_stream
        if stream.name != self._stream:
            return
        self._num_images = self._num_images or _count_test_images(stream)
        self._check_num_experiences()
        for value in metric_values:
            if isinstance(value.origin, self._metric):
                name = f"{value.origin} of experience {experience.current_experience}"
                self._cells[experience.current_experience] = convert_metric(name, value.value)

    def after_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """Add the cells to the row, and log it when all cells are measured."""
        if self._is_training:
            self._start_clock()
        if not self._cells:
            return
        self._drop_outdated(strategy)
        self._row_iteration = strategy.clock.train_iterations
        self._row.update(self._cells)
        if not self._is_training and len(self._row) == len(self._num_images):
            self._flush()
        else:
            self._close_at_exit()

    def _drop_outdated(self, strategy: Any) -> None:
        """Drop the cells that were measured before the last training iteration."""
        if self._row_iteration != strategy.clock.train_iterations:
            self._row = {}

    def _count_trained(self, strategy: Any) -> int:
        """Return the number of trained experiences, at first from the strategy's own counter."""
        if self._num_trained is None:
            self._num_trained = int(strategy.clock.train_exp_counter)
        return self._num_trained

    def _check_num_experiences(self) -> None:
        """Raise ConfigError unless there is one test set for each experience."""
        if self._num_images and self._num_train not in (0, len(self._num_images)):
            raise ConfigError(
                f"the stream {self._stream!r} has {len(self._num_images)} experiences, and "
                f"{self._num_train} are trained; an accuracy matrix needs a test set for each"
            )

    def _flush(self) -> None:
        """Log the row that waits for cells, unless an experience is being trained."""
        if self._row and not self._is_training:
            width = len(self._num_images)
            cells, self._row = self._row, {}
            self._log_row(
                self._num_trained or 0,
                # The same names as for imported results of Avalanche.
                tuple(str(j + 1) for j in range(width)),
                [cells.get(j, math.nan) for j in range(width)],
                self._num_images,
            )


def _count_test_images(stream: Any) -> tuple[int, ...]:
    """Return the test images per experience of a complete stream, given a part of it."""
    streams = {} if stream.benchmark is None else stream.benchmark.streams
    return tuple(len(experience.dataset) for experience in streams.get(stream.name, stream))
