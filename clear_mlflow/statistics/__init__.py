"""Intervals and tests of metrics, for one run or for two; numpy and scipy.

Two questions have separate tests. *Are these two trained models different?* draws test images
again: the paired bootstrap, from stored predictions. *Is this method better than that one?* draws
seeds again: t-tests. docs/statistics.md explains when to use which.
"""

from clear_mlflow.statistics.bootstrap import ImageBootstrap
from clear_mlflow.statistics.seeds import (
    MAX_SEEDS,
    MIN_SEEDS,
    Interval,
    SeedSummary,
    TTest,
    hedges_g,
    holm,
    holm_factors,
    paired_t,
    power,
    seed_summary,
    seeds_needed,
    welch_t,
)

__all__ = [
    "MAX_SEEDS",
    "MIN_SEEDS",
    "ImageBootstrap",
    "Interval",
    "SeedSummary",
    "TTest",
    "hedges_g",
    "holm",
    "holm_factors",
    "paired_t",
    "power",
    "seed_summary",
    "seeds_needed",
    "welch_t",
]
