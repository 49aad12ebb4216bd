"""Offline folders with runs in them, as a training with ``--offline`` makes them."""

import json
import shutil

from mlflow import MlflowClient


def create_offline_folder(folder, empty_store):
    """Return a client of a new offline folder, and the id of its experiment."""
    folder.mkdir(parents=True)
    shutil.copy(empty_store, folder / "mlflow.db")
    (folder / "offline.json").write_text(json.dumps({"format": "1.0"}))
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    location = (folder / "artifacts" / "1").as_uri()
    return client, client.create_experiment("offline", artifact_location=location)
