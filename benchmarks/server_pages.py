"""What the pages in MLflow's server cost: ``python benchmarks/server_pages.py`` prints a table.

Runs of ten buckets, with the parameters, metrics and tags that a training leaves, in groups of
five seeds, behind ``mlflow server --app-name clear`` with one worker. "First" is the first request
to a worker that was just started; "new row": a run in training stored one since; "again": nothing
changed. Seconds of the whole answer, and in brackets the processor's seconds of the server alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import psutil

BUCKETS, IMAGES, SEEDS = 10, 550, 5
START = 1_700_000_000_000  # of the first run, in milliseconds


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", default="50,500", help="runs of an experiment")
    options.add_argument("--folder", help="where runs are built once; else in a temporary one")
    asked = options.parse_args()
    sizes = [int(size) for size in asked.sizes.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.folder or temporary)
        if not (folder / "mlflow.db").exists():
            build(folder, sizes)
        print(
            f"{os.cpu_count()} cores, Python {platform.python_version()}; load average at the "
            f"start: {os.getloadavg()[0]:.1f}.\n\n"
            "| runs | grouped by | first | again | new row | page, MB |\n"
            "|---:|---|---:|---:|---:|---:|"
        )
        for size in sizes:
            for group_by in ("strategy,dataset", "none"):
                with server(folder) as running:
                    measure(running, folder, size, group_by)
        with server(folder) as running:
            times = [running.ask("").text for _ in range(2)]
    print(f"\nThe list of experiments: first {times[0]}, again {times[1]}.")
    print(f"Load average at the end: {os.getloadavg()[0]:.1f}.")


def measure(running: Running, folder: Path, size: int, group_by: str) -> None:
    """One line of the table."""
    asked = {"experiment_id": running.experiment_id(size), "group_by": group_by}
    page = f"compare?{urllib.parse.urlencode(asked)}"
    first, again = running.ask(page), running.ask(page)
    rows = Path((folder / "in training" / str(size)).read_text())
    stored = len(list(rows.glob("row_*.json")))
    (rows / f"row_{stored:03}.json").write_text(row_text(stored, 99))
    new_row = running.ask(page)
    line = (size, group_by, first.text, again.text, new_row.text, f"{first.megabytes:.2f}")
    print("|", " | ".join(map(str, line)), "|", flush=True)


@dataclass(frozen=True)
class Answer:
    """What a request cost."""

    seconds: float
    cpu_seconds: float  # of the server, which other programs on the machine do not change
    megabytes: float

    @property
    def text(self) -> str:
        """Both."""
        return f"{self.seconds:.2f} ({self.cpu_seconds:.2f})"


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    process: psutil.Process

    def ask(self, page: str) -> Answer:
        """Ask for a page of ours."""
        before, started = self._cpu_seconds(), time.perf_counter()
        with urllib.request.urlopen(f"{self.url}/clear/{page}") as answer:
            length = len(answer.read())
        seconds = time.perf_counter() - started
        return Answer(seconds, self._cpu_seconds() - before, length / 1e6)

    def experiment_id(self, size: int) -> str:
        """Of the experiment with so many runs."""
        query = urllib.parse.urlencode({"experiment_name": f"{size} runs"})
        address = f"{self.url}/api/2.0/mlflow/experiments/get-by-name?{query}"
        with urllib.request.urlopen(address) as answer:
            return json.load(answer)["experiment"]["experiment_id"]

    def _cpu_seconds(self) -> float:
        family = [self.process, *self.process.children(recursive=True)]
        return sum(sum(member.cpu_times()[:2]) for member in family)


def build(folder: Path, sizes: list[int]) -> None:
    """Experiments of runs as trainings leave them; the newest run of each is in training."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    from clear_mlflow.core.record import ROWS_FOLDER, RowRecord
    from clear_mlflow.learning.parameters.config import TrainConfig
    from clear_mlflow.store import names
    from clear_mlflow.store.matrix_tag import matrix_tag

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    client.search_experiments()
    defaults = {field.name: "auto" for field in fields(TrainConfig)}
    (folder / "in training").mkdir()
    for size in sizes:
        experiment = client.create_experiment(f"{size} runs", f"mlflow-artifacts:/{size}")
        for i in range(size):
            kind, seed = divmod(i, SEEDS)
            is_training = i == size - 1
            run = client.create_run(
                experiment,
                START + 60_000 * i,
                {names.KIND_TAG: names.KIND_TRAIN},
                run_name=f"strategy {kind} digits seed {seed}",
            )
            run_id = run.info.run_id
            root = folder / "artifacts" / str(size) / run_id / "artifacts" / ROWS_FOLDER
            root.mkdir(parents=True)
            texts = {
                f"row_{number:03}.json": row_text(number, seed, kind)
                for number in range(6 if is_training else BUCKETS + 1)
            }
            for name, text in texts.items():
                (root / name).write_text(text)
            params = {
                **defaults,
                "strategy": f"strategy {kind}",
                "dataset": "digits",
                "seed": str(seed),
            }
            metrics = [
                Metric(f"{family}/metric_{m}", 0.5, START, 10)
                for family in ("clear", "renate", "accuracy", "time")
                for m in range(12)
            ]
            tags = {names.ROWS_TAG: "complete", names.MLFLOW_NOTE: "a note of some lines\n" * 40}
            if is_training:
                (folder / "in training" / str(size)).write_text(str(root))
            else:
                contents = {name: text.encode() for name, text in texts.items()}
                records = {
                    name: RowRecord.from_json(text, source=name) for name, text in texts.items()
                }
                tag = matrix_tag(run_id, contents, records)
                assert tag is not None
                tags[names.MATRIX_TAG] = tag
            client.log_batch(
                run_id,
                metrics,
                [Param(name, text) for name, text in params.items()],
                [RunTag(name, text) for name, text in tags.items()],
            )
            if not is_training:
                client.set_terminated(run_id, end_time=START + 60_000 * (i + 1))


def row_text(number: int, seed: int, kind: int = 0) -> str:
    """A row with forgetting, and more right of a better kind."""
    from clear_mlflow.core.matrix import AccuracyRow
    from clear_mlflow.core.record import DatasetIdentity, RowRecord

    noise = np.random.default_rng([number, seed, kind]).integers(-8, 9, BUCKETS)
    distance = np.abs(np.arange(BUCKETS) - (number - 1))
    right = np.full(BUCKETS, 55) if number == 0 else 340 + 3 * (kind % 60) - 18 * distance
    return RowRecord(
        row=AccuracyRow(
            number,
            tuple(str(j + 1) for j in range(BUCKETS)),
            tuple(np.clip(right + noise, 0, IMAGES).tolist()),
            (IMAGES,) * BUCKETS,
        ),
        protocol="iid",
        dataset=DatasetIdentity("digits", "sha256:" + "ab" * 32),
        seed=seed,
        package_version="0.1.0",
        written_at=f"2026-01-31T12:{number:02d}:00.123+00:00",
    ).to_json()


@contextmanager
def server(folder: Path) -> Iterator[Running]:
    """The server, until it is no longer needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "clear", "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--port", str(port)]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **quiet}
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.1)
        yield Running(url, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
