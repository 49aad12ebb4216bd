"""The parent run of a sweep: open it, and close it with the outcome of all runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import Outcome, Status
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.report.markdown import MAX_NOTE_BYTES, append_lines, escape
from clear_mlflow.store import names
from clear_mlflow.store.client import log_tags, mlflow_errors
from clear_mlflow.store.lease import build_lease_tags, check_not_being_trained
from clear_mlflow.store.search import get_project_run
from clear_mlflow.sweeps.grid import DONE, DONE_BEFORE, FAILED, Grid, SweepRun
from clear_mlflow.tracking.lifecycle import create_run
from clear_mlflow.tracking.resume import reserve_resume


def open_parent_run(client: MlflowClient, experiment_id: str, grid: Grid, name: str | None) -> str:
    """Open the parent run of all sweeps of a grid.

    Returns its id.

    Uses the oldest parent run of the grid in the experiment, or else the run that ``mlflow run``
    opened for this process, or else a new one. Sets it to RUNNING, and stores the grid in it.
    Raises TrackingError if another process works on the same sweep.

    name: name of the parent run if the grid has none yet, or None to build it from the grid.
    """
    project_run = get_project_run(client, names.KIND_SWEEP)
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
            tags[MLFLOW_RUN_NAME] = name or _build_name(grid)
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
    """Write all runs' final states into the parent run.

    Sets its status.

    Also logs a description, and the metrics of the best method. comparison_run: run that stores the
    comparison, or None.
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


def _build_name(grid: Grid) -> str:
    strategies = list(dict.fromkeys(run.config.strategy for run in grid.runs))
    methods = ", ".join(strategies[:4]) + (", …" if strategies[4:] else "")
    return f"sweep {methods}: {len(grid.runs)} run{'s' if len(grid.runs) > 1 else ''}"


def _build_note(runs: Sequence[SweepRun], comparison_run: Run | None) -> str:
    counts = Counter(DONE if run.state == DONE_BEFORE else run.state for run in runs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [f"{len(runs)} runs: {states}. All of them: `{names.SWEEP_RUNS_JSON}`.", ""]
    if failed := [run for run in runs if run.state == FAILED]:
        lines += ["| failed | reason |", "|---|---|"]
        rows = [f"| {escape(run.name, 200)} | {escape(str(run.error), 300)} |" for run in failed]
        lines = [*append_lines(lines, rows, MAX_NOTE_BYTES // 2, "more"), ""]
    if comparison_run is not None:
        note = comparison_run.data.tags.get(MLFLOW_RUN_NOTE, "")
        # Without its heading: MLflow's page folds a description after some four lines.
        note = re.sub(r"\A### .*\n\n", "", note)
        lines = append_lines(lines, note.splitlines(), MAX_NOTE_BYTES, "more lines")
    return "\n".join(lines)
