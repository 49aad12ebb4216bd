"""Measure seconds and memory of commands: ``python benchmarks/start.py`` prints a table.

Each command runs in a new interpreter on an existing store and cache, except for the first training
of the embedded dataset in an empty folder. The time to the first bucket ends with its line on the
terminal. Processor time and memory are those of a command with the processes that it waited for;
memory is the peak of the largest one, not the sum. ``--other FOLDER`` also measures the program of
another checkout, in turn with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parents[1]
SHORT = ("--features", "pixels", "--epochs", "1")
# What ``show`` needs of MLflow, and nothing else.
MLFLOW_ALONE = """
import sys
from mlflow import MlflowClient
client = MlflowClient()
client.get_run(sys.argv[1])
client.download_artifacts(sys.argv[1], "")
"""


@dataclass
class Measured:
    """Measurements of one command, an entry per turn."""

    to_bucket: list[float] = field(default_factory=list)  # seconds; empty where it trains nothing
    to_end: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    megabytes: float = 0.0


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another checkout")
    options = parser.parse_args()
    checkouts = {"here": HERE}
    if options.other is not None:
        checkouts = {"other": options.other.resolve(), **checkouts}
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, medians of {options.turns} "
        f"turns; load average at the start: {os.getloadavg()[0]:.1f}.\n"
    )
    results: dict[str, dict[str, Measured]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            for name, checkout in checkouts.items():
                at = Path(folder, f"{name}_{turn}")
                at.mkdir()
                one_turn(checkout, at, results.setdefault(name, {}))
    print("| command | program | to the first bucket, s | to the end, s | CPU, s | memory, MB |")
    print("|---|---|---:|---:|---:|---:|")
    for command in next(iter(results.values())):
        for name, measured in results.items():
            of = measured[command]
            bucket = f"{statistics.median(of.to_bucket):.1f}" if of.to_bucket else ""
            end = f"{statistics.median(of.to_end):.2f}"
            cpu = f"{statistics.median(of.cpu):.2f}"
            print(f"| {command} | {name} | {bucket} | {end} | {cpu} | {of.megabytes:.0f} |")
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def one_turn(checkout: Path, at: Path, results: dict[str, Measured]) -> None:
    """All commands once, in an empty folder."""

    def measure(label: str, *arguments: str) -> None:
        program = ("-m", "clear_mlflow", *arguments)
        run(checkout, at, program, results.setdefault(label, Measured()))

    measure("`--help`", "--help")
    measure("`train`, for the first time", "train", "--tag", "which=images")
    measure("`train`, again", "train", "--seed", "1", "--tag", "which=images")
    measure("`train --features pixels --epochs 1`", "train", *SHORT, "--tag", "which=shown")
    grid = {"fixed": {"features": "pixels", "epochs": "1"}}
    for runs in (1, 9):
        seeds = {"strategy": ["naive"], "seed": list(range(10 * runs, 11 * runs))}
        path = at / f"grid_{runs}.yaml"
        path.write_text(json.dumps({**grid, "grid": seeds}))  # JSON is YAML
        measure(f"`sweep` of {runs} such", "sweep", "--grid", str(path))
    measure("`evaluate` of all, nothing to do", "evaluate", "Default")
    shown = "SELECT run_uuid FROM tags WHERE key = 'which' AND value = 'shown'"
    [(run_id,)] = sqlite3.connect(at / "mlflow.db").execute(shown).fetchall()
    measure("`show`", "show", run_id)
    alone = results.setdefault("MLflow alone: read that run", Measured())
    run(checkout, at, ("-c", MLFLOW_ALONE, run_id), alone)
    measure("`compare` of two", "compare", "--filter", "tags.which = 'images'")
    measure("`compare` of nine", "compare", "--filter", "params.seed LIKE '9_'")


def run(checkout: Path, at: Path, arguments: tuple[str, ...], into: Measured) -> None:
    """Run Python with arguments, and add its seconds and memory to *into*."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "CLEAR_MLFLOW_CACHE": str(at / "cache"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{at / 'mlflow.db'}",
    }
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=at,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    output = []
    for line in process.stderr:
        if line.startswith("bucket 1/"):
            into.to_bucket.append(time.perf_counter() - started)
        output.append(line)
    _, status, usage = os.wait4(process.pid, 0)
    into.to_end.append(time.perf_counter() - started)
    into.cpu.append(usage.ru_utime + usage.ru_stime)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(
            f"{' '.join(arguments)} ended with {process.returncode}:\n{''.join(output)}"
        )
    into.megabytes = max(into.megabytes, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
