"""Files on their way to a run's artifact store: sent at once, or kept on disk until they can be."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mlflow import MlflowClient

from clear_mlflow.errors import TrackingError
from clear_mlflow.tracking.preflight import explained


class Outbox:
    """Sends what was measured, in order, and loses none of it.

    What the store does not take lies in a folder, at once: this process may be killed. The folder
    has the artifact store's own structure, so that it can be sent as a whole by hand; it lies in
    the working folder, else in the system's temporary one.

    Args:
        client: the store.
        run_id: of the run whose artifacts these are.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._waiting: list[str] = []  # artifact paths; their content is in the folder
        self.folder: Path | None = None

    def __len__(self) -> int:
        """How many files wait."""
        return len(self._waiting)

    def send(self, artifact: str, content: bytes) -> TrackingError | None:
        """Store one file, after all that wait.

        Args:
            artifact: its path in the run's artifacts.
            content: what it holds.

        Returns:
            Why it is not stored yet; None where it is.
        """
        problem = self.retry()
        if problem is None:
            try:
                self._store(artifact, content)
                return None
            except TrackingError as error:
                problem = error
        self._keep(artifact, content)
        return problem

    def retry(self) -> TrackingError | None:
        """Send what waits, until something is refused; gives why."""
        while self._waiting and self.folder is not None:
            file = self.folder / self._waiting[0]
            try:
                self._store(self._waiting[0], file.read_bytes())
            except TrackingError as error:
                return error
            file.unlink(missing_ok=True)
            del self._waiting[0]
        return None

    def _store(self, artifact: str, content: bytes) -> None:
        folder, name = artifact.rsplit("/", 1)
        with (
            explained(f"store {artifact} of run {self._run_id}"),
            tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch,
        ):
            file = Path(scratch, name)
            file.write_bytes(content)
            self._client.log_artifact(self._run_id, str(file), folder)

    def _keep(self, artifact: str, content: bytes) -> None:
        if self.folder is None:
            folder = Path("unsent_rows", self._run_id).absolute()
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                folder = Path(tempfile.mkdtemp(prefix=f"unsent_rows_{self._run_id}_"))
            self.folder = folder
        file = self.folder / artifact
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        self._waiting.append(artifact)
