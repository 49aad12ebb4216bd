"""What a sweep on this machine gives to each of its trainings: cores, and a GPU."""

from __future__ import annotations

import os

import psutil
import pytest

from clear_mlflow.engines import local
from clear_mlflow.engines.engine import Task
from clear_mlflow.engines.local import LocalEngine

TASK = Task(asked={}, run_id="a", experiment_id="b", tracking_uri="c")


class Process:
    """A training that runs until it is told otherwise."""

    def __init__(self, command, *, env, **_):
        self.env = env
        self.returncode = None

    def poll(self):
        return self.returncode


@pytest.fixture
def started(monkeypatch):
    """Trainings that were started, in their order, with the environment of each."""
    processes = []

    def start(*arguments, **options):
        processes.append(Process(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(local.subprocess, "Popen", start)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return processes


def test_cores_that_this_process_may_not_use_are_not_shared_out(started, monkeypatch):
    """As a scheduler leaves them: 4 of 64."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 32)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5, 6}, raising=False)
    LocalEngine(2).start(TASK)
    assert started[0].env["OMP_NUM_THREADS"] == "2"
