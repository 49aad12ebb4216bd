"""What metrics over tests inside the buckets are made of."""

from __future__ import annotations

from dataclasses import dataclass

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.metrics._common import MetricOf


@dataclass(frozen=True, kw_only=True)
class AnytimeMetric(MetricOf[AnytimeMatrix]):
    """One number of a run's tests inside its buckets, under the name that it is logged as."""
