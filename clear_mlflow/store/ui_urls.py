"""Links to runs, report pages and leaderboards in MLflow's UI."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.environment_variables import MLFLOW_TRACKING_URI
from mlflow.exceptions import MlflowException
from mlflow.store.tracking import DEFAULT_TRACKING_URI

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, parse_json_object
from clear_mlflow.metrics import get_first_ranking_metric, get_headlines
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import is_server, mlflow_errors
from clear_mlflow.store.names import BASELINES, CHOSEN, COMPARISON_PAGE, MORE_SEEDS
from clear_mlflow.store.offline import get_offline_folder
from clear_mlflow.store.rows import load_stored_rows
from clear_mlflow.store.search import (
    expand_run_id,
    find_experiment_ids,
    has_experiment,
    is_missing_error,
)
from clear_mlflow.store.sqlite import get_sqlite_path

# MLflow stores a shared view in a tag of the experiment; links name its key (mlflow 3.17).
_VIEW_KEY = "clear_mlflow_leaderboard"
VIEW_TAG = f"mlflow.sharedViewState.{_VIEW_KEY}"

_HAS_ROWS = f"tags.`{names.ROWS_TAG}` != 'none'"
_MAX_RUNS_READ = 20  # newest runs whose rows are read to find the score of an experiment


def format_run_links(client: MlflowClient, run: Run, *, is_only_run: bool = True) -> list[str]:
    """Format labelled lines that show how to open a run.

    With a server, these are URLs; else the command ``clear-mlflow open``, or for an offline folder,
    ``clear-mlflow show`` and ``clear-mlflow sync``. is_only_run: False to name only the experiment,
    for one of several runs.
    """
    experiment_id, run_id = run.info.experiment_id, run.info.run_id if is_only_run else None
    uri = client.tracking_uri
    if folder := get_offline_folder(uri):
        name = shlex.quote(str(folder if run_id is None else folder / run_id))
        return [
            f"show     clear-mlflow {'compare' if run_id is None else 'show'} {name}",
            f"sync     clear-mlflow sync {shlex.quote(str(folder))}",
        ]
    if not is_server(uri):
        # A URI with credentials is not printed.
        prints_uri = not _is_default_store(uri) and mask_credentials(uri) == uri
        environment = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} " if prints_uri else ""
        return [f"open     {environment}clear-mlflow open {run_id or experiment_id}"]
    experiment = f"{format_server_url(uri)}/#/experiments/{experiment_id}"
    lines = [f"compare  {experiment}/runs?{_format_view_query()}&compareRunsMode=CHART"]
    if run_id is not None:
        lines.insert(0, f"run      {experiment}/runs/{run_id}?{_format_view_query()}")
    return lines


def _is_default_store(uri: str) -> bool:
    """Return True if new processes of this environment use the store *uri*."""
    default_uri = MLFLOW_TRACKING_URI.get() or DEFAULT_TRACKING_URI
    if database := get_sqlite_path(uri):
        default_database = get_sqlite_path(default_uri)
        return default_database is not None and default_database.absolute() == database.absolute()
    return default_uri == uri


def format_artifact_link(run: Run, path: str | None) -> str:
    """Format a relative link to an artifact, or to the run's page.

    path: path of the artifact in the run, or None for the page of the run.
    """
    experiment, run_id = (quote(i, safe="") for i in (run.info.experiment_id, run.info.run_id))
    artifact = f"/artifacts/{path}" if path else ""
    return f"#/experiments/{experiment}/runs/{run_id}{artifact}?{_format_view_query()}"


def make_run_url_builder(tracking_uri: str) -> Callable[[str], str] | None:
    """Return a function from run id to URL, None without a server."""
    if not is_server(tracking_uri):
        return None
    base, query = format_server_url(tracking_uri), _format_view_query()
    return lambda run_id: f"{base}/#/runs/{quote(run_id, safe='')}?{query}"


def _format_view_query() -> str:
    """Return a URL query that selects MLflow's machine learning view and workspace."""
    # By default, MLflow's UI opens an experiment in the view for language model traces.
    query = "workflowType=machine_learning"
    workspace = os.environ.get("MLFLOW_WORKSPACE", "").strip()  # mlflow.set_workspace sets it, too
    return f"{query}&workspace={quote(workspace, safe='')}" if workspace else query


def format_server_url(uri: str) -> str:
    """Format the URL of a server for a browser, without credentials."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return mask_credentials(f"{parts.scheme}://{host}{parts.path}").rstrip("/")


def format_comparison_links(
    client: MlflowClient, run: Run, missing_baselines: Sequence[str] = ()
) -> list[str]:
    """List a comparison's artifacts, and format lines to use them.

    Includes the path of its HTML page if the artifacts are on this machine. missing_baselines: are
    named in front of the command that trains them, or () for no such line.
    """
    run_id, lines = run.info.run_id, format_run_links(client, run)
    folder = ArtifactFolder(client, run).local
    if folder is not None:
        lines.append(f"page     {folder / COMPARISON_PAGE}")
    with mlflow_errors(f"list the artifacts of run {run_id}"):
        artifacts = {file.path for file in client.list_artifacts(run_id)}
    lacks = f"lacks    {', '.join(missing_baselines)}:"
    for label, name in (("seeds", MORE_SEEDS), ("test", CHOSEN), (lacks, BASELINES)):
        if name in artifacts and (name != BASELINES or missing_baselines):
            grid = name if folder is None else shlex.quote(str(folder / name))
            get = "" if folder else f"mlflow artifacts download -r {run_id} -a {name} -d . && "
            experiment = f"MLFLOW_EXPERIMENT_ID={run.info.experiment_id}"
            lines.append(f"{label:<8} {get}{experiment} clear-mlflow sweep --grid {grid}")
    return lines


def _build_leaderboard_view(score: Score) -> str:
    # The metric that ranks, then the headlines, which are also charts over the buckets.
    metrics = (get_first_ranking_metric(score), *get_headlines(score))
    ranking_metric, *headlines = dict.fromkeys(metric.name for metric in metrics)
    charts: list[dict[str, Any]] = [
        {"type": "BAR", "metricKey": ranking_metric},
        *({"type": "LINE", "metricKey": metric, **_LINE_OPTIONS} for metric in headlines),
        # MLflow would write the parameters over the picture.
        {"type": "IMAGE", "imageKeys": [names.IMAGE_FINAL], "step": 0, "showRunParams": False},
    ]
    titles = {"summary": f"{score.heading} and forgetting", "matrices": f"{score.heading} matrices"}
    columns = [f"metrics.`{metric}`" for metric in (ranking_metric, *headlines)]
    view = {
        "searchFilter": _HAS_ROWS,
        "orderByKey": columns[0],
        "orderByAsc": not score.higher_is_better,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*columns, "tags.`strategy`"],
        "isAccordionReordered": True,
        "compareRunSections": [
            {
                "uuid": f"clear_mlflow-{key}",
                "name": title,
                "display": True,
                "isReordered": True,
                "deleted": False,
                "isGenerated": False,
            }
            for key, title in titles.items()
        ],
        "compareRunCharts": [
            {
                "uuid": f"clear_mlflow-{number}",
                "metricSectionId": (
                    f"clear_mlflow-{'matrices' if chart['type'] == 'IMAGE' else 'summary'}"
                ),
                "runsCountToCompare": 10,
                "deleted": False,
                "isGenerated": False,
                **chart,
            }
            for number, chart in enumerate(charts, start=1)
        ],
    }
    return json.dumps(view, sort_keys=True)


_LINE_OPTIONS = {
    "lineSmoothness": 0,
    "range": {},
    "scaleType": "linear",
    "selectedXAxisMetricKey": "",
    "useGlobalLineSmoothing": True,
    "useGlobalXaxisKey": True,
    "xAxisKey": "step",
    "xAxisScaleType": "linear",
    "yAxisExpressions": [],
    "yAxisKey": "metric",
}


def find_page_url(client: MlflowClient, target: str | None) -> str:
    """Look up the best page's URL, storing an experiment's leaderboard view.

    That is a run's report, or the run itself if it has none, a comparison's page, a sweep's
    comparison, or an experiment's leaderboard, which this stores in a tag of the experiment.

    target: name or id of an experiment, or id of a run or its first digits; None for the experiment
    of the newest run. Raises TrackingError if it does not exist.
    """
    with mlflow_errors(f"look for {safe_repr(target or 'the newest run')}"):
        if target is None:
            return _store_leaderboard_view(client, _read_newest_experiment_id(client))
        run_id = target if has_experiment(client, target) else expand_run_id(client, target)
        try:
            return _find_run_page(client, client.get_run(run_id))
        except MlflowException as error:
            if not is_missing_error(error):
                raise
        return _store_leaderboard_view(client, find_experiment_ids(client, target)[0])


def _find_run_page(client: MlflowClient, run: Run) -> str:
    tags = run.data.tags
    if comparison_id := parse_sweep_comparison(tags).get("run_id"):
        return _find_run_page(client, client.get_run(str(comparison_id)))
    if tags.get(names.KIND_TAG) == names.KIND_COMPARE:
        return format_artifact_link(run, names.COMPARISON_PAGE)
    return format_artifact_link(run, names.REPORT_HTML if names.SCORED_TAG in tags else None)


def parse_sweep_comparison(tags: Mapping[str, str]) -> Mapping[str, Any]:
    """Parse the tag that names a sweep's comparison, {} without one.

    Its keys are ``run_id`` and ``of``, a hash of the compared runs. A damaged tag is like none.
    """
    with suppress(RecordError):
        return parse_json_object(tags.get(names.SWEEP_COMPARISON_TAG, "{}"), MAX_TAG_BYTES)
    return {}


def _store_leaderboard_view(client: MlflowClient, experiment_id: str) -> str:
    # Views that users share from MLflow's UI have other keys.
    view = _build_leaderboard_view(_find_score(client, experiment_id))
    if client.get_experiment(experiment_id).tags.get(VIEW_TAG) != view:
        client.set_experiment_tag(experiment_id, VIEW_TAG, view)
    path = f"#/experiments/{quote(experiment_id, safe='')}/runs"
    return f"{path}?{_format_view_query()}&viewStateShareKey={_VIEW_KEY}"


def _find_score(client: MlflowClient, experiment_id: str) -> Score:
    """Search what the newest of 20 runs measure, by default accuracy."""
    for run in client.search_runs([experiment_id], _HAS_ROWS, max_results=_MAX_RUNS_READ):
        with suppress(ClearError):  # reported by commands that score or compare the run
            _, records = load_stored_rows(client, run, read_files=False)
            for record in records.values():
                return record.row.score
    return ACCURACY


def _read_newest_experiment_id(client: MlflowClient) -> str:
    has_kind = f"tags.`{names.KIND_TAG}` != ''"
    runs = client.search_runs(find_experiment_ids(client), has_kind, max_results=1)
    if not runs:
        raise TrackingError(
            "the store contains no run of clear_mlflow yet; train one first: clear-mlflow train"
        )
    return str(runs[0].info.experiment_id)
