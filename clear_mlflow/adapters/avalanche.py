"""Avalanche's evaluation as a tracked run: a logger for its EvaluationPlugin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metrics import ExperienceAccuracy
from avalanche.logging import BaseLogger

from clear_mlflow.adapters._run import Adapter, number
from clear_mlflow.core.errors import ConfigError


class MLflowAccuracyMatrix(Adapter, BaseLogger):
    """Stores a row of the accuracy matrix after each evaluation of a stream.

    ``EvaluationPlugin(accuracy_metrics(experience=True), loggers=[MLflowAccuracyMatrix()])``

    A cell is what Avalanche's own metric says of an experience; which experience, and how many
    images it has, is asked of the experience itself. An evaluation before any training is row 0.
    Evaluations within the training of an experience are no rows, except for one after its last
    iteration.

    Args:
        stream: name of the stream that is the test; others are not looked at.
        metric: class of the metric that gives the cells.
        **options: what :func:`clear_mlflow.track` takes: ``dataset``, ``strategy``, ``seed``, ...
    """

    def __init__(
        self, *, stream: str = "test", metric: type = ExperienceAccuracy, **options: Any
    ) -> None:
        BaseLogger.__init__(self)
        Adapter.__init__(self, options)
        self._stream = stream
        self._metric = metric
        self._trained: int | None = None  # experiences so far; None: nothing has happened yet
        self._within = False  # an experience is being trained
        self._cells: dict[int, float] = {}  # of the evaluation that runs now
        self._row: dict[int, float] = {}  # of evaluations since the last training iteration
        self._row_iteration = -1
        self._bucket: Any = None  # the experience whose parts an online stream trains on
        self._num_parts = 0  # of that experience, trained so far
        self._sizes: tuple[int, ...] = ()
        self._num_train = 0  # experiences of the stream that is trained on; 0: not known yet

    def before_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """From here on evaluations are those of a half-trained model."""
        experience = strategy.experience.logging()
        # An online stream splits each experience of another stream into parts.
        bucket = getattr(experience, "origin_experience", None) or experience
        if bucket is not experience and self._trained is None:
            self._trained = bucket.current_experience
        trained = self._begin(strategy)
        if bucket is not self._bucket:
            if self._within and self._num_parts:  # some parts were left out
                self._trained = trained + 1
            self._within = False
            self._drop_outdated(strategy)
            self._flush()
            self._bucket, self._num_parts = bucket, 0
        stream = bucket.origin_stream
        self._num_train = len(stream) if hasattr(stream, "__len__") else 0
        self._check()
        self._within = True
        self._start_clock()

    def after_training_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """The model is trained through one more experience, or a part of one."""
        self._stop_clock(strategy.model)
        self._drop_outdated(strategy)
        experience = strategy.experience.logging()
        self._num_parts += 1
        if self._num_parts < (getattr(experience, "sub_stream_length", None) or 1):
            return
        self._within = False
        self._trained = self._begin(strategy) + 1
        if self._trained == len(self._sizes) == len(self._row):
            self._flush()

    def before_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """A new row, perhaps."""
        self._begin(strategy)
        self._stop_clock(strategy.model)
        self._cells = {}

    def after_eval_exp(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """A cell."""
        experience = strategy.experience
        stream = experience.origin_stream
        if stream.name != self._stream:
            return
        self._sizes = self._sizes or _sizes(stream)
        self._check()
        for value in metric_values:
            if isinstance(value.origin, self._metric):
                what = f"{value.origin} of experience {experience.current_experience}"
                self._cells[experience.current_experience] = number(what, value.value)

    def after_eval(self, strategy: Any, metric_values: Sequence[MetricValue]) -> None:
        """The row is whole."""
        if self._within:
            self._start_clock()
        if not self._cells:
            return
        self._drop_outdated(strategy)
        self._row_iteration = strategy.clock.train_iterations
        self._row.update(self._cells)
        if not self._within and len(self._row) == len(self._sizes):
            self._flush()
        else:
            self._expect()

    def _drop_outdated(self, strategy: Any) -> None:
        """Forget what was measured before the last training iteration of an experience."""
        if self._row_iteration != strategy.clock.train_iterations:
            self._row = {}

    def _begin(self, strategy: Any) -> int:
        """Experiences trained so far; of a strategy that was loaded, its own clock says it."""
        if self._trained is None:
            self._trained = int(strategy.clock.train_exp_counter)
        return self._trained

    def _check(self) -> None:
        """Raise ConfigError where there is not one test set for each experience."""
        if self._sizes and self._num_train not in (0, len(self._sizes)):
            raise ConfigError(
                f"the stream {self._stream!r} has {len(self._sizes)} experiences, and "
                f"{self._num_train} are trained; an accuracy matrix needs a test set for each"
            )

    def _flush(self) -> None:
        """Log the row that waits for cells that will not come any more."""
        if self._row and not self._within:
            width = len(self._sizes)
            cells, self._row = self._row, {}
            self._log_row(
                self._trained or 0,
                # As Avalanche's results are imported: "1" to "T".
                tuple(str(j + 1) for j in range(width)),
                [cells.get(j, math.nan) for j in range(width)],
                self._sizes,
            )


def _sizes(tested: Any) -> tuple[int, ...]:
    """Test images of all experiences of a stream, of which a part may be tested alone."""
    streams = {} if tested.benchmark is None else tested.benchmark.streams
    whole = streams.get(tested.name, tested)
    return tuple(len(experience.dataset) for experience in whole)
