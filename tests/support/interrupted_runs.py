"""A run that was interrupted, and what other processes do with it."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from stored_runs import artifact_folder, only_run

from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config
from clear_mlflow.store import names
from clear_mlflow.store.lease import format_lease
from clear_mlflow.tracking.tracked_training import train_in_process


def prepare_parameters(parameters):
    return prepare_training(resolve_config(TrainConfig.resolve(parameters)), TrainingProgress())


@pytest.fixture
def interrupted(store, experiment_id, short_stream, monkeypatch, fill_once):
    """A run that was stopped after row 2 of 4 with its state: the client and the run's id."""
    parameters = {**short_stream, "features": "pixels", "strategy": "linear", "epochs": "15"}

    def train():
        training = prepare_parameters({**parameters, "device": "cpu"})
        rows = type(training).rows

        def until_stopped(self, on_message):
            for measured in rows(self, on_message):
                if measured.row.row == 3:  # by now the state after row 2 is handed over
                    raise KeyboardInterrupt
                yield measured

        with monkeypatch.context() as patch:
            patch.setattr(type(training), "rows", until_stopped)
            with pytest.raises(KeyboardInterrupt):
                train_in_process(store, training, parameters)
        return only_run(store, experiment_id).info.run_id

    return store, fill_once(store, train)


def snapshot(client, run_id):
    """Return everything that a rejected command must not change."""
    run = client.get_run(run_id)
    folder = artifact_folder(run)
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return run.info.status, run.data.tags, run.data.params, files


def format_foreign_lease(minutes=0, **changes):
    """Return the lease of another machine, renewed so many minutes from now."""
    at = datetime.now(timezone.utc) + timedelta(minutes=minutes)
    fields = {"host": "another", "renewed_at": at.isoformat(), **changes}
    return json.dumps({**json.loads(format_lease()), **fields})


def train_elsewhere(client, run_id, lease=None):
    """Act as a process of another machine that trains into the run."""
    lease = lease or format_foreign_lease()
    client.set_tag(run_id, names.PROCESS_TAG, lease)
    client.set_tag(run_id, names.HOLDER_TAG, lease)
    client.update_run(run_id, status="RUNNING")
