"""The run behind an adapter: a framework calls hooks, and nobody writes ``with`` around them."""

from __future__ import annotations

import atexit
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from clear_mlflow.api import track
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.loop_metadata import describe_loop
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import ACCURACY
from clear_mlflow.core.text import shown
from clear_mlflow.metrics import DEFAULT_FAMILIES
from clear_mlflow.runs.loop_run import LoopRun

_WHOLE = 0.01  # how far correct = accuracy x images may be from an integer, in images


class AdapterRun:
    """Opens a run with the first row, and closes it with the last one, by hand, or at exit.

    `flush` is called before the program ends, for rows that are not logged yet.
    """

    def __init__(self, options: Mapping[str, Any], flush: Callable[[], None]) -> None:
        try:
            of_loop = {k: v for k, v in options.items() if k not in ("run_name", "metrics")}
            families = options.get("metrics", DEFAULT_FAMILIES)
            LoopRun(describe_loop(buckets=1, **of_loop), metrics=families)
        except TypeError as error:
            raise ConfigError(f"{error}; an adapter takes what clear_mlflow.track takes") from error
        self._options = dict(options)
        self._run: LoopRun | None = None
        self._rows: dict[int, tuple[float, ...]] = {}
        self._is_open = False
        self._has_counts = False
        self._flush = flush

    def expect(self) -> None:
        """See to it that the program does not end before :meth:`close`."""
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)

    def log_row(
        self,
        row: int,
        buckets: Sequence[str],
        accuracy: Sequence[float],
        num_instances: Sequence[int] | None,
    ) -> None:
        """Store a row (NaN = not measured); counts behind accuracies are restored where whole.

        Where the first row comes without `num_instances`, the run is one of accuracies for good.
        """
        cells = tuple(accuracy)
        if self._run is not None and not self._is_open:
            # A framework may well test once more when all is done; a repeated row is no news.
            if row in self._rows and np.array_equal(self._rows[row], cells, equal_nan=True):
                return
            raise RecordError(
                f"row {row} arrived after run {self._run.run_id} was closed; make a new adapter "
                "for another run"
            )
        if self._run is None:
            self._run = track(buckets=tuple(buckets), num_instances=num_instances, **self._options)
            self._run.__enter__()
            self._is_open = True
            of_accuracy = self._options.get("score", ACCURACY.name) == ACCURACY.name
            self._has_counts = of_accuracy and num_instances is not None
            self.expect()
        if self._has_counts and num_instances and (c := whole_counts(cells, num_instances)):
            self._run.log_row(row, c)
        else:
            self._run.log_row(row, values=cells)
        self._rows[row] = cells
        if set(range(1, len(buckets) + 1)) <= self._rows.keys():
            self.close()

    def close(
        self, error: BaseException | None = None, traceback: TracebackType | None = None
    ) -> None:
        """Score what is stored; close the run, if this opened it, with the status that is true."""
        if self._run is None or not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self._close_at_exit)
        self._run.__exit__(None if error is None else type(error), error, traceback)

    @property
    def run(self) -> LoopRun:
        """The run, once there is a row."""
        if self._run is None:
            raise ConfigError("there is no run yet; it is opened with the first row")
        return self._run

    def _close_at_exit(self) -> None:
        # What the interpreter prints as it ends; None where the program came to its end.
        self._flush()
        self.close(getattr(sys, "last_value", None))

    def __getstate__(self) -> dict[str, Any]:
        """Without the run: a checkpoint of a framework's may hold its loggers."""
        return {**self.__dict__, "_run": None, "_is_open": False}


class Adapter:
    """What all adapters offer: the run's numbers, and an end."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._tracked = AdapterRun(options, self._flush)

    @property
    def run_id(self) -> str:
        """The MLflow run's."""
        return self._tracked.run.run_id

    @property
    def matrix(self) -> AccuracyMatrix:
        """The rows so far."""
        return self._tracked.run.matrix

    @property
    def scores(self) -> dict[str, float]:
        """Metric name to value, of the rows so far."""
        return self._tracked.run.scores

    def close(self) -> None:
        """Score what is stored, and close the run if this opened it.

        It is done by itself with the last bucket's row, and when the program ends.
        """
        self._flush()
        self._tracked.close()

    def _flush(self) -> None:
        """Log what is measured and not logged yet; most adapters have nothing of the kind."""


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


def number(what: str, value: object) -> float:
    """A metric's value as a number."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if not isinstance(plain, (int, float)):
        raise RecordError(f"{what} is {shown(plain)}; expected a fraction")
    return float(plain)
