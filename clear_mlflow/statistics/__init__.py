"""Is it real? Intervals and tests for accuracy matrices, of one run or of two; numpy and scipy.

Two questions are kept apart. *Are these two trained models different?* has test images as its
unit: Wilson and metric intervals from counts, McNemar and the paired bootstrap from stored
predictions. *Is this method better than that one?* has seeds as its unit: t-tests, and permutation
tests beside them. docs/statistics.md says which to use when.
"""

from clear_mlflow.statistics.conclusion import Conclusion, Equivalence, p_text, verdict
from clear_mlflow.statistics.correctness import CorrectMatrix
from clear_mlflow.statistics.effects import hedges_g, probability_of_improvement
from clear_mlflow.statistics.intervals import (
    Interval,
    cell_intervals,
    difference_intervals,
    explain_intervals,
    metric_intervals,
    wilson_interval,
)
from clear_mlflow.statistics.linear_forms import KnownForms, LinearForm, linear_forms
from clear_mlflow.statistics.multiple import holm, holm_factors
from clear_mlflow.statistics.paired import (
    BootstrapTest,
    CellTests,
    ImageBootstrap,
    PairedTest,
    bootstrap_intervals,
    mcnemar_cells,
    mcnemar_exact,
    paired_bootstrap,
)
from clear_mlflow.statistics.power import power, seeds_needed
from clear_mlflow.statistics.seeds import (
    SeedSummary,
    SeedTest,
    paired_permutation,
    seed_summary,
    unpaired_permutation,
)
from clear_mlflow.statistics.several_datasets import RankTest, average_ranks, interquartile_mean
from clear_mlflow.statistics.t_tests import TTest, paired_t, welch_t

__all__ = [
    "BootstrapTest",
    "CellTests",
    "Conclusion",
    "CorrectMatrix",
    "Equivalence",
    "ImageBootstrap",
    "Interval",
    "KnownForms",
    "LinearForm",
    "PairedTest",
    "RankTest",
    "SeedSummary",
    "SeedTest",
    "TTest",
    "average_ranks",
    "bootstrap_intervals",
    "cell_intervals",
    "difference_intervals",
    "explain_intervals",
    "hedges_g",
    "holm",
    "holm_factors",
    "interquartile_mean",
    "linear_forms",
    "mcnemar_cells",
    "mcnemar_exact",
    "metric_intervals",
    "p_text",
    "paired_bootstrap",
    "paired_permutation",
    "paired_t",
    "power",
    "probability_of_improvement",
    "seed_summary",
    "seeds_needed",
    "unpaired_permutation",
    "verdict",
    "welch_t",
    "wilson_interval",
]
