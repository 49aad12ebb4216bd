"""Where the runs of a sweep are trained, this machine or a Ray cluster: what both take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One training, into a run that is there."""

    asked: Mapping[str, str]  # parameters as text; what is missing has its default
    run_id: str
    experiment_id: str
    tracking_uri: str


@dataclass(frozen=True)
class Ended:
    """A training that has ended, one way or another."""

    run_id: str
    exit_code: int  # as `clear-mlflow train` gives it
    error: str | None  # one line, where the engine knows one
    lost: bool = False  # its worker was killed, or its machine is gone: worth another try
