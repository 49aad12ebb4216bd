"""Training on this machine: each run in processes of its own, one after another or N at a time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

from clear_mlflow.core.distributed import threads_for_each
from clear_mlflow.engines import Ended, Task

_LOOK_SECONDS = 0.05
# A supervisor gives its training process 10 s, and then scores the rows.
_GRACE_SECONDS = 60.0
_LONGEST_LOG = 20_000  # bytes at the end of what a training printed, in which its error is sought


Process: TypeAlias = Any  # subprocess.Popen, or what can be asked as it is


def start_program(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> Process:
    """Start ``clear-mlflow ARGUMENTS`` in a session of its own; standard error goes to a file."""
    with open(log, "ab") as said:  # noqa: PTH123  (a name, as that of a temporary file is)
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "clear_mlflow", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            env=environment,
        )


@dataclass(frozen=True)
class _Running:
    task: Task
    process: Process
    log: IO[bytes]
    gpu: str | None


class LocalEngine:
    """Runs ``clear-mlflow train`` *jobs* at a time, each with its share of cores and one GPU."""

    def __init__(
        self,
        jobs: int = 1,
        start: Callable[[Sequence[str], Mapping[str, str], str], Process] = start_program,
    ) -> None:
        self._jobs = jobs
        self._start = start
        self._gpus = _visible_gpus() if jobs > 1 else ()
        self._running: list[_Running] = []

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        until = time.monotonic() + _GRACE_SECONDS
        for running in self._running:
            try:
                running.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
            running.log.close()

    def check_store(self, tracking_uri: str) -> None:
        """Whatever this process reaches, its children reach."""

    def plan(self) -> str:
        """How many tasks run side by side."""
        return f"{self._jobs} at a time"

    def room(self) -> int:
        """How many more tasks can be started now."""
        return self._jobs - len(self._running)

    def start(self, task: Task) -> None:
        """Begin a task; returns at once."""
        options = [f"--{name.replace('_', '-')}={text}" for name, text in task.asked.items()]
        used = [running.gpu for running in self._running]
        gpu = min(self._gpus, key=used.count, default=None)
        log = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed when the training has ended)
        process = self._start(["train", *options], self._environment(task, gpu), log.name)
        self._running.append(_Running(task, process, log, gpu))

    def ended(self, timeout: float) -> Sequence[Ended]:
        """Tasks that have ended since the last call; waits up to *timeout* seconds for one."""
        until = time.monotonic() + timeout
        while True:
            over = [running for running in self._running if running.process.poll() is not None]
            if over or time.monotonic() >= until:
                break
            time.sleep(_LOOK_SECONDS)
        self._running = [running for running in self._running if running not in over]
        return [_ended(running) for running in over]

    def stop(self) -> None:
        """Tell all tasks to stop; each scores its rows and is among the ended ones later."""
        for running in self._running:
            running.process.terminate()

    def _environment(self, task: Task, gpu: str | None) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_EXPERIMENT_NAME"}
        environment |= {
            "MLFLOW_TRACKING_URI": task.tracking_uri,
            "MLFLOW_RUN_ID": task.run_id,
            "MLFLOW_EXPERIMENT_ID": task.experiment_id,
        }
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        if self._jobs > 1:
            environment.setdefault("OMP_NUM_THREADS", str(threads_for_each(self._jobs)))
        return environment


def _visible_gpus() -> tuple[str, ...]:
    """GPUs as CUDA_VISIBLE_DEVICES names them, asked of the driver: loading torch takes seconds."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(name.strip() for name in given.split(",") if name.strip())
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    listed = subprocess.run(  # noqa: S603
        [program, "--list-gpus"], capture_output=True, text=True, check=False
    )
    return tuple(re.findall(r"^GPU .*\(UUID: (GPU-[^)]+)\)$", listed.stdout, re.MULTILINE))


def _ended(running: _Running) -> Ended:
    code = running.process.wait()
    with running.log as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - _LONGEST_LOG))
        lines = log.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    error = errors[-1] if errors else (lines[-1] if lines and code > 0 else None)
    if code < 0:
        error = f"its process was ended by {signal.Signals(-code).name}"
        code = 128 - code
    # Nobody asks a run to stop by SIGKILL: it was short of memory, or an accident.
    lost = code == 128 + signal.SIGKILL
    return Ended(running.task.run_id, code, error, lost)
