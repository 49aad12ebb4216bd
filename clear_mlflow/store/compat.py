"""What MLflow keeps to itself and this program needs; seen in mlflow 3.17, and here alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.tracking.fluent import _active_run_stack, run_id_to_system_metrics_monitor

# MLflow has no public way to recognise a generated name. Without these lists, this module cannot
# be imported, and tests report that.
from mlflow.utils.name_utils import _GENERATOR_NOUNS, _GENERATOR_PREDICATES

if TYPE_CHECKING:  # it loads psutil, which a server may lack
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


def is_generated_name(name: str | None) -> bool:
    """Whether MLflow itself made up a run's name, as ``upbeat-foal-91``.

    >>> is_generated_name("upbeat-foal-91"), is_generated_name("replay-3"), is_generated_name(None)
    (True, False, True)
    """
    if not name:
        return True
    match = re.fullmatch(r"([a-z]+)-([a-z]+)-[0-9]+", name)
    return bool(match and match[1] in _GENERATOR_PREDICATES and match[2] in _GENERATOR_NOUNS)


def download_file(repository: ArtifactRepository, name: str, to: Path) -> None:
    """Write one artifact of a folder to a file: one request, where the public ways ask more."""
    repository._download_file(name, str(to))


def forget_active_run(run_id: str) -> None:
    """Take a run away from MLflow in this thread, which would give it a status when it ends."""
    stack = _active_run_stack.get()
    stack[:] = [run for run in stack if run.info.run_id != run_id]


def forget_system_metrics(run_id: str) -> SystemMetricsMonitor | None:
    """Take a run's monitor of the machine away from MLflow, which would wait for its last call."""
    monitor: SystemMetricsMonitor | None = run_id_to_system_metrics_monitor.pop(run_id, None)
    return monitor
