"""The curve of a training on its way to the store: kept until there is time to send it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

from mlflow.entities import Metric

from clear_mlflow.core.warning import warn
from clear_mlflow.journal.sender import Sender
from clear_mlflow.journal.spool import Entry
from clear_mlflow.journal.stored_points import StoredSteps, lacking
from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.store import names


class TrackedCurve:
    """Points of one run that are not on local disk yet; two threads may be at it.

    Args:
        run_id: of the run.
        sender: what keeps and sends them.
    """

    def __init__(self, run_id: str, sender: Sender) -> None:
        self._run_id = run_id
        self._sender = sender
        self._lock = threading.Lock()
        self._waiting: list[Metric] = []
        self.there: StoredSteps = {}  # of a run that is resumed, what it holds

    def add(self, points: Iterable[CurvePoint]) -> None:
        """Take points; nothing is written."""
        with self._lock:
            self._waiting += lacking(_metrics_of(points), self.there)

    def keep(self, others: Sequence[Metric] = ()) -> list[Entry]:
        """Put what waits on local disk, with other points of the run; give what is to be sent.

        Where the disk takes nothing, the curve waits on, and the others follow from rows.
        """
        with self._lock:
            return self._keep(others)

    def send(self) -> None:
        """Put what waits on local disk, and send it."""
        with self._lock:  # also for sending: whoever ends the run must not come in between
            for entry in self._keep(()):
                self._sender.send(entry)

    def finish(self) -> None:
        """Send what is left when training is over."""
        if self._sender.lost is not None:
            return  # whoever has the run now comes by the same steps
        self.send()
        if self._waiting:
            warn(f"run {self._run_id}: {len(self._waiting)} points of its curve fit on no disk")

    def _keep(self, others: Sequence[Metric]) -> list[Entry]:
        metrics = [*others, *self._waiting]
        kept = self._sender.keep_metrics(self._run_id, metrics) if metrics else []
        if kept is None:
            return []
        self._waiting.clear()
        return kept


def _metrics_of(points: Iterable[CurvePoint]) -> list[Metric]:
    """A curve as MLflow takes it; a loss that is no finite number has no place in a chart."""
    return [
        Metric(name, value, point.time, point.step)
        for point in points
        for name, value in (
            (names.CURVE_LOSS, point.loss),
            (names.CURVE_LR, point.lr),
            (names.CURVE_SPEED, point.images_per_second),
        )
        if math.isfinite(value)
    ]
