"""Read and write artifacts: folders of files, on this machine or behind a server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.file_utils import local_file_uri_to_path

from clear_mlflow.core.disk import create_durably, write_durably
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import format_size, read_bytes
from clear_mlflow.store.client import download_file, map_in_threads, mlflow_errors

_DRAFTS = (".*.part", ".artifact.uploading.*")  # our temporary files, and MLflow's


class ArtifactFolder:
    """A folder of a run's artifacts, here or behind a server.

    name: path of the folder in the run's artifacts, by default their root. Methods that read raise
    TrackingError if the artifact store does not answer.
    """

    def __init__(self, client: MlflowClient, run: Run, name: str = "") -> None:
        root = str(run.info.artifact_uri)
        self._uri, self._tracking_uri = f"{root}/{name}".rstrip("/"), client.tracking_uri
        self._run_id, self._name = run.info.run_id, name or "the artifacts"
        # None if the artifacts are not files of this machine.
        self.local = Path(local_file_uri_to_path(root), name) if is_local(root) else None

    @cached_property
    def repository(self) -> ArtifactRepository:
        """MLflow's ArtifactRepository of the folder."""
        return get_artifact_repository(self._uri, tracking_uri=self._tracking_uri)

    def list_sizes(self) -> dict[str, int | None]:
        """List the sizes of the folder's files in bytes, None if unknown.

        Skips subfolders and symbolic links. Returns {} if the folder does not exist.
        """
        with mlflow_errors(f"list {self._name} of run {self._run_id}"):
            if self.local is None:
                listed = self.repository.list_artifacts() or []
                # Only the last part: a path that comes from a store must not be followed.
                return {f.path.rsplit("/", 1)[-1]: f.file_size for f in listed if not f.is_dir}
            files = self.local.iterdir() if self.local.is_dir() else ()
            # A link can lead to any file of this machine, whose content a message would then quote.
            return {f.name: f.stat().st_size for f in files if f.is_file() and not f.is_symlink()}

    def list_numbered(self, parse: Callable[[str], Any], max_bytes: int) -> dict[str, int | None]:
        """List the sizes of numbered files in order, or raise RecordError.

        parse: returns the number in a file name, or None for other files. Raises RecordError if a
        file has more than *max_bytes*.
        """
        sizes = {name: size for name, size in self.list_sizes().items() if parse(name) is not None}
        for name, size in sizes.items():
            check_size(name, size, max_bytes)
        return dict(sorted(sizes.items(), key=lambda item: parse(item[0])))

    @contextmanager
    def open_scratch(self) -> Iterator[Path]:
        """Yield a temporary folder, or this folder itself if it is local.

        It is temporary and deleted after the block, or this folder itself if it is on this machine.
        """
        if self.local is not None:
            yield self.local
            return
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
            yield Path(folder)

    def fetch_file(self, name: str, scratch: str | Path) -> Path:
        """Download a file unless it is local, and return its path.

        A file on this machine need not exist.
        """
        if self.local is not None:
            return self.local / name
        file = Path(scratch, name)
        with mlflow_errors(f"read {safe_repr(name, 200)} of run {self._run_id}"):
            download_file(self.repository, name, file)
        return file

    def write_file(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        """Store or replace a file, which survives power cuts if local.

        Errors of the disk or of MLflow are raised unchanged. name: path in this folder. is_durable:
        False to write faster.
        """
        if self.local is not None and is_durable:
            write_durably(self.local / name, content)
            return
        folder, _, base_name = name.rpartition("/")
        with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
            file = Path(scratch, base_name)
            file.write_bytes(content)
            self.repository.log_artifact(str(file), folder or None)

    def create_file(self, name: str, content: bytes) -> bool:
        """Store a file like :meth:`write_file`, or return False if it exists.

        Only on this machine, two processes cannot both create it. name: without a folder.
        """
        if self.local is not None:
            return create_durably(self.local / name, content)
        if name in self.list_sizes():
            return False
        self.write_file(name, content)
        return True

    def remove_drafts(self) -> None:
        """Delete files below this folder that killed processes did not finish.

        Errors are ignored, and files that are not on this machine remain.
        """
        if self.local is not None:
            with suppress(OSError):
                for draft in chain.from_iterable(map(self.local.rglob, _DRAFTS)):
                    draft.unlink()

    def read_files(
        self, file_names: Collection[str], max_bytes: int, num_threads: int = 1
    ) -> dict[str, bytes]:
        """Read files, downloading remote ones, and return contents by name.

        Raises RecordError if a file exceeds *max_bytes*, and TrackingError if one is missing.
        num_threads: number of files that are read at the same time.
        """
        with self.open_scratch() as scratch:

            def read_file(name: str) -> bytes:
                file = self.fetch_file(name, scratch)
                try:
                    with mlflow_errors(f"read {name} of run {self._run_id}"):
                        return read_bytes(file, max_bytes)
                except RecordError as error:
                    raise RecordError(f"{name} {error}") from error

            contents = map_in_threads(read_file, file_names, num_threads)
            return dict(zip(file_names, contents, strict=True))


def check_size(name: str, size: int | None, max_bytes: int) -> None:
    """Raise RecordError if a file has more than *max_bytes*.

    An unknown size (None) is accepted.
    """
    if size is not None and size > max_bytes:
        raise RecordError(f"{name} has {size} bytes; expected at most {format_size(max_bytes)}")


def is_local(artifact_uri: str) -> bool:
    """Return True if an artifact URI names a folder of this machine."""
    return urlsplit(artifact_uri).scheme in ("", "file")
