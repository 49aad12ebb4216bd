"""Is it real? Intervals and tests for accuracy matrices, of one run or of two; numpy and scipy.

Two questions are kept apart. *Are these two trained models different?* has test images as its
unit: the paired bootstrap, from stored predictions. *Is this method better than
that one?* has seeds as its unit: t-tests. docs/statistics.md says which to use when.
"""

from clear_mlflow.statistics.intervals import Interval
from clear_mlflow.statistics.multiple import holm, holm_factors
from clear_mlflow.statistics.paired import ImageBootstrap
from clear_mlflow.statistics.sample_size import power, seeds_needed
from clear_mlflow.statistics.seeds import (
    SeedSummary,
    TTest,
    hedges_g,
    paired_t,
    seed_summary,
    welch_t,
)

__all__ = [
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
