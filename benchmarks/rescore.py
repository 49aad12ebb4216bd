"""Measure what re-scoring costs: ``python benchmarks/rescore.py`` prints tables in Markdown.

Runs of ten rows on ten buckets are built in new stores: sqlite, and a local ``mlflow server`` with
its default settings. They are scored by ``evaluate`` and by direct calls: for each run list the row
artifacts, download each, compute, and log each value with ``log_metric``. Direct calls are measured
twice: with all values that ``evaluate`` logs (every metric and every bucket at every step), and
with only the last value of each metric. Each measurement is a separate process, on different runs
of the same store, with only a few runs for direct calls.
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
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

BUCKETS, IMAGES = 10, 550
PORT_WAIT = 120  # seconds that a server may take to start

_BUILT_METRIC = '''"""A metric that was thought of later."""


def worst_accuracy(matrix):
    return float(matrix.values.min())
'''


def main() -> None:
    """Measure, or be one of the measuring processes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=1000, help="runs to compare both ways on")
    options.add_argument("--direct", type=int, default=20, help="runs to score by direct calls")
    options.add_argument("--stores", default="sqlite,server", help="sqlite, server, or both")
    options.add_argument("--measurement", nargs="+", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.measurement:
        print(json.dumps(run_measurement(*arguments.measurement)))
        return
    print(machine(), end="\n\n")
    with tempfile.TemporaryDirectory() as temporary:
        for store in arguments.stores.split(","):
            folder = Path(temporary, store)
            folder.mkdir()
            (folder / "later.py").write_text(_BUILT_METRIC)
            with tracking(store, folder) as uri:
                compare(store, uri, folder, arguments.runs, min(arguments.direct, arguments.runs))
    print(f"Load average at the end: {os.getloadavg()[0]:.1f}.")


def compare(store: str, uri: str, folder: Path, runs: int, num_direct: int) -> None:
    """Measure direct calls and evaluate in one store."""
    build(uri, folder, "compared", runs)
    build(uri, folder, "plain", 2 * num_direct)
    everything = measure(uri, folder, "plain", "plain", "all", "0", str(num_direct)) / num_direct
    last = (
        measure(uri, folder, "plain", "plain", "last", str(num_direct), str(2 * num_direct))
        / num_direct
    )
    one_more = measure(uri, folder, "plain", "plain", "later", "0", str(num_direct)) / num_direct
    print(f"| {store}: {runs} runs | direct calls, ms/run | evaluate, ms/run | ratio |")
    print("|---|---:|---:|---:|")
    first = measure(uri, folder, "evaluate", "compared") / runs
    row("first scoring, the same values", everything, first)
    row("first scoring, direct calls log only 11 last values", last, first)
    later = ("--metrics", "later:worst_accuracy")
    again = measure(uri, folder, "evaluate", "compared", *later) / runs
    row("one metric is added, its value at every step", one_more, again)
    same = measure(uri, folder, "evaluate", "compared", *later) / runs
    print(f"| nothing to do | | {1e3 * same:.1f} | |")
    print()


def row(values: str, num_direct: float, evaluate_ms: float) -> None:
    """Print one line of the table, with ratios rounded down."""
    ratio = int(10 * num_direct / evaluate_ms) / 10
    print(f"| {values} | {1e3 * num_direct:.0f} | {1e3 * evaluate_ms:.1f} | {ratio} |", flush=True)


def build(uri: str, folder: Path, experiment: str, runs: int) -> None:
    """Build runs that contain only rows."""
    measure(uri, folder, "build", experiment, str(runs))


def measure(uri: str, folder: Path, *work: str) -> float:
    """Return the seconds of a measurement in a separate process, without its start-up."""
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).absolute()),
            "--measurement",
            *map(_join_arguments, work),
        ],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def _join_arguments(word: str) -> str:
    # argparse would read a word that starts with a dash as one of its options.
    return word.replace("--", "++", 1) if word.startswith("--") else word


def run_measurement(work: str, experiment: str, *arguments: str) -> float:
    """Build runs or score them, and return the seconds."""
    from clear_mlflow.store.client import connect_store, set_up_mlflow

    set_up_mlflow()
    client = connect_store(opens_run=work == "build")
    words = [word.replace("++", "--", 1) for word in arguments]
    if work == "build":
        build_runs(client, experiment, int(words[0]))
    import clear_mlflow.cli.evaluate
    import clear_mlflow.report.pictures  # noqa: F401

    began = time.perf_counter()
    if work == "evaluate":
        from clear_mlflow.cli import main as command

        # To standard error, so that the result has a separate line.
        out, sys.stdout = sys.stdout, sys.stderr
        with suppress(SystemExit):
            command(["evaluate", "--runs", experiment, *words], standalone_mode=False)
        sys.stdout = out
    elif work == "plain":
        score_by_direct_calls(client, experiment, words[0], slice(int(words[1]), int(words[2])))
    return time.perf_counter() - began


def score_by_direct_calls(client, experiment: str, values: str, some: slice) -> None:
    """List, download, compute and log one run after the other, as in MLflow's documentation."""
    import mlflow

    from clear_mlflow.core.record import ROWS_FOLDER, RowRecord, assemble
    from clear_mlflow.metrics import METRICS, evaluate_metrics, summarize
    from clear_mlflow.scoring.run_log import build_row_points

    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    for run in client.search_runs([experiment_id])[some]:
        run_id, records = run.info.run_id, {}
        for file in client.list_artifacts(run_id, ROWS_FOLDER):
            local = client.download_artifacts(run_id, file.path)
            name = Path(local).name
            records[name] = RowRecord.from_json(Path(local).read_text(), source=name)
        record = assemble(records)
        if values == "all":
            results = evaluate_metrics(METRICS, record.matrix, record.dataset.protocol)
            points = {name: dict(result.series) for name, result in results.items()}
            for row in range(record.matrix.num_rows + 1):
                for point in build_row_points(record.masked_matrix, row, {}, time=0):
                    points.setdefault(point.key, {})[row] = point.value
        elif values == "last":
            points = {name: {10: value} for name, value in summarize(record.matrix).items()}
        else:
            results = evaluate_metrics(METRICS, record.matrix, record.dataset.protocol)
            points = {"later/accuracy": results["clear/accuracy"].series}
        with mlflow.start_run(run_id):
            for name, steps in points.items():
                for step, value in steps.items():
                    mlflow.log_metric(name, value, step=step)


def build_runs(client, experiment: str, count: int) -> None:
    """Create runs whose row files are copied to the artifact folder on this machine."""
    from clear_mlflow.core.dataset import DatasetDescription
    from clear_mlflow.core.matrix import AccuracyRow
    from clear_mlflow.core.record import ROWS_FOLDER, RowRecord, format_row_file_name

    numbers = np.random.default_rng(len(experiment) + count)
    experiment_id = client.create_experiment(experiment)
    for seed in range(count):
        run = client.create_run(experiment_id, run_name=f"{experiment} {seed}")
        client.set_tag(run.info.run_id, "clear_mlflow.kind", "train")
        client.set_terminated(run.info.run_id)
        root = run.info.artifact_uri.removeprefix("file://")
        if root.startswith("mlflow-artifacts:/"):
            root = str(Path("artifacts", root.removeprefix("mlflow-artifacts:/").lstrip("/")))
        rows = Path(root, ROWS_FOLDER)
        rows.mkdir(parents=True)
        for number in range(BUCKETS + 1):
            record = RowRecord(
                row=AccuracyRow(
                    number,
                    tuple(str(j + 1) for j in range(BUCKETS)),
                    tuple(numbers.integers(0, IMAGES, BUCKETS).tolist()),
                    (IMAGES,) * BUCKETS,
                ),
                dataset=DatasetDescription(name="made up", digest="sha256:" + "ab" * 32),
                seed=seed,
                package_version="0.1.0",
                written_at=f"2026-01-31T12:{number:02d}:00.123+00:00",
            )
            (rows / format_row_file_name(number)).write_text(record.to_json())


@contextmanager
def tracking(store: str, folder: Path) -> Iterator[str]:
    """Yield the URI of a new store: a database, or a server in front of one."""
    database = f"sqlite:///{folder / 'mlflow.db'}"
    if store == "sqlite":
        yield database
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        uri = f"http://127.0.0.1:{port}"
        wait_for(f"{uri}/health")
        yield uri
    finally:
        server.terminate()
        server.wait(30)


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + PORT_WAIT
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def machine() -> str:
    """Return the versions and the machine of the measurement."""
    import mlflow

    return (
        f"MLflow {mlflow.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load average at the start {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    main()
