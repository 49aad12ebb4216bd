"""Processes that begin with everything loaded, since they are forked."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.process import BaseProcess

# What OpenMP, MKL and OpenBLAS are set by. They read it once, when they are loaded.
_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")


class ForkedProcess:
    """A process of :mod:`multiprocessing`, asked as :class:`subprocess.Popen` is.

    Args:
        process: not started yet.
    """

    def __init__(self, process: BaseProcess) -> None:
        process.start()
        self._process = process

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises :class:`subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


@dataclass(frozen=True)
class TrainingChild:
    """A training process, and this side's ends of its two pipes."""

    process: subprocess.Popen[bytes] | ForkedProcess
    down: int  # written to here
    up: int  # read from here


_waiting: list[tuple[TrainingChild, Mapping[str, str]]] = []


def threads_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What an environment says to the libraries that compute in several threads."""
    return {k: v for k, v in environment.items() if k.startswith(_THREADS)}


def fork_training_process(loaded_with: Mapping[str, str]) -> None:
    """Fork a training process that waits until it is wanted, or until this process ends.

    To be called once, in a process that has one thread and has loaded what a training needs: later
    there are threads of MLflow, and a fork in their midst is not safe.

    Args:
        loaded_with: :func:`threads_of` the environment that torch was loaded in.
    """
    child_down, down = os.pipe()
    up, child_up = os.pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_train, args=(child_down, child_up, (down, up)))
    child = TrainingChild(ForkedProcess(process), down, up)
    os.close(child_down)
    os.close(child_up)
    _waiting.append((child, loaded_with))
    # At the exit of this process multiprocessing waits for its children.
    util.Finalize(None, _release, exitpriority=0)


def waiting_training_process(environment: Mapping[str, str]) -> TrainingChild | None:
    """The process that :func:`fork_training_process` forked, once; None where there is none.

    Args:
        environment: what a new process would be given. Where it sets threads differently than
            when torch was loaded, the forked process is not used, and ends.
    """
    if not _waiting:
        return None
    child, loaded_with = _waiting[0]
    if threads_of(environment) != loaded_with:
        _release()
        return None
    _waiting.clear()
    return child


def _release() -> None:
    while _waiting:
        child, _ = _waiting.pop()
        os.close(child.down)
        os.close(child.up)
        child.process.wait()


def _train(down: int, up: int, others: tuple[int, ...]) -> None:
    for descriptor in others:
        os.close(descriptor)
    os.setsid()
    from clear_mlflow.process import child

    child.run(down, up)
