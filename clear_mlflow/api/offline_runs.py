"""Read runs from an offline folder: from its own files, wherever the folder is now."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.store.client import set_up_mlflow
from clear_mlflow.store.offline import (
    check_format,
    format_offline_uri,
    is_offline_folder,
    locate_artifacts,
    replace_info,
)
from clear_mlflow.store.search import expand_run_id, select_runs

NO_EXPERIMENT = "bundle"  # in place of an experiment's id, for runs that are read from files


def read_offline_runs(path: Path) -> list[Run]:
    """Read the runs of an offline folder that can have rows, newest first, or one as FOLDER/RUN.

    RUN is an id or at least its first six digits. Without it, sweeps and comparisons are left out.
    Raises RecordError if it finds none or the folder's database cannot be read, and TrackingError
    if its format is unknown or RUN matches no run or several.
    """
    folder, prefix = (path, None) if is_offline_folder(path) else (path.parent, path.name)
    set_up_mlflow()
    check_format(folder)
    try:
        client = MlflowClient(format_offline_uri(folder))
        client.search_experiments(max_results=1)
    except Exception as error:  # SQLAlchemy's and MLflow's errors share no base class
        reason = " ".join(str(error).split())[:300]
        raise RecordError(f"{safe_repr(str(folder), 200)} cannot be read: {reason}") from error
    run_ids = () if prefix is None else (expand_run_id(client, prefix),)
    selected = select_runs(client, run_ids=run_ids)
    runs = [_read_from_files(run, client, folder) for run in selected if isinstance(run, Run)]
    if not runs:
        raise RecordError(f"{safe_repr(str(folder), 200)} contains no run {prefix or ''}".rstrip())
    return runs


def _read_from_files(run: Run, client: MlflowClient, folder: Path) -> Run:
    """Return a run whose artifacts, ``client`` and ``bundle_path`` are a folder's."""
    located = locate_artifacts(folder / "artifacts", run)
    located = replace_info(located, experiment_id=NO_EXPERIMENT)
    located.client, located.bundle_path = client, folder / run.info.run_id[:8]  # type: ignore[attr-defined]
    return located
