"""Runs that can be copied: of another store, an offline folder, an mlruns folder or a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.environment_variables import MLFLOW_ALLOW_FILE_STORE
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, parse_row_index
from clear_mlflow.core.text import show_blank
from clear_mlflow.journal.reading import get_run_folder, read_points
from clear_mlflow.journal.run_folder import is_safe_path, walk_files
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import (
    DEFAULT_EXPERIMENT_ID,
    is_missing_store,
    map_in_threads,
    mlflow_errors,
)
from clear_mlflow.store.offline import (
    HEADER,
    NO_EXPERIMENT,
    check_format,
    format_offline_uri,
    is_offline_folder,
    locate_artifacts,
)
from clear_mlflow.store.rows import read_row_files
from clear_mlflow.store.search import (
    expand_run_id,
    find_experiment_ids,
    read_run_or_none,
    search_runs,
)
from clear_mlflow.store.sqlite import name_sqlite_driver

# Runs of other kinds refer to other runs by their ids, which are different in the target.
_COPIED_KINDS = (names.KIND_TRAIN, names.KIND_ENSEMBLE, names.KIND_SWEEP)
_ROWS_PREFIX = f"{ROWS_FOLDER}/"
_NUM_THREADS = 8  # that read histories: a server answers many at a time
RUN_ID = re.compile("[0-9a-f]{32}")


class RunSource:
    """A run that is copied from a tracking store.

    It may also be the run of a bundle or an offline folder, which is read from its files.
    """

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self.client = client
        self.run = run

    @property
    def experiment(self) -> str | None:
        """The experiment's name from the store, None for Default and for files."""
        experiment_id = self.run.info.experiment_id
        if experiment_id in (DEFAULT_EXPERIMENT_ID, NO_EXPERIMENT):
            return None
        with mlflow_errors(f"read experiment {experiment_id}"):
            return str(self.client.get_experiment(experiment_id).name)

    @property
    def run_id(self) -> str:
        """The id of the run, or of the original of a copy."""
        tag = self.run.data.tags.get(names.COPIED_FROM_TAG, "")
        return str(tag if RUN_ID.fullmatch(tag) else self.run.info.run_id)

    def read_histories(self) -> Iterator[Metric]:
        """Read and yield all values of all metrics, buckets' series last."""
        run_id = self.run.info.run_id
        if (folder := get_run_folder(self.run)) is not None:
            yield from sorted(read_points(folder), key=lambda p: names.is_bucket_series(p.key))
            return
        read_history = partial(self.client.get_metric_history, run_id)
        keys = sorted(self.run.data.metrics, key=names.is_bucket_series)
        with mlflow_errors(f"read the metrics of run {run_id}"):
            for history in map_in_threads(read_history, keys, _NUM_THREADS):
                yield from (Metric(m.key, m.value, m.timestamp, m.step) for m in history)

    def read_rows(self) -> dict[str, bytes]:
        """Read the row files, and return contents by file name.

        Raises RecordError if a row is missing although the run's tags name it.
        """
        return read_row_files(self.client, self.run)

    def list_files(self) -> dict[str, int | None]:
        """List artifact sizes by path, None for an unknown size.

        Skips row files, report.html, which contains the run's id, unsafe paths, and on this machine
        what :func:`walk_files` skips.
        """
        folder = ArtifactFolder(self.client, self.run)
        sizes: Iterable[tuple[str, int | None]] = _walk_remote(folder)
        if folder.local is not None:
            sizes = [(path, file.stat().st_size) for path, file in walk_files(folder.local)]
        return {
            path: size
            for path, size in sorted(sizes)
            if path != names.REPORT_HTML and not path.startswith(_ROWS_PREFIX)
        }

    def fetch_file(self, path: str, scratch: Path) -> Path:
        """Download an artifact unless it is local, and return its path."""
        folder, _, name = path.rpartition("/")
        return ArtifactFolder(self.client, self.run, folder).fetch_file(name, scratch)


def open_sources(store: str, runs: Sequence[str] = ()) -> list[RunSource]:
    """Read the runs of a store that can be copied.

    These are trainings, ensembles, sweeps, other runs with rows, and the selected parents of these.
    Raises TrackingError if the store, a run or an experiment does not exist.

    store: a tracking URI, an offline folder or an mlruns folder. Of folders, only the artifacts in
    them are read, wherever their runs were recorded. runs: ids of runs, their first digits, or
    names of experiments; empty for all runs of the store.
    """
    folder, uri, artifacts = Path(store), store, None
    if is_offline_folder(folder):
        check_format(folder)
        uri = format_offline_uri(folder)
    elif folder.is_dir():
        if not any(folder.glob("*/meta.yaml")):
            raise TrackingError(
                f"{folder} lacks {HEADER}, which an offline folder has, and the files of an mlruns "
                "folder; pass a database as sqlite:///PATH"
            )
        MLFLOW_ALLOW_FILE_STORE.set(True)
        uri, artifacts = folder.absolute().as_uri(), folder
    elif is_missing_store(uri) or (":" not in uri and uri != "databricks"):
        raise TrackingError(f"the store {show_blank(mask_credentials(uri))} does not exist")
    selected: list[Run] = []
    with mlflow_errors(f"read the store {mask_credentials(uri)}, which is copied"):
        client = MlflowClient(name_sqlite_driver(uri))
        for name in runs:
            run = read_run_or_none(client, expand_run_id(client, name))
            selected += [run] if run else search_runs(client, find_experiment_ids(client, name), "")
        if not runs:
            selected = list(search_runs(client, find_experiment_ids(client), ""))
    if artifacts is not None:
        selected = [locate_artifacts(artifacts, run) for run in selected]
    copied = [run for run in selected if _can_copy(client, run)]
    parent_ids = {run.data.tags.get(MLFLOW_PARENT_RUN_ID) for run in copied}
    parents = [run for run in selected if run.info.run_id in parent_ids and run not in copied]
    return [RunSource(client, run) for run in (*copied, *parents)]


def _can_copy(client: MlflowClient, run: Run) -> bool:
    """Return True for a training, an ensemble, a sweep, or any rows."""
    tags = run.data.tags
    if tags.get(names.KIND_TAG) in _COPIED_KINDS or names.ROWS_TAG in tags:
        return True
    # Another program wrote the rows, and they were not scored yet.
    files = ArtifactFolder(client, run, ROWS_FOLDER).list_sizes()
    return names.KIND_TAG not in tags and any(parse_row_index(name) is not None for name in files)


def _walk_remote(root: ArtifactFolder, path: str = "") -> Iterator[tuple[str, int | None]]:
    """List artifacts recursively, yielding safe paths with size or None."""
    with mlflow_errors("list the artifacts of a run"):
        entries = root.repository.list_artifacts(path or None) or []
    for entry in entries:
        # A store may list anything: only its own subfolders are listed.
        entry_path = f"{path}/{PurePosixPath(entry.path).name}".lstrip("/")
        if not is_safe_path(entry_path):
            continue
        if entry.is_dir:
            yield from _walk_remote(root, entry_path)
        else:
            yield entry_path, entry.file_size
