"""MLflow runs that a framework's own logger opened."""

from __future__ import annotations

import mlflow
from mlflow import MlflowClient

from clear_mlflow.tracking.lifecycle import end, open_again, result_of


def active_run_id(store: str | None = None) -> str | None:
    """Return the id of MLflow's active run, or None if there is none in *store*."""
    active = mlflow.active_run()
    if active is None or store not in (None, mlflow.get_tracking_uri()):
        return None
    return str(active.info.run_id)


def reopen_run(run_id: str) -> None:
    """Make a run that has ended MLflow's active run."""
    open_again(MlflowClient().get_run(run_id), {})


def end_shared_run(run_id: str, error: BaseException | None = None) -> None:
    """End a run with the status that fits *error*."""
    result = result_of(error, run_id)
    end(MlflowClient(), run_id, result.status, result.error)
