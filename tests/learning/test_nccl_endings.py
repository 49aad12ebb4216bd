"""NCCL ends a training process that waits for another one by aborting it."""

import sys
import textwrap

import pytest

from clear_mlflow.core.errors import PeerLostError, TrainingDied
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process.training_process import TrainingProcess

# What torchrun sets for the first of two.
OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
OF_TWO |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def child_that(tmp_path, monkeypatch):
    def start_child(ending, **options):
        config = TrainConfig.resolve(options)
        program = tmp_path / "child.py"
        program.write_text(
            textwrap.dedent(f"""\
            import os, signal, sys
            from multiprocessing.connection import Connection
            from clear_mlflow.learning.parameters.config import TrainConfig
            from clear_mlflow.process.child import send
            send(Connection(int(sys.argv[-1])), "checked", TrainConfig(**{config.values()!r}))
            {ending}
            """)
        )
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
        wrapper.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(wrapper))
        return TrainingProcess(config)

    return start_child


@pytest.mark.parametrize(
    ("ending", "device", "several", "error", "message"),
    [
        ("os.abort()", "cuda", True, PeerLostError, "has ended .* the error of that process"),
        ("os.abort()", "cuda", False, TrainingDied, "SIG"),
        ("os.abort()", "cpu", True, TrainingDied, "SIG"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "cuda", True, TrainingDied, "SIG"),
    ],
)
def test_an_abort_on_several_gpus_is_the_loss_of_another_process(
    child_that, monkeypatch, ending, device, several, error, message
):
    for name, value in OF_TWO.items() if several else ():
        monkeypatch.setenv(name, value)
    with child_that(ending, device=device) as process:
        assert process.config.device == device
        with pytest.raises(error, match=message):
            list(process.rows())
