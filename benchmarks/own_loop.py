"""What ``clear_mlflow.track`` costs a loop: ``python benchmarks/own_loop.py`` prints it.

A loop that multiplies matrices on one core, ten buckets of ``--seconds`` each, bare and tracked, on
a sqlite store and on a local ``mlflow server`` with its default settings; ``--rounds`` of each,
interleaved. ``--write`` puts the table into benchmarks/own_loop.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

BUCKETS, IMAGES = 10, 550
PAGE = Path(__file__).with_suffix(".md")
STORES = ("sqlite", "server")


@dataclass
class Costs:
    """Seconds of the parts of tracked runs, over all rounds."""

    opening: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)
    loops: list[float] = field(default_factory=list)  # the whole, training included


def main() -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=1.0, help="a bucket's training")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    asked = options.parse_args()
    import mlflow

    # MLflow tells of each run on standard output.
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as temporary:
        load = os.getloadavg()[0]
        folder = Path(temporary)
        steps = calibrate(asked.seconds)
        bare, costs = [], {name: Costs() for name in STORES}
        with serving(folder / "server") as url:
            uris = {"sqlite": f"sqlite:///{folder / 'mlflow.db'}", "server": url}
            for name, uri in uris.items():  # tables, connections and fonts are made once
                mlflow.set_tracking_uri(uri)
                mlflow.create_experiment("bench", *artifacts_of(name, folder))
                mlflow.set_experiment("bench")
                tracked(1, Costs())
            for _ in range(asked.rounds):
                bare.append(timed(lambda: [work(steps) for _ in range(BUCKETS)]))
                for name, uri in uris.items():
                    mlflow.set_tracking_uri(uri)
                    mlflow.set_experiment("bench")
                    tracked(steps, costs[name])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        report(asked.seconds, asked.rounds, bare, costs, load)
    sys.stdout.write(said.getvalue())
    if asked.write:
        PAGE.write_text(said.getvalue(), encoding="utf-8")


def work(steps: int) -> None:
    """A bucket's training."""
    import numpy as np

    matrix = np.ones((256, 256), dtype=np.float32)
    for _ in range(steps):
        matrix = np.tanh(matrix @ matrix)


def calibrate(seconds: float) -> int:
    """Steps that take so long here."""
    work(20)
    return max(1, round(200 * seconds / timed(lambda: work(200))))


def tracked(steps: int, costs: Costs) -> None:
    """One run of ten buckets."""
    import clear_mlflow

    run = clear_mlflow.track(buckets=BUCKETS, num_instances=IMAGES, dataset="none")
    started = time.perf_counter()
    costs.opening.append(timed(run.__enter__))
    for i in range(BUCKETS + 1):
        if i:
            work(steps)
        correct = [50 + 45 * i - abs(i - 1 - j) for j in range(BUCKETS)]
        costs.rows.append(timed(lambda i=i, correct=correct: run.log_row(i, correct)))
    costs.closing.append(timed(lambda: run.__exit__(None, None, None)))
    costs.loops.append(time.perf_counter() - started)


def report(
    seconds: float, rounds: int, bare: list[float], costs: dict[str, Costs], load: float
) -> None:
    """The table."""
    middle = statistics.median
    print("# What `clear_mlflow.track` costs a loop\n")
    print(
        "Written by `python benchmarks/own_loop.py --write`. A loop that multiplies matrices on "
        f"one core, ten buckets of about {seconds:g} s and eleven rows; medians of {rounds} "
        f"rounds, {os.cpu_count()} cores, Python {platform.python_version()}, load average "
        f"{load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end.\n"
    )
    print("| | sqlite | local server |\n|---|---:|---:|")

    def line(what: str, value: Callable[[Costs], str]) -> None:
        print(f"| {what} | " + " | ".join(value(costs[name]) for name in STORES) + " |")

    def parts(cost: Costs) -> float:
        return middle(cost.opening) + (BUCKETS + 1) * middle(cost.rows) + middle(cost.closing)

    def share(training: float) -> Callable[[Costs], str]:
        return lambda cost: f"{100 * parts(cost) / (parts(cost) + BUCKETS * training):.1f} %"

    line("`log_row`, ms a row", lambda cost: f"{1000 * middle(cost.rows):.0f}")
    line("the slowest row, ms", lambda cost: f"{1000 * max(cost.rows):.0f}")
    line("opening the run, s", lambda cost: f"{middle(cost.opening):.2f}")
    line("last pictures, scoring, closing, s", lambda cost: f"{middle(cost.closing):.2f}")
    line("all of these of one run, s", lambda cost: f"{parts(cost):.2f}")
    for training in (1, 10, 60):
        line(f"their share where a bucket takes {training} s", share(training))
    line(
        f"measured: longer than the bare loop ({middle(bare):.1f} s), s",
        lambda cost: f"{middle(cost.loops) - middle(bare):.2f}",
    )
    print(
        "\nThe last line holds what the thread behind the loop takes from it, too: metrics and a "
        "picture a row, beside the training."
    )


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def artifacts_of(store: str, folder: Path) -> list[str]:
    """Where a store without a server keeps artifacts; a server knows it."""
    return [(folder / "artifacts").as_uri()] if store == "sqlite" else []


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A tracking server with its default settings, for as long as the block takes."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = ["mlflow", "server", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            time.sleep(0.2)
        else:
            raise RuntimeError((folder / "log").read_text())
        yield url
    finally:
        # Its workers are of its own group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(30)


if __name__ == "__main__":
    main()
