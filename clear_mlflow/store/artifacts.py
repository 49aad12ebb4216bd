"""Artifacts out of what is in memory, and as files of this machine."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.file_utils import local_file_uri_to_path

from clear_mlflow.core.durable import write_durably
from clear_mlflow.core.text import shown
from clear_mlflow.store.client import mlflow_errors


def log_bytes(client: MlflowClient, run_id: str, content: bytes, artifact: str) -> None:
    """Store bytes as an artifact; MLflow's own calls take texts, or files."""
    folder, _, name = artifact.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        file = Path(scratch, name)
        file.write_bytes(content)
        client.log_artifact(run_id, str(file), folder or None)


def log_durably(client: MlflowClient, run_id: str, content: bytes, artifact: str) -> None:
    """Store bytes that nothing could replace; they survive a power cut once this returns.

    MLflow does not flush the artifacts that it writes to this machine's disks (mlflow 3.17), so
    here it does not write them. What a server or a remote store does with them is theirs.
    """
    root = _local_root(client, run_id)
    if root is None:
        log_bytes(client, run_id, content, artifact)
    else:
        write_durably(root / artifact, content)


def download(client: MlflowClient, run: Run, artifact: str, folder: str) -> Path:
    """Fetch an artifact of a run into a folder of this machine, and give its file.

    Raises:
        TrackingError: it is not there, or the store does not answer.
    """
    with mlflow_errors(f"read {shown(artifact, 200)} of run {run.info.run_id}"):
        return download_from(client, str(run.info.artifact_uri), artifact, folder)


def download_from(client: MlflowClient, address: str, artifact: str, folder: str) -> Path:
    """Fetch an artifact of a run or of a model from below its address, as MLflow names it."""
    return Path(
        mlflow.artifacts.download_artifacts(
            artifact_uri=f"{address}/{artifact}",
            dst_path=folder,
            tracking_uri=client.tracking_uri,
        )
    )


def is_local(artifact_uri: str) -> bool:
    """Whether artifacts are files that this machine opens, with nothing between."""
    return urlsplit(artifact_uri).scheme in ("", "file")


@lru_cache(maxsize=256)
def _local_root(client: MlflowClient, run_id: str) -> Path | None:
    """The folder of a run's artifacts on this machine; None where they are elsewhere."""
    uri = str(client.get_run(run_id).info.artifact_uri)
    return Path(local_file_uri_to_path(uri)) if is_local(uri) else None
