"""Where a person looks: links that open MLflow's runs view, a page, an experiment's leaderboard."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.environment_variables import MLFLOW_TRACKING_URI
from mlflow.exceptions import MlflowException

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object
from clear_mlflow.metrics import get_first_ranking_metric, get_headlines
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import is_server, mlflow_errors
from clear_mlflow.store.names import CHOSEN, COMPARISON_PAGE, MORE_SEEDS
from clear_mlflow.store.rows import load_stored_rows
from clear_mlflow.store.search import expand_run_id, find_experiment_ids, has_experiment

# MLflow keeps shared views in tags of the experiment, named by a key in the link (mlflow 3.17).
_VIEW = "clear_mlflow_leaderboard"
VIEW_TAG = f"mlflow.sharedViewState.{_VIEW}"

_WITH_ROWS = f"tags.`{names.ROWS_TAG}` != 'none'"
_MOST_READ = 20  # newest runs whose score is looked at


def format_run_links(client: MlflowClient, run: Run, *, alone: bool = True) -> list[str]:
    """Lines that say how to see a run, unless it is one of several, and its experiment."""
    experiment_id, run_id = run.info.experiment_id, run.info.run_id if alone else None
    uri = client.tracking_uri
    if not is_server(uri):
        told = (
            MLFLOW_TRACKING_URI.get() == uri or mask_credentials(uri) != uri
        )  # credentials are not shown
        where = "" if told else f"MLFLOW_TRACKING_URI={shlex.quote(uri)} "
        return [f"open     {where}clear-mlflow open {run_id or experiment_id}"]
    experiment = f"{format_server_url(uri)}/#/experiments/{experiment_id}"
    lines = [f"compare  {experiment}/runs?{_runs_view()}&compareRunsMode=CHART"]
    if run_id is not None:
        lines.insert(0, f"run      {experiment}/runs/{run_id}?{_runs_view()}")
    return lines


def format_artifact_link(run: Run, path: str | None) -> str:
    """A run's artifact as an address within MLflow's UI; None: the run itself."""
    experiment, run_id = (quote(i, safe="") for i in (run.info.experiment_id, run.info.run_id))
    artifact = f"/artifacts/{path}" if path else ""
    return f"#/experiments/{experiment}/runs/{run_id}{artifact}?{_runs_view()}"


def make_run_url_builder(tracking_uri: str) -> Callable[[str], str] | None:
    """Run id to where a browser finds it; None of a store that is no server."""
    if not is_server(tracking_uri):
        return None
    base, where = format_server_url(tracking_uri), _in_workspace()
    return lambda run_id: f"{base}/#/runs/{quote(run_id, safe='')}{f'?{where}' if where else ''}"


def _runs_view() -> str:
    """What addresses within MLflow's UI end with: the view for trainings, and the workspace."""
    # Without it an experiment opens in the UI's view for language-model traces.
    view = "workflowType=machine_learning"
    return f"{view}&{_in_workspace()}" if _in_workspace() else view


def _in_workspace() -> str:
    """The workspace that this process works in, as MLflow's addresses name it."""
    workspace = os.environ.get("MLFLOW_WORKSPACE", "").strip()  # mlflow.set_workspace sets it, too
    return f"workspace={quote(workspace, safe='')}" if workspace else ""


def format_server_url(uri: str) -> str:
    """A server's address, as a browser takes it: without what this program logs in with."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return mask_credentials(f"{parts.scheme}://{host}{parts.path}").rstrip("/")


def format_comparison_links(client: MlflowClient, run: Run) -> Sequence[str]:
    """Lines that say how to see a comparison, and where its page is if it is on this machine."""
    run_id, lines = run.info.run_id, format_run_links(client, run)
    folder = ArtifactFolder(client, run).local
    if folder is not None:
        lines.append(f"page     {folder / COMPARISON_PAGE}")
    with mlflow_errors(f"list the artifacts of run {run_id}"):
        there = {file.path for file in client.list_artifacts(run_id)}
    for what, name in (("seeds", MORE_SEEDS), ("test", CHOSEN)):
        if name in there:
            grid = name if folder is None else shlex.quote(str(folder / name))
            get = "" if folder else f"mlflow artifacts download -r {run_id} -a {name} -d . && "
            experiment = f"MLFLOW_EXPERIMENT_ID={run.info.experiment_id}"
            lines.append(f"{what:<8} {get}{experiment} clear-mlflow sweep --grid {grid}")
    return lines


def build_leaderboard_view(score: Score) -> str:
    """Our runs with rows, as MLflow's page gives a view that a user shares: sections and all."""
    # The metric that ranks, and next to it the headlines, which are charts over the buckets, too.
    metrics = (get_first_ranking_metric(score), *get_headlines(score))
    ranked_by, *beside = dict.fromkeys(metric.name for metric in metrics)
    ranked = {"type": "BAR", "metricKey": ranked_by}
    curves = [{"type": "LINE", "metricKey": metric} for metric in beside]
    matrices = {
        "type": "IMAGE",
        "imageKeys": [names.IMAGE_FINAL],
        "step": 0,
        "showRunParams": False,  # MLflow writes them over the picture
    }
    sections = {
        "summary": f"{score.heading} and forgetting",
        "matrices": f"{score.heading} matrices",
    }
    return json.dumps(
        {
            "searchFilter": _WITH_ROWS,
            "orderByKey": f"metrics.`{ranked_by}`",
            "orderByAsc": not score.higher_is_better,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            "selectedColumns": [
                *(f"metrics.`{metric}`" for metric in (ranked_by, *beside)),
                "tags.`strategy`",
            ],
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
                for key, title in sections.items()
            ],
            "compareRunCharts": [
                *(
                    _chart(number, "summary", chart)
                    for number, chart in enumerate((ranked, *curves), start=1)
                ),
                _chart(len(curves) + 2, "matrices", matrices),
            ],
        },
        sort_keys=True,
    )


def _chart(number: int, section: str, shown: Mapping[str, object]) -> dict[str, object]:
    common: dict[str, object] = {
        "uuid": f"clear_mlflow-{number}",
        "metricSectionId": f"clear_mlflow-{section}",
        "runsCountToCompare": 10,
        "deleted": False,
        "isGenerated": False,
    }
    if shown["type"] == "LINE":
        common |= {
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
    return {**common, **shown}


def find_page_url(client: MlflowClient, target: str | None) -> str:
    """The address, below the server's, of a run or experiment; None: of the newest run's."""
    if target is None:
        return _leaderboard(client, _newest(client))
    with mlflow_errors(f"look for {safe_repr(target)}"):
        run_id = target if has_experiment(client, target) else expand_run_id(client, target)
        try:
            return _page_of_run(client, client.get_run(run_id))
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
    (experiment_id,) = find_experiment_ids(client, target)[:1]
    return _leaderboard(client, client.get_experiment(experiment_id))


def _page_of_run(client: MlflowClient, run: Run) -> str:
    """A run's report, a comparison's page, a sweep's comparison; else the run itself."""
    tags = run.data.tags
    if compared := read_sweep_comparison(tags).get("run_id"):
        return _page_of_run(client, client.get_run(str(compared)))
    page = names.REPORT_HTML if names.SCORED_TAG in tags else None
    if tags.get(names.KIND_TAG) == names.KIND_COMPARE:
        page = names.COMPARISON_PAGE
    return format_artifact_link(run, page)


def read_sweep_comparison(tags: Mapping[str, str]) -> Mapping[str, Any]:
    """The ``run_id`` that a sweep was compared in, and a digest ``of`` what; empty: in none."""
    with suppress(RecordError):
        return json_object(tags.get(names.SWEEP_COMPARISON_TAG, "{}"), MAX_TAG_BYTES)
    return {}


def _leaderboard(client: MlflowClient, experiment: Experiment) -> str:
    experiment_id = experiment.experiment_id
    with mlflow_errors(f"keep the leaderboard of experiment {experiment_id}"):
        # In a tag of its own, up to date; what a page shares has other names.
        state = build_leaderboard_view(_score_of_runs(client, experiment_id))
        if experiment.tags.get(VIEW_TAG) != state:
            client.set_experiment_tag(experiment_id, VIEW_TAG, state)
    address = f"#/experiments/{quote(experiment_id, safe='')}/runs"
    return f"{address}?{_runs_view()}&viewStateShareKey={_VIEW}"


def _score_of_runs(client: MlflowClient, experiment_id: str) -> Score:
    """What the newest run whose rows can be read was scored by; accuracy, where none has rows."""
    for run in client.search_runs([experiment_id], _WITH_ROWS, max_results=_MOST_READ):
        with suppress(ClearError):  # whoever scores or compares it says why
            for record in load_stored_rows(client, run, read_files=False).records.values():
                return record.row.score
    return ACCURACY


def _newest(client: MlflowClient) -> Experiment:
    ids = find_experiment_ids(client)
    with mlflow_errors("look for the newest run"):
        found = client.search_runs(ids, f"tags.`{names.KIND_TAG}` != ''", max_results=1)
        if not found:
            raise TrackingError(
                "the store holds no run of clear_mlflow yet; train one first: clear-mlflow train"
            )
        return client.get_experiment(found[0].info.experiment_id)
