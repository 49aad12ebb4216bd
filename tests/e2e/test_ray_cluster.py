"""Sweeps on a Ray cluster of this machine.

Whatever calls Ray runs in a process of its own: where Ray fails to start, it ends its caller.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from ports import free_port
from sweeps import (
    NEEDS_RAY,
    SLOWER,
    assert_every_run_is_there_once,
    grid,
    start_sweep,
    wait_for_a_row,
)
from waiting import LONG, finish, finish_well

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.sweeps.ray_cluster import RayEngine, check_store_is_shared

__all__ = ["grid"]
CORES = 2  # of the machine that trains
WAIT_FOR_MACHINES = """
import sys, time
from contextlib import suppress
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.sweeps.ray_cluster import RayEngine

def train(*arguments):
    pass

address, machines = sys.argv[1], int(sys.argv[2])
while True:
    with suppress(ConfigError), RayEngine(train, address) as cluster:
        while len(cluster.list_nodes()) != machines:
            time.sleep(0.1)
        break
    time.sleep(0.1)
"""
SHARE_GPUS = """
import os, sys, time
from pathlib import Path
import ray
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.sweeps.grid import SweepRun
from clear_mlflow.sweeps.ray_cluster import RayEngine

folder = Path(sys.argv[1])

def train(parameters, run_id, experiment_id, tracking_uri):
    (folder / run_id).touch()
    until = time.monotonic() + 60
    while not (folder / parameters["other"]).exists() and time.monotonic() < until:
        time.sleep(0.05)
    return 0, os.environ.get("CUDA_VISIBLE_DEVICES"), False

def training(run_id, other):
    run = SweepRun({"other": other}, TrainConfig.resolve({}), "hash", run_id=run_id)
    return run, "0", "sqlite:///"

ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
with RayEngine(train, jobs=3) as engine:
    assert engine.describe_capacity() == "2 at a time, each with 1 CPUs and 1 GPUs"
    engine.start(*training("a", other="b"))
    assert engine.count_free_slots() == 1
    engine.start(*training("b", other="a"))
    assert engine.count_free_slots() == 0
    ended = []
    while len(ended) < 2:
        ended += engine.wait_for_ended_runs(60.0)
    assert {run.error for run in ended} == {"0", "1"}
    assert engine.count_free_slots() == 2
with RayEngine(train, gpus=0.5) as engine:
    assert engine.describe_capacity() == "4 at a time, each with 1 CPUs and 0.5 GPUs"
with RayEngine(train, gpus=0.0) as engine:
    assert engine.describe_capacity() == "4 at a time, each with 1 CPUs and 0 GPUs"
ray.shutdown()
"""


def run_script(script, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LONG, check=False)
    return done.returncode, done.stderr


@contextmanager
def ray_node(*options):
    """Run a machine of a Ray cluster; all processes that it started end with it."""
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--block", *options),
        *("--min-worker-port=0", "--max-worker-port=0", "--num-gpus=0"),
        *(f"--dashboard-agent-listen-port={free_port()}", "--disable-usage-stats"),
    ]
    # Else it asks for a token, and starts processes that nothing runs in.
    variables = os.environ | {"RAY_AUTH_MODE": "disabled"}
    variables |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=variables, **silent)
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            parts = psutil.Process(process.pid).children(recursive=True)
            # Asked to end, a cluster first waits for half a minute for work to go elsewhere.
            process.kill()
            for part in parts:
                with suppress(psutil.NoSuchProcess):
                    part.kill()
        process.wait(LONG)


@contextmanager
def ray_head(*options):
    """Yield the address of a cluster's first machine once it is up."""
    address = f"127.0.0.1:{free_port()}"
    # Ray's sockets are stored in its folder, and a socket's path has a hundred characters at most.
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder,
        ray_node(
            *("--head", f"--port={address.split(':')[1]}", f"--temp-dir={folder}"),
            *(f"--ray-client-server-port={free_port()}", "--include-dashboard=false", *options),
        ) as process,
    ):
        wait_for_machines(address, 1, process)
        yield address
        assert process.poll() is None, "the cluster was ended"


def wait_for_machines(address, machines, process):
    code, errors = run_script(WAIT_FOR_MACHINES, address, str(machines))
    assert (code, process.poll()) == (0, None), errors


@pytest.mark.slow
@NEEDS_RAY
def test_a_lost_machine_of_the_cluster_is_replaced(store, experiment_id, grid, hold):
    path = grid({"fixed": SLOWER, "grid": {"seed": [0]}})
    where = ("--engine", "ray", "--cpus", str(CORES))  # of which the first machine has too few
    with ray_head("--num-cpus=1") as address:
        second = (f"--address={address}", f"--num-cpus={CORES}")
        with ray_node(*second) as process:
            wait_for_machines(address, 2, process)
            sweep = start_sweep(path, *where, "--address", address)
            wait_for_a_row(store, experiment_id, sweep)
            # Ray's own process first: what watches it has time to send the cluster its log.
            for part in psutil.Process(process.pid).children(recursive=True):
                if part.name() == "raylet":
                    part.kill()
            time.sleep(5)
        hold.unlink()
        # It is gone, with all that ran on it.
        with ray_node(*second):
            output = finish_well(sweep)
    assert f"1 of 1 run to train, 1 at a time, each with {CORES} CPUs and 0 GPUs" in output
    assert "started again, try 2 (resumed)" in output
    assert "[state-dump]" not in output
    assert_every_run_is_there_once(store, experiment_id, path)


@pytest.mark.slow
@NEEDS_RAY
def test_a_sweep_whose_cluster_is_lost_ends_with_one_line(store, experiment_id, grid, hold):
    """Before Ray ends its process, after a minute."""
    path = grid({"fixed": SLOWER, "grid": {"seed": [0]}})
    killed = pytest.raises(AssertionError, match="the cluster was ended")
    with killed, ray_head(f"--num-cpus={CORES}") as address:
        sweep = start_sweep(path, "--engine", "ray", "--address", address)
        wait_for_a_row(store, experiment_id, sweep)
        port = f"--gcs_server_port={address.rpartition(':')[2]}"
        for process in psutil.process_iter():
            if process.name() == "gcs_server" and port in process.cmdline():
                process.kill()
        code, output = finish(sweep)
        hold.unlink()
    assert code == 2, output
    assert f"error: the Ray cluster at {address} is lost: Connection refused; when it" in output


@pytest.mark.slow
@NEEDS_RAY
def test_a_run_on_ray_gets_a_gpu_if_there_are_any(tmp_path):
    code, errors = run_script(SHARE_GPUS, str(tmp_path))
    assert code == 0, errors


@pytest.mark.parametrize(("address", "is_warned"), [("local", True), ("host:6379", False)])
def test_a_space_in_the_path_of_python_is_reported_before_ray_starts(
    monkeypatch, capfd, address, is_warned
):
    monkeypatch.setattr(sys, "prefix", "/home/me/my envs/a")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="pip install ray"), RayEngine(print, address):
        pass
    assert ("(/home/me/my envs/a)" in capfd.readouterr().err) == is_warned


def test_a_file_store_is_rejected_if_workers_are_on_other_machines():
    def node(name):
        return {"NodeID": name, "NodeManagerHostname": f"host-{name}"}

    check_store_is_shared("sqlite:////data/mlflow.db", [node("a")], "a")
    check_store_is_shared("http://server:5000", [node("a"), node("b")], "a")
    with pytest.raises(ConfigError, match=r"sqlite:////data/mlflow\.db.*host-b"):
        check_store_is_shared("sqlite:////data/mlflow.db", [node("a"), node("b")], "a")
