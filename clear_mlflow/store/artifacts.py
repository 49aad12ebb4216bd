"""Artifacts out of what is in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mlflow import MlflowClient


def log_bytes(client: MlflowClient, run_id: str, content: bytes, artifact: str) -> None:
    """Store bytes as an artifact; MLflow's own calls take texts, or files."""
    folder, name = artifact.rsplit("/", 1)
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        file = Path(scratch, name)
        file.write_bytes(content)
        client.log_artifact(run_id, str(file), folder)
