"""What MLflow's charts show of a matrix: each number's name, and its value at every step."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import METRICS, Metric, summarize
from clear_mlflow.report.page.matrix_map import spread_positions
from clear_mlflow.store import names

# Name of a metric to its value at each step; a step is the number of buckets trained so far.
Series = Mapping[str, Mapping[int, float]]


class Point(NamedTuple):
    """One value of one series, at the time of its row: written twice, it is the same entry."""

    name: str
    value: float
    time: int  # milliseconds since the epoch
    step: int


def bucket_metric_names(buckets: Sequence[str], begin: str = names.BUCKET_SERIES) -> list[str]:
    """``test_accuracy/bucket_03`` for each bucket, in MLflow's characters, all different."""
    width = max([2, *(len(key) for key in buckets if key.isdecimal())])
    found: dict[str, None] = {}
    for position, key in enumerate(buckets):
        label = re.sub(r"[^A-Za-z0-9_.-]", "_", key.zfill(width) if key.isdecimal() else key)
        name = f"{begin}{label}"
        while name in found:
            name += f".{position}"
        found[name] = None
    return list(found)


def all_series(
    evidence: AccuracyMatrix, of_metrics: Series, begin: str = names.BUCKET_SERIES
) -> dict[str, dict[int, float]]:
    """Summary metrics and test accuracies, a series for each charted bucket, over the steps."""
    # First the metrics: MLflow's page of a run lists names in the order in which they came.
    found = {name: dict(steps) for name, steps in of_metrics.items() if steps}
    for step in range(evidence.num_rows + 1):
        for name, value in _accuracies_at(evidence, step, begin).items():
            found.setdefault(name, {})[step] = value
    return found


def values_at(
    evidence: AccuracyMatrix,
    step: int,
    metrics: Sequence[Metric] = METRICS,
    begin: str = names.BUCKET_SERIES,
) -> dict[str, float]:
    """What one row adds to :func:`all_series`: each series' value at its step, where defined."""
    of_metrics = summarize(evidence.after(step), "iid", metrics) if step else {}
    return of_metrics | _accuracies_at(evidence, step, begin)


def _accuracies_at(evidence: AccuracyMatrix, step: int, begin: str) -> dict[str, float]:
    row = evidence.values[step - 1] if step else evidence.initial
    if row is None:
        return {}
    found = {name: float(row[j]) for j, name in _charted(evidence.buckets, begin)}
    return {name: value for name, value in found.items() if not math.isnan(value)}


@lru_cache(maxsize=32)
def _charted(buckets: tuple[str, ...], begin: str) -> tuple[tuple[int, str], ...]:
    """Position and series of each charted bucket; asked for at every row."""
    named = bucket_metric_names(buckets, begin)
    return tuple((j, named[j]) for j in spread_positions(len(buckets)))


def points_of(series: Series, times: Mapping[int, int]) -> list[Point]:
    """The points of series, at the times of their steps."""
    return [
        Point(name, value, times[step], step)
        for name, steps in series.items()
        for step, value in steps.items()
    ]


def milliseconds(written_at: str) -> int:
    """A row's ISO 8601 time as MLflow counts time."""
    return round(datetime.fromisoformat(written_at.replace("Z", "+00:00")).timestamp() * 1000)
