"""How often Wilson's interval covers: ``python benchmarks/wilson.py`` prints the least, exactly.

For n images and an accuracy p the chance that the interval holds p is a sum of binomial
probabilities. As p moves it jumps where p passes an end of an interval, and is lowest just beside
such an end; so p is tried there, and on a grid between.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from clear_mlflow.statistics import wilson_interval

IMAGES = (10, 50, 80, 150, 550, 5000)
LEVEL = 0.95


def main() -> None:
    """Print a table in Markdown."""
    print(
        "| images | least coverage | at an accuracy of | least with 5 right and 5 wrong expected |"
    )
    print("|---:|---:|---:|---:|")
    for n in IMAGES:
        accuracies, shares = coverage(n)
        middle = shares[(accuracies * n >= 5) & ((1 - accuracies) * n >= 5)]
        least = shares.argmin()
        at = max(accuracies[least], 1 - accuracies[least])
        print(f"| {n:,} | {100 * shares[least]:.1f} % | {at:.5f} | {100 * middle.min():.1f} % |")


def coverage(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies, ascending, and how often the interval of n images holds each."""
    counts = np.arange(n + 1)
    low, high = wilson_interval(counts, n, level=LEVEL)
    ends = np.concatenate([low, high])
    accuracies = np.concatenate([ends - 1e-12, ends + 1e-12, np.linspace(0, 1, 4001), [0.5]])
    accuracies = np.unique(accuracies[(accuracies > 0) & (accuracies < 1)])
    shares = [binom.pmf(counts[(low <= p) & (p <= high)], n, p).sum() for p in accuracies.tolist()]
    return accuracies, np.array(shares)


if __name__ == "__main__":
    main()
