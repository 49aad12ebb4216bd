"""The supervisor's side of a process that trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import PeerLostError
from clear_mlflow.learning.measured import (
    MeasuredRow,
    OnCurve,
    OnState,
    OnTest,
    StreamMetadata,
    ignore,
)
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process import messages
from clear_mlflow.process.forked import TrainingChild, waiting_training_process

# How long a training process may take to end once it was asked to.
_GRACE_SECONDS = 10.0
# The C library keeps what large tensors free, in the place of mapping it anew for each batch: a
# step on 224-pixel images took nearly twice as long. Its own variables end in an underscore.
_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
# Threads of OpenMP that wait spin for some microseconds and not for milliseconds, in which they
# keep others from a core that something else wants, too; unless a user says how they wait.
_SPINS_BRIEFLY = {"GOMP_SPINCOUNT": "3000"}
_HOW_THREADS_WAIT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


class TrainingDied(Exception):  # noqa: N818  (it says what happened, not what is wrong)
    """The training process ended before its last row; ``returncode`` as subprocess gives it."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode
        super().__init__(
            f"the training process was ended by {signal.Signals(-returncode).name}"
            if returncode < 0
            else f"the training process ended with exit code {returncode}"
        )


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment, with settings for a process that trains where it has none."""
    is_chosen = any(name in environment for name in _HOW_THREADS_WAIT)
    return {**_KEEPS_MEMORY, **({} if is_chosen else _SPINS_BRIEFLY), **environment}


def _start() -> TrainingChild:
    up, child_up = os.pipe()
    child_down, down = os.pipe()
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "clear_mlflow.process.child", str(child_up)],
        stdin=child_down,
        env=child_environment(os.environ),
        pass_fds=[child_up],
        start_new_session=True,
    )
    os.close(child_up)
    os.close(child_down)
    return TrainingChild(process, down, up)


class TrainingProcess:
    """A ``Training`` in a child, in a session of its own: signals reach it through :meth:`stop`."""

    def __init__(self, config: TrainConfig) -> None:
        started = waiting_training_process() or _start()
        self._process = started.process
        self._up = os.fdopen(started.up, "rb")
        self._down = os.fdopen(started.down, "wb")
        self._config: TrainConfig | None = None
        self._facts: StreamMetadata | None = None
        self._state: Path | None = None
        self._say(json.dumps(config.values()).encode() + b"\n")

    def __enter__(self) -> TrainingProcess:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._process.poll() is None and error is not None:
            self.stop()
        with suppress(BrokenPipeError):
            self._down.close()
        self._process.wait()
        self._up.close()

    @property
    def config(self) -> TrainConfig:
        """The parameters in force; waits until the child has checked them."""
        if self._config is None:
            self._config = TrainConfig(**self._hear("checked")[1])
        return self._config

    @property
    def facts(self) -> StreamMetadata:
        """The dataset; waits until the child has read it."""
        if self._facts is None:
            self._say(messages.cue())
            self._facts = self._hear("facts")[1]
        return self._facts

    def resume_from(self, state: Path) -> None:
        """Have :meth:`rows` begin with the last row before a file's state; it has to stay there."""
        self._state = state

    def for_member(self, config: TrainConfig) -> TrainingProcess:
        """Return this process, which trains the next member of an ensemble at each call of rows."""
        return self

    def rows(
        self, on_curve: OnCurve = ignore, on_test: OnTest = ignore, on_state: OnState = ignore
    ) -> Iterator[MeasuredRow]:
        """The rows, each asked for when the one before it was taken care of."""
        meanwhile: dict[str, Callable[[Any], None]]
        meanwhile = {"curve": on_curve, "test": on_test, "state": on_state}
        cue = messages.cue(self._state)
        while True:
            self._say(cue)
            cue = messages.cue()
            while (heard := self._hear("row", "done", *meanwhile))[0] in meanwhile:
                meanwhile[heard[0]](heard[1])
            if heard[0] == "done":
                return
            yield heard[1]

    def stop(self) -> None:
        """End the child: gently, and after a while by force. Returns at once."""
        self._process.terminate()
        timer = threading.Timer(_GRACE_SECONDS, self._process.kill)
        timer.daemon = True
        timer.start()

    def _hear(self, *expected: str) -> tuple[str, Any]:
        """The kind and content of the child's next message."""
        if (heard := messages.decode(self._up.read)) is None:
            raise self._death()
        kind, content = heard
        if kind == "refused":
            raise content.as_error()
        if kind not in expected:
            raise RuntimeError(f"the training process said {kind}, not {expected}")
        return kind, content

    def _death(self) -> PeerLostError | TrainingDied:
        """How the child ended without a word."""
        code = self._process.wait()
        on_gpus = self._config is not None and self._config.device == "cuda"
        if code == -signal.SIGABRT and on_gpus and read_dist_env().size > 1:
            # From a thread of its own, which nothing in the child can answer.
            return PeerLostError(
                "another process of this training has ended or says nothing: NCCL gave up waiting "
                "for it and aborted this one; look for that one's own error"
            )
        return TrainingDied(code)

    def _say(self, line: bytes) -> None:
        # If it has died, what it said before that, and how it ended, is still to be heard.
        with suppress(BrokenPipeError):
            self._down.write(line)
            self._down.flush()
