"""Where the runs of a sweep are trained, this machine or a Ray cluster: what it asks of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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


class Engine(Protocol):
    """Trains tasks, several at a time. It is a context; nothing of it runs after the exit."""

    def __enter__(self) -> Engine:
        """Start it; raises ConfigError where it cannot run here."""

    def __exit__(self, *_: object) -> None:
        """End all that still runs."""

    def check_store(self, tracking_uri: str) -> None:
        """Raise ConfigError where workers could not reach the tracking store."""

    def plan(self) -> str:
        """How many tasks run side by side, and on what, before any was started."""

    def room(self) -> int:
        """How many more tasks can be started now."""

    def start(self, task: Task) -> None:
        """Begin a task; returns at once."""

    def ended(self, timeout: float) -> Sequence[Ended]:
        """Tasks that have ended since the last call; waits up to *timeout* seconds for one."""

    def stop(self) -> None:
        """Tell all tasks to stop; each scores its rows and is among the ended ones later."""
