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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.environment_variables import MLFLOW_ALLOW_FILE_STORE
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER, parse_row_index, row_file_name
from clear_mlflow.core.text import safe_repr
from clear_mlflow.journal.reading import get_run_folder, read_points
from clear_mlflow.journal.run_folder import MAX_POINTS, is_safe_path
from clear_mlflow.scoring import Scores, evaluate
from clear_mlflow.scoring.run_log import REPORTS, find_changes, log_results, read_measurements
from clear_mlflow.scoring.run_record import split_score_hash
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import (
    DEFAULT_EXPERIMENT_ID,
    is_missing_store,
    log_tags,
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
    NO_EXPERIMENT,
    check_format,
    format_offline_uri,
    is_offline_folder,
    locate_artifacts,
    replace_info,
)
from clear_mlflow.store.rows import (
    RowConflictError,
    hash_rows,
    is_same_row,
    is_truncated_row,
    pack_matrix_tag,
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
# They state that rows are stored, or how the run ended: set once the rows are stored.
_FINAL_TAGS = {names.ROWS_TAG, names.ERROR_TAG, names.DIVERGED_TAG}
# What scoring writes for any run with the same rows. Its page also names the run.
_SCORE_FILES = re.compile(
    rf"{names.MATRIX_FOLDER}/(matrix|heatmap)\.\w+|images/{names.IMAGE_FINAL}\+step\+.*"
)
_ROWS_PREFIX = f"{ROWS_FOLDER}/"
_NUM_THREADS = 8  # that read histories: a server answers many at a time
_MAX_BATCH = 50  # parameters, and tags, in a request of at most 1 MB

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class CopyResult:
    """What was done with one run of a source."""

    source_id: str
    run_name: str
    outcome: str  # COPIED, UPDATED, STORED (before), IN_USE or FAILED
    run_id: str | None = None  # of the copy, or None if there is none
    message: str = ""  # one line
    is_scored: bool = True  # False if the run is copied, but its rows cannot be scored


class RunSource:
    """A run that is copied from a tracking store.

    It may also be the run of a bundle or an offline folder, which is read from its files.
    """

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self.client = client
        self.run = run

    @property
    def experiment(self) -> str | None:
        """The name of the run's experiment, or None for Default and for a run read from files.

        Raises TrackingError.
        """
        experiment_id = self.run.info.experiment_id
        if experiment_id in (DEFAULT_EXPERIMENT_ID, NO_EXPERIMENT):
            return None
        with mlflow_errors(f"read experiment {experiment_id}"):
            return str(self.client.get_experiment(experiment_id).name)

    @property
    def run_id(self) -> str:
        """The id of the run, or if this run is itself a copy, the id of the run that was copied."""
        tag = self.run.data.tags.get(names.COPIED_FROM_TAG, "")
        return str(tag if re.fullmatch("[0-9a-f]{32}", tag) else self.run.info.run_id)

    def read_histories(self) -> Iterator[Metric]:
        """Yield all values of all metrics, those such as "test_accuracy/bucket_01" last."""
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
        """Return the contents of the row files by file name.

        Raises RecordError if a row is missing although the run's tags name it.
        """
        return read_row_files(self.client, self.run)

    def list_files(self) -> dict[str, int | None]:
        """Return the size of each artifact by path, or None for an unknown size.

        Skips row files, report.html, which contains the run's id, links, hidden files on this
        machine, and paths for which :func:`is_safe_path` is False.
        """
        folder = ArtifactFolder(self.client, self.run)
        sizes = _walk_remote(folder) if folder.local is None else _walk_local(folder.local)
        return {
            path: size
            for path, size in sorted(sizes)
            if is_safe_path(path)
            and path != names.REPORT_HTML
            and not path.startswith(_ROWS_PREFIX)
        }

    def fetch_file(self, path: str, scratch: Path) -> Path:
        """Return the path of an artifact on this machine, downloaded to *scratch* if necessary."""
        folder, _, name = path.rpartition("/")
        return ArtifactFolder(self.client, self.run, folder).fetch_file(name, scratch)


class RunCopier:
    """Copies runs to the store of a client, parents before children.

    experiment: name of the experiment of all copies. None: each run keeps the name of its
    experiment, and runs of Default go to the experiment that MLflow's environment variables name.
    """

    def __init__(self, client: MlflowClient, experiment: str | None = None) -> None:
        self._client = client
        self._experiment = experiment
        # Client of a source and id of an experiment in it, to the id of the experiment of copies.
        self._experiment_ids: dict[tuple[MlflowClient, str], str] = {}
        self._original_ids: dict[str, str] = {}  # id of a source to the id that copies refer to

    def copy_runs(self, sources: Iterable[RunSource]) -> Iterator[CopyResult]:
        """Copy runs, oldest first, and yield what was done with each.

        After an error, the outcome of the run is FAILED, and the next run is copied.
        """
        # A parent is opened before its children.
        for source in sorted(sources, key=lambda source: source.run.info.start_time):
            try:
                yield self.copy_run(source)
            except (ClearError, OSError) as error:
                name = source.run.info.run_name or source.run_id
                yield CopyResult(source.run_id, name, FAILED, message=str(error))

    def copy_run(self, source: RunSource) -> CopyResult:
        """Copy and score a run, continue its copy, or add to the copy what was recorded since.

        Does nothing if the target has the run itself, or a copy in the same or a newer state or
        with the same rows from another continuation, or if a process trains into the run or copies
        it now. Deletes other copies of the run in the experiment. Raises RowConflictError, before
        anything is written, if a row or parameter is stored with another value.
        """
        run, client = source.run, self._client
        name = run.info.run_name or source.run_id
        self._original_ids[run.info.run_id] = source.run_id
        if is_in_use(run):
            message = "a process trains into it; copy it when that has ended"
            return CopyResult(source.run_id, name, IN_USE, message=message)
        rows, files = source.read_rows(), source.list_files()
        state = _hash_source(run, rows, files)
        experiment_id = self._get_experiment_id(source)
        copies = self._find_copies(experiment_id, source.run_id)
        target = copies[0] if copies else get_run_or_none(client, source.run_id)
        stored_rows: dict[str, bytes] = {}
        stored_files: dict[str, int | None] = {}
        is_update = False
        if target is None:
            target = self._create_copy(source, experiment_id)
        else:
            stored_state = target.data.tags.get(names.COPIED_STATE_TAG)
            if stored_state != state:
                stored_rows = read_row_files(client, target, may_be_missing=None)
                _check_rows(target, rows, stored_rows, is_original=not copies)
                _check_params(target, run.data.params)
            # With fewer rows, it is an older copy of an offline folder.
            if stored_state == state or not copies or stored_rows.keys() - rows.keys():
                return CopyResult(source.run_id, name, STORED, target.info.run_id)
            # Row files contain times, which differ if two copies were both continued.
            is_same_length = stored_state is not None and stored_rows.keys() == rows.keys()
            if is_same_length and _has_other_files(rows, stored_rows):
                message = "another copy of it was continued to the same rows"
                return CopyResult(source.run_id, name, STORED, target.info.run_id, message)
            if is_in_use(target) and read_trainer_token(target) != get_process_token():
                message = "another process copies it, or trains into the copy"
                return CopyResult(source.run_id, name, IN_USE, target.info.run_id, message)
            is_update = stored_state is not None
            self._reopen_copy(target)
            stored_files = RunSource(client, target).list_files()
        missing_rows = {
            file: content
            for file, content in rows.items()
            if file not in stored_rows or is_truncated_row(stored_rows[file])
        }
        score_tags = _build_score_tags(run, target, rows)
        missing_files = [
            path
            for path, size in files.items()
            if (score_tags if _SCORE_FILES.fullmatch(path) else stored_files.get(path, -1) != size)
        ]
        last_time = self._write(source, target, missing_rows, missing_files, score_tags)
        if stored_files and run.info.status == "FINISHED":
            remove_states(client, target)
        problem = self._score(source, target, {*stored_files, *missing_files})
        with mlflow_errors(f"end the copy of run {source.run_id}"):
            self._end_copy(run, target, state, last_time)
        run_id = self._delete_duplicates(experiment_id, source.run_id)
        message = (
            problem or f"{len(rows.keys() - {row_file_name(0)})} rows, {_get_copied_status(run)}"
        )
        outcome = UPDATED if is_update else COPIED
        return CopyResult(source.run_id, name, outcome, run_id, message, is_scored=not problem)

    def _create_copy(self, source: RunSource, experiment_id: str) -> Run:
        """Create a run like a source, and acquire its lease."""
        tags = _select_tags(source.run)
        tags = {key: value for key, value in tags.items() if key not in _FINAL_TAGS}
        tags |= self._build_parent_tag(experiment_id, source.run)
        tags |= {**build_lease_tags(), names.COPIED_FROM_TAG: source.run_id}
        info = source.run.info
        with mlflow_errors(f"create a copy of run {source.run_id}"):
            return self._client.create_run(experiment_id, info.start_time, tags, info.run_name)

    def _reopen_copy(self, target: Run) -> None:
        """Take the lease of a copy, and set the copy to RUNNING.

        Deletes temporary files on this machine that a killed process left (.artifact.uploading.*).
        """
        run_id = target.info.run_id
        with mlflow_errors(f"open run {run_id} again"):
            log_tags(self._client, run_id, build_lease_tags())
            self._client.update_run(run_id, status="RUNNING")
        if (folder := ArtifactFolder(self._client, target).local) is not None:
            for draft in folder.rglob(".artifact.uploading.*"):
                draft.unlink()

    def _write(
        self,
        source: RunSource,
        target: Run,
        rows: Mapping[str, bytes],
        files: Sequence[str],
        score_tags: Mapping[str, str],
    ) -> int:
        """Write everything of a run except its status into its copy.

        Repeating it changes nothing. Returns the time of the latest metric value, or the start time
        if that is later. rows, files: those that the copy lacks.
        """
        client, run, run_id = self._client, source.run, target.info.run_id
        lease, renewed_at = Lease(client, run_id), time.monotonic()

        def renew_lease() -> None:
            nonlocal renewed_at
            if time.monotonic() - renewed_at > RENEW_SECONDS:
                lease.renew()
                renewed_at = time.monotonic()

        params = (Param(*item) for item in run.data.params.items())
        tags = (RunTag(*item) for item in {**_select_tags(run), **score_tags}.items())
        last_time: int = run.info.start_time
        with mlflow_errors(f"copy run {source.run_id}"):
            for name, content in rows.items():
                ArtifactFolder(client, target, ROWS_FOLDER).write_file(name, content)
            for path in files:
                renew_lease()
                with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
                    file = source.fetch_file(path, Path(scratch))
                    client.log_artifact(run_id, str(file), path.rpartition("/")[0] or None)
            if run.inputs and run.inputs.dataset_inputs:
                inputs = run.inputs.dataset_inputs
                retry_on_conflict(lambda: client.log_inputs(run_id, datasets=inputs))
            for points, param_batch, tag_batch in zip_longest(
                _split(_select_new_points(source, RunSource(client, target)), MAX_POINTS),
                _split(params, _MAX_BATCH),
                _split(tags, _MAX_BATCH),
                fillvalue=(),
            ):
                renew_lease()
                client.log_batch(run_id, points, param_batch, tag_batch)
                last_time = max([last_time, *(point.timestamp for point in points)])
        return last_time

    def _score(self, source: RunSource, target: Run, files: Collection[str]) -> str:
        """Score a copy, log its models, and return the problem or "".

        Reads metric histories only if the source was scored with other rows or versions.
        """
        client = self._client
        run = Lease(client, target.info.run_id).check()
        artifact_uri = source.run.info.artifact_uri
        try:
            stored = read_measurements(
                source.client, replace_info(run, artifact_uri=artifact_uri), reread=False
            )
            results = evaluate(stored)
            changes = find_changes(client, stored, results, reread=False)
            if stored.record is not None and not set(files) >= REPORTS:
                changes = replace(changes, reports=True)
            scores = Scores(stored, results, changes)
            log_results(client, scores)
            log_models(client, run, scores)
        except RecordError as error:
            return f"it is copied, but cannot be scored: {error}"
        return ""

    def _end_copy(self, run: Run, target: Run, state: str, last_time: int) -> None:
        """Set status, end time, parent and completion tag of a copy."""
        client, run_id = self._client, target.info.run_id
        current = Lease(client, run_id).check()
        if (status := _get_copied_status(run)) != "RUNNING":
            client.set_terminated(run_id, status, run.info.end_time or last_time)
        # Another machine may have deleted the parent meanwhile, as a duplicate.
        parent_tag = self._build_parent_tag(target.info.experiment_id, run)
        new_parent_tag = dict(parent_tag.items() - target.data.tags.items())
        log_tags(client, run_id, {**new_parent_tag, names.COPIED_STATE_TAG: state})
        outdated_tags = {names.ERROR_TAG, names.DIVERGED_TAG} - _select_tags(run).keys()
        for tag in {names.PROCESS_TAG, *outdated_tags} & current.data.tags.keys():
            client.delete_tag(run_id, tag)

    def _get_experiment_id(self, source: RunSource) -> str:
        """Return the id of the experiment of a run's copy. Creates it if it is missing."""
        key = source.client, source.run.info.experiment_id
        if key not in self._experiment_ids:
            name = self._experiment or source.experiment
            self._experiment_ids[key] = get_or_create_experiment(self._client, name)
        return self._experiment_ids[key]

    def _find_copies(self, experiment_id: str, source_id: str) -> list[Run]:
        """Return the copies of a run in an experiment, complete ones first, then by run id."""
        condition = f"tags.`{names.COPIED_FROM_TAG}` = '{source_id}'"
        copies = search_runs(self._client, [experiment_id], condition)
        return sorted(
            copies,
            key=lambda run: (names.COPIED_STATE_TAG not in run.data.tags, run.info.run_id),
        )

    def _build_parent_tag(self, experiment_id: str, run: Run) -> dict[str, str]:
        """Return the tag that names the copied or original parent, or {}."""
        parent_id = run.data.tags.get(MLFLOW_PARENT_RUN_ID)
        if parent_id is None:
            return {}
        parent_id = self._original_ids.get(parent_id, parent_id)
        copies = self._find_copies(experiment_id, parent_id)
        parent = copies[0] if copies else get_run_or_none(self._client, parent_id)
        return {} if parent is None else {MLFLOW_PARENT_RUN_ID: parent.info.run_id}

    def _delete_duplicates(self, experiment_id: str, source_id: str) -> str:
        """Delete all copies of a run except one, and return its id.

        Two machines may each create a copy. Each searches after its own is complete, so one of them
        sees both. The complete copy with the smallest run id is kept, so that both decide the same.
        """
        client = self._client
        kept_copy, *others = self._find_copies(experiment_id, source_id)
        for copy in others:
            if names.COPIED_STATE_TAG in copy.data.tags or not is_in_use(copy):
                run_id = copy.info.run_id
                with mlflow_errors(f"delete run {run_id}, a duplicate"):
                    client.delete_run(run_id)
                    # Children that are created later find their new parent when they are complete.
                    condition = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'"
                    for child in search_runs(client, [experiment_id], condition):
                        client.set_tag(
                            child.info.run_id, MLFLOW_PARENT_RUN_ID, kept_copy.info.run_id
                        )
        return str(kept_copy.info.run_id)


def open_sources(store: str, runs: Sequence[str] = ()) -> list[RunSource]:
    """Return the runs of a store that can be copied.

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
        MLFLOW_ALLOW_FILE_STORE.set(True)
        uri, artifacts = folder.absolute().as_uri(), folder
    elif is_missing_store(uri):
        raise TrackingError(f"the store {mask_credentials(uri)} does not exist")
    selected: list[Run] = []
    with mlflow_errors(f"read the store {mask_credentials(uri)}, which is copied"):
        client = MlflowClient(name_sqlite_driver(uri))
        for name in runs:
            run = get_run_or_none(client, expand_run_id(client, name))
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
    """Return True if a run is a training, an ensemble or a sweep, or if it contains rows."""
    tags = run.data.tags
    if tags.get(names.KIND_TAG) in _COPIED_KINDS or names.ROWS_TAG in tags:
        return True
    # Another program wrote the rows, and they were not scored yet.
    files = ArtifactFolder(client, run, ROWS_FOLDER).list_sizes()
    return names.KIND_TAG not in tags and any(parse_row_index(name) is not None for name in files)


def _walk_remote(root: ArtifactFolder, path: str = "") -> Iterator[tuple[str, int | None]]:
    """Yield path and size (or None) of artifacts with safe paths."""
    with mlflow_errors("list the artifacts of a run"):
        entries = root.repository.list_artifacts(path or None) or []
    for entry in entries:
        # A store may list anything: only its own subfolders are listed.
        entry_path = f"{path}/{PurePosixPath(entry.path).name}".lstrip("/")
        if not entry.is_dir:
            yield entry_path, entry.file_size
        elif is_safe_path(entry_path):
            yield from _walk_remote(root, entry_path)


def _walk_local(root: Path) -> Iterator[tuple[str, int | None]]:
    """Yield path and size of each file below a folder. Skips links and hidden files."""
    for folder, _, file_names in os.walk(root):
        for name in file_names:
            file = Path(folder, name)
            if not file.is_symlink() and file.is_file() and not name.startswith("."):
                yield file.relative_to(root).as_posix(), file.stat().st_size


def _check_rows(
    target: Run, rows: Mapping[str, bytes], stored: Mapping[str, bytes], *, is_original: bool
) -> None:
    """Raise RowConflictError if a row is stored with other numbers.

    is_original: whether the target's run is the source itself: then it may lack no row.
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


def _has_other_files(rows: Mapping[str, bytes], stored: Mapping[str, bytes]) -> bool:
    """Return True if a complete stored row file has another content than the source's."""
    return any(
        stored[name] != content and not is_truncated_row(stored[name])
        for name, content in rows.items()
    )


def _check_params(target: Run, params: Mapping[str, str]) -> None:
    """Raise RowConflictError if a parameter is stored with another value: it cannot be changed."""
    for name, value in params.items():
        if (stored := target.data.params.get(name, value)) != value:
            raise RowConflictError(
                f"parameter {safe_repr(name, 80)} is {safe_repr(value, 80)}, and "
                f"{safe_repr(stored, 80)} in run {target.info.run_id} of the target, which is "
                "kept: another copy of the source was continued; delete that run if this one is "
                "right"
            )


def _select_new_points(source: RunSource, target: RunSource) -> Iterator[Metric]:
    """Yield the metric values of a source that its copy lacks.

    A value with the same metric and step and another time is from another continuation, and counts
    as the same. Several values of one step are matched one to one.
    """

    def identify(point: Metric) -> tuple[str, int, int, str]:
        return point.key, point.step, point.timestamp, repr(point.value)

    stored = Counter(map(identify, target.read_histories()))
    if not stored:
        yield from source.read_histories()
        return
    points = list(source.read_histories())
    same = stored & Counter(map(identify, points))
    others = Counter(identity[:2] for identity in (stored - same).elements())
    for point in points:
        identity = identify(point)
        if same[identity]:
            same[identity] -= 1
        elif others[identity[:2]]:
            others[identity[:2]] -= 1
        else:
            yield point


def _select_tags(run: Run) -> dict[str, str]:
    """Return a run's tags without leases, ids of other runs, and hashes."""
    tags = {key: value for key, value in run.data.tags.items() if key not in _SOURCE_TAGS}
    if run.data.tags.get(names.KIND_TAG) == names.KIND_SWEEP:
        tags.pop(names.MLFLOW_NOTE, None)  # it links to the comparison, which is not copied
    if _get_copied_status(run) != run.info.status:
        tags[names.ERROR_TAG] = "the process that trained it is gone"
    return tags


def _build_score_tags(run: Run, target: Run, rows: Mapping[str, bytes]) -> dict[str, str]:
    """Return the tags that mark a copy as scored, or {}.

    The page's hash is left out: the page contains the run's id.
    """
    rows_hash, _, predictions_hash, tests_hash = split_score_hash(run.data.tags)
    if names.SCORED_TAG in target.data.tags or rows_hash != hash_rows(run.info.run_id, rows):
        return {}
    run_id = target.info.run_id
    hashes = hash_rows(run_id, rows), "", predictions_hash, tests_hash
    matrix_tag = pack_matrix_tag(run_id, rows)
    return {
        names.SCORED_TAG: ".".join(hashes).rstrip("."),
        **({} if matrix_tag is None else {names.MATRIX_TAG: matrix_tag}),
    }


def _get_copied_status(run: Run) -> str:
    """Return a run's status, with KILLED instead of a dead process's RUNNING."""
    if run.info.status == "RUNNING" and names.PROCESS_TAG in run.data.tags:
        return "KILLED"
    return str(run.info.status)


def _hash_source(run: Run, rows: Mapping[str, bytes], files: Mapping[str, int | None]) -> str:
    """Hash all that is copied, but only paths and sizes of artifacts."""
    info, data = run.info, run.data
    metadata = [info.status, info.end_time, info.run_name, data.params, _select_tags(run)]
    content = json.dumps([metadata, data.metrics, files, hash_rows("", rows)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _split(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield lists of at most *size* items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
