"""Where a person looks at a run: links that open MLflow's runs view."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.credentials import masked
from clear_mlflow.store.client import is_server
from clear_mlflow.store.names import COMPARISON_PAGE, MORE_SEEDS

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


def _address(uri: str) -> str:
    """A server's address, as a browser takes it: without what this program logs in with."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return masked(f"{parts.scheme}://{host}{parts.path}").rstrip("/")


def comparison_links(client: MlflowClient, run: Run, *, more_seeds: bool = False) -> Sequence[str]:
    """Lines that tell how to see a comparison; the page itself, too, if it is on this machine.

    With *more_seeds*, also the command that trains the seeds that are needed.
    """
    lines = list(run_links(client, run))
    root = urlsplit(str(run.info.artifact_uri))
    grid, get = (
        MORE_SEEDS,
        f"mlflow artifacts download -r {run.info.run_id} -a {MORE_SEEDS} -d . && ",
    )
    if root.scheme in ("", "file"):
        folder = Path(url2pathname(root.path))
        lines.append(f"page     {folder / COMPARISON_PAGE}")
        grid, get = shlex.quote(str(folder / MORE_SEEDS)), ""
    if more_seeds:
        experiment = f"MLFLOW_EXPERIMENT_ID={run.info.experiment_id}"
        lines.append(f"seeds    {get}{experiment} clear-mlflow sweep --grid {grid}")
    return lines
