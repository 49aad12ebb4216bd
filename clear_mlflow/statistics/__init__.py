"""Is it real? Intervals and tests for accuracy matrices, of one run or of two; numpy and scipy.

Two questions are kept apart. *Are these two trained models different?* has test images as its
unit: Wilson and metric intervals from counts, McNemar and the paired bootstrap from stored
predictions. *Is this method better than that one?* has seeds as its unit: permutation tests over
them. docs/statistics.md says which to use when.
"""

from clear_mlflow.statistics.conclusion import Conclusion, pairs_needed, verdict
from clear_mlflow.statistics.correctness import CorrectMatrix
from clear_mlflow.statistics.intervals import (
    Interval,
    difference_intervals,
    explain_intervals,
    metric_intervals,
    wilson_interval,
)
from clear_mlflow.statistics.linear_forms import LinearForm, linear_forms
from clear_mlflow.statistics.multiple import holm
from clear_mlflow.statistics.paired import (
    BootstrapTest,
    CellTests,
    PairedTest,
    bootstrap_intervals,
    mcnemar_cells,
    mcnemar_exact,
    paired_bootstrap,
)
from clear_mlflow.statistics.seeds import (
    SeedSummary,
    SeedTest,
    paired_permutation,
    seed_summary,
    unpaired_permutation,
)

__all__ = [
    "BootstrapTest",
    "CellTests",
    "Conclusion",
    "CorrectMatrix",
    "Interval",
    "LinearForm",
    "PairedTest",
    "SeedSummary",
    "SeedTest",
    "bootstrap_intervals",
    "difference_intervals",
    "explain_intervals",
    "holm",
    "linear_forms",
    "mcnemar_cells",
    "mcnemar_exact",
    "metric_intervals",
    "paired_bootstrap",
    "paired_permutation",
    "pairs_needed",
    "seed_summary",
    "unpaired_permutation",
    "verdict",
    "wilson_interval",
]
