"""The run behind an adapter: a framework calls hooks, so that no ``with`` opens or ends the run."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clear_mlflow.core.distributed import processor_name
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.loop_metadata import describe_loop
from clear_mlflow.core.matrix import AccuracyMatrix, RowCost
from clear_mlflow.core.score import ACCURACY
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import DEFAULT_FAMILIES, MetricResult
from clear_mlflow.tracking.lifecycle import end_shared_run
from clear_mlflow.tracking.loop_run import LoopRun


class Adapter:
    """A run that the first row opens. The last row, ``close()`` or the program's end closes it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._shared_run_id: str | None = None  # run of the framework's logger that this one ends
        try:
            self._build_loop(buckets=1)
        except TypeError as error:
            raise ConfigError(f"{error}; an adapter takes what clear_mlflow.track takes") from error
        self._loop: LoopRun | None = None
        self._rows: dict[int, tuple[float, ...]] = {}
        self._is_open = False
        self._has_counts = False
        self._clock_start: float | None = None  # while the model is training
        self._cost: RowCost | None = None  # of the training since the last row

    @property
    def run_id(self) -> str:
        """The id of the MLflow run."""
        return self._require_loop().run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """The accuracy matrix with the rows so far."""
        return self._require_loop().matrix

    @property
    def metrics(self) -> dict[str, MetricResult]:
        """Metric name to the result for the rows so far."""
        return self._require_loop().metrics

    def close(self) -> None:
        """Score the stored rows, and end the run if this adapter opened it.

        The row of the last bucket and the end of the program call it.
        """
        self._flush()
        self._end()

    def _flush(self) -> None:
        """Log cells that wait for others of their row. Adapters without such cells do nothing."""

    def _build_loop(self, **stream: Any) -> LoopRun:
        options = {"run_name": None, "metrics": DEFAULT_FAMILIES, **self._options}
        run_name, metrics = options.pop("run_name"), options.pop("metrics")
        return LoopRun(
            describe_loop(**stream, **options), run_name, metrics, run_id=self._shared_run_id
        )

    def _take_over(self, run_id: str) -> None:
        """Log to the run that the framework's logger opened, and end it instead of the logger."""
        self._shared_run_id = run_id
        self._close_at_exit()

    def _close_at_exit(self) -> None:
        """Make the end of the program close the run."""
        atexit.unregister(self._close_with_program)
        atexit.register(self._close_with_program)

    def _start_clock(self) -> None:
        """Start the clock when training begins, or resumes after an evaluation."""
        self._clock_start = time.perf_counter()

    def _stop_clock(self, model: Any) -> None:
        """Stop the clock when training ends or pauses, and add its time to the next row's cost."""
        if self._clock_start is None:
            return
        weights = list(model.parameters())
        device = _synchronize_device(weights)
        earlier_seconds = (self._cost and self._cost.seconds) or 0.0
        seconds = time.perf_counter() - self._clock_start + earlier_seconds
        self._clock_start = None
        self._cost = RowCost(
            trainable_parameters=sum(w.numel() for w in weights if w.requires_grad),
            seconds=round(seconds, 3),
            device=device,
        )

    def _log_row(
        self,
        row: int,
        buckets: Sequence[str],
        accuracy: Sequence[float],
        num_instances: Sequence[int | None],
    ) -> None:
        """Store a row, with counts if the first row had the number of test images of each bucket.

        A cell that is NaN keeps the value of an earlier call for the row. A repeated row is ignored
        once the run has ended.

        Raises RecordError if the run has ended and the row differs.
        """
        stored_row = self._rows.get(row, (math.nan,) * len(accuracy))
        cells = tuple(
            stored if math.isnan(cell) else cell
            for cell, stored in zip(accuracy, stored_row, strict=True)
        )
        sizes = [size for size in num_instances if size is not None]
        if self._has_ended:
            if row in self._rows and np.array_equal(self._rows[row], cells, equal_nan=True):
                return
            raise RecordError(
                f"row {row} arrived after run {self.run_id} was closed; make a new adapter "
                "for another run"
            )
        if self._loop is None:
            has_sizes = len(sizes) == len(cells)
            self._loop = self._build_loop(
                buckets=tuple(buckets), num_instances=sizes if has_sizes else None
            )
            self._loop.expects_last_row = False
            self._loop.__enter__()
            self._is_open = True
            is_accuracy = self._options.get("score", ACCURACY.name) == ACCURACY.name
            self._has_counts = is_accuracy and has_sizes
            self._close_at_exit()
        counts = recover_counts(cells, sizes) if self._has_counts else None
        cost, self._cost = self._cost, None
        if counts:
            self._loop.log_counts(row, counts, cost=cost)
        else:
            self._loop.log_values(row, cells, cost=cost)
        self._rows[row] = cells
        matrix = self._loop.matrix.values  # includes the rows of an earlier process
        if len(matrix) == len(buckets) and not np.isnan(matrix).all(axis=1).any():
            self._end()

    def _end(self, error: BaseException | None = None) -> None:
        """End the run with the status that fits *error*, unless it has ended."""
        atexit.unregister(self._close_with_program)
        if self._loop is not None and self._is_open:
            self._is_open = False
            traceback = None if error is None else error.__traceback__
            self._loop.__exit__(None if error is None else type(error), error, traceback)
        elif self._loop is None and self._shared_run_id is not None:  # no row was measured
            run_id, self._shared_run_id = self._shared_run_id, None
            end_shared_run(run_id, error)

    @property
    def _has_ended(self) -> bool:
        return self._loop is not None and not self._is_open

    def _require_loop(self) -> LoopRun:
        if self._loop is None:
            raise ConfigError("there is no run yet; it is opened with the first row")
        return self._loop

    def _close_with_program(self) -> None:
        self._flush()
        # The exception that ended the interpreter, if any.
        self._end(getattr(sys, "last_value", None))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the run, for a framework that pickles its loggers."""
        return {**self.__dict__, "_loop": None, "_shared_run_id": None, "_is_open": False}


def recover_counts(
    accuracy: Sequence[float], num_instances: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the numbers of correct images, or None if an accuracy is not a fraction of images.

    >>> recover_counts([0.3333333], [3]), recover_counts([0.35], [3])
    ((1,), None)
    """
    counts = []
    for value, total in zip(accuracy, num_instances, strict=True):
        correct = value * total
        # Frameworks store 24 bits of a fraction: too few for more images.
        if math.isnan(correct) or abs(correct - round(correct)) > 0.01 or total >= 2**17:
            return None
        counts.append(round(correct))
    return tuple(counts)


def _synchronize_device(weights: Sequence[Any]) -> str:
    """Wait until a model's device is idle, and return the name of the device."""
    if not (weights and weights[0].is_cuda):
        return processor_name()
    import torch

    torch.cuda.synchronize(weights[0].device)
    return torch.cuda.get_device_name(weights[0].device)


def convert_metric(name: str, value: Any) -> float:
    """Return a metric's value as a float. Raises RecordError if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RecordError(f"{name} is {safe_repr(value)}; expected a fraction") from None


def count_images(dataloader: Any) -> int | None:
    """Return the number of images in a dataloader's dataset, or None if unknown."""
    try:
        return len(dataloader.dataset)
    except (AttributeError, TypeError):
        return None
