"""What a row of many buckets costs: ``python benchmarks/many_buckets.py`` prints the table.

For streams of 10 to 1,000 buckets: the time until the points of the last row are known, once as the
whole series computed anew of which the last step is taken, once as what the row adds; and the
points of metrics that a whole run sends, with a series for every bucket and with at most 100.
Both ways are computed in turn, ``--rounds`` times; medians. ``--write`` puts the table into
benchmarks/many_buckets.md.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from clear_mlflow import AccuracyMatrix, AccuracyRow
from clear_mlflow.metrics import series
from clear_mlflow.scoring.series import all_series, bucket_metric_names, values_at

PAGE = Path(__file__).with_suffix(".md")
STREAMS = (10, 100, 300, 1000)
LONGEST_ANEW = 300  # buckets; of 1,000, the series of all metrics take a minute


def main() -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    asked = options.parse_args()
    load = os.getloadavg()[0]
    lines = [
        "| buckets | last row, anew, ms | what it adds, ms | points, all | points, sent |",
        "|---:|---:|---:|---:|---:|",
    ]
    for num_buckets in STREAMS:
        rows = measured_rows(num_buckets)
        matrix = AccuracyMatrix.from_rows(rows)
        anew, added = [], []
        for _ in range(asked.rounds):
            if num_buckets <= LONGEST_ANEW:
                anew.append(milliseconds(partial(points_anew, rows)))
            added.append(milliseconds(partial(points_added, rows)))
        of_metrics = num_of_metrics(matrix) if num_buckets <= LONGEST_ANEW else None
        every = num_buckets * (num_buckets + 1)
        sent = sum(len(steps) for steps in all_series(matrix, {}).values())
        before = f"{statistics.median(anew):,.0f}" if anew else "-"
        more = (f"{every + of_metrics:,}", f"{sent + of_metrics:,}") if of_metrics else ("-", "-")
        lines.append(
            f"| {num_buckets} | {before} | {statistics.median(added):,.1f} | {' | '.join(more)} |"
        )
    table = "\n".join(lines)
    print(table)
    if asked.write:
        PAGE.write_text(
            "# What a row of many buckets costs\n\n"
            f"Written by `python benchmarks/many_buckets.py --write`; medians of {asked.rounds} "
            f"rounds, {os.cpu_count()} cores, Python {platform.python_version()}, load average "
            f"{load:.1f} at the start. Points are those of metrics that a whole run sends: with a "
            "series for each bucket, and as they are sent, with at most 100 such series.\n\n"
            f"{table}\n",
            encoding="utf-8",
        )


def measured_rows(num_buckets: int) -> list[AccuracyRow]:
    """Random counts of 500 test images a bucket, the initialisation first."""
    draws = np.random.default_rng(0)
    keys = tuple(str(j + 1) for j in range(num_buckets))
    return [
        AccuracyRow(
            i, keys, tuple(map(int, draws.integers(0, 501, num_buckets))), (500,) * num_buckets
        )
        for i in range(num_buckets + 1)
    ]


def points_added(rows: list[AccuracyRow]) -> dict[str, float]:
    """The last row's points, as a training sends them."""
    return values_at(AccuracyMatrix.from_rows(rows), rows[-1].row)


def points_anew(rows: list[AccuracyRow]) -> dict[str, float]:
    """The last row's points, from the series of every bucket and metric over all steps."""
    matrix = AccuracyMatrix.from_rows(rows)
    found: dict[str, dict[int, float]] = {}
    for j, name in enumerate(bucket_metric_names(matrix.buckets)):
        column = {} if matrix.initial is None else {0: float(matrix.initial[j])}
        column.update({i + 1: float(row[j]) for i, row in enumerate(matrix.values)})
        found[name] = {step: value for step, value in column.items() if not math.isnan(value)}
    found.update(series(matrix))
    last = matrix.num_rows
    return {name: steps[last] for name, steps in found.items() if last in steps}


def num_of_metrics(matrix: AccuracyMatrix) -> int:
    """Points of the summary metrics alone."""
    return sum(len(steps) for steps in series(matrix).values())


def milliseconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
