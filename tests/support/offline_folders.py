"""Offline folders with runs, as trainings with ``--offline`` write them."""

import mlflow
from mlflow import MlflowClient

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
