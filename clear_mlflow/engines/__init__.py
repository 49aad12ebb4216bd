"""Engines that train the runs of a sweep: on this machine, or on a Ray cluster.

An engine is a context manager with the methods of :class:`.local.LocalEngine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One training, into an existing MLflow run."""

    parameters: Mapping[str, str]  # as text; parameters that are missing have their defaults
    run_id: str
    experiment_id: str
    tracking_uri: str


@dataclass(frozen=True)
class TaskResult:
    """How a training ended."""

    run_id: str
    exit_code: int  # of `clear-mlflow train`
    error: str | None  # one line, or None if the engine knows none
    is_lost: bool = False  # its worker was killed or its machine is gone, so a retry may succeed
