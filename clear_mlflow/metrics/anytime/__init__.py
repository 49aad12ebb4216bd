"""Numbers that are computed from tests inside the buckets; one module per family.

As :mod:`clear_mlflow.metrics`, of a finer course: a new metric is a function and a line in its
family's ``METRICS``; a new family is a new module here. None of them has a value where a run was
tested at the ends of its buckets alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.metrics._common import evaluated, gather, modules_of
from clear_mlflow.metrics.anytime.continual_evaluation import AnytimeMetric

__all__ = ["METRICS", "AnytimeMatrix", "AnytimeMetric", "summarize"]

METRICS: tuple[AnytimeMetric, ...] = gather(
    metric for module in modules_of(sys.modules[__name__]).values() for metric in module.METRICS
)


def summarize(
    matrix: AnytimeMatrix, metrics: Sequence[AnytimeMetric] = METRICS
) -> dict[str, float]:
    """Every metric that is defined on a run's tests: name to value."""
    return evaluated(matrix, metrics)[0]
