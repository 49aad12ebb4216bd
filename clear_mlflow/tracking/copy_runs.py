"""Copy runs from one tracking store to another: parameters, histories, files, status and scores.

A copy has the tag ``clear_mlflow.copied_from``, the id of the run that it was made of. The tag is
set when the copy is created, so a later call finds the copy, continues it after a kill, and adds
what was recorded in the source since. A complete copy also has a tag with a hash of the source, and
no longer the tag of the process that copied it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.record import ROWS_FOLDER, format_row_file_name
from clear_mlflow.core.text import safe_repr
from clear_mlflow.scoring import ActionResult, Scores, evaluate
from clear_mlflow.scoring.run_log import find_changes, log_results, read_measurements
from clear_mlflow.scoring.run_record import split_score_hash
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import (
    MAX_POINTS,
    get_run,
    log_in_batches,
    log_tags,
    mlflow_errors,
    retry_on_conflict,
)
from clear_mlflow.store.lease import (
    Lease,
    build_lease_tags,
    detect_live_trainer,
    get_process_token,
    get_trainer_token,
    is_in_use,
)
from clear_mlflow.store.offline import replace_info
from clear_mlflow.store.rows import (
    RowConflictError,
    hash_rows,
    is_same_row,
    is_truncated_row,
    pack_matrix_tag,
    read_row_files,
)
from clear_mlflow.store.search import (
    find_or_create_experiment,
    read_run_or_none,
    search_runs,
)
from clear_mlflow.store.states import remove_states
from clear_mlflow.tracking.logged_models import log_models
from clear_mlflow.tracking.run_sources import RunSource

COPIED, UPDATED, STORED, IN_USE, FAILED = "copied", "updated", "there already", "in use", "failed"

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
# One search finds the copies of so many runs, or of those that are copied within this time.
_MAX_SEARCH, _SEARCH_SECONDS = 25, 1.0


class RunCopier:
    """Copies runs to a client's store, parents before children.

    experiment: name of the experiment of all copies. None: each run keeps the name of its
    experiment, and runs of Default go to the experiment that MLflow's environment variables name.
    """

    def __init__(self, client: MlflowClient, experiment: str | None = None) -> None:
        self.client = client
        self._experiment = experiment
        # Client of a source and id of an experiment in it, to the id of the experiment of copies.
        self._experiment_ids: dict[tuple[MlflowClient, str], str] = {}
        self._original_ids: dict[str, str] = {}  # id of a source to the id that copies refer to
        # Id of an experiment and of a source to the copies of the last search.
        self._copies: dict[tuple[str, str], list[Run]] = {}

    def copy_runs(self, sources: Iterable[RunSource]) -> Iterator[ActionResult]:
        """Copy runs, oldest first, and yield what was done with each.

        After an error, the action of the run is FAILED, and the next run is copied. Results are
        yielded about once per second: a search then finds the copies of all runs in between.
        """
        # A parent is opened before its children.
        waiting = sorted(sources, key=lambda source: source.run.info.start_time)
        results: list[tuple[RunSource, ActionResult]] = []
        while waiting or results:
            batch = waiting[:_MAX_SEARCH]
            written = [source for source, r in results if r.action in (COPIED, UPDATED)]
            self._look_up_copies(written, batch)
            for source, result in results:
                yield self._try(self._delete_duplicates, source, result)
            results, searched_at = [], time.monotonic()
            for source in batch:
                results.append((source, self._try(self._copy, source)))
                if time.monotonic() - searched_at > _SEARCH_SECONDS:
                    break
            del waiting[: len(results)]

    def _try(
        self, copy: Callable[..., ActionResult], source: RunSource, *arguments: Any
    ) -> ActionResult:
        """Call a copying method, and return a ClearError as its result."""
        try:
            return copy(source, *arguments)
        except (ClearError, OSError) as error:
            name = source.run.info.run_name or source.run_id
            return ActionResult(None, name, FAILED, str(error), source.run_id, is_problem=True)

    def _copy(self, source: RunSource) -> ActionResult:
        """Copy and score a run, or complete its copy.

        Does nothing if the target has the run itself, or a copy in the same or a newer state or
        with the same rows from another continuation, or if a process trains into the run or copies
        it now. Raises RowConflictError, before anything is written, if a row or parameter is stored
        with another value.
        """
        run, client = source.run, self.client
        name = run.info.run_name or source.run_id
        self._original_ids[run.info.run_id] = source.run_id
        if is_in_use(run):
            message = "a process trains into it; copy it when that has ended"
            return ActionResult(None, name, IN_USE, message, source.run_id)
        rows, files = source.read_rows(), source.list_files()
        state = _hash_source(run, rows, files)
        experiment_id = self._find_or_create_experiment(source)
        copies = self._find_copies(experiment_id, source.run_id)
        target = copies[0] if copies else read_run_or_none(client, source.run_id)
        stored_rows: dict[str, bytes] = {}
        stored_files: dict[str, int | None] = {}
        is_update = False
        if target is None:
            target = self._create_copy(source, experiment_id)
            self._copies[experiment_id, source.run_id] = [target]  # it may be passed twice
        else:
            stored_state = _get_complete_state(target)
            if target.info.status == "KILLED" != _get_copied_status(run):
                stored_state = None  # the process that copied it was killed before the last write
            if stored_state != state:
                stored_rows = read_row_files(client, target, may_be_missing=None)
                _check_rows(target, rows, stored_rows, is_original=not copies)
                _check_params(target, run.data.params)
            # With fewer rows, it is an older copy of an offline folder.
            if stored_state == state or not copies or stored_rows.keys() - rows.keys():
                return ActionResult(target.info.run_id, name, STORED, source=source.run_id)
            # Row files contain times, which differ if two copies were both continued.
            is_same_length = stored_state is not None and stored_rows.keys() == rows.keys()
            if is_same_length and _has_other_files(rows, stored_rows):
                message = "another copy of it was continued to the same rows"
                return ActionResult(target.info.run_id, name, STORED, message, source.run_id)
            target = get_run(client, target.info.run_id)  # another process may copy it by now
            is_own = get_trainer_token(target) == get_process_token()
            if not is_own and detect_live_trainer(client, target):
                message = "another process copies it, or trains into the copy"
                return ActionResult(target.info.run_id, name, IN_USE, message, source.run_id)
            is_update = stored_state is not None
            self._reopen_copy(target)
            stored_files = RunSource(client, target).list_files()
        lease = Lease(client, target.info.run_id)
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
        new_tags = {**_select_tags(run), **score_tags, names.COPIED_STATE_TAG: state}
        self._write_files(source, target, lease, missing_rows, missing_files)
        if stored_files and run.info.status == "FINISHED":
            remove_states(client, target)
        last_time, problem = self._log_missing_values(source, target, lease, new_tags)
        with mlflow_errors(f"end the copy of run {source.run_id}"):
            self._end_copy(run, target, lease, last_time)
        message = (
            problem
            or f"{len(rows.keys() - {format_row_file_name(0)})} rows, {_get_copied_status(run)}"
        )
        action, run_id = UPDATED if is_update else COPIED, str(target.info.run_id)
        return ActionResult(run_id, name, action, message, source.run_id, is_problem=bool(problem))

    def _create_copy(self, source: RunSource, experiment_id: str) -> Run:
        """Create a run like a source, and acquire its lease."""
        tags = _select_tags(source.run)
        tags = {key: value for key, value in tags.items() if key not in _FINAL_TAGS}
        tags |= {**build_lease_tags(), names.COPIED_FROM_TAG: source.run_id}
        info = source.run.info
        with mlflow_errors(f"create a copy of run {source.run_id}"):
            return self.client.create_run(experiment_id, info.start_time, tags, info.run_name)

    def _reopen_copy(self, target: Run) -> None:
        """Take a copy's lease, set it to RUNNING, and delete its drafts."""
        run_id = target.info.run_id
        with mlflow_errors(f"open run {run_id} again"):
            log_tags(self.client, run_id, build_lease_tags())
            self.client.update_run(run_id, status="RUNNING")
        ArtifactFolder(self.client, target).remove_drafts()

    def _write_files(
        self,
        source: RunSource,
        target: Run,
        lease: Lease,
        rows: Mapping[str, bytes],
        files: Iterable[str],
    ) -> None:
        """Store the rows, artifacts and datasets that a copy lacks."""
        client, run_id = self.client, target.info.run_id
        artifacts = ArtifactFolder(client, target)
        with (
            mlflow_errors(f"copy run {source.run_id}"),
            tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch,
        ):
            for name, content in rows.items():
                artifacts.write_file(f"{ROWS_FOLDER}/{name}", content)
            for path in files:
                lease.renew_if_due()
                file = source.fetch_file(path, Path(scratch))
                artifacts.repository.log_artifact(str(file), path.rpartition("/")[0] or None)
                if file.is_relative_to(scratch):
                    file.unlink()
            if source.run.inputs and source.run.inputs.dataset_inputs:
                inputs = source.run.inputs.dataset_inputs
                retry_on_conflict(lambda: client.log_inputs(run_id, datasets=inputs))

    def _log_missing_values(
        self,
        source: RunSource,
        target: Run,
        lease: Lease,
        new_tags: Mapping[str, str],
    ) -> tuple[int, str]:
        """Log what a copy lacks, and return its last time and problem.

        Repeating it changes nothing. The last time is the latest metric value's, or the start time
        if that is later; the problem may be "".
        """
        client, run = self.client, source.run
        last_time: int = run.info.start_time

        def select_points() -> Iterator[Metric]:
            nonlocal last_time
            for number, point in enumerate(_select_new_points(source, RunSource(client, target))):
                if number % MAX_POINTS == 0:
                    lease.renew_if_due()
                last_time = max(last_time, point.timestamp)
                yield point

        tags = dict(new_tags.items() - target.data.tags.items())
        with mlflow_errors(f"copy run {source.run_id}"):
            log_in_batches(client, target.info.run_id, select_points(), run.data.params, tags)
        copy = lease.read_run()
        try:
            scores = _compute_scores(source, client, copy)
        except RecordError as error:
            return last_time, f"it is copied, but cannot be scored: {error}"
        log_results(client, scores)
        log_models(client, copy, scores)
        return last_time, ""

    def _end_copy(self, run: Run, target: Run, lease: Lease, last_time: int) -> None:
        """Set a copy's status and end time, and unmark its process."""
        client, run_id = self.client, target.info.run_id
        current = lease.read_recent_run()
        if (status := _get_copied_status(run)) != "RUNNING":
            client.set_terminated(run_id, status, run.info.end_time or last_time)
        outdated_tags = {names.ERROR_TAG, names.DIVERGED_TAG} - _select_tags(run).keys()
        for tag in (*outdated_tags, names.PROCESS_TAG):  # without the last one, it is complete
            if tag in current.data.tags:
                client.delete_tag(run_id, tag)

    def _find_or_create_experiment(self, source: RunSource) -> str:
        key = source.client, source.run.info.experiment_id
        if key not in self._experiment_ids:
            name = self._experiment or source.experiment
            self._experiment_ids[key] = find_or_create_experiment(self.client, name)
        return self._experiment_ids[key]

    def _look_up_copies(self, written: Sequence[RunSource], waiting: Sequence[RunSource]) -> None:
        """Search the copies of runs at once, and remember them.

        written: forgets the copies of their parents as well.
        """
        sources: dict[tuple[str, str], RunSource] = {}
        for source in (*written, *waiting):
            with suppress(ClearError):  # it is raised again in its turn
                sources[self._find_or_create_experiment(source), source.run_id] = source
        parent_ids = {self._get_parent_id(source.run) for source in written}
        for key in [key for key in self._copies if key in sources or key[1] in parent_ids]:
            del self._copies[key]
        if len(sources) < 2:
            return
        times = [source.run.info.start_time for source in sources.values()]
        condition = (
            f"tags.`{names.COPIED_FROM_TAG}` LIKE '%' AND attributes.start_time >= {min(times)} "
            f"AND attributes.start_time <= {max(times)}"
        )
        copies: dict[tuple[str, str], list[Run]] = {key: [] for key in sources}
        with suppress(ClearError):  # each run is looked up in its turn then
            for run in search_runs(self.client, sorted({key[0] for key in sources}), condition):
                key = run.info.experiment_id, run.data.tags[names.COPIED_FROM_TAG]
                if key in copies:
                    copies[key].append(run)
            self._copies |= {key: _sort_copies(runs) for key, runs in copies.items()}

    def _find_copies(self, experiment_id: str, source_id: str) -> list[Run]:
        """Search a run's copies unless remembered, complete ones first."""
        key = experiment_id, source_id
        if key not in self._copies:
            condition = f"tags.`{names.COPIED_FROM_TAG}` = '{source_id}'"
            self._copies[key] = _sort_copies(search_runs(self.client, [experiment_id], condition))
        return self._copies[key]

    def _get_parent_id(self, run: Run) -> str | None:
        parent_id = run.data.tags.get(MLFLOW_PARENT_RUN_ID)
        return None if parent_id is None else self._original_ids.get(parent_id, parent_id)

    def _find_parent(self, experiment_id: str, source_id: str | None) -> str | None:
        """Search a source's copy or original, and return its id or None."""
        if source_id is None:
            return None
        copies = self._find_copies(experiment_id, source_id)
        parent = copies[0] if copies else read_run_or_none(self.client, source_id)
        return None if parent is None else str(parent.info.run_id)

    def _set_parent(self, child: Run, source_id: str | None) -> None:
        """Tag a run with the copy of a source as its parent.

        Another machine may delete that copy as a duplicate. Either it finds this child afterwards,
        or the search after the tag was set finds another copy.
        """
        child_id, experiment_id = child.info.run_id, child.info.experiment_id
        current = child.data.tags.get(MLFLOW_PARENT_RUN_ID)
        while (parent_id := self._find_parent(experiment_id, source_id)) not in (None, current):
            with mlflow_errors(f"name the parent of run {child_id}"):
                self.client.set_tag(child_id, MLFLOW_PARENT_RUN_ID, parent_id)
            current = parent_id
            self._copies.pop((experiment_id, str(source_id)), None)

    def _delete_duplicates(self, source: RunSource, result: ActionResult) -> ActionResult:
        """Delete all copies of a run but one, which gets its parent.

        Returns the result for it. Two machines may each create a copy. Each searches after its own
        is complete, so one of them sees both. The complete copy with the smallest run id is kept,
        so that both decide the same. Another machine may have deleted the parent meanwhile, as a
        duplicate, and the process that made the copy may have been killed before it noticed.
        """
        client = self.client
        experiment_id = self._find_or_create_experiment(source)
        if result.action in (IN_USE, FAILED):
            return result
        copies = self._find_copies(experiment_id, source.run_id)
        if not copies:  # the target has the run itself
            return result
        kept_copy, *others = copies
        for copy in others:
            if _get_complete_state(copy) is not None or not detect_live_trainer(client, copy):
                run_id = copy.info.run_id
                with mlflow_errors(f"delete run {run_id}, a duplicate"):
                    client.delete_run(run_id)
                # Children that are created later find their new parent when they are complete.
                condition = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'"
                for child in search_runs(client, [experiment_id], condition):
                    self._set_parent(child, source.run_id)
        self._set_parent(kept_copy, self._get_parent_id(source.run))
        return replace(result, run_id=str(kept_copy.info.run_id))


def _sort_copies(copies: Iterable[Run]) -> list[Run]:
    """Sort copies of one run, complete ones first, then by run id."""
    return sorted(copies, key=lambda run: (_get_complete_state(run) is None, run.info.run_id))


def _get_complete_state(copy: Run) -> str | None:
    """Return the source's hash in a copy's tag, None while incomplete."""
    tags = copy.data.tags
    return None if names.PROCESS_TAG in tags else tags.get(names.COPIED_STATE_TAG)


def _compute_scores(source: RunSource, client: MlflowClient, copy: Run) -> Scores:
    """Compute a copy's scores from its source's files, without logging them."""
    located = replace_info(copy, artifact_uri=source.run.info.artifact_uri)
    stored = replace(read_measurements(source.client, located, reread=False), run=copy)
    results = evaluate(stored)
    return Scores(stored, results, find_changes(client, stored, results, reread=False))


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
    """Return True if a complete stored row file differs from the source's."""
    return any(
        stored[name] != content and not is_truncated_row(stored[name])
        for name, content in rows.items()
    )


def _check_params(target: Run, params: Mapping[str, str]) -> None:
    for name, value in params.items():
        if (stored := target.data.params.get(name, value)) != value:
            raise RowConflictError(
                f"parameter {safe_repr(name, 80)} is {safe_repr(value, 80)}, and "
                f"{safe_repr(stored, 80)} in run {target.info.run_id} of the target, which is "
                "kept: another copy of the source was continued; delete that run if this one is "
                "right"
            )


def _select_new_points(source: RunSource, target: RunSource) -> Iterator[Metric]:
    """Yield metric values whose metric and step a copy lacks.

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
    """Select a run's tags without leases, ids of other runs, and hashes."""
    tags = {key: value for key, value in run.data.tags.items() if key not in _SOURCE_TAGS}
    if run.data.tags.get(names.KIND_TAG) == names.KIND_SWEEP:
        tags.pop(names.MLFLOW_NOTE, None)  # it links to the comparison, which is not copied
    if _get_copied_status(run) != run.info.status:
        tags[names.ERROR_TAG] = "the process that trained it is gone"
    return tags


def _build_score_tags(run: Run, target: Run, rows: Mapping[str, bytes]) -> dict[str, str]:
    """Build the tags that mark a copy as scored, or {}.

    The page's hash is left out: the page contains the run's id.
    """
    rows_hash, _, *other_hashes = split_score_hash(run.data.tags)
    if names.SCORED_TAG in target.data.tags or rows_hash != hash_rows(run.info.run_id, rows):
        return {}
    run_id = target.info.run_id
    hashes = hash_rows(run_id, rows), "", *other_hashes
    matrix_tag = pack_matrix_tag(run_id, rows)
    return {
        names.SCORED_TAG: ".".join(hashes).rstrip("."),
        **({} if matrix_tag is None else {names.MATRIX_TAG: matrix_tag}),
    }


def _get_copied_status(run: Run) -> str:
    """Return a run's status, KILLED for one that was training."""
    if run.info.status == "RUNNING" and names.PROCESS_TAG in run.data.tags:
        return "KILLED"
    return str(run.info.status)


def _hash_source(run: Run, rows: Mapping[str, bytes], files: Mapping[str, int | None]) -> str:
    """Hash all that is copied, but only paths and sizes of artifacts."""
    info, data = run.info, run.data
    metadata = [info.status, info.end_time, info.run_name, data.params, _select_tags(run)]
    content = json.dumps([metadata, data.metrics, files, hash_rows("", rows)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
