"""What metrics over tests inside the buckets are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix


@dataclass(frozen=True, kw_only=True)
class AnytimeMetric:
    """One number of a run's tests inside its buckets, under the name that it is logged as.

    Args:
        name: family and metric, as ``continual_evaluation/minimum_accuracy``.
        function: raises UndefinedMetricError where the metric has no value.
        higher_is_better: which of two values a researcher wants.
        version: raised when the definition changes, so that stored values are known as old.
    """

    name: str
    function: Callable[[AnytimeMatrix], float]
    higher_is_better: bool = True
    version: int = 1
