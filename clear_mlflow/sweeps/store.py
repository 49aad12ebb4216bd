"""The MLflow runs of a sweep: its parent, and its trainings, which are found, claimed and ended.

Two sweeps may share runs. A run belongs to whoever trains it, and its state is read immediately
before it is trained, so each run is trained once.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.text import format_count
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import Outcome, Status
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import select_training_parameters
from clear_mlflow.learning.session import complete_arguments
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, append_lines, escape
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.client import get_run, log_tags, mlflow_errors
from clear_mlflow.store.lease import (
    build_lease_tags,
    check_not_being_trained,
    detect_dead_trainer,
    detect_live_trainer,
)
from clear_mlflow.store.search import read_project_run, search_runs, select_runs
from clear_mlflow.sweeps.grid import (
    DONE,
    DONE_BEFORE,
    ELSEWHERE,
    FAILED,
    NOT_DONE,
    TRAINING,
    Grid,
    SweepRun,
    hash_config,
    hash_with_tags,
)
from clear_mlflow.tracking.lifecycle import build_type_tags, create_run
from clear_mlflow.tracking.logged_models import log_models
from clear_mlflow.tracking.resume import detect_rows, is_resume_reserved, reserve_resume


class SweepStore:
    """Reads and writes the MLflow runs of a sweep's trainings.

    Attributes:
        client: client of the store.
        experiment_id: experiment of the runs.
        parent_id: id of the sweep's parent run, or None before it is opened.
    """

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self.parent_id: str | None = None

    def read_states(self, grid: Grid) -> None:
        """Set each run's state from the store. May wait three minutes.

        The state is "done before", "not done", or "trains elsewhere": another process trains it.
        """
        attempts: dict[str, list[Run]] = {}
        for stored_run in self._search_sweep_runs("!= ''"):
            attempts.setdefault(_hash_stored_config(stored_run, grid), []).append(stored_run)
        for run in grid.runs:
            if not self._set_if_done_or_elsewhere(run, attempts.get(run.run_hash, [])):
                run.state, run.run_id = NOT_DONE, None

    def claim(self, run: SweepRun) -> None:
        """Open or resume a run, unless it is done or trained elsewhere.

        Sets the state to "done before", "trains elsewhere" or "training". Deletes earlier MLflow
        runs with the same parameters that are not resumed. Waits and tries again while another
        sweep claims the same run: both write first and read then, so at least one sees the other
        and withdraws.
        """
        while True:
            attempts = self._search_attempts(run)
            if self._set_if_done_or_elsewhere(run, attempts):
                return
            interrupted, note = self._find_resumable_attempt(run, attempts)
            with mlflow_errors("open a run of the sweep"):
                run_id = self._create_run(run) if interrupted is None else interrupted.info.run_id
                if interrupted is not None:  # a sweep of another grid may have started it
                    self.client.set_tag(run_id, MLFLOW_PARENT_RUN_ID, self.parent_id)
                    self.client.update_run(run_id, name=run.name)
                others = [r for r in self._search_attempts(run) if r.info.run_id != run_id]
                if not self._set_if_done_or_elsewhere(run, others):
                    for attempt in others:
                        self.client.delete_run(attempt.info.run_id)
                    break
                if interrupted is None:
                    self.client.delete_run(run_id)
            time.sleep(random.uniform(0.5, 2.0))  # noqa: S311  (so that one of two is first)
        run.state, run.run_id, run.error, run.note = TRAINING, run_id, None, note
        run.resumes_before = None
        if interrupted is not None:
            run.resumes_before = interrupted.data.tags.get(names.RESUMES_TAG, "0")
        run.num_tries += 1
        run.started_at = time.monotonic()

    def record_end(self, run: SweepRun, *, may_retry: bool, is_stopped: bool) -> None:
        """Set how a run ended, and close its MLflow run if open.

        The state is "done", "trains elsewhere", "failed" or "not done": then it is trained again,
        unless the sweep was stopped. That is also the state if the process could not resume the
        MLflow run, which is noted, so that the next training begins anew. Closes and scores the
        MLflow run if the process could not.

        may_retry: True if a run whose process was killed may be resumed.
        """
        run_id = str(run.run_id)
        stored_run = get_run(self.client, run_id)
        tags = stored_run.data.tags
        error = run.error or f"its training ended with exit code {run.exit_code}"
        error = " ".join(tags.get(names.ERROR_TAG, error).split())
        run.seconds = time.monotonic() - run.started_at
        if _is_done(stored_run):
            run.state, run.error = DONE, None
        elif run.exit_code == 2 and self._watch_for_trainer(stored_run):
            run.state, run.error = ELSEWHERE, None
        elif is_stopped:
            self._close_and_score_run(stored_run, "KILLED", "the sweep was stopped")
            run.state, run.error = NOT_DONE, "stopped"
        elif run.is_lost and may_retry:
            # Only the engine knows so far that the process is dead.
            self._close_and_score_run(stored_run, "KILLED", error)
            run.state = NOT_DONE
        elif not run.is_lost and run.resumes_before == tags.get(names.RESUMES_TAG, "0"):
            # The training could not resume the run and left it as it was.
            run.state, run.error = NOT_DONE, run.error or error
            run.refusals[run_id] = run.error
            run.num_tries -= 1
        else:
            error = f"{error} ({run.num_tries} tries)" if run.is_lost else error
            self._close_and_score_run(stored_run, "KILLED" if run.is_lost else "FAILED", error)
            run.state, run.error = FAILED, error

    def mark_done_elsewhere(self, runs: Sequence[SweepRun]) -> None:
        """Set runs to "done before" that other processes have finished."""
        for run in runs:
            if run.state == ELSEWHERE:
                with mlflow_errors(f"read run {run.run_id}"):
                    if _is_done(self.client.get_run(str(run.run_id))):
                        run.state = DONE_BEFORE

    def _create_run(self, run: SweepRun) -> str:
        """Create a SCHEDULED MLflow run, and return its id."""
        tags = {
            **build_type_tags(names.KIND_TRAIN),
            MLFLOW_PARENT_RUN_ID: str(self.parent_id),
            names.SWEEP_RUN_TAG: run.run_hash,
            **run.tags,
        }
        run_id = create_run(self.client, self.experiment_id, run.name, tags)
        self.client.update_run(run_id, status="SCHEDULED")
        return run_id

    def _search_sweep_runs(self, condition: str) -> list[Run]:
        condition = f"tags.`{names.SWEEP_RUN_TAG}` {condition}"
        return list(search_runs(self.client, [self.experiment_id], condition))

    def _search_attempts(self, run: SweepRun) -> list[Run]:
        return [
            attempt
            for attempt in self._search_sweep_runs(f"= '{run.run_hash}'")
            if attempt.info.status != "FAILED" or not self._watch_for_other_sweep(attempt)
        ]

    def _set_if_done_or_elsewhere(self, run: SweepRun, attempts: Sequence[Run]) -> bool:
        """Set a run's state, and return True, if an attempt suffices."""
        for state, has_state in ((DONE_BEFORE, _is_done), (ELSEWHERE, self._watch_for_trainer)):
            for attempt in reversed(attempts):
                if has_state(attempt):
                    run.state, run.run_id = state, str(attempt.info.run_id)
                    return True
        return False

    def _watch_for_trainer(self, stored_run: Run) -> bool:
        """Return whether another process trains a run, after up to three minutes."""
        if detect_live_trainer(self.client, stored_run) or is_resume_reserved(stored_run):
            return True
        # A live sweep starts what is SCHEDULED, and resumes what was KILLED.
        is_open = stored_run.info.status not in ("FINISHED", "FAILED")
        return is_open and self._watch_for_other_sweep(stored_run)

    def _watch_for_other_sweep(self, stored_run: Run) -> bool:
        parent_id = stored_run.data.tags.get(MLFLOW_PARENT_RUN_ID)
        if parent_id in (None, self.parent_id):
            return False
        (parent,) = select_runs(self.client, run_ids=[parent_id])
        return isinstance(parent, Run) and detect_live_trainer(self.client, parent)

    def _find_resumable_attempt(
        self, run: SweepRun, attempts: Sequence[Run]
    ) -> tuple[Run | None, str | None]:
        """Find the newest resumable attempt, or None, and a note. May wait."""
        note = None
        for attempt in sorted(attempts, key=lambda stored: stored.info.start_time, reverse=True):
            run_id = attempt.info.run_id
            if attempt.info.status != "KILLED" and not detect_dead_trainer(self.client, attempt):
                continue
            if not detect_rows(self.client, run_id):
                note = note or "from its beginning: it had ended before its first row"
            elif run_id in run.refusals:
                note = note or f"from its beginning: {run.refusals[run_id]}"
            else:
                return attempt, "resumed"
        return None, note

    def _close_and_score_run(self, stored_run: Run, status: Status, error: str) -> None:
        if stored_run.info.status in ("RUNNING", "SCHEDULED"):
            closed = store_outcome(self.client, stored_run.info.run_id, Outcome(status, error))
            with suppress(ClearError):
                log_models(self.client, closed, score(self.client, closed.info.run_id))


def _is_done(stored_run: Run) -> bool:
    """Return True if a run is FINISHED and completely stored."""
    is_finished = stored_run.info.status == "FINISHED"
    return is_finished and stored_run.data.tags.get(names.ROWS_TAG) == "complete"


def _hash_stored_config(stored_run: Run, grid: Grid) -> str:
    """Hash a run's logged parameters, or return its hash tag if impossible."""
    parameters = select_training_parameters(stored_run.data.params)
    # The user's code that a store names is imported only if the grid names it, too.
    trusted = {(run.config.strategy, run.config.dataset) for run in grid.runs}
    with suppress(ConfigError):
        config = TrainConfig.resolve(parameters)
        if parameters and (config.strategy, config.dataset) in trusted:
            tags = {n: t for n, t in stored_run.data.tags.items() if n in names.TUNED_TAGS}
            return hash_with_tags(hash_config(complete_arguments(config)), tags)
    return str(stored_run.data.tags[names.SWEEP_RUN_TAG])


def open_parent_run(client: MlflowClient, experiment_id: str, grid: Grid, name: str | None) -> str:
    """Open or resume a grid's parent run, and return its id.

    Uses the oldest parent run of the grid in the experiment, or else the run that ``mlflow run``
    opened for this process, or else a new one. Sets it to RUNNING, and stores the grid in it.
    Raises TrackingError if another process works on the same sweep.

    name: name of the parent run if the grid has none yet, or None to build it from the grid.
    """
    project_run = read_project_run(client, names.KIND_SWEEP)
    if project_run and project_run.data.tags.get(names.SWEEP_TAG, grid.digest) != grid.digest:
        project_run = None  # an earlier sweep of this study uses it
    tags = {
        names.KIND_TAG: names.KIND_SWEEP,
        names.SWEEP_TAG: grid.digest,
        **build_lease_tags(),
        names.VERSION_TAG: __version__,
    }
    with mlflow_errors("open the run of the sweep"):
        parents = client.search_runs(
            [experiment_id],
            f"tags.`{names.SWEEP_TAG}` = '{grid.digest}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        if parents:
            run_id = str(parents[0].info.run_id)
            check_not_being_trained(client, parents[0], "wait for its end, or stop it")
            if project_run is not None:
                project_tags = {
                    names.KIND_TAG: names.KIND_SWEEP,
                    names.SWEEP_GOES_ON_TAG: run_id,
                    MLFLOW_RUN_NOTE: f"Continued the sweep of run {run_id}.",
                }
                log_tags(client, project_run.info.run_id, project_tags)
            tags[names.RESUMES_TAG] = str(reserve_resume(client, parents[0]))
        else:
            tags[MLFLOW_RUN_NAME] = name or _build_sweep_name(grid)
            run_id = (
                create_run(client, experiment_id, None, tags)
                if project_run is None
                else str(project_run.info.run_id)
            )
        log_tags(client, run_id, tags)
        client.update_run(run_id, status="RUNNING")
        client.log_text(run_id, grid.text, names.SWEEP_GRID)
    return run_id


def close_parent_run(
    client: MlflowClient,
    run_id: str,
    runs: Sequence[SweepRun],
    status: Status,
    comparison_run: Run | None,
) -> None:
    """Write final states and best metrics to the parent run, ending it.

    Also logs a description. comparison_run: run that stores the comparison, or None.
    """
    with mlflow_errors(f"close run {run_id}"):
        text = json.dumps([run.to_dict() for run in runs], indent=2) + "\n"
        client.log_text(run_id, text, names.SWEEP_RUNS_JSON)
        tags, metrics = {MLFLOW_RUN_NOTE: _build_note(runs, comparison_run)}, []
        if comparison_run is not None:
            time = get_current_time_millis()
            # Also under the runs' own names: MLflow's list shows the parent run first.
            metrics = [
                Metric(metric_name, value, time, 0)
                for name, value in comparison_run.data.metrics.items()
                if name.startswith(names.LEADER_METRICS)
                for metric_name in (name, name.removeprefix(names.LEADER_METRICS))
            ]
            if names.LEADER_TAG in comparison_run.data.tags:
                tags[names.LEADER_TAG] = comparison_run.data.tags[names.LEADER_TAG]
        run_tags = [RunTag(name, value) for name, value in tags.items()]
        client.log_batch(run_id, metrics=metrics, tags=run_tags)
        store_outcome(client, run_id, Outcome(status))


def _build_sweep_name(grid: Grid) -> str:
    strategies = list(dict.fromkeys(run.config.strategy for run in grid.runs))
    methods = ", ".join(strategies[:4]) + (", …" if strategies[4:] else "")
    return f"sweep {methods}: {format_count(len(grid.runs), 'run')}"


def _build_note(runs: Sequence[SweepRun], comparison_run: Run | None) -> str:
    counts = Counter(DONE if run.state == DONE_BEFORE else run.state for run in runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [
        f"{format_count(len(runs), 'run')}: {states}. All of them: `{names.SWEEP_RUNS_JSON}`.",
        "",
    ]
    if failed := [run for run in runs if run.state == FAILED]:
        lines += ["| failed | reason |", "|---|---|"]
        rows = [f"| {escape(run.name, 200)} | {escape(str(run.error), 300)} |" for run in failed]
        lines = [*append_lines(lines, rows, MAX_NOTE_BYTES // 2, "more run"), ""]
    if comparison_run is not None:
        note = comparison_run.data.tags.get(MLFLOW_RUN_NOTE, "")
        # Without its heading: MLflow's page folds a description after some four lines.
        note = re.sub(r"\A### .*\n\n", "", note)
        lines = append_lines(lines, note.splitlines(), MAX_NOTE_BYTES, "more line")
    return "\n".join(lines)
