"""Where a person looks at a run: links that open MLflow's runs view."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.credentials import masked
from clear_mlflow.store.client import is_server, mlflow_errors
from clear_mlflow.store.names import CHOSEN, COMPARISON_PAGE, MORE_SEEDS, REPORT_HTML

# Without it an experiment opens in the UI's view for language-model traces.
_RUNS_VIEW = "workflowType=machine_learning"
_LOCAL_UI = "http://127.0.0.1:5000"


def run_links(client: MlflowClient, run: Run) -> Sequence[str]:
    """Lines that tell how to see a run, and all runs of its experiment."""
    uri = masked(client.tracking_uri)
    base = _address(client.tracking_uri) if is_server(uri) else _LOCAL_UI
    experiment = f"{base}/#/experiments/{run.info.experiment_id}"
    lines = [
        f"run      {experiment}/runs/{run.info.run_id}?{_RUNS_VIEW}",
        f"compare  {experiment}/runs?{_RUNS_VIEW}&compareRunsMode=CHART",
    ]
    if not is_server(uri):
        lines.insert(0, f"start    mlflow ui --backend-store-uri {uri}")
    return lines


def report_link(run: Run) -> str:
    """A run's page as a link in its description: an address within MLflow's UI."""
    experiment, run_id = (quote(i, safe="") for i in (run.info.experiment_id, run.info.run_id))
    return f"#/experiments/{experiment}/runs/{run_id}/artifacts/{REPORT_HTML}?{_RUNS_VIEW}"


def _address(uri: str) -> str:
    """A server's address, as a browser takes it: without what this program logs in with."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return masked(f"{parts.scheme}://{host}{parts.path}").rstrip("/")


def comparison_links(client: MlflowClient, run: Run) -> Sequence[str]:
    """Lines that tell how to see a comparison; the page itself, too, if it is on this machine.

    And the commands of the sweeps that go on from it, where it holds their grids.
    """
    run_id, lines = run.info.run_id, list(run_links(client, run))
    root = urlsplit(str(run.info.artifact_uri))
    folder = Path(url2pathname(root.path)) if root.scheme in ("", "file") else None
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
