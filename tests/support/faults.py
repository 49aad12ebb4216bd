"""Kill, suspend and disconnect trainings and fill their disks at random moments.

A machine is a host name, a cache folder and a clock, which is changed by 5 s or an hour during
training. All times are a hundredth of the program's own.
"""

from __future__ import annotations

import base64
import errno
import faulthandler
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from row_points import collect_points
from trainings import NUM_TEST, KnownTraining

from clear_mlflow.core import record
from clear_mlflow.core.disk import write_durably
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import RowRecord
from clear_mlflow.learning.measured import Measurement, ignore
from clear_mlflow.scoring import run_log
from clear_mlflow.store import lease
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.tracking import run_recorder
from clear_mlflow.tracking.lifecycle import build_result, end_run
from clear_mlflow.tracking.resume import ResumePoint, read_resume_point, take_over
from clear_mlflow.tracking.sync import list_folders_to_upload, sync_folders
from clear_mlflow.tracking.tracked_training import end_complete_run
from clear_mlflow.tracking.training_run import TrainingRun, open_training_run

BUCKETS = tuple(map(str, range(1, 9)))
PICTURE = base64.b64decode(  # one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
PACE = 0.3  # seconds that a bucket takes: a training is over too soon to be stopped without
LONG = 300.0  # seconds: a bound, not a measurement
AT_ONCE = 4  # trials: most of each is waiting
# Starting a process asks after all others, and asked from two threads a process ends with 255.
PROCESSES = threading.Lock()
FIRST = ("suspend", "suspend", "cut_off", "cut_off", "fill")
# What a machine's folder holds while something is wrong with it.
CUT_OFF, FULL = "cut off", "disk full"


@dataclass
class Found:
    """The faults that were tried, and their results."""

    did: Counter[str] = field(default_factory=Counter)  # what was done, and how often
    rows: int = 0  # that were looked at in the end
    # Rows that are lost or were overwritten, points stored twice, and whatever else is wrong.
    problems: list[str] = field(default_factory=list)

    def __iadd__(self, other: Found) -> Found:
        self.did += other.did
        self.rows += other.rows
        self.problems += other.problems
        return self


class PacedTraining(KnownTraining):
    """Measures known rows from a first one, each after a pause."""

    def __init__(self, first: int = 0) -> None:
        super().__init__([row(number).correct for number in range(len(BUCKETS) + 1)])
        self._first = first

    def rows(self, on_message=ignore) -> Iterator[Measurement]:
        for measured in itertools.islice(super().rows(), self._first, None):
            time.sleep(PACE)
            yield measured
            number = measured.row.row
            if number < len(BUCKETS):
                on_message(Measurement(state=random.Random(number).randbytes(2000)))


def row(number: int) -> AccuracyRow:
    draw = random.Random(number)
    correct = tuple(draw.randrange(NUM_TEST + 1) for _ in BUCKETS)
    return AccuracyRow(number, BUCKETS, correct, (NUM_TEST,) * len(BUCKETS))


class MachineClock(datetime):
    """A clock with an offset in a file of its machine. Intervals are not affected."""

    file: Path

    @classmethod
    def now(cls, tz=None):
        """Return the machine's time."""
        text = cls.file.read_text() if cls.file.exists() else ""
        return super().now(tz) + timedelta(seconds=float(text or 0))

    @classmethod
    def fromtimestamp(cls, timestamp, tz=None):
        """Return the machine's time, as rows state it."""
        return cls.now(tz)


def become(machine: Path, uri: str) -> None:
    """Take on a machine's host name, clock, disk and connection to the store."""
    machine.mkdir(exist_ok=True)
    os.chdir(machine)
    MachineClock.file = machine / "clock"
    patch = pytest.MonkeyPatch()
    patch.setattr(socket, "gethostname", lambda: machine.name)
    patch.setattr(lease, "_read_clock", lambda: MachineClock.now(timezone.utc))
    patch.setattr(record, "datetime", MachineClock)
    patch.setattr(lease, "EXPIRY_SECONDS", 3.0)
    patch.setattr(lease, "_POLL_SECONDS", 0.3)
    patch.setattr(lease, "CHECK_SECONDS", 0.01)
    patch.setattr(run_recorder, "RENEW_SECONDS", 0.4)
    patch.setattr(MlflowClient, "log_image", lambda *arguments, **options: None)
    patch.setattr(run_log, "draw_heatmap_png", lambda matrix, title: PICTURE)
    no_route = MlflowException("no route to host", TEMPORARILY_UNAVAILABLE)
    for name in ("get_run", "log_batch", "set_tag", "log_param", "delete_tag", "update_run_info"):
        call = getattr(SqlAlchemyStore, name)
        patch.setattr(SqlAlchemyStore, name, _while(machine / CUT_OFF, no_route, call))
    no_space = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(machine))
    written = _while(machine / FULL, no_space, write_durably)
    patch.setattr("clear_mlflow.journal.run_folder.write_durably", written)
    os.environ |= {
        "CLEAR_MLFLOW_CACHE": str(machine),
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    mlflow.set_tracking_uri(uri)
    sys.stderr = (machine / f"said_{os.getpid()}").open("w", buffering=1)
    faulthandler.register(signal.SIGUSR1, sys.stderr)


def _while(flag: Path, error: Exception, call):
    def respond(*arguments, **options):
        if flag.exists():
            raise error
        return call(*arguments, **options)

    return respond


def train(uri: str, machine: Path, run_id: str) -> None:
    become(machine, uri)
    client = MlflowClient(uri)
    os.environ["MLFLOW_RUN_ID"] = run_id
    open_training_run(client, PacedTraining().config)
    _train(client, run_id, None)


def resume_training(uri: str, machine: Path, run_id: str) -> None:
    """Resume a run as soon as it is allowed."""
    become(machine, uri)
    with tempfile.TemporaryDirectory() as folder:
        while True:
            try:
                # Whoever is suspended in the middle of a write has locked a database of SQLite.
                with mlflow_errors("open the store"):
                    client = MlflowClient(uri)
                point = read_resume_point(client, run_id, Path(folder))
                if point.is_complete:
                    end_complete_run(client, point)
                    os._exit(0)
                take_over(client, point)
                (machine / "took over").touch()
                break
            except ClearError as error:
                sys.stderr.write(f"{error}\n")
                time.sleep(0.4)
        _train(client, run_id, point)


def send(uri: str, machine: Path, run_id: str) -> None:
    become(machine, uri)
    for synced in sync_folders(list_folders_to_upload(machine / "unsent" / run_id)):
        sys.stderr.write(f"{synced.detail}\n")
        os._exit(0 if synced.action == "sent" else 1)


def _train(client: MlflowClient, run_id: str, point: ResumePoint | None) -> NoReturn:
    training = PacedTraining(0 if point is None or not point.state else point.state.manifest.row)
    error: BaseException | None = None
    try:
        with TrainingRun(client, run_id, training.config, {}, resume_point=point) as run:
            run.track(training)
    except Exception as training_error:
        error = training_error
    closed = end_run(client, run_id, build_result(error, run_id))
    sys.stderr.write(f"ended with {closed.exit_code}: {closed.error}\n")
    sys.stderr.flush()
    os._exit(closed.exit_code)


def is_alive(process: BaseProcess) -> bool:
    """Return True unless a process has ended."""
    with PROCESSES:
        return process.is_alive()


class Trial:
    """One run, and the processes of several machines that compete for it."""

    def __init__(self, folder: Path, database: Path, draw: random.Random, found: Found) -> None:
        self._folder, self._draw, self._found = folder, draw, found
        self._seen: dict[str, bytes] = {}
        self._written: dict[str, tuple[int, int]] = {}
        self._processes: list[tuple[BaseProcess, Path]] = []
        shutil.copy(database, folder / "mlflow.db")
        self._uri = f"sqlite:///{folder / 'mlflow.db'}"
        self._client = MlflowClient(self._uri)
        experiment = self._client.create_experiment("faults", (folder / "artifacts").as_uri())
        self._run_id = self._client.create_run(experiment).info.run_id
        self._rows = folder / "artifacts" / self._run_id / "artifacts/accuracy_matrix/rows"
        self._context = multiprocessing.get_context("forkserver")

    def go(self) -> None:
        draw = self._draw
        first = self._start("one", train)
        self._set_clock("one")
        # From here on there is a run to be resumed.
        self._wait_until((self._rows.parents[1] / "config.json").exists, first)
        self._wait_for_rows(draw.randint(0, len(BUCKETS) - 1), first)
        self._wait(draw.uniform(0.0, 2 * PACE), first)
        if draw.random() < 0.5:
            self._set_clock("one")
        actions = [self._strike(draw.choice(FIRST), first, "one")]
        second = self._start("two", resume_training)
        self._set_clock("two")
        if draw.random() < 0.8:  # else the first one may wake while the second one begins
            took_over = self._folder / "two" / "took over"
            self._wait_until(took_over.exists, second, seconds=60.0)
        fault = draw.choice((None, None, "kill", "suspend", "cut_off", "fill"))
        if fault is not None:
            self._wait_for_rows(len(self._seen) + draw.randint(0, 2), second)
            self._wait(draw.uniform(0.0, 2 * PACE), second)
            actions.append(self._strike(fault, second, "two"))
        for mend in actions:
            self._wait_for_rows(len(self._seen) + draw.randint(0, 4), second)
            mend()
        for each, _ in self._processes:
            self._wait(LONG, each)
        for machine in ("three", "four", "five"):
            if self._client.get_run(self._run_id).info.status == "FINISHED":
                break
            self._wait(LONG, self._start(machine, resume_training))
        for machine in ("one", "two"):
            if any((self._folder / machine / "unsent").glob("*/run.json")):
                self._found.did["sent what was kept"] += 1
                self._wait(LONG, self._start(machine, send))
        self._look()

    def _start(self, machine: str, do: Callable[..., object]) -> BaseProcess:
        at = self._folder / machine
        made = self._context.Process(target=do, args=(self._uri, at, self._run_id))
        with PROCESSES:
            made.start()
        self._processes.append((made, at))
        self._found.did[do.__name__] += 1
        return made

    def _set_clock(self, machine: str) -> None:
        seconds = self._draw.choice((0, 5, -5, 3600, -3600))
        self._found.did[f"set a clock by {abs(seconds)} s"] += 1
        folder = self._folder / machine
        folder.mkdir(exist_ok=True)
        (folder / "clock.new").write_text(str(seconds))
        (folder / "clock.new").replace(folder / "clock")

    def _strike(self, fault: str, process: BaseProcess, machine: str) -> Callable[[], None]:
        """Apply a fault to a process or its machine. Return a function that ends it."""
        if fault in ("kill", "suspend"):
            self._signal(process, signal.SIGKILL if fault == "kill" else signal.SIGSTOP, fault)
            if fault == "kill":
                return lambda: None
            return lambda: self._signal(process, signal.SIGCONT, "wake")
        flag = self._folder / machine / (FULL if fault == "fill" else CUT_OFF)
        flag.touch()
        self._found.did[fault] += 1
        if fault == "cut_off" and self._draw.random() < 0.5:  # what it measured waits on its disk
            self._wait(self._draw.uniform(0.0, 4 * PACE), process)
            self._signal(process, signal.SIGKILL, "kill while cut off")
        return flag.unlink

    def _signal(self, to: BaseProcess, number: int, fault: str) -> None:
        if is_alive(to) and to.pid is not None:
            os.kill(to.pid, number)
            self._found.did[fault] += 1

    def _wait(self, seconds: float, until_ended: BaseProcess) -> None:
        """Wait so many seconds, or until a process has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and is_alive(until_ended):
            self._compare_rows()
            time.sleep(0.01)

    def _wait_for_rows(self, count: int, process: BaseProcess) -> None:
        """Wait briefly until so many rows are stored, as the process may be unable to."""
        self._wait_until(lambda: len(self._seen) >= count, process, seconds=20.0)

    def _wait_until(
        self, condition: Callable[[], bool], process: BaseProcess, seconds: float = LONG
    ) -> None:
        until = time.monotonic() + seconds
        while not condition() and is_alive(process) and time.monotonic() < until:
            self._wait(0.02, process)

    def _compare_rows(self) -> None:
        for file in self._rows.glob("row_*.json") if self._rows.is_dir() else ():
            written = (file.stat().st_ino, file.stat().st_mtime_ns)
            if self._written.get(file.name) == written:
                continue
            self._written[file.name] = written
            content = file.read_bytes()
            if self._seen.setdefault(file.name, content) != content:
                self._found.problems.append(f"overwritten: {self._run_id} {file.name}")
                self._seen[file.name] = content

    def _look(self) -> None:
        outcome, run_id = self._found, self._run_id
        self._compare_rows()
        run = self._client.get_run(run_id)
        if run.info.status != "FINISHED":
            outcome.problems.append(f"run {run_id} is {run.info.status}")
        stored_rows = {file.name: file.read_bytes() for file in self._rows.glob("row_*.json")}
        outcome.rows += len(stored_rows)
        outcome.problems += [f"lost: {run_id} {name}" for name in self._seen.keys() - stored_rows]
        for number in range(len(BUCKETS) + 1):
            text = stored_rows.get(f"row_{number:03d}.json")
            if text is None:
                outcome.problems.append(f"lost: {run_id} row {number}")
            elif RowRecord.from_json(text.decode(), source="row").row != row(number):
                outcome.problems.append(f"overwritten: {run_id} row {number} is another")
        matrix = AccuracyMatrix.from_rows([row(number) for number in range(len(BUCKETS) + 1)])
        for name, steps in collect_points(matrix).items():
            stored = self._client.get_metric_history(run_id, name)
            times = Counter((point.step, point.value) for point in stored)
            expected = Counter(steps.items())
            if times != expected:
                difference = f"{times - expected}, {expected - times}"
                outcome.problems.append(f"doubled or lost: {run_id} {name}: {difference}")
        for each, machine in self._processes:
            log_file = machine / f"said_{each.pid}"
            text = log_file.read_text() if log_file.exists() else ""
            code, end = each.exitcode, f"{machine.name} ended with {each.exitcode}: {text[-300:]}"
            if is_alive(each):
                outcome.problems.append(f"{machine.name} does not end: {text[-300:]}")
                each.kill()
                each.join()
            elif code == 2 and "is held by process" in text:
                outcome.did["lost the run: one line, exit code 2"] += 1
            elif code in (1, 2) and "is open there until 'clear-mlflow sync" in text:
                outcome.did["cut off at its end: left for sync"] += 1
            elif code == 2 and (
                "no disk can keep what is measured" in text  # before anything was measured
                or ("cannot write to" in text and "is lost" in text)
            ):
                outcome.did["its disk was full: one error"] += 1
            elif code in (0, -signal.SIGKILL):
                outcome.did[f"ended with {code}"] += 1
            else:
                outcome.problems.append(end)


def strike_and_take_over(folder: Path, database: Path, *, times: int, seed: int) -> Found:
    """Do so many trials, each with its own run."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["faults"])

    def trial(number: int) -> Found:
        outcome = Found(Counter(runs=1))
        at = folder / str(number)
        at.mkdir()
        Trial(at, database, random.Random(f"{seed} {number}"), outcome).go()
        shutil.rmtree(at)
        return outcome

    total = Found()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(trial, range(times)):
            total += outcome
    return total
