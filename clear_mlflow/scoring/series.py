"""What MLflow's charts show of a matrix: each number's name, and its value at every step."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from clear_mlflow.core.matrix import AccuracyMatrix

# Name of a metric to its value at each step; a step is the number of buckets trained so far.
Series = Mapping[str, Mapping[int, float]]


class Point(NamedTuple):
    """One value of one series, as a store holds it.

    It carries the time at which its row was written, not the time at which it is logged: a point
    that is written twice is then the same entry of the store, and never doubled.
    """

    name: str
    value: float
    time: int  # milliseconds since the epoch
    step: int


def bucket_metric_names(buckets: Sequence[str]) -> list[str]:
    """``accuracy/bucket_03`` for each bucket, in characters that MLflow takes, all different.

    Numeric keys are padded, so that the UI's alphabetical order is the stream's order.
    """
    width = max([2, *(len(key) for key in buckets if key.isdecimal())])
    names: list[str] = []
    for position, key in enumerate(buckets):
        label = re.sub(r"[^A-Za-z0-9_.-]", "_", key.zfill(width) if key.isdecimal() else key)
        name = f"accuracy/bucket_{label}"
        names.append(name if name not in names else f"{name}.{position}")
    return names


def all_series(evidence: AccuracyMatrix, of_metrics: Series) -> dict[str, dict[int, float]]:
    """Every test accuracy (one series a bucket) and every summary metric, over the steps.

    Args:
        evidence: a run's matrix as ``masked`` gives it.
        of_metrics: what :func:`clear_mlflow.metrics.series` gives of the same run.
    """
    found: dict[str, dict[int, float]] = {}
    for j, name in enumerate(bucket_metric_names(evidence.buckets)):
        column = {} if evidence.initial is None else {0: float(evidence.initial[j])}
        column.update({i + 1: float(row[j]) for i, row in enumerate(evidence.values)})
        found[name] = {step: value for step, value in column.items() if not math.isnan(value)}
    found.update({name: dict(steps) for name, steps in of_metrics.items()})
    return {name: steps for name, steps in found.items() if steps}


def points_of(series: Series, times: Mapping[int, int]) -> list[Point]:
    """The points of series, at the times of their steps.

    Args:
        series: name to step to value.
        times: step to milliseconds since the epoch.
    """
    return [
        Point(name, value, times[step], step)
        for name, steps in series.items()
        for step, value in steps.items()
    ]


def milliseconds(written_at: str) -> int:
    """A row's ISO 8601 time as MLflow counts time."""
    return round(datetime.fromisoformat(written_at.replace("Z", "+00:00")).timestamp() * 1000)
