"""What a sweep and Ray cost: ``python benchmarks/sweep.py`` prints it as tables in Markdown.

Sixteen short runs (a nearest-mean head and a linear head on the embedded dataset's pixels, an epoch
each) are trained one by one with ``clear-mlflow train``, and as a sweep on this machine and on Ray,
with 1 and N at a time. The cost of scheduling is what a run takes within the sweep beyond what it
takes in its own process. Then ``evaluate`` of many stored runs: in one process, and by 1, 2 and 4
workers of Ray, each on a copy of the same store; and the same as a dry run, which reads and
computes all and writes nothing: on sqlite, whoever writes has the whole database for a while.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUCKETS, IMAGES = 10, 550


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=8, help="of each of two strategies")
    options.add_argument("--alone", type=int, default=4, help="runs that are trained one by one")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--runs", type=int, default=5000, help="to re-score")
    options.add_argument("--workers", default="1,2,4")
    options.add_argument("--parts", default="sweeps,evaluate,dry", help="which tables")
    asked = options.parse_args()
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}; load average at the start: "
        f"{os.getloadavg()[0]:.1f}.\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        parts = asked.parts.split(",")
        if "sweeps" in parts:
            sweeps(Path(temporary), asked.seeds, asked.alone, asked.jobs)
        workers = [int(n) for n in asked.workers.split(",")]
        if "evaluate" in parts or "dry" in parts:
            build(Path(temporary), asked.runs)
        if "evaluate" in parts:
            evaluations(Path(temporary), asked.runs, workers)
        if "dry" in parts:
            evaluations(Path(temporary), asked.runs, workers, "--dry-run")
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def sweeps(folder: Path, seeds: int, alone: int, jobs: int) -> None:
    """A table of what the same runs take, alone and as a sweep."""
    fixed = {"features": "pixels", "epochs": "1", "predictions": "none"}
    grid = {"fixed": fixed, "grid": {"strategy": ["naive", "ncm"], "seed": list(range(seeds))}}
    path = folder / "sweep.yaml"
    path.write_text(json.dumps(grid))  # JSON is YAML
    runs = 2 * seeds
    arguments = [part for name, text in fixed.items() for part in (f"--{name}", text)]
    clear_mlflow(folder, "warm", "train", *arguments)  # the store's tables, and the features
    begin = time.perf_counter()
    for number in range(alone):
        strategy = ("naive", "ncm")[number % 2]
        more = ("--strategy", strategy, "--seed", str(number))
        clear_mlflow(folder, "alone", "train", *arguments, *more)
    each = (time.perf_counter() - begin) / alone
    print("| runs | way | seconds | seconds per run | beyond a run of its own |")
    print("|---:|---|---:|---:|---:|")
    print(f"| {alone} | `train`, one by one | {each * alone:.1f} | {each:.2f} | |")
    for engine in ("local", "ray"):
        for at_a_time in dict.fromkeys((1, jobs)):
            experiment = f"{engine}-{at_a_time}"
            where = ("--engine", engine, "--jobs", str(at_a_time))
            begin = time.perf_counter()
            clear_mlflow(folder, experiment, "sweep", "--grid", str(path), *where)
            taken = time.perf_counter() - begin
            beyond = f"{taken / runs - each:+.2f}" if at_a_time == 1 else ""
            told = f"sweep, {engine}, {at_a_time} at a time, comparison included"
            print(f"| {runs} | {told} | {taken:.1f} | {taken / runs:.2f} | {beyond} |", flush=True)


def evaluations(store: Path, runs: int, workers: list[int], *options: str) -> None:
    """A table of what re-scoring takes, by the number of workers."""
    print("\n| runs | way | seconds | runs per second |\n|---:|---|---:|---:|")
    ways: list[tuple[str, list[str]]] = [("one process", [])]
    for number in workers:
        ways.append((f"Ray, {number} at a time", ["--engine", "ray", "--jobs", str(number)]))
    for told, more in ways:
        database = store / "used.db"
        shutil.copy(store / "many.db", database)
        begin = time.perf_counter()
        asked = ("evaluate", "--experiment", "many", *more, *options)
        clear_mlflow(store, "many", *asked, name="used.db")
        taken = time.perf_counter() - begin
        way = " ".join((told, *options))
        print(f"| {runs:,} | {way} | {taken:.1f} | {runs / taken:.1f} |", flush=True)


def build(folder: Path, runs: int) -> None:
    """Runs that hold ten rows each and no score."""
    import mlflow
    import numpy as np
    from mlflow import MlflowClient

    from clear_mlflow.core.matrix import AccuracyRow
    from clear_mlflow.core.record import DatasetIdentity, RowRecord, row_file_name

    uri = f"sqlite:///{folder}/many.db"
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    experiment = client.create_experiment("many", (folder / "artifacts").as_uri())
    keys = tuple(str(bucket + 1) for bucket in range(BUCKETS))
    for seed in range(runs):
        run = client.create_run(experiment, run_name=f"run {seed}")
        rows = Path(run.info.artifact_uri.removeprefix("file://"), "accuracy_matrix", "rows")
        rows.mkdir(parents=True)
        counts = np.random.default_rng(seed).integers(0, IMAGES, size=(BUCKETS + 1, BUCKETS))
        for i, correct in enumerate(counts.tolist()):
            record = RowRecord(
                row=AccuracyRow(i, keys, tuple(correct), (IMAGES,) * BUCKETS),
                protocol="iid",
                dataset=DatasetIdentity("digits", "sha256:" + "ab" * 32),
                seed=seed,
                package_version="0.1.0",
                written_at="2026-01-31T00:00:00.000+00:00",
            )
            (rows / row_file_name(i)).write_text(record.to_json())
        client.set_terminated(run.info.run_id)


def clear_mlflow(folder: Path, experiment: str, *arguments: str, name: str = "mlflow.db") -> None:
    """A command in a process of its own, on the folder's store."""
    subprocess.run(
        [sys.executable, "-m", "clear_mlflow", *arguments],
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / name}",
            "MLFLOW_EXPERIMENT_NAME": experiment,
            "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        },
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
