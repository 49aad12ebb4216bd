"""Peak memory of each command: ``python benchmarks/memory.py`` prints a table.

Each command runs as a user types it, on a store of a few runs. Every tenth of a second the resident
memory of all of its processes is looked at: the most that the largest of them held, files that are
mapped included, and the most that all held together of what is theirs alone (USS), which is what
the machine has to have. A command of a tenth of a second may hold a little more for a moment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
from larger_than_memory import write_stream

HERE = Path(__file__).parents[1]
SHORT = ("--features", "pixels", "--epochs", "1")
BETWEEN_LOOKS = 0.1


def main() -> None:
    """Measure."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}; load average at the start: "
        f"{os.getloadavg()[0]:.1f}.\n"
    )
    print("| command | largest process, MB | all together, their own, MB | s |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        write_stream(at / "clear10", buckets=3, train=8, test=4)
        (at / "matrix.csv").write_text("\n".join(["0.9,0.5,0.4", "0.7,0.9,0.5", "0.6,0.8,0.9"]))
        grid = {"fixed": {"features": "pixels", "epochs": "1"}, "grid": {"seed": [10, 11, 12]}}
        (at / "grid.yaml").write_text(json.dumps(grid))  # JSON is YAML
        data = str(at / "clear10")
        images = ("--dataset", "clear10", "--data-root", data, "--epochs", "1", "--device", "cpu")
        for arguments in (
            ("--help",),
            ("train", *SHORT),
            ("train", "--seed", "1", "--epochs", "1"),
            ("train", *images, "--model", "resnet18", "--image-size", "64"),
            ("train", *images, "--model", "resnet18", "--image-size", "224"),
            ("train", *images, "--resumable", "off", "--model", "resnet18", "--image-size", "224"),
            ("train-distributed", "--processes", "2", *SHORT),
            ("sweep", "--grid", "grid.yaml"),
            ("evaluate", "--experiment", "Default"),
            ("compare", "--experiment", "Default"),
            ("import", "matrix.csv", "--num-instances", "100"),
            ("sync",),
            ("data", "check", data),
            ("data", "check", "--cache"),
            ("data", "features", data, "--backbone", "resnet18", "--weights", "none"),
        ):
            shown = " ".join(arguments).replace(data, "DIR")
            measure(at, shown, (sys.executable, "-m", "clear_mlflow", *arguments))
        measure_server(at)
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def measure(at: Path, shown: str, command: tuple[str, ...]) -> None:
    """A command to its end."""
    begin = time.perf_counter()
    process = started(at, command)
    most = {"largest": 0.0, "together": 0.0}
    while process.poll() is None:
        look(process.pid, most)
        time.sleep(BETWEEN_LOOKS)
    said = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"{shown} ended with {process.returncode}:\n{said}")
    tell(f"`{shown}`", most, begin)


def measure_server(at: Path) -> None:
    """A server with our pages and one worker, asked for a comparison and for a run's page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "clear"]
    command += ["--port", str(port), "--workers", "1", "--backend-store-uri", store(at)]
    begin = time.perf_counter()
    process = started(at, tuple(command))
    try:
        most = {"largest": 0.0, "together": 0.0}
        while not answers(f"{base}/health"):
            if process.poll() is not None:
                raise SystemExit(f"the server ended:\n{process.communicate()[0]}")
            time.sleep(BETWEEN_LOOKS)
        look(process.pid, most)
        tell("`mlflow server --app-name clear`, one worker, before a request", most, begin)
        most = {"largest": 0.0, "together": 0.0}
        for _ in range(3):
            if not answers(f"{base}/clear/compare?experiment_id=0"):
                raise SystemExit("the server gave no comparison")
            look(process.pid, most)
        tell("the same, after the page of a comparison", most, begin)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def started(at: Path, command: tuple[str, ...]) -> subprocess.Popen[str]:
    """A process in a group of its own, whose words go into a pipe."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "CLEAR_MLFLOW_CACHE": str(at / "cache"),
        "MLFLOW_TRACKING_URI": store(at),
    }
    return subprocess.Popen(
        command,
        cwd=at,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def store(at: Path) -> str:
    """Where the runs are."""
    return f"sqlite:///{at / 'mlflow.db'}"


def look(pid: int, most: dict[str, float]) -> None:
    """Add what a process and those below it hold now."""
    largest = together = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                held = process.memory_full_info()
                largest = max(largest, held.rss)
                together += held.uss
    most["largest"] = max(most["largest"], largest / (1 << 20))
    most["together"] = max(most["together"], together / (1 << 20))


def tell(shown: str, most: dict[str, float], begin: float) -> None:
    """A line of the table."""
    seconds = time.perf_counter() - begin
    print(
        f"| {shown} | {most['largest']:.0f} | {most['together']:.0f} | {seconds:.0f} |", flush=True
    )


def answers(address: str) -> bool:
    """Whether an address gives a page."""
    try:
        with urllib.request.urlopen(address, timeout=120) as answer:
            answer.read()
            return answer.status == 200
    except OSError:
        return False


if __name__ == "__main__":
    main()
