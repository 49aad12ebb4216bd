"""Trainings of a sweep that are forked from a preloaded process store the same as the command."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest
import yaml
from forked import Forked
from short_stream import options
from sweeps import QUICK
from waiting import LONG, wait_until

from clear_mlflow.cli.preloaded import start_forked_program
from clear_mlflow.store import names
from clear_mlflow.store.rows import read_rows
from clear_mlflow.sweeps.local import start_program

SLOW = {**QUICK, "epochs": "3000"}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def fork(log, parameters):
    return start_forked_program(["train", *options(parameters)], dict(os.environ), str(log))


def read_newest_run(store, experiment_id):
    run = store.search_runs([experiment_id], order_by=["start_time DESC"])[0]
    rows = [record.row for record in read_rows(store, run).values()]
    return run.data.params, [(row.row, row.correct) for row in rows], run.info.status


@pytest.mark.slow
def test_it_stores_what_the_program_stores(store, experiment_id, log):
    environment = {**os.environ, "ONLY_THERE": "1"}
    stored_runs = []
    for start in (start_program, start_forked_program):
        process = start(["train", *options(QUICK)], environment, str(log))
        assert process.wait(LONG) == 0, log.read_text()
        stored_runs.append(read_newest_run(store, experiment_id))
    assert stored_runs[0] == stored_runs[1]
    assert len(stored_runs[0][1]) == 11
    assert "ONLY_THERE" not in os.environ


def test_an_error_is_one_line_in_the_log_and_an_exit_code(store, log):
    process = fork(log, {"lr": "fast"})
    assert process.wait(LONG) == 2
    assert log.read_text().startswith("error: --lr is 'fast'")


def list_server_children():
    children = [p for p in psutil.Process().children() if "forkserver" in " ".join(p.cmdline())]
    return [child for server in children for child in server.children(recursive=True)]


def training(store, experiment_id, process):
    def has_rows():
        runs = store.search_runs([experiment_id])
        return runs and "test_accuracy/bucket_01" in runs[0].data.metrics

    wait_until(has_rows, process)
    supervisor, trainer = sorted(list_server_children(), key=lambda p: p.create_time())
    assert trainer.ppid() == supervisor.pid
    assert os.getsid(supervisor.pid) == supervisor.pid
    assert os.getsid(trainer.pid) == trainer.pid
    return trainer


@pytest.mark.slow
def test_a_signal_stops_a_preloaded_training(store, experiment_id, log):
    process = fork(log, SLOW)
    trainer = training(store, experiment_id, process)
    process.terminate()
    assert process.wait(LONG) == 128 + signal.SIGTERM
    assert "SIGTERM: stopping; the rows so far will be scored" in log.read_text()
    _, rows, status = read_newest_run(store, experiment_id)
    assert status == "KILLED"
    assert rows
    trainer.wait(LONG)


def test_a_signal_right_after_the_start_is_not_lost(store, log):
    """A sweep that is stopped while it starts a run would otherwise wait for its training."""
    process = fork(log, SLOW)
    process.terminate()
    assert process.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)


@pytest.mark.slow
def test_its_training_ends_with_the_supervisor(store, experiment_id, log):
    process = fork(log, SLOW)
    trainer = training(store, experiment_id, process)
    process.kill()
    assert process.wait(LONG) == -signal.SIGKILL
    trainer.wait(LONG)


@pytest.mark.slow
def test_a_sweep_forks_its_trainings(store, experiment_id, tmp_path):
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump({"fixed": QUICK, "grid": {"strategy": ["ncm"], "seed": [0, 1]}}))
    command = ("sweep", "--grid", str(grid))
    sweep = Forked(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    processes = set()
    while sweep.poll() is None:
        with suppress(psutil.Error):
            processes |= set(psutil.Process(sweep.pid).children(recursive=True))
        time.sleep(0.05)
    errors = sweep.stderr.read()
    sweep.stderr.close()
    assert sweep.returncode == 0, errors
    assert [line[:5] for line in errors.splitlines()] == [
        *("2 of ", "[0/2]", "[1/2]", "[1/2]", "[2/2]")
    ]
    _, gone = psutil.wait_procs(processes, LONG)
    assert not gone
    runs = store.search_runs([experiment_id], f"tags.`{names.SWEEP_RUN_TAG}` != ''")
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
