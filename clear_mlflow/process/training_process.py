"""The process that trains, as its supervisor sees it: start it, read its rows, stop it."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import PeerLostError, TrainingDied
from clear_mlflow.learning.measured import Measurement, OnMessage, ignore
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process.child import receive, run

# How often a waiting supervisor lets Python handle signals.
_SIGNAL_SECONDS = 1.0
# How long a training process may take to end after SIGTERM.
_GRACE_SECONDS = 10.0
# The C library keeps the memory of large tensors that are freed, instead of mapping it anew for
# each batch: a step on 224-pixel images took nearly twice as long. glibc's names end in "_".
_MEMORY_VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
# Waiting threads of OpenMP spin for microseconds instead of milliseconds, during which they would
# keep a core from others, unless the user chose how threads wait.
_SPIN_VARIABLES = {"GOMP_SPINCOUNT": "3000"}
_WAIT_POLICY_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


class TrainingProcess:
    """A :class:`Training` in a child process. Signals reach it only through :meth:`stop`.

    A context manager: leaving it waits for the end of the process, and stops it after an error.

    Args:
        config: the parameters of the training.
    """

    def __init__(self, config: TrainConfig) -> None:
        child = _waiting.pop() if _waiting else _start_interpreter()
        self._process, self._commands, self._messages = child
        self._config: TrainConfig | None = None
        self._dataset: DatasetDescription | None = None
        self._state_file: Path | None = None
        self._send(config)

    def __enter__(self) -> TrainingProcess:
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        if self._process.poll() is None and error is not None:
            self.stop()
        self._commands.close()
        self._process.wait()
        self._messages.close()

    @property
    def config(self) -> TrainConfig:
        """The resolved parameters, for which this waits.

        Raises the error of the child.
        """
        if self._config is None:
            self._config = self._receive("checked")[1]
        return self._config

    @property
    def dataset(self) -> DatasetDescription:
        """The dataset that is trained on, for which this waits.

        Raises the error of the child.
        """
        if self._dataset is None:
            self._send("dataset")
            self._dataset = self._receive("dataset")[1]
        return self._dataset

    def resume_from(self, state_file: Path) -> None:
        """Remember a training state with whose row :meth:`rows` starts.

        The file must not be deleted.
        """
        self._state_file = state_file

    def for_member(self, config: TrainConfig) -> TrainingProcess:
        """Return a copy of this object for the next seed's training."""
        member = copy.copy(self)
        member._config = config
        return member

    def rows(self, on_message: OnMessage = ignore) -> Iterator[Measurement]:
        """Yield the rows. The child continues when the next row is requested.

        on_message: called with messages without a row. Raises the ClearError that ended the
        training, PeerLostError if another process of the group is gone, or TrainingDied if the
        child was killed.
        """
        self._send(self._state_file)
        while (message := self._receive("measurement", "done"))[0] != "done":
            measurement: Measurement = message[1]
            if measurement.row is None:
                on_message(measurement)
            else:
                yield measurement
                self._send("continue")

    def stop(self) -> None:
        """Send SIGTERM to the child now, and SIGKILL in 10 seconds."""
        self._process.terminate()
        timer = threading.Timer(_GRACE_SECONDS, self._process.kill)
        timer.daemon = True
        timer.start()

    def _send(self, command: object) -> None:
        """Send a command, without an error if the child has ended."""
        with suppress(OSError):
            self._commands.send(command)

    def _receive(self, *expected: str) -> tuple[str, Any]:
        """Wait for the child's next message, or raise what ended it."""
        try:
            # Ray stops a task by setting the flag of a signal, which does not end a blocking read.
            while not self._messages.poll(_SIGNAL_SECONDS):
                pass
            message_type, content = receive(self._messages)
        except (EOFError, OSError):
            raise self._wait_for_death_error() from None
        if message_type == "error":
            raise content
        if message_type not in expected:
            raise RuntimeError(f"the training process sent {message_type}, expected {expected}")
        return message_type, content

    def _wait_for_death_error(self) -> PeerLostError | TrainingDied:
        code = self._process.wait()
        on_gpus = self._config is not None and self._config.device == "cuda"
        if code == -signal.SIGABRT and on_gpus and read_dist_env().size > 1:
            # A thread that watches the others, or NCCL's, aborts a child that waits for a GPU.
            return PeerLostError(
                "another process of this training has ended or does not respond, so this one, "
                "which would wait for it, was aborted; read the error of that process"
            )
        return TrainingDied(code)


def build_child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of *environment* with our defaults for missing variables.

    They make the C library keep freed memory, and waiting OpenMP threads release their cores
    sooner, unless *environment* sets how these threads wait.
    """
    has_policy = any(name in environment for name in _WAIT_POLICY_VARIABLES)
    return {**_MEMORY_VARIABLES, **({} if has_policy else _SPIN_VARIABLES), **environment}


class ForkedProcess:
    """A :mod:`multiprocessing` process with the methods of :class:`subprocess.Popen`.

    Starts the process.
    """

    def __init__(self, process: BaseProcess) -> None:
        process.start()
        self._process = process
        self.terminate, self.kill = process.terminate, process.kill

    def poll(self) -> int | None:
        """Return the exit code, minus a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code, or raise TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code


def fork_training_process() -> None:
    """Fork a child that waits for the next TrainingProcess.

    Call it once, while this process has a single thread.
    """
    child_commands, commands = multiprocessing.Pipe(duplex=False)
    messages, child_messages = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_run_forked, args=(child_commands, child_messages, (commands, messages))
    )
    _waiting.append((ForkedProcess(process), commands, messages))
    child_commands.close()
    child_messages.close()
    # multiprocessing waits for its children when this process ends.
    util.Finalize(None, _release_waiting, exitpriority=0)


# A training process with the supervisor's ends of its pipes: of commands, and of messages.
_Child: TypeAlias = "tuple[subprocess.Popen[bytes] | ForkedProcess, Connection, Connection]"

_waiting: list[_Child] = []  # at most one forked process


def _start_interpreter() -> _Child:
    """Start a Python interpreter in its own session."""
    child_commands, commands = multiprocessing.Pipe(duplex=False)
    messages, child_messages = multiprocessing.Pipe(duplex=False)
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "clear_mlflow.process.child", str(child_messages.fileno())],
        stdin=child_commands.fileno(),
        env=build_child_environment(os.environ),
        pass_fds=[child_messages.fileno()],
        start_new_session=True,
    )
    child_commands.close()
    child_messages.close()
    return process, commands, messages


def _run_forked(
    commands: Connection, messages: Connection, supervisor_ends: tuple[Connection, ...]
) -> None:
    for connection in supervisor_ends:
        connection.close()
    os.setsid()
    run(commands, messages)


def _release_waiting() -> None:
    if _waiting:
        process, *connections = _waiting.pop()
        for connection in connections:
            connection.close()
        process.wait()
