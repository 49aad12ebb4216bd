"""Every number that is computed from the measurements of a run; one module per family.

The same word means different things in different papers, so the family is part of each name. A new
metric is a function and a line in its family's ``METRICS``; a new family is a new module in this
folder.

In all formulas, R[i, j] is the accuracy on bucket j after training on bucket i, from 0: (k, T), for
k trained of T buckets, and "last" is row k - 1. Unless a docstring states otherwise, accuracies
are fractions in [0, 1], differences are in [-1, 1], higher is better, and a metric is undefined if
a value that it needs was not measured.
"""

from clear_mlflow.metrics._metric import (
    ANY,
    CHANGE,
    LEVEL,
    MATRIX,
    PREDICTIONS,
    WITHIN_BUCKET,
    Metric,
    adapt_metrics,
    compute_values,
)
from clear_mlflow.metrics._predictions import (
    Predictions,
    class_accuracies,
    confusion,
    macro_matrix,
)
from clear_mlflow.metrics._registry import (
    ALL_METRICS,
    BUILT_IN_FAMILIES,
    COST_METRICS,
    DEFAULT_FAMILIES,
    DEFAULT_TITLES,
    EXTRA_METRICS,
    FAMILIES,
    METRICS,
    PREDICTION_METRICS,
    PREQUENTIAL_METRICS,
    SCRATCH_METRICS,
    WITHIN_BUCKET_METRICS,
    add_matrix_metrics,
    format_value,
    get_family_metrics,
    get_first_ranking_metric,
    get_headlines,
    is_cost,
    split_families,
)
from clear_mlflow.metrics._results import (
    MetricResult,
    MetricResults,
    build_logged_result,
    evaluate_metrics,
    scores,
    sort_results,
    summarize,
)
from clear_mlflow.metrics._scratch import (
    DROP_PARTS,
    ScratchMatrix,
    convert_to_days,
    find_horizons,
    format_median_horizon,
)
from clear_mlflow.metrics._user import load_custom_metrics, load_metrics

__all__ = [
    "ALL_METRICS",
    "ANY",
    "BUILT_IN_FAMILIES",
    "CHANGE",
    "COST_METRICS",
    "DEFAULT_FAMILIES",
    "DEFAULT_TITLES",
    "DROP_PARTS",
    "EXTRA_METRICS",
    "FAMILIES",
    "LEVEL",
    "MATRIX",
    "METRICS",
    "PREDICTIONS",
    "PREDICTION_METRICS",
    "PREQUENTIAL_METRICS",
    "SCRATCH_METRICS",
    "WITHIN_BUCKET",
    "WITHIN_BUCKET_METRICS",
    "Metric",
    "MetricResult",
    "MetricResults",
    "Predictions",
    "ScratchMatrix",
    "adapt_metrics",
    "add_matrix_metrics",
    "build_logged_result",
    "class_accuracies",
    "compute_values",
    "confusion",
    "convert_to_days",
    "evaluate_metrics",
    "find_horizons",
    "format_median_horizon",
    "format_value",
    "get_family_metrics",
    "get_first_ranking_metric",
    "get_headlines",
    "is_cost",
    "load_custom_metrics",
    "load_metrics",
    "macro_matrix",
    "scores",
    "sort_results",
    "split_families",
    "summarize",
]
