"""Artifacts out of what is in memory, and as files of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.file_utils import local_file_uri_to_path

from clear_mlflow.core.durable import write_durably
from clear_mlflow.core.text import safe_repr
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.compat import download_file


class ArtifactFolder:
    """A folder of artifacts, of a run or below an address: the files in it, by their names."""

    def __init__(self, client: MlflowClient, of: Run | str, name: str = "") -> None:
        root = of if isinstance(of, str) else str(of.info.artifact_uri)
        self._address, self._tracking_uri = f"{root}/{name}".rstrip("/"), client.tracking_uri
        # On this machine; None: elsewhere.
        self.local = Path(local_file_uri_to_path(root), name) if is_local(root) else None

    @cached_property
    def repository(self) -> ArtifactRepository:
        """What MLflow reads and writes it by."""
        return get_artifact_repository(self._address, tracking_uri=self._tracking_uri)

    def list_sizes(self) -> dict[str, int | None]:
        """Names of the files in it, and their bytes where known; none where it is not there."""
        if self.local is None:
            listed = self.repository.list_artifacts() or []
            # The name alone: what a store calls a file is no path to follow.
            return {f.path.rsplit("/", 1)[-1]: f.file_size for f in listed if not f.is_dir}
        files = self.local.iterdir() if self.local.is_dir() else ()
        # A link may lead to any file of this machine, whose content a message would then quote.
        return {f.name: f.stat().st_size for f in files if f.is_file() and not f.is_symlink()}

    @contextmanager
    def open_scratch(self) -> Iterator[Path]:
        """A folder to fetch files into; files of this machine need none, nor room on a disk."""
        if self.local is not None:
            yield self.local
            return
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
            yield Path(folder)

    def fetch_file(self, name: str, scratch: str | Path) -> Path:
        """One of its files on this machine: where it lies, or fetched into a folder."""
        if self.local is not None:
            return self.local / name
        fetched = Path(scratch, name)
        download_file(self.repository, name, fetched)
        return fetched


def log_bytes(client: MlflowClient, run_id: str, content: bytes, artifact: str) -> None:
    """Store bytes as an artifact; MLflow's own calls take texts, or files."""
    folder, _, name = artifact.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        file = Path(scratch, name)
        file.write_bytes(content)
        client.log_artifact(run_id, str(file), folder or None)


def log_durably(client: MlflowClient, run_id: str, content: bytes, artifact: str) -> None:
    """Store bytes that survive a power cut: MLflow does not flush what it writes to local disks."""
    root = _local_root(client, run_id)
    if root is None:
        log_bytes(client, run_id, content, artifact)
    else:
        write_durably(root / artifact, content)


def download_artifact(client: MlflowClient, run: Run, artifact: str, folder: str) -> Path:
    """Fetch an artifact of a run into a folder of this machine, and give its file."""
    place, _, name = artifact.rpartition("/")
    with mlflow_errors(f"read {safe_repr(artifact, 200)} of run {run.info.run_id}"):
        return ArtifactFolder(client, run, place).fetch_file(name, folder)


def is_local(artifact_uri: str) -> bool:
    """Whether artifacts are files that this machine opens, with nothing between."""
    return urlsplit(artifact_uri).scheme in ("", "file")


@lru_cache(maxsize=256)
def _local_root(client: MlflowClient, run_id: str) -> Path | None:
    """The folder of a run's artifacts on this machine; None where they are elsewhere."""
    uri = str(client.get_run(run_id).info.artifact_uri)
    return Path(local_file_uri_to_path(uri)) if is_local(uri) else None
