"""Read runs from an offline folder: from its own files, wherever the folder is now."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.journal.reading import read_run
from clear_mlflow.store.client import set_up_mlflow
from clear_mlflow.store.offline import (
    NO_EXPERIMENT,
    check_format,
    format_offline_uri,
    is_offline_folder,
)
from clear_mlflow.store.search import expand_run_id, select_runs


def read_offline_runs(path: Path) -> list[Run]:
    """Read the runs of an offline folder that can have rows, newest first, or one as FOLDER/RUN.

    RUN is an id or at least its first six digits. Without it, sweeps and comparisons are left out.
    Raises RecordError if it finds none, and TrackingError if the folder's format is unknown or RUN
    matches several runs.
    """
    folder, prefix = (path, None) if is_offline_folder(path) else (path.parent, path.name)
    set_up_mlflow()
    check_format(folder)
    client = MlflowClient(format_offline_uri(folder))
    run_ids = () if prefix is None else (expand_run_id(client, prefix),)
    runs = [
        read_run(folder / run.info.run_id, run.info.run_id, NO_EXPERIMENT)
        for run in select_runs(client, run_ids=run_ids)
        if isinstance(run, Run)
    ]
    if not runs:
        raise RecordError(f"{safe_repr(str(folder), 200)} contains no run {prefix or ''}".rstrip())
    for run in runs:
        run.bundle_path = folder / run.info.run_id[:8]  # type: ignore[attr-defined]
    return runs
