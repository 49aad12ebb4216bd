"""Kill trainings with SIGKILL at random moments, resume them, and compare what they measured.

``python tests/support/killer.py --times 30`` kills thirty times, over as many runs as that takes,
each until it is done, and says what became of them. The moments are drawn from a seed, which is
printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from forked import Forked
from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.store import names

PROJECT = Path(__file__).parents[2]
EXPERIMENT = "killed"
# Random states of all kinds go on from bucket to bucket: images drawn, a buffer, momentum.
PARAMETERS = ["--strategy", "replay", "--optimizer-state", "keep", "--epochs", "1"]
PARAMETERS += ["--device", "cpu", "--test-every", "5steps"]
LONG = 300.0  # seconds: a bound, not a measurement
# How long after a row's file appears a process is killed, at most: about what the next row takes.
_PAUSE = 1.0


@dataclass
class Killed:
    """What was tried, and what came of it.

    Args:
        kills: what was killed, and when: how often.
        runs: trainings that were killed until they were done.
        rows: rows that were compared with those of the training that nobody killed.
        points: of the curves, likewise.
        lost: rows that were stored before a kill and were not there, or were others, after it.
        differing: files of finished runs that are not those of the training that nobody killed.
    """

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    rows: int = 0
    points: int = 0
    lost: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


class Trainings:
    """Trainings by the real command into a store of their own.

    Args:
        folder: where the store and its artifacts are.
        database: an empty MLflow database to copy; none makes one.
    """

    def __init__(self, folder: Path, database: Path | None = None) -> None:
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        if database is not None:
            shutil.copy(database, folder / "mlflow.db")
        self.client = MlflowClient(self.uri)
        self.experiment = self.client.create_experiment(EXPERIMENT, (folder / "artifacts").as_uri())

    def start(self, *arguments: str) -> Forked:
        """Start ``clear-mlflow train``."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        return Forked(
            "train",
            *arguments,
            cwd=PROJECT,
            env={
                **variables,
                "MLFLOW_TRACKING_URI": self.uri,
                "MLFLOW_EXPERIMENT_NAME": EXPERIMENT,
                "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def newest(self, besides: set[str]) -> Run | None:
        """The run that was opened last, of those that are not known yet."""
        for run in self.client.search_runs([self.experiment]):
            if run.info.run_id not in besides:
                return run
        return None


def files_of(run: Run, folder: str = "accuracy_matrix/rows") -> dict[str, bytes]:
    """Name to content of what a run stored for its rows."""
    at = Path(run.info.artifact_uri.removeprefix("file://"), folder)
    if not at.is_dir():
        return {}
    return {
        file.name: file.read_bytes()
        for file in sorted(at.iterdir())
        if file.suffix in (".json", ".safetensors")
    }


def measured(run: Run) -> dict[str, bytes]:
    """All that was measured, bit for bit but for the time: rows, tests inside buckets, answers."""
    rows = {
        name: re.sub(rb'"written_at": "[^"]*"', b"", content)
        for folder in ("accuracy_matrix/rows", "anytime_accuracy")
        for name, content in files_of(run, folder).items()
    }
    answers = files_of(run, "predictions")
    return {**rows, **{name: in_order(content) for name, content in answers.items()}}


def in_order(content: bytes) -> bytes:
    """A safetensors file with its header in order: its writer shuffles the metadata each time."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return json.dumps(header, sort_keys=True).encode() + content[8 + length :]


def kill_until_done(
    trainings: Trainings, draw: random.Random, times: int, reference: Run, found: Killed
) -> None:
    """Train one run, killing it on the way until *times* kills were made in all."""
    known = {run.info.run_id for run in trainings.client.search_runs([trainings.experiment])}
    run: Run | None = None
    seen: dict[str, bytes] = {}
    until = time.monotonic() + LONG * 4
    while time.monotonic() < until:
        resumed = ["--resume", run.info.run_id] if run is not None else PARAMETERS
        process = trainings.start(*resumed)
        killed = False
        if found.kills.total() < times:
            killed = kill_at_random(trainings, process, draw, known, run, found)
        said = process.communicate(timeout=LONG)[0]
        run = run or trainings.newest(known)
        if run is not None:
            run = trainings.client.get_run(run.info.run_id)
            there = files_of(run)
            found.lost += [name for name, content in seen.items() if there.get(name) != content]
            seen = there
        if killed:
            continue
        if process.returncode == 0 and run is not None:
            break
        if run is not None and not seen and "cannot be resumed" in said:
            # Killed while it was opened: nothing was measured, and the same command starts anew.
            known.add(run.info.run_id)
            run = None
            continue
        raise RuntimeError(f"training ended with {process.returncode}:\n{said}")
    else:
        raise RuntimeError("a training that was killed and resumed does not come to its end")
    ours, theirs = measured(run), measured(reference)
    found.runs += 1
    found.rows += len(files_of(run))
    found.differing += [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    expected = metrics(trainings.client.get_run(reference.info.run_id))
    if metrics(run) != expected:
        found.differing.append("metrics")
    found.points += sum(map(len, curve(trainings.client, reference).values()))
    if curve(trainings.client, run) != curve(trainings.client, reference):
        found.differing.append("curve")


def metrics(run: Run) -> Mapping[str, float]:
    """The metrics of a run that follow from its rows."""
    return {name: value for name, value in run.data.metrics.items() if name not in names.CURVE}


def curve(client: MlflowClient, run: Run) -> dict[str, list[tuple[int, float | None]]]:
    """Every point of a run's curve, in order of its steps; but not how fast each was."""
    return {
        name: sorted(
            (point.step, None if name == names.CURVE_SPEED else point.value)
            for point in client.get_metric_history(run.info.run_id, name)
        )
        for name in names.CURVE
    }


def kill_at_random(
    trainings: Trainings,
    process: Forked,
    draw: random.Random,
    known: set[str],
    run: Run | None,
    found: Killed,
) -> bool:
    """Kill the supervisor, the training process, or both; False where all was over before."""
    whom = draw.choice(("supervisor", "training process", "both"))
    early = draw.random() < 0.2
    rows = 0 if early else draw.randint(1, 4)
    pause = draw.random() * (6.0 if early else _PAUSE)
    before = None if run is None else len(files_of(run))
    until = time.monotonic() + LONG
    while rows and process.poll() is None and time.monotonic() < until:
        run = run or trainings.newest(known)
        if run is not None and len(files_of(run)) >= (before or 0) + rows:
            break
        time.sleep(0.02)
    time.sleep(pause)
    if process.poll() is not None:
        return False
    supervisor = psutil.Process(process.pid)
    children = supervisor.children(recursive=True)
    if whom != "supervisor" and not children:
        whom = "supervisor"
    doomed = {"supervisor": [supervisor], "training process": children}
    for victim in doomed.get(whom, [supervisor, *children]):
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    found.kills[f"{whom}, {'at the start' if early else 'between rows'}"] += 1
    process.wait(timeout=LONG)
    # A training process without its supervisor ends by itself.
    _, alive = psutil.wait_procs(children, timeout=60)
    if alive:
        raise RuntimeError("a training process outlives its supervisor by a minute")
    return True


def kill_and_compare(trainings: Trainings, *, times: int, seed: int) -> Killed:
    """Kill so many times, and compare every run with one that nobody killed."""
    draw = random.Random(seed)
    process = trainings.start(*PARAMETERS)
    said = process.communicate(timeout=LONG)[0]
    reference = trainings.newest(set())
    if process.returncode != 0 or reference is None:
        raise RuntimeError(f"training ended with {process.returncode}:\n{said}")
    found = Killed()
    while found.kills.total() < times:
        kill_until_done(trainings, draw, times, reference, found)
    return found


def main() -> None:
    """Kill as often as asked for, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = kill_and_compare(Trainings(Path(folder)), times=asked.times, seed=asked.seed)
    print(f"seed {asked.seed}: {found.kills.total()} kills in {time.monotonic() - started:.0f} s")
    for what, count in sorted(found.kills.items()):
        print(f"  {count:3d} of the {what}")
    print(f"runs killed until they were done: {found.runs}; rows compared: {found.rows}")
    print(f"points of curves compared: {found.points}")
    print(f"rows lost or changed: {len(found.lost)} {found.lost}")
    print(f"files that differ from the uninterrupted run's: {len(found.differing)}")
    sys.exit(1 if found.lost or found.differing else 0)


if __name__ == "__main__":
    main()
