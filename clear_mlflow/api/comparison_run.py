"""Store a comparison in an MLflow run: tags, metrics, page, tables and figures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Param, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.api.compared import ComparedRuns
from clear_mlflow.comparison.figures import render_figures
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.tables import (
    build_leader_metrics,
    format_description,
    format_latex,
    format_leaderboard_csv,
    format_leaderboard_json,
)
from clear_mlflow.comparison.wording import build_comparison_name
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import Outcome
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    connect_store,
    is_generated_name,
    is_missing_store,
    mlflow_errors,
)
from clear_mlflow.store.offline import is_bundle
from clear_mlflow.store.search import MissingRun, find_or_create_experiment
from clear_mlflow.store.ui_urls import (
    format_artifact_link,
    format_comparison_links,
    make_run_url_builder,
)
from clear_mlflow.tracking.lifecycle import create_run

# Ids have 32 characters, and MLflow silently truncates a tag at 8,000. An artifact lists all ids.
_MAX_LISTED_IDS = 200


def log_comparison(
    client: MlflowClient,
    compared: ComparedRuns,
    runs: Sequence[Run | MissingRun],
    *,
    run_id: str | None,
    params: Mapping[str, str | None],
) -> ComparedRuns:
    """Store a comparison in a run, and return it with links.

    If the store cannot be written, no error is raised: the result's run id is None, and its links
    state why. Its problem does, too, unless only bundles were compared.

    runs: those that were chosen. run_id: run to write to, or None for a new one. params: parameters
    to log, except those that are None or empty.
    """
    compared_ids = {run.run_id for run in compared.comparison.runs}
    experiment_ids = (
        run.info.experiment_id
        for run in runs
        if isinstance(run, Run) and run.info.run_id in compared_ids and not is_bundle(run)
    )
    experiment_id = next(experiment_ids, None)
    try:
        if is_missing_store(client.tracking_uri):
            client = connect_store()  # only bundles were compared, and the store does not exist yet
        run = store_comparison(
            client,
            compared,
            experiment_id=experiment_id or find_or_create_experiment(client),
            run_id=run_id,
            params={name: value for name, value in params.items() if value},
        )
        links = tuple(format_comparison_links(client, run, compared.missing_baselines))
    except TrackingError as error:
        problem = f"the comparison is not stored: {error}"
        # Bundles are also compared where no store can be reached: the command succeeds.
        has_stored_runs = experiment_id is not None
        return replace(compared, links=(problem,), problem=problem if has_stored_runs else None)
    return replace(compared, run_id=str(run.info.run_id), links=links)


def store_comparison(
    client: MlflowClient,
    compared: ComparedRuns,
    *,
    experiment_id: str,
    run_id: str | None = None,
    params: Mapping[str, str],
) -> Run:
    """Store a comparison in an MLflow run, and return the run.

    run_id: existing run to write to, which stays open, and is renamed if MLflow generated its name;
    None to open a run and close it. params: parameters to log, unless the run has them. Raises
    TrackingError if the store cannot be written; a new run is then closed as FAILED.
    """
    comparison = compared.comparison
    name, opened_run_id = build_comparison_name(comparison), run_id
    now = get_current_time_millis()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="clear_mlflow_"))
        # Before a run is opened, so that an error here leaves no empty run.
        _write_files(compared, Path(folder), name, make_run_url_builder(client.tracking_uri))
        stack.enter_context(mlflow_errors("store the comparison"))
        if opened_run_id is None:
            tags = {names.KIND_TAG: names.KIND_COMPARE}
            opened_run_id = create_run(client, experiment_id, name, tags)
        status: Literal["FINISHED", "FAILED"] = "FAILED"
        try:
            run = client.get_run(opened_run_id)
            tags = _build_tags(comparison, format_artifact_link(run, names.COMPARISON_PAGE))
            if run_id is not None and is_generated_name(run.info.run_name):
                tags[MLFLOW_RUN_NAME] = name
            client.log_batch(
                opened_run_id,
                metrics=[
                    # Their own prefix: a list of runs shows them next to metrics of trained runs.
                    MlflowMetric(f"{names.LEADER_METRICS}{metric}", value, now, 0)
                    for metric, value in build_leader_metrics(comparison).items()
                ],
                params=[Param(k, v) for k, v in params.items() if k not in run.data.params],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )
            client.log_artifacts(opened_run_id, folder)
            status = "FINISHED"
        finally:
            if run_id is None:
                store_outcome(client, opened_run_id, Outcome(status))
        return client.get_run(opened_run_id)


def _write_files(
    compared: ComparedRuns,
    folder: Path,
    title: str,
    run_address: Callable[[str], str] | None,
) -> None:
    """Write page, tables, figures and JSON of a comparison into a folder.

    Also writes the YAML files of sweeps that would continue it, if there are any.

    run_address: returns the URL of a run by its id; None for no links.
    """
    comparison = compared.comparison
    grids = compared.next_sweeps
    now = datetime.now(timezone.utc).strftime("%F %H:%M UTC")
    page = render_comparison_page(
        comparison,
        title=title,
        footer=f"clear_mlflow {__version__}, {now}",
        more_seeds=names.MORE_SEEDS if names.MORE_SEEDS in grids else None,
        chosen=names.CHOSEN if names.CHOSEN in grids else None,
        run_address=run_address,
    )
    content_by_name = {
        names.COMPARISON_PAGE: page,
        names.LEADERBOARD_TABLE: format_leaderboard_json(comparison),
        names.LEADERBOARD_CSV: format_leaderboard_csv(comparison),
        names.LEADERBOARD_TEX: format_latex(comparison),
        names.COMPARED_JSON: json.dumps(compared.to_dict(), indent=2) + "\n",
        **grids,
    }
    for name, content in content_by_name.items():
        (folder / name).write_text(content, encoding="utf-8")
    (folder / names.FIGURES_FOLDER).mkdir()
    for name, image in render_figures(comparison):
        (folder / names.FIGURES_FOLDER / name).write_bytes(image)


def _build_tags(comparison: Comparison, page: str) -> dict[str, str]:
    """Return the tags of a comparison's run. page: link to it."""
    table = {"path": names.LEADERBOARD_TABLE, "type": "table"}
    has_leader = bool(build_leader_metrics(comparison))
    return {
        **({names.LEADER_TAG: comparison.groups[0].name} if has_leader else {}),
        names.KIND_TAG: names.KIND_COMPARE,
        names.COMPARED_TAG: join_run_ids([compared_run.run_id for compared_run in comparison.runs]),
        names.COMPARED_COUNT_TAG: str(len(comparison.runs)),
        names.VERSION_TAG: __version__,
        MLFLOW_RUN_NOTE: format_description(comparison, page=page),
        MLFLOW_LOGGED_ARTIFACTS: json.dumps([table]),
    }


def join_run_ids(run_ids: Sequence[str]) -> str:
    """Join run ids with commas, ``...`` after the first 200."""
    return ",".join([*run_ids[:_MAX_LISTED_IDS], *(["..."] if run_ids[_MAX_LISTED_IDS:] else [])])
