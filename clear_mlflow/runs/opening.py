"""The run that a training goes into: one of its own, or the one that the environment names."""

from __future__ import annotations

import functools

import mlflow
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, MLFLOW_RUN_ID

from clear_mlflow.core.errors import TrackingError
from clear_mlflow.learning.config import TrainConfig
from clear_mlflow.runs.training_run import run_name
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.compat import is_generated
from clear_mlflow.store.conflicts import retry_on_conflict
from clear_mlflow.store.heartbeat import heartbeat, trains_now
from clear_mlflow.store.rows import refuse_foreign_rows


def open_run(client: MlflowClient, config: TrainConfig) -> str:
    """Start an MLflow run, or take up the one that the environment names.

    Raises:
        TrackingError: that run holds rows already, or another process trains into it; it is left
            as it is.
    """
    named = MLFLOW_RUN_ID.get()
    monitor = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    with mlflow_errors("open a run"):
        name: str | None = run_name(config)
        if named:
            run = client.get_run(named)
            if trains_now(run):
                raise TrackingError(
                    f"another process trains into run {named} now; unset MLFLOW_RUN_ID for a run "
                    "of its own"
                )
            refuse_foreign_rows(client, run)
            # MLflow's "upbeat-foal-91" tells nobody anything; a person's own name stays.
            name = name if is_generated(run.info.run_name) else None
        opened = retry_on_conflict(
            functools.partial(
                mlflow.start_run,
                run_name=name,
                tags={names.PROCESS_TAG: heartbeat()},
                log_system_metrics=monitor.get() if monitor.is_set() else True,
            )
        )
    return str(opened.info.run_id)
