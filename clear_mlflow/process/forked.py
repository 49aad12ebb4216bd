"""Processes that begin with everything loaded, since they are forked."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.process import BaseProcess


class ForkedProcess:
    """Starts a process of :mod:`multiprocessing`, asked as :class:`subprocess.Popen` is."""

    def __init__(self, process: BaseProcess) -> None:
        process.start()
        self._process = process
        self.terminate, self.kill = process.terminate, process.kill

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


@dataclass(frozen=True)
class TrainingChild:
    """A training process, and this side's ends of its two pipes."""

    process: subprocess.Popen[bytes] | ForkedProcess
    down: int  # written to here
    up: int  # read from here


_waiting: list[TrainingChild] = []


def fork_training_process() -> None:
    """Fork one that waits until it is wanted; once, while this process has a single thread."""
    child_down, down = os.pipe()
    up, child_up = os.pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_train, args=(child_down, child_up, (down, up)))
    _waiting.append(TrainingChild(ForkedProcess(process), down, up))
    os.close(child_down)
    os.close(child_up)
    # At the exit of this process multiprocessing waits for its children.
    util.Finalize(None, _release, exitpriority=0)


def waiting_training_process() -> TrainingChild | None:
    """The process that :func:`fork_training_process` forked, once; None where there is none."""
    return _waiting.pop() if _waiting else None


def _release() -> None:
    if child := waiting_training_process():
        os.close(child.down)
        os.close(child.up)
        child.process.wait()


def _train(down: int, up: int, others: tuple[int, ...]) -> None:
    for descriptor in others:
        os.close(descriptor)
    os.setsid()
    from clear_mlflow.process import child

    child.run(down, up)
