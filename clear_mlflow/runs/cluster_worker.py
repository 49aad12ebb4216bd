"""What a worker of a cluster does with one run of a sweep."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults
from clear_mlflow.process.parent import TrainingProcess
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.runs.supervised import train_supervised
from clear_mlflow.store.client import use_store


def train_into(
    asked: Mapping[str, str], run_id: str, experiment_id: str, tracking_uri: str
) -> tuple[int, str | None, bool]:
    """Train into a run that is there, as ``clear-mlflow train`` does; in the main thread.

    Args:
        asked: parameters as text; what is missing has its default.
        run_id: of the run.
        experiment_id: that it is in.
        tracking_uri: of the store, as it is reached from here.

    Returns:
        The exit code; one line of what went wrong; whether the training was killed by accident.
    """
    use_store(tracking_uri)
    os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
    os.environ |= {"MLFLOW_RUN_ID": run_id, "MLFLOW_EXPERIMENT_ID": experiment_id}
    with StoppingSignals(tell=False) as signals:
        parameters = {**parameter_defaults(), **asked}
        outcome = train_supervised(
            TrainingProcess(TrainConfig.resolve(parameters)), parameters, signals
        )
    lost = outcome.exit_code == 128 + signal.SIGKILL
    return outcome.exit_code, outcome.error, lost
