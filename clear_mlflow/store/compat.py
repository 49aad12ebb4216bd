"""Private parts of MLflow 3.17 that this package uses; no other module does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.tracking.fluent import _active_run_stack, run_id_to_system_metrics_monitor

# MLflow lacks a public way to recognise a generated name. Without these lists, this module cannot
# be imported, and tests report that.
from mlflow.utils.name_utils import _GENERATOR_NOUNS, _GENERATOR_PREDICATES

if TYPE_CHECKING:  # it loads psutil, which a server may lack
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


def is_generated_name(name: str | None) -> bool:
    """Return True if MLflow generated a run's name, such as ``upbeat-foal-91``, or if it is empty.

    >>> is_generated_name("upbeat-foal-91"), is_generated_name("replay-3"), is_generated_name(None)
    (True, False, True)
    """
    if not name:
        return True
    match = re.fullmatch(r"([a-z]+)-([a-z]+)-[0-9]+", name)
    return bool(match and match[1] in _GENERATOR_PREDICATES and match[2] in _GENERATOR_NOUNS)


def download_file(repository: ArtifactRepository, name: str, to: Path) -> None:
    """Download one artifact with a single request. to: the local file to write."""
    repository._download_file(name, str(to))


def forget_active_run(run_id: str) -> None:
    """Make MLflow forget this thread's active run, so that it does not set the run's status."""
    stack = _active_run_stack.get()
    stack[:] = [run for run in stack if run.info.run_id != run_id]


def forget_system_metrics(run_id: str) -> SystemMetricsMonitor | None:
    """Remove and return MLflow's system metrics monitor of a run, or return None.

    MLflow then does not wait for the monitor when the run ends.
    """
    monitor: SystemMetricsMonitor | None = run_id_to_system_metrics_monitor.pop(run_id, None)
    return monitor
