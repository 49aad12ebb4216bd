"""What clusters are worth: ``python benchmarks/clusters.py`` prints how often intervals cover.

Made-up models answer the embedded digits' test images: 1,500 images of 549 scans, each scan in two
or three buckets. A model is right on a scan with a probability of the scan's own, drawn from a beta
distribution, so that it is right on its images together more or less often. Intervals of 95 % over
test images are then held against the mean that they were drawn from: scans drawn again, or images.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from clear_mlflow.core.cache_dir import default_cache_dir
from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.data import load_stream
from clear_mlflow.data.evaluation_set import evaluation_set
from clear_mlflow.metrics import METRICS
from clear_mlflow.statistics import CorrectMatrix, bootstrap_intervals, paired_bootstrap

CORRELATIONS = (0.0, 0.5, 1.0)
MEAN = 0.8
LEVEL = 0.95
METRIC = next(metric for metric in METRICS if metric.name == "clear/in_domain_accuracy")


def main() -> None:
    """Simulate, and print a table in Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=1000, help="models for each number")
    asked = options.parse_args()
    started = time.perf_counter()
    images = evaluation_set(load_stream("digits", "auto", cache_dir=Path(default_cache_dir())))
    print("| correlation | one model: scans | images | two equal models: scans | images |")
    print("|---:|---:|---:|---:|---:|")
    for correlation in CORRELATIONS:
        shares = [covered(images, correlation, knows, asked.times) for knows in (True, False)]
        cells = [f"{100 * share:.1f}" for of in zip(*shares, strict=True) for share in of]
        print(f"| {correlation:g} | {' | '.join(cells)} |", flush=True)
    print(f"\n{asked.times} models for each number, {time.perf_counter() - started:.0f} s.")


def covered(
    images: EvaluationSet, correlation: float, knows: bool, times: int
) -> tuple[float, float]:
    """Share of intervals that hold the mean, and of those of a difference that hold 0."""
    draws = np.random.default_rng(0)
    held = equal = 0
    for _ in range(times):
        a, b = (model(images, correlation, draws, knows) for _ in range(2))
        low, high = bootstrap_intervals(a, metrics=[METRIC], level=LEVEL, resamples=500)[
            METRIC.name
        ]
        held += low <= MEAN <= high
        test = paired_bootstrap(a, b, metrics=[METRIC], level=LEVEL, resamples=500)[METRIC.name]
        equal += test.interval.low <= 0 <= test.interval.high
    return held / times, equal / times


def model(
    images: EvaluationSet, correlation: float, draws: np.random.Generator, knows: bool
) -> CorrectMatrix:
    """Hits in every row; two answers on images of one scan correlate as asked."""
    assert images.cluster is not None
    scans = int(images.cluster.max()) + 1
    if correlation == 0:
        chance = np.full(scans, MEAN)
    elif correlation == 1:
        chance = (draws.random(scans) < MEAN).astype(float)
    else:
        size = 1 / correlation - 1
        chance = draws.beta(MEAN * size, (1 - MEAN) * size, scans)
    right = draws.random(len(images)) < chance[images.cluster]
    rows = tuple(range(1, len(images.buckets) + 1))
    found = CorrectMatrix(
        evaluation_set=images.digest,
        buckets=images.buckets,
        bucket=images.bucket,
        rows=rows,
        right=np.broadcast_to(right, (len(rows), len(images))),
        cluster=images.cluster,
    )
    return found if knows else replace(found, cluster=None)


if __name__ == "__main__":
    main()
