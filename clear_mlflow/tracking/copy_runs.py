"""Copy runs from one tracking store to another: parameters, histories, files, status and scores.

A copy has the tag ``clear_mlflow.copied_from``, the id of the run that it was made of. The tag is
set when the copy is created, so a later call finds the copy, continues it after a kill, and adds
what was recorded in the source since. A complete copy also has a tag with a hash of the source.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.environment_variables import MLFLOW_ALLOW_FILE_STORE
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, parse_row_index
from clear_mlflow.journal.run_folder import MAX_POINTS
from clear_mlflow.scoring import score
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder, log_durably
from clear_mlflow.store.client import (
    DEFAULT_EXPERIMENT_ID,
    is_missing_store,
    map_in_threads,
    mlflow_errors,
    retry_on_conflict,
)
from clear_mlflow.store.lease import (
    RENEW_SECONDS,
    Lease,
    build_lease_tags,
    get_process_token,
    is_in_use,
    read_trainer_token,
)
from clear_mlflow.store.offline import (
    check_format,
    format_offline_uri,
    is_offline_folder,
    locate_artifacts,
)
from clear_mlflow.store.rows import (
    RowConflictError,
    is_same_row,
    is_truncated_row,
    read_row_files,
)
from clear_mlflow.store.search import (
    expand_run_id,
    find_experiment_ids,
    get_or_create_experiment,
    get_run_or_none,
    search_runs,
)
from clear_mlflow.store.sqlite import name_sqlite_driver
from clear_mlflow.store.states import remove_states
from clear_mlflow.tracking.logged_models import log_models

COPIED, UPDATED, STORED, IN_USE, FAILED = "copied", "updated", "there already", "in use", "failed"

# Runs of other kinds refer to other runs by their ids, which are different in the target.
_COPIED_KINDS = (names.KIND_TRAIN, names.KIND_ENSEMBLE, names.KIND_SWEEP)
# They belong to the source: its processes, its run id, its other runs.
_SOURCE_TAGS = {
    names.COPIED_FROM_TAG,
    names.COPIED_STATE_TAG,
    names.HOLDER_TAG,
    names.MATRIX_TAG,
    names.PROCESS_TAG,
    names.SCORED_TAG,
    names.SWEEP_COMPARISON_TAG,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
}
# They state that rows are stored, or how the run ended: set once everything is stored.
_FINAL_TAGS = {names.ROWS_TAG, names.ERROR_TAG, names.DIVERGED_TAG}
# Rows, which are copied first, and what scoring writes for the copy.
_GENERATED_FILES = re.compile(
    rf"{re.escape(names.REPORT_HTML)}|{ROWS_FOLDER}/.*|{names.MATRIX_FOLDER}/(matrix|heatmap)\.\w+"
    rf"|images/{names.IMAGE_FINAL}\+step\+.*"
)
# "#", "?" and "%" change the meaning of an address, on which requests to a server hang.
_FILE_PATH = re.compile(r"([^/\\#?%\x00-\x1f]+/)*[^/\\#?%\x00-\x1f]+")
_NUM_THREADS = 8  # that read histories: a server answers many at a time
_MAX_BATCH = 100  # parameters or tags in a request to MLflow

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class CopyResult:
    """What was done with one run of a source."""

    source_id: str
    run_name: str
    outcome: str  # COPIED, UPDATED, STORED (before), IN_USE or FAILED
    run_id: str | None = None  # of the copy, or None if there is none
    message: str = ""  # one line


class RunSource:
    """A run that is copied from a tracking store.

    A source of another type, such as a bundle, overrides :meth:`read_histories`; its run's artifact
    URI names a folder on this machine.
    """

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self.client = client
        self.run = run

    @property
    def experiment(self) -> str | None:
        """The name of the run's experiment, or None if it is Default or unknown."""
        experiment_id = self.run.info.experiment_id
        if experiment_id == DEFAULT_EXPERIMENT_ID:
            return None
        with mlflow_errors(f"read experiment {experiment_id}"):
            return str(self.client.get_experiment(experiment_id).name)

    @property
    def run_id(self) -> str:
        """The id of the run that a copy refers to. If this run is a copy: the id of its source."""
        tag = self.run.data.tags.get(names.COPIED_FROM_TAG, "")
        return str(tag if re.fullmatch("[0-9a-f]{32}", tag) else self.run.info.run_id)

    def read_histories(self) -> Iterator[Metric]:
        """Yield all values of all metrics, scores of single buckets last."""
        run_id = self.run.info.run_id
        read_history = partial(self.client.get_metric_history, run_id)
        keys = sorted(self.run.data.metrics, key=names.is_bucket_series)
        with mlflow_errors(f"read the metrics of run {run_id}"):
            for history in map_in_threads(read_history, keys, _NUM_THREADS):
                yield from (Metric(m.key, m.value, m.timestamp, m.step) for m in history)

    def read_rows(self) -> dict[str, bytes]:
        """Return the contents of the row files by file name.

        Raises RecordError if a row is missing although the run's tags name it.
        """
        return read_row_files(self.client, self.run)

    def list_files(self) -> dict[str, int | None]:
        """Return path and size of each artifact except rows and the files that scoring writes.

        Skips links, and paths that cannot be stored everywhere.
        """
        local = ArtifactFolder(self.client, self.run).local
        sizes = self._walk_remote() if local is None else _walk_local(local)
        return {
            path: size
            for path, size in sorted(sizes)
            if is_safe_path(path) and not _GENERATED_FILES.fullmatch(path)
        }

    def fetch_file(self, path: str, scratch: Path) -> Path:
        """Return the path of an artifact on this machine, downloaded to *scratch* if necessary."""
        folder, _, name = path.rpartition("/")
        return ArtifactFolder(self.client, self.run, folder).fetch_file(name, scratch)

    def _walk_remote(self, folder: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield path and size of each artifact in a folder of an artifact store."""
        run_id = self.run.info.run_id
        with mlflow_errors(f"list the artifacts of run {run_id}"):
            entries = self.client.list_artifacts(run_id, folder or None)
        for entry in entries:
            # A store may list anything: only its own subfolders are listed.
            path = f"{folder}/{PurePosixPath(entry.path).name}".lstrip("/")
            if not entry.is_dir:
                yield path, entry.file_size
            elif is_safe_path(path):
                yield from self._walk_remote(path)


class RunCopier:
    """Copies runs to the store of a client, parents before children.

    experiment: name of the experiment of all copies. None: each run keeps the name of its
    experiment, and runs of Default go to the experiment that MLflow's environment variables name.
    """

    def __init__(self, client: MlflowClient, experiment: str | None = None) -> None:
        self._client = client
        self._experiment = experiment
        self._experiment_ids: dict[str | None, str] = {}  # by name
        self._copy_ids: dict[str, str] = {}  # id of a run in its own store to id of its copy

    def copy_runs(self, sources: Iterable[RunSource]) -> Iterator[CopyResult]:
        """Copy runs, and yield what was done with each. An error does not stop the others."""
        # A parent is opened before its children.
        for source in sorted(sources, key=lambda source: source.run.info.start_time):
            try:
                yield self.copy_run(source)
            except (ClearError, OSError) as error:
                name = source.run.info.run_name or source.run_id
                yield CopyResult(source.run_id, name, FAILED, message=str(error))

    def copy_run(self, source: RunSource) -> CopyResult:
        """Copy a run, continue its copy, or add to the copy what was recorded since.

        Does nothing if the target has the same or a newer state, or if a process trains into the
        run or copies it now. Raises RowConflictError if a row is stored with other numbers.
        """
        run, client = source.run, self._client
        name = run.info.run_name or source.run_id
        if is_in_use(run):
            message = "a process trains into it; copy it when that has ended"
            return CopyResult(source.run_id, name, IN_USE, message=message)
        rows, files = source.read_rows(), source.list_files()
        state = _format_state(run, rows, files)
        experiment_id = self._get_experiment_id(source)
        copies = self._find_copies(experiment_id, source.run_id)
        target = copies[0] if copies else get_run_or_none(client, source.run_id)
        stored_rows: dict[str, bytes] = {}
        if target is not None:
            stored_rows = read_row_files(client, target, may_be_missing=None)
            _check_rows(target, rows, stored_rows, is_original=not copies)
            if not copies or not _is_newer(state, target):
                self._copy_ids[run.info.run_id] = target.info.run_id
                return CopyResult(source.run_id, name, STORED, target.info.run_id)
            if is_in_use(target) and read_trainer_token(target) != get_process_token():
                message = "another process copies it, or trains into the copy"
                return CopyResult(source.run_id, name, IN_USE, target.info.run_id, message)
        is_update = target is not None and names.COPIED_STATE_TAG in target.data.tags
        parent_tags = self._build_parent_tag(experiment_id, run)
        if target is None:
            with mlflow_errors(f"create a copy of run {source.run_id}"):
                target = client.create_run(
                    experiment_id,
                    start_time=run.info.start_time,
                    tags={
                        **_select_tags(run, final=False),
                        **parent_tags,
                        **build_lease_tags(),
                        names.COPIED_FROM_TAG: source.run_id,
                    },
                    run_name=run.info.run_name,
                )
            stored_files: dict[str, int | None] = {}
        else:
            self._take_over(target.info.run_id)
            _delete_drafts(client, target)
            stored_files = RunSource(client, target).list_files()
        missing_rows = {
            file: content
            for file, content in rows.items()
            if file not in stored_rows or is_truncated_row(stored_rows[file])
        }
        missing_files = [path for path, size in files.items() if stored_files.get(path, -1) != size]
        problem = self._write(source, target, missing_rows, missing_files, state)
        run_id = self._delete_duplicates(experiment_id, source.run_id)
        self._copy_ids[run.info.run_id] = run_id
        message = problem or f"{len(rows)} rows, {run.info.status}"
        return CopyResult(source.run_id, name, UPDATED if is_update else COPIED, run_id, message)

    def _write(
        self,
        source: RunSource,
        target: Run,
        rows: Mapping[str, bytes],
        files: Sequence[str],
        state: str,
    ) -> str:
        """Write rows, files and everything else of a run into its copy, and end and score that.

        Returns why it could not be scored, or "". Repeating it changes nothing. rows, files: those
        that the copy lacks.
        """
        client, run, run_id = self._client, source.run, target.info.run_id
        lease = Lease(client, run_id)
        params = [Param(*item) for item in run.data.params.items()]
        tags = [RunTag(*item) for item in _select_tags(run, final=True).items()]
        with mlflow_errors(f"copy run {source.run_id}"):
            for param_batch in _split(params, _MAX_BATCH):
                client.log_batch(run_id, params=param_batch)
            if run.inputs and run.inputs.dataset_inputs:
                inputs = run.inputs.dataset_inputs
                retry_on_conflict(lambda: client.log_inputs(run_id, datasets=inputs))
            for name, content in rows.items():
                log_durably(client, run_id, content, f"{ROWS_FOLDER}/{name}")
            renewed_at = time.monotonic()
            for path in files:
                if time.monotonic() - renewed_at > RENEW_SECONDS:
                    lease.renew()
                    renewed_at = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
                    file = source.fetch_file(path, Path(scratch))
                    client.log_artifact(run_id, str(file), path.rpartition("/")[0] or None)
            if not any(path.startswith(f"{names.STATE_FOLDER}/") for path in source.list_files()):
                remove_states(client, target)
            last_time = run.info.start_time
            for points in _split(source.read_histories(), MAX_POINTS):
                lease.check()
                client.log_batch(run_id, metrics=points)
                last_time = max(last_time, *(point.timestamp for point in points))
            for tag_batch in _split(tags, _MAX_BATCH):
                client.log_batch(run_id, tags=tag_batch)
            for tag in _FINAL_TAGS & target.data.tags.keys() - {tag.key for tag in tags}:
                client.delete_tag(run_id, tag)
        problem = ""
        try:
            log_models(client, client.get_run(run_id), score(client, run_id))
        except RecordError as error:
            problem = f"it is copied, but cannot be scored: {error}"
        with mlflow_errors(f"end the copy of run {source.run_id}"):
            lease.check()
            status = _read_status(run)
            if status != "RUNNING":
                client.set_terminated(run_id, status, run.info.end_time or last_time)
            client.set_tag(run_id, names.COPIED_STATE_TAG, state)
            client.delete_tag(run_id, names.PROCESS_TAG)
        return problem

    def _get_experiment_id(self, source: RunSource) -> str:
        """Return the id of the experiment of a run's copy. Creates it if it is missing."""
        name = self._experiment or source.experiment
        if name not in self._experiment_ids:
            self._experiment_ids[name] = get_or_create_experiment(self._client, name)
        return self._experiment_ids[name]

    def _find_copies(self, experiment_id: str, source_id: str) -> list[Run]:
        """Return the copies of a run in an experiment, complete ones first, then by run id."""
        condition = f"tags.`{names.COPIED_FROM_TAG}` = '{source_id}'"
        copies = search_runs(self._client, [experiment_id], condition)
        return sorted(
            copies,
            key=lambda run: (names.COPIED_STATE_TAG not in run.data.tags, run.info.run_id),
        )

    def _build_parent_tag(self, experiment_id: str, run: Run) -> dict[str, str]:
        """Return the tag that names the parent of a copied run, or {} if it has none.

        The parent is the copy of the run's parent, or the original if that was not copied. Returns
        {} as well if the destination has neither.
        """
        parent_id = run.data.tags.get(MLFLOW_PARENT_RUN_ID)
        if parent_id is None:
            return {}
        if parent_id not in self._copy_ids:
            copies = self._find_copies(experiment_id, parent_id)
            parent = copies[0] if copies else get_run_or_none(self._client, parent_id)
            if parent is None:
                return {}
            self._copy_ids[parent_id] = parent.info.run_id
        return {MLFLOW_PARENT_RUN_ID: self._copy_ids[parent_id]}

    def _take_over(self, run_id: str) -> None:
        """Acquire the lease of a copy, and set the copy to RUNNING until it is complete."""
        lease = Lease(self._client, run_id)
        lease.acquire()
        lease.renew()
        with mlflow_errors(f"open run {run_id} again"):
            self._client.update_run(run_id, status="RUNNING")

    def _delete_duplicates(self, experiment_id: str, source_id: str) -> str:
        """Delete all copies of a run except one, and return the id of that one.

        Two machines that start at the same moment may each create a copy. Each searches for copies
        after its own is complete, so the second one to complete sees both. The complete copy with
        the smallest run id is kept, so that both decide the same if they search at once. An
        incomplete copy is left to the process that has its lease, and deleted if there is none.
        """
        first_copy, *others = self._find_copies(experiment_id, source_id)
        for copy in others:
            if names.COPIED_STATE_TAG in copy.data.tags or not is_in_use(copy):
                with mlflow_errors(f"delete run {copy.info.run_id}, a duplicate"):
                    self._client.delete_run(copy.info.run_id)
        return str(first_copy.info.run_id)


def list_sources(
    client: MlflowClient, runs: Sequence[str] = (), artifacts: Path | None = None
) -> list[RunSource]:
    """Return the runs of a store that can be copied: those with rows, their parents and sweeps.

    runs: ids of runs or names of experiments. Empty for all runs of the store. artifacts: folder to
    read the artifacts from, or None for the locations in the store.
    """
    selected: list[Run] = []
    for name in runs or (None,):
        run_id = None if name is None else expand_run_id(client, name)
        run = None if run_id is None else get_run_or_none(client, run_id)
        if run is not None:
            selected.append(run)
        else:
            selected += search_runs(client, find_experiment_ids(client, name), "")
    if artifacts is not None:
        selected = [locate_artifacts(artifacts, run) for run in selected]
    copied = [run for run in selected if _can_copy(client, run)]
    parent_ids = {run.data.tags.get(MLFLOW_PARENT_RUN_ID) for run in copied}
    parents = [run for run in selected if run.info.run_id in parent_ids and run not in copied]
    return [RunSource(client, run) for run in (*copied, *parents)]


def open_sources(store: str, runs: Sequence[str] = ()) -> list[RunSource]:
    """Return the runs of a store that can be copied. runs: see :func:`list_sources`.

    store: a tracking URI, an offline folder or an mlruns folder. Of folders, only the artifacts in
    them are read, wherever their runs were recorded.
    """
    folder, uri, artifacts = Path(store), store, None
    if is_offline_folder(folder):
        check_format(folder)
        uri, artifacts = format_offline_uri(folder), folder / "artifacts"
    elif folder.is_dir():
        MLFLOW_ALLOW_FILE_STORE.set(True)
        uri, artifacts = folder.absolute().as_uri(), folder
    elif is_missing_store(uri):
        raise TrackingError(f"the store {mask_credentials(uri)} does not exist")
    with mlflow_errors(f"read the store {mask_credentials(uri)}, which is copied"):
        return list_sources(MlflowClient(name_sqlite_driver(uri)), runs, artifacts)


def _can_copy(client: MlflowClient, run: Run) -> bool:
    """Return True if a run is a training, an ensemble or a sweep, or if it contains rows."""
    tags = run.data.tags
    if tags.get(names.KIND_TAG) in _COPIED_KINDS or names.ROWS_TAG in tags:
        return True
    # Another program wrote the rows, and they were not scored yet.
    files = ArtifactFolder(client, run, ROWS_FOLDER).list_sizes()
    return names.KIND_TAG not in tags and any(parse_row_index(name) is not None for name in files)


def is_safe_path(path: str) -> bool:
    """Return True if an artifact path from a store can be a path on disk and in an address."""
    return bool(_FILE_PATH.fullmatch(path)) and not {".", ".."} & {*path.split("/")}


def _delete_drafts(client: MlflowClient, target: Run) -> None:
    """Delete the incomplete files that MLflow left on this machine when a copying was killed."""
    if (folder := ArtifactFolder(client, target).local) is not None:
        for draft in folder.rglob(".artifact.uploading.*"):
            draft.unlink()


def _walk_local(root: Path) -> Iterator[tuple[str, int | None]]:
    """Yield path and size of each file below a folder. Skips links and drafts."""
    for folder, _, file_names in os.walk(root):
        for name in file_names:
            file = Path(folder, name)
            if not file.is_symlink() and file.is_file() and not name.startswith("."):
                yield file.relative_to(root).as_posix(), file.stat().st_size


def _check_rows(
    target: Run, rows: Mapping[str, bytes], stored: Mapping[str, bytes], *, is_original: bool
) -> None:
    """Raise RowConflictError if a run has a row with other numbers. A truncated row has none.

    is_original: the target's run is the source itself; it is an error if it lacks a row.
    """
    for name in sorted(rows):
        if name not in stored or is_truncated_row(stored[name]):
            problem = "is missing in" if is_original else ""
        else:
            is_same = is_same_row(rows[name], stored[name], name)
            problem = "" if is_same else "is stored with other numbers in"
        if problem:
            raise RowConflictError(
                f"{name} {problem} run {target.info.run_id} of the target, which is kept; delete "
                "that run if the source is right"
            )


def _select_tags(run: Run, *, final: bool) -> dict[str, str]:
    """Return the tags of a run that its copy gets. final: also those that need stored rows."""
    tags = {key: value for key, value in run.data.tags.items() if key not in _SOURCE_TAGS}
    if run.data.tags.get(names.KIND_TAG) == names.KIND_SWEEP:
        tags.pop(names.MLFLOW_NOTE, None)  # it links to the comparison, which is not copied
    if not final:
        return {key: value for key, value in tags.items() if key not in _FINAL_TAGS}
    if _read_status(run) != run.info.status:
        tags[names.ERROR_TAG] = "the process that trained it is gone"
    return tags


def _read_status(run: Run) -> str:
    """Return the status of a run, KILLED if the process that trained it is gone."""
    if run.info.status == "RUNNING" and names.PROCESS_TAG in run.data.tags:
        return "KILLED"
    return str(run.info.status)


def _format_state(run: Run, rows: Mapping[str, bytes], files: Mapping[str, int | None]) -> str:
    """Return the number of rows, the end and a hash of everything that is copied of a run."""
    info, data = run.info, run.data
    metadata = [info.status, info.run_name, data.params, _select_tags(run, final=True)]
    content = json.dumps([metadata, data.metrics, files], sort_keys=True).encode()
    hasher = hashlib.sha256(content)
    for name, row in sorted(rows.items()):
        hasher.update(f"\0{name}\0{len(row)}\0".encode() + row)
    return f"{len(rows)}-{info.end_time or 0}-{hasher.hexdigest()[:32]}"


def _is_newer(state: str, copy: Run) -> bool:
    """Return True if a state differs from the state of a copy and is not older.

    An older state has fewer rows, or as many and an earlier end. It may come from a folder that was
    copied to another machine before the run was resumed.
    """
    pattern = "([0-9]{1,9})-([0-9]{1,18})-([0-9a-f]{32})"
    match = re.fullmatch(pattern, copy.data.tags.get(names.COPIED_STATE_TAG, ""))
    if match is None:
        return True
    num_rows, end_time, content_hash = state.split("-")
    is_older = (int(num_rows), int(end_time)) < (int(match[1]), int(match[2]))
    return content_hash != match[3] and not is_older


def _split(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield lists of at most *size* items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
