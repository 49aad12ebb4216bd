"""The run behind an adapter: a framework calls hooks, and nobody writes ``with`` around them."""

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

_WHOLE = 0.01  # how far correct = accuracy x images may be from an integer, in images


class Adapter:
    """A run that the first row opens, and the last one, ``close()`` or the program's end closes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._shared_run_id: str | None = None  # opened by the framework's logger, ended by this
        try:
            self._build_loop(buckets=1)
        except TypeError as error:
            raise ConfigError(f"{error}; an adapter takes what clear_mlflow.track takes") from error
        self._loop: LoopRun | None = None
        self._rows: dict[int, tuple[float, ...]] = {}
        self._is_open = False
        self._has_counts = False
        self._began: float | None = None  # of the training that runs now
        self._cost: RowCost | None = None  # of training since the last row

    @property
    def run_id(self) -> str:
        """The MLflow run's."""
        return self._opened.run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """The rows so far."""
        return self._opened.matrix

    @property
    def metrics(self) -> dict[str, MetricResult]:
        """Every metric of the rows so far: its value and course, or why it has none."""
        return self._opened.metrics

    def close(self) -> None:
        """Score what is stored, and close the run if this opened it.

        It is done by itself with the last bucket's row, and when the program ends.
        """
        self._flush()
        self._end()

    def _flush(self) -> None:
        """Log what is measured and not logged yet; most adapters have nothing of the kind."""

    def _build_loop(self, **stream: Any) -> LoopRun:
        options = {"run_name": None, "metrics": DEFAULT_FAMILIES, **self._options}
        run_name, metrics = options.pop("run_name"), options.pop("metrics")
        return LoopRun(
            describe_loop(**stream, **options), run_name, metrics, run_id=self._shared_run_id
        )

    def _take_over(self, run_id: str) -> None:
        """Log to the run that the framework's logger opened, and end it in the logger's place."""
        self._shared_run_id = run_id
        self._expect()

    def _expect(self) -> None:
        """See to it that the program does not end before :meth:`close`."""
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)

    def _start_clock(self) -> None:
        """Training begins, or resumes after an evaluation within it."""
        self._began = time.perf_counter()

    def _stop_clock(self, model: Any) -> None:
        """Training ends, or waits for an evaluation within it; the next row has what it cost."""
        if self._began is None:
            return
        weights = list(model.parameters())
        device = _waited_for(weights)
        spent = time.perf_counter() - self._began + ((self._cost and self._cost.seconds) or 0.0)
        self._began = None
        self._cost = RowCost(
            trainable_parameters=sum(w.numel() for w in weights if w.requires_grad),
            seconds=round(spent, 3),
            device=device,
        )

    def _log_row(
        self,
        row: int,
        buckets: Sequence[str],
        accuracy: Sequence[float],
        sizes: Sequence[int | None],
    ) -> None:
        """Store a row (NaN = not measured), as counts where the first row had all sizes."""
        # A later test of some buckets leaves the others as they are.
        stored = self._rows.get(row, (math.nan,) * len(accuracy))
        cells = tuple(s if math.isnan(c) else c for c, s in zip(accuracy, stored, strict=True))
        num_instances = [size for size in sizes if size is not None]
        if self._has_ended:
            # A framework may well test once more when all is done; a repeated row is no news.
            if row in self._rows and np.array_equal(self._rows[row], cells, equal_nan=True):
                return
            raise RecordError(
                f"row {row} arrived after run {self.run_id} was closed; make a new adapter "
                "for another run"
            )
        if self._loop is None:
            known = num_instances if len(num_instances) == len(cells) else None
            self._loop = self._build_loop(buckets=tuple(buckets), num_instances=known)
            self._loop.expects_last_row = False
            self._loop.__enter__()
            self._is_open = True
            of_accuracy = self._options.get("score", ACCURACY.name) == ACCURACY.name
            self._has_counts = of_accuracy and known is not None
            self._expect()
        counts = whole_counts(cells, num_instances) if self._has_counts else None
        cost, self._cost = self._cost, None
        if counts:
            self._loop.log_counts(row, counts, cost=cost)
        else:
            self._loop.log_values(row, cells, cost=cost)
        self._rows[row] = cells
        matrix = self._loop.matrix.values  # with the rows of an earlier process
        if len(matrix) == len(buckets) and not np.isnan(matrix).all(axis=1).any():
            self._end()

    def _end(self, error: BaseException | None = None) -> None:
        """Close the run with the status that is true."""
        atexit.unregister(self._close_at_exit)
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

    @property
    def _opened(self) -> LoopRun:
        if self._loop is None:
            raise ConfigError("there is no run yet; it is opened with the first row")
        return self._loop

    def _close_at_exit(self) -> None:
        self._flush()
        # What the interpreter prints as it ends; None where the program came to its end.
        self._end(getattr(sys, "last_value", None))

    def __getstate__(self) -> dict[str, Any]:
        """Without the run: a checkpoint of a framework's may hold its loggers."""
        return {**self.__dict__, "_loop": None, "_shared_run_id": None, "_is_open": False}


def whole_counts(accuracy: Sequence[float], num_instances: Sequence[int]) -> tuple[int, ...] | None:
    """The counts that accuracies are of; None where they are not known.

    >>> whole_counts([0.3333333], [3]), whole_counts([0.35], [3])
    ((1,), None)
    """
    counts = []
    for value, total in zip(accuracy, num_instances, strict=True):
        correct = value * total
        # Frameworks keep 24 bits of a fraction.
        if math.isnan(correct) or abs(correct - round(correct)) > _WHOLE or total >= 2**17:
            return None
        counts.append(round(correct))
    return tuple(counts)


def _waited_for(weights: Sequence[Any]) -> str:
    """The name of the device that a model is on, once it has done all that it was given."""
    if not (weights and weights[0].is_cuda):
        return processor_name()
    import torch

    torch.cuda.synchronize(weights[0].device)
    return torch.cuda.get_device_name(weights[0].device)


def number(what: str, value: Any) -> float:
    """A metric's value as a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RecordError(f"{what} is {safe_repr(value)}; expected a fraction") from None


def num_images(dataloader: Any) -> int | None:
    """Test images of a bucket; None where its dataset does not know."""
    try:
        return len(dataloader.dataset)
    except (AttributeError, TypeError):
        return None
