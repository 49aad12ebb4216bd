"""Offline folders with runs, as trainings with ``--offline`` write them."""

import mlflow
import pytest
from mlflow import MlflowClient
from ports import free_port

from clear_mlflow.core.disk import OFFLINE_VARIABLE
from clear_mlflow.store.offline import format_offline_uri, prepare_offline_folder


def create_offline_folder(folder):
    """Return a client of a new offline folder, and the id of its experiment."""
    prepare_offline_folder(folder, creates=True)
    client = MlflowClient(format_offline_uri(folder))
    return client, client.create_experiment("offline")


def use_store(monkeypatch, uri):
    """Set the store of the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)


@pytest.fixture
def offline_folder(store, tmp_path, monkeypatch):
    """The folder that CLEAR_MLFLOW_OFFLINE names. The configured store does not respond."""
    folder = tmp_path / "recorded"
    monkeypatch.setenv(OFFLINE_VARIABLE, str(folder))
    use_store(monkeypatch, f"http://127.0.0.1:{free_port()}")
    return folder
