"""An engine that trains on this machine: one process per run, one or several at a time."""

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

from clear_mlflow.core.distributed import count_threads_per_process
from clear_mlflow.sweeps.grid import SweepRun

_POLL_SECONDS = 0.05
# A supervisor stops its training process within 10 s, and then scores the rows.
_GRACE_SECONDS = 60.0
_MAX_LOG_BYTES = 20_000  # at the end of the log, where the error of a training is searched


Process: TypeAlias = Any  # subprocess.Popen, or an object with the same methods
ProgramStarter: TypeAlias = Callable[[Sequence[str], Mapping[str, str], str], Process]


def start_program(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> Process:
    """Start ``clear-mlflow ARGUMENTS`` in its own session, without waiting.

    environment: all its environment variables. log: path of the file that its standard error is
    appended to. Standard output is discarded.
    """
    with open(log, "ab") as log_file:  # noqa: PTH123  (a temporary file has a name, not a Path)
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "clear_mlflow", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log_file,
            start_new_session=True,
            env=environment,
        )


@dataclass(frozen=True)
class _Training:
    run: SweepRun
    process: Process
    log: IO[bytes]
    gpu: str | None


class LocalEngine:
    """Runs several ``clear-mlflow train`` at a time, on cores and GPUs.

    Args:
        jobs: largest number of trainings at a time.
        start: starts a training process, like :func:`start_program`.
    """

    def __init__(
        self,
        jobs: int = 1,
        start: ProgramStarter = start_program,
    ) -> None:
        self._jobs = jobs
        self._start = start
        self._gpus = _list_visible_gpus() if jobs > 1 else ()
        self._running: list[_Training] = []

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
        """Do nothing: every process of this machine reaches the store."""

    def describe_capacity(self) -> str:
        """Return "N at a time", a text for the user."""
        return f"{self._jobs} at a time"

    def count_free_slots(self) -> int:
        """Return how many more runs can be started now."""
        return self._jobs - len(self._running)

    def start(self, run: SweepRun, experiment_id: str, tracking_uri: str) -> None:
        """Start to train a run on the freest GPU, and return.

        Does not check that :meth:`count_free_slots` is above 0.
        """
        parameters = run.passed_parameters
        options = [f"--{name.replace('_', '-')}={text}" for name, text in parameters.items()]
        used_gpus = [running.gpu for running in self._running]
        gpu = min(self._gpus, key=used_gpus.count, default=None)
        log = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed when the training has ended)
        environment = self._build_environment(gpu) | {
            "MLFLOW_TRACKING_URI": tracking_uri,
            "MLFLOW_RUN_ID": str(run.run_id),
            "MLFLOW_EXPERIMENT_ID": experiment_id,
        }
        process = self._start(["train", *options], environment, log.name)
        self._running.append(_Training(run, process, log, gpu))

    def wait_for_ended_runs(self, timeout: float) -> Sequence[SweepRun]:
        """Return ended runs after waiting up to *timeout* seconds for one.

        Their exit codes and errors are set. Waits also if none is running.
        """
        until = time.monotonic() + timeout
        while True:
            finished = [t for t in self._running if t.process.poll() is not None]
            if finished or time.monotonic() >= until:
                break
            time.sleep(_POLL_SECONDS)
        self._running = [t for t in self._running if t not in finished]
        return [_collect_ended_run(training) for training in finished]

    def stop(self) -> None:
        """Send SIGTERM to all trainings, and return at once.

        Each still scores its rows, and then has ended like any other training.
        """
        for running in self._running:
            running.process.terminate()

    def _build_environment(self, gpu: str | None) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_EXPERIMENT_NAME"}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        if self._jobs > 1:
            environment.setdefault("OMP_NUM_THREADS", str(count_threads_per_process(self._jobs)))
        return environment


def _list_visible_gpus() -> tuple[str, ...]:
    """Return GPUs by their names in CUDA_VISIBLE_DEVICES, () without nvidia-smi."""
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is not None:
        return tuple(name.strip() for name in visible_devices.split(",") if name.strip())
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    gpu_list = subprocess.run(  # noqa: S603
        [program, "--list-gpus"], capture_output=True, text=True, check=False
    )
    return tuple(re.findall(r"^GPU .*\(UUID: (GPU-[^)]+)\)$", gpu_list.stdout, re.MULTILINE))


def _collect_ended_run(training: _Training) -> SweepRun:
    code = training.process.wait()
    with training.log as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - _MAX_LOG_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    error = errors[-1] if errors else (lines[-1] if lines and code > 0 else None)
    if code < 0:
        error = f"its process was ended by {signal.Signals(-code).name}"
        code = 128 - code
    # Nobody stops a run with SIGKILL: the machine ran out of memory, or there was an accident.
    return training.run.set_end(code, error, is_lost=code == 128 + signal.SIGKILL)
