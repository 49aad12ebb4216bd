"""The run behind an adapter: a framework calls hooks, so that no ``with`` opens or ends the run."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clear_mlflow.core.distributed import get_processor_name
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import ACCURACY, RowCost
from clear_mlflow.core.text import safe_repr
from clear_mlflow.metrics import MetricResult
from clear_mlflow.tracking.joined_run import read_rows_to_join
from clear_mlflow.tracking.lifecycle import end_shared_run, reopen_run
from clear_mlflow.tracking.loop_run import LoopRun, track


class Adapter:
    """An MLflow run whose matrix is filled by a framework's hooks.

    The first row starts the run. The row of the last bucket, ``close()`` or the program's end ends
    it. Until there is a row, properties raise ConfigError.

    Args:
        options: keyword arguments of :func:`clear_mlflow.track`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._shared_run_id: str | None = None  # run of the framework's logger that this one ends
        self._reopens_run = False  # something else ends that run after the first training
        try:
            self._build_loop_run(buckets=1)
        except TypeError as error:
            raise ConfigError(f"{error}; an adapter takes what clear_mlflow.track takes") from error
        self._loop_run: LoopRun | None = None
        self._rows: dict[int, tuple[float, ...]] = {}
        self._is_open = False
        self._has_counts = False  # the rows are stored as numbers of correct images
        self._clock_start: float | None = None  # while the model is training
        self._cost: RowCost | None = None  # of the training since the last row

    @property
    def run_id(self) -> str:
        """Id of the MLflow run."""
        return self._require_loop_run().run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """Accuracy matrix with the rows logged so far."""
        return self._require_loop_run().matrix

    @property
    def metrics(self) -> Mapping[str, MetricResult]:
        """Metric name to its result for the rows logged so far."""
        return self._require_loop_run().metrics

    def close(self) -> None:
        """Log the pending row and the metrics, and end the run.

        Adapters call it after the row of the last bucket, and at the end of the program. Does
        nothing if the run has ended.
        """
        self._log_pending_row()
        self._end_run()

    def _log_pending_row(self) -> None:
        """Log the row of an unfinished evaluation, in adapters that have one."""

    def _build_loop_run(self, **stream: Any) -> LoopRun:
        """Create the LoopRun without starting it."""
        loop_run = track(**stream, **self._options)
        loop_run.shared_run_id = self._shared_run_id
        return loop_run

    def _use_shared_run(self, run_id: str) -> None:
        """Log to the framework logger's run, and end it with the program."""
        self._shared_run_id = run_id
        self._register_close_at_exit()

    def _register_close_at_exit(self) -> None:
        atexit.unregister(self._close_with_program)
        atexit.register(self._close_with_program)

    def _start_clock(self) -> None:
        self._clock_start = time.perf_counter()

    def _stop_clock(self, model: Any) -> None:
        """Wait until the model's device is idle, and add the training time."""
        if self._clock_start is None:
            return
        weights = list(model.parameters())
        device = get_processor_name()
        if weights and weights[0].is_cuda:
            import torch

            torch.cuda.synchronize(weights[0].device)
            device = torch.cuda.get_device_name(weights[0].device)
        seconds = time.perf_counter() - self._clock_start
        if self._cost is not None:
            seconds += self._cost.seconds or 0.0
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
        """Log a row. The first starts the run, the last ends it.

        A NaN keeps the value of an earlier call. num_instances: test images per bucket, or None.
        Unless the first row has all, accuracies are stored, not counts.
        """
        stored_row = self._rows.get(row, (math.nan,) * len(accuracy))
        cells = tuple(
            stored if math.isnan(cell) else cell
            for cell, stored in zip(accuracy, stored_row, strict=True)
        )
        sizes = [size for size in num_instances if size is not None]
        if self._is_closed:
            if row in self._rows and np.array_equal(self._rows[row], cells, equal_nan=True):
                return
            raise RecordError(
                f"row {row} was logged after run {self.run_id} was closed; make a new adapter "
                "for another run"
            )
        if self._loop_run is None:
            has_sizes = len(sizes) == len(cells)
            self._loop_run = self._build_loop_run(
                buckets=tuple(buckets), num_instances=sizes if has_sizes else None
            )
            self._loop_run.expects_last_row = False
            self._loop_run.__enter__()
            self._is_open = True
            if self._reopens_run:
                reopen_run(self._loop_run.run_id)
            is_accuracy = self._options.get("score", ACCURACY.name) == ACCURACY.name
            self._has_counts = is_accuracy and has_sizes
            self._register_close_at_exit()
        elif self._loop_run.matrix.buckets != tuple(buckets):
            self._loop_run.reorder_buckets(tuple(buckets))
        counts = recover_counts(cells, sizes) if self._has_counts else None
        cost, self._cost = self._cost, None
        if counts:
            self._loop_run.log_counts(row, counts, cost=cost)
        else:
            self._loop_run.log_values(row, cells, cost=cost)
        self._rows[row] = cells
        matrix = self._loop_run.matrix.values  # includes the rows of an earlier process
        if len(matrix) == len(buckets) and not np.isnan(matrix).all(axis=1).any():
            self._end_run()

    def _end_run(self, error: BaseException | None = None) -> None:
        """Log the metrics and end the run, unless it has ended."""
        atexit.unregister(self._close_with_program)
        if self._loop_run is not None and self._is_open:
            self._is_open = False
            traceback = None if error is None else error.__traceback__
            self._loop_run.__exit__(None if error is None else type(error), error, traceback)
        elif self._loop_run is None and self._shared_run_id is not None:  # no row was measured
            run_id, self._shared_run_id = self._shared_run_id, None
            end_shared_run(run_id, error)

    @property
    def _is_closed(self) -> bool:
        return self._loop_run is not None and not self._is_open

    def _require_loop_run(self) -> LoopRun:
        if self._loop_run is None:
            raise ConfigError("the run has not started; the first row starts it")
        return self._loop_run

    def _close_with_program(self) -> None:
        """End the run at the program's exit, as failed after an exception."""
        self._log_pending_row()
        self._end_run(getattr(sys, "last_value", None))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the run."""
        nothing = {"_loop_run": None, "_shared_run_id": None, "_is_open": False, "_earlier": None}
        return {**self.__dict__, **nothing}


class CountingAdapter(Adapter):
    """An adapter that counts trainings: its framework names no bucket."""

    _trained: int | None = None  # None until a row, a checkpoint or the user decides

    @property
    def trained(self) -> int:
        """Number of trained buckets. Set it to continue a run with rows."""
        return self._trained or 0

    @trained.setter
    def trained(self, number: int) -> None:
        self._trained = number

    def _init_trained(self) -> None:
        """Set ``trained`` to 0 if unset, or raise if rows are stored."""
        if self._trained is None:
            run_id, rows = read_rows_to_join(self._shared_run_id)
            if rows:
                last = max(rows)
                raise ConfigError(
                    f"run {run_id} has rows up to row {last}, and this adapter cannot know which "
                    f"bucket is trained next; set its attribute: trained = {last} to continue "
                    f"after bucket {last}, or trained = 0 to measure the rows again"
                )
            self._trained = 0


def recover_counts(
    accuracy: Sequence[float], num_instances: Sequence[int]
) -> tuple[int, ...] | None:
    """Compute the number of correct images per bucket from accuracies.

    Returns None if an accuracy is NaN or is not a fraction of the bucket's images, or if a bucket
    has too many images for the precision of an accuracy.

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


def convert_metric(name: str, value: Any) -> float:
    """Convert *value* to a float. Raises RecordError that names the metric."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RecordError(f"{name} is {safe_repr(value)}; expected a fraction") from None


def count_images(dataloader: Any) -> int | None:
    """Return the number of images in a dataloader's dataset, None if unknown."""
    try:
        return len(dataloader.dataset)
    except (AttributeError, TypeError):
        return None
