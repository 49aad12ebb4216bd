"""Offline folders with runs, as trainings with ``--offline`` write them."""

import json
import shutil

import mlflow
import pytest
from mlflow import MlflowClient
from ports import free_port

from clear_mlflow.core.disk import OFFLINE_VARIABLE


def create_offline_folder(folder, empty_store):
    """Return a client of a new offline folder, and the id of its experiment."""
    folder.mkdir(parents=True)
    shutil.copy(empty_store, folder / "mlflow.db")
    (folder / "offline.json").write_text(json.dumps({"format": "1.0"}))
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    location = (folder / "artifacts" / "1").as_uri()
    return client, client.create_experiment("offline", artifact_location=location)


def use_store(monkeypatch, uri):
    """Set the store of the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)


@pytest.fixture
def offline_folder(store, tmp_path, monkeypatch):
    """The folder that CLEAR_MLFLOW_OFFLINE names. The configured store does not respond."""
    folder = tmp_path / "recorded"
    monkeypatch.setenv(OFFLINE_VARIABLE, str(folder))
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", "")  # restored after the test
    use_store(monkeypatch, f"http://127.0.0.1:{free_port()}")
    return folder
