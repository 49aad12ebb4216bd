"""What the paired bootstrap costs: ``python benchmarks/bootstrap.py`` prints a Markdown table.

Two made-up runs of ten buckets, with the initialisation row, on as many test images as CLEAR-10 and
CLEAR-100 have; all metrics, the same number of resamples on both sides. The plain way is what one
would write first: draw images, count hits, compute the metrics of both runs, and so on again. Every
measurement runs in a process of its own, which says how long it took and what memory it had at
most beyond what it had before; the sides take turns, and the best of each side's turns counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time

import numpy as np

from clear_mlflow import AccuracyMatrix, summarize
from clear_mlflow.statistics import CorrectMatrix, paired_bootstrap

BUCKETS = 10
SIZES = {"CLEAR-10": 550, "CLEAR-100": 4980}


def main() -> None:
    """Measure, or be one of the measuring processes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--resamples", type=int, default=2000)
    options.add_argument("--turns", type=int, default=3, help="of which the best counts")
    options.add_argument("--one", nargs=2, metavar=("WAY", "SIZE"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        one(asked.one[0], int(asked.one[1]), asked.resamples)
        return
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}; "
        f"{asked.resamples:,} resamples; load average at the start: {os.getloadavg()[0]:.1f}.\n"
    )
    print("| test images | way | seconds | ratio | memory, MB |\n|---|---|---:|---:|---:|")
    for name, per_bucket in SIZES.items():
        taken: dict[str, list[dict[str, float]]] = {"plain": [], "ours": []}
        for _ in range(asked.turns):
            for way, found in taken.items():
                found.append(measure(way, per_bucket, asked.resamples))
        best = {way: min(found, key=lambda f: f["seconds"]) for way, found in taken.items()}
        for way, found in best.items():
            ratio = best["plain"]["seconds"] / found["seconds"]
            told = f"{name}: {BUCKETS * per_bucket:,}" if way == "plain" else ""
            print(
                f"| {told} | {way} | {found['seconds']:.2f} | {ratio:.1f} | {found['memory']:.0f} |"
            )
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def measure(way: str, per_bucket: int, resamples: int) -> dict[str, float]:
    """Run one side in a process of its own."""
    command = [sys.executable, __file__, "--one", way, str(per_bucket)]
    done = subprocess.run(
        [*command, "--resamples", str(resamples)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def one(way: str, per_bucket: int, resamples: int) -> None:
    """Measure one side, in this process."""
    a, b = made_up(per_bucket, 1), made_up(per_bucket, 2)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if way == "plain":
        plain(a, b, resamples)
    else:
        paired_bootstrap(a, b, resamples=resamples)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "memory": (after - before) / 1024}))


def made_up(per_bucket: int, seed: int) -> CorrectMatrix:
    """A run that is right on some 80 % of the images."""
    draws = np.random.default_rng(seed)
    return CorrectMatrix(
        evaluation_set="made up",
        buckets=tuple(str(j + 1) for j in range(BUCKETS)),
        bucket=np.repeat(np.arange(BUCKETS), per_bucket).astype(np.uint16),
        rows=tuple(range(BUCKETS + 1)),
        right=draws.random((BUCKETS + 1, BUCKETS * per_bucket)) < 0.8,
    )


def plain(a: CorrectMatrix, b: CorrectMatrix, resamples: int) -> dict[str, tuple[float, float]]:
    """The same intervals, one resample after the other."""
    draws = np.random.default_rng(0)
    places = [np.flatnonzero(a.bucket == j) for j in range(BUCKETS)]
    counts = [len(here) for here in places]
    changes: dict[str, list[float]] = {}
    for _ in range(resamples):
        drawn = [draws.choice(here, len(here)) for here in places]
        values = []
        for run in (a, b):
            cells = np.stack([run.right[:, here].mean(axis=1) for here in drawn], axis=1)
            values.append(summarize(AccuracyMatrix(cells[1:], cells[0], counts)))
        for name, value in values[0].items():
            changes.setdefault(name, []).append(value - values[1][name])
    return {name: tuple(np.quantile(found, [0.025, 0.975])) for name, found in changes.items()}


if __name__ == "__main__":
    main()
