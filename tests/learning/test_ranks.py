"""Every rank except the first trains, stores nothing, and reports its error once."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from clear_mlflow.core.distributed import DistributedEnv
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process import ranks
from clear_mlflow.process.ranks import run_rank
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.process.training_process import TrainingProcess

SECOND_HERE = DistributedEnv(rank=1, size=2, local_rank=1, local_size=2)
ALONE_ON_ITS_MACHINE = DistributedEnv(rank=1, size=2, local_rank=0, local_size=1)
SHORT = {"features": "pixels", "strategy": "linear", "epochs": "1", "device": "cpu"}
LONG = {**SHORT, "epochs": "100000"}
WRONG = {**SHORT, "strategy_args": "nope=1"}


def part(rank, parameters):
    with StoppingSignals() as signals:
        return run_rank(rank, TrainConfig.resolve(parameters), signals)


def trainings():
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE
        and "clear_mlflow.process.child" in " ".join(child.cmdline())
    ]


def meanwhile(act):
    def wait():
        until = time.monotonic() + 60
        while not (processes := trainings()) and time.monotonic() < until:
            time.sleep(0.02)
        act(processes[0])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_it_works_during_training_and_stores_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # nobody is there to be asked
    assert part(SECOND_HERE, SHORT) == 0
    out, err = capfd.readouterr()
    assert out == ""
    # The training process tells how far it is, as it does where it is alone; nobody else speaks.
    assert all(line.startswith("bucket ") for line in err.splitlines())
    assert not list(tmp_path.iterdir())
    assert not trainings()


@pytest.mark.slow
def test_an_error_that_rank_0_cannot_meet_is_printed_by_its_rank(capfd):
    assert part(ALONE_ON_ITS_MACHINE, WRONG) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: rank 1: ")
    assert "not an argument of strategy linear" in line


@pytest.mark.slow
def test_an_error_of_all_ranks_is_printed_only_by_rank_0(capfd, monkeypatch):
    def end_like_torchrun(_):
        os.kill(os.getpid(), signal.SIGTERM)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=end_like_torchrun)
    monkeypatch.setattr(ranks, "time", clock)
    assert part(SECOND_HERE, WRONG) == 128 + signal.SIGTERM
    assert "error" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_killed_training_process_is_reported_in_one_line(capfd):
    thread = meanwhile(lambda child: child.kill())
    assert part(SECOND_HERE, LONG) == 1
    thread.join()
    assert capfd.readouterr().err == ("error: rank 1: the training process was ended by SIGKILL\n")


def test_a_stop_signal_is_forwarded(capfd):
    thread = meanwhile(lambda child: os.kill(os.getpid(), signal.SIGTERM))
    assert part(SECOND_HERE, LONG) == 128 + signal.SIGTERM
    thread.join()
    assert "error" not in capfd.readouterr().err
    assert not trainings()


@pytest.mark.program
def test_an_unresponsive_training_process_is_killed(monkeypatch):
    """A suspended process does not receive the signal."""
    monkeypatch.setattr("clear_mlflow.process.training_process._GRACE_SECONDS", 0.1, raising=False)
    with TrainingProcess(TrainConfig.resolve(LONG)) as process:
        assert process.config.epochs == 100000  # it runs
        (child,) = trainings()
        child.suspend()
        process.stop()
        try:
            child.wait(timeout=60)
        finally:
            if child.is_running():
                child.kill()
    assert not trainings()
