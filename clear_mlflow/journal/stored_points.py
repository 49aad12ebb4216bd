"""The curve of a training as series of MLflow's: which points of it a run holds already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors

# Name of a series to the steps of its points.
StoredSteps = Mapping[str, frozenset[int]]


def stored_steps(client: MlflowClient, run: Run) -> StoredSteps:
    """The steps at which a run holds points of its curve; nothing is asked of one without a curve.

    Raises:
        TrackingError: the store does not answer.
    """
    run_id = run.info.run_id
    found = {}
    for name in names.CURVE:
        if name in run.data.metrics:
            with mlflow_errors(f"read {name} of run {run_id}"):
                history = client.get_metric_history(run_id, name)
            found[name] = frozenset(point.step for point in history)
    return found


def lacking(points: Iterable[Metric], there: StoredSteps) -> list[Metric]:
    """Points of a curve at whose steps a run holds none: of a step, the first one stays.

    A bucket that is trained on again, since its process was killed, comes by the same steps again.
    """
    return [point for point in points if point.step not in there.get(point.key, ())]
