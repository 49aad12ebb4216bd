"""Cores and GPUs of the trainings of a sweep on this machine."""

import os
import subprocess
from types import SimpleNamespace

import psutil
import pytest

from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.sweeps import local
from clear_mlflow.sweeps.grid import SweepRun
from clear_mlflow.sweeps.local import LocalEngine

TASK = SweepRun({}, TrainConfig.resolve({}), "hash", run_id="a"), "experiment", "uri"


@pytest.fixture
def started(monkeypatch):
    processes = []

    def start(command, *, env, **_):
        process = SimpleNamespace(env=env, returncode=None)
        process.poll = lambda: process.returncode
        processes.append(process)
        return process

    stands_in = SimpleNamespace(Popen=start, run=subprocess.run, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(local, "subprocess", stands_in)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return processes


def test_only_available_cores_are_distributed(started, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 32)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5, 6}, raising=False)
    LocalEngine(2).start(*TASK)
    assert started[0].env["OMP_NUM_THREADS"] == "2"


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)'\n"
        "echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bb)'\n"
    )
    smi.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def gpus(started):
    return [process.env.get("CUDA_VISIBLE_DEVICES") for process in started]


def test_concurrent_trainings_are_spread_over_the_gpus(started, two_gpus, monkeypatch):
    monkeypatch.setattr(local, "_collect_ended_run", lambda training: training.run)
    engine = LocalEngine(3)
    for _ in range(3):
        engine.start(*TASK)
    assert gpus(started) == ["GPU-aa", "GPU-bb", "GPU-aa"]
    started[1].returncode = 0
    engine.wait_for_ended_runs(0)
    engine.start(*TASK)
    assert gpus(started)[3] == "GPU-bb"


def test_only_visible_gpus_are_distributed(started, two_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-cc")
    engine = LocalEngine(2)
    engine.start(*TASK)
    engine.start(*TASK)
    assert gpus(started) == ["5", "GPU-cc"]


@pytest.mark.parametrize(("jobs", "given"), [(1, None), (1, "0,1"), (2, "")])
def test_an_existing_gpu_selection_is_unchanged(started, two_gpus, monkeypatch, jobs, given):
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    LocalEngine(jobs).start(*TASK)
    assert gpus(started) == [given]
