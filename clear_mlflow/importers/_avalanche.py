"""What Avalanche's three kinds of output have in common: names of metrics, and streams."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.importers._base import NAN, Parsed, grid, whole

# Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp010, as its default_metric_name_template writes
# it; three digits at least, and no task where an experience has several.
METRIC = re.compile(
    r"Top1_Acc_Exp/eval_phase/(?P<stream>[^/]{1,100})_stream(/Task[0-9]{3,6})?/Exp(?P<exp>[0-9]{3,})"
)
SIGN = "Top1_Acc_Exp/eval_phase/"

# A test: buckets trained before it, stream, experience, accuracy.
Cell = tuple[int, str, int, float]


def experience(text: str) -> int:
    """The number of an experience, counted from 0."""
    return whole(text.lstrip("0") or "0", "an experience")


def of_one_stream(cells: Iterable[Cell]) -> dict[tuple[int, int], float]:
    """The tests of one stream, by row and column: of ``test``, or of the only one there is.

    Args:
        cells: in the order in which they were written; a later test of the same takes its place.

    Raises:
        RecordError: there is none, or several streams, none of them called test.
    """
    streams: dict[str, dict[tuple[int, int], float]] = {}
    for row, stream, column, value in cells:
        streams.setdefault(stream, {})[row, column] = value
    if not streams:
        raise RecordError(f"holds no {SIGN}... of a test; log accuracy_metrics(experience=True)")
    if "test" in streams:
        return streams["test"]
    if len(streams) > 1:
        raise RecordError(f"has the streams {shown(sorted(streams))}; expected one called test")
    return next(iter(streams.values()))


def one_run(cells: Iterable[Cell], trained: int = 0) -> Parsed:
    """The matrix of one stream, where a test's row is known; row 0 is the initialisation.

    Args:
        cells: in the order in which they were written.
        trained: buckets that were trained in all.

    Raises:
        RecordError: there is none, or several streams, none of them called test.
    """
    tests = of_one_stream(cells)
    rows = grid(tests, trained + 1)
    # Row 0, before any training, is no bucket: the grid has one row more than there are buckets.
    width = max(trained, len(rows) - 1, 1 + max(j for _, j in tests))
    first = rows[0][:width]
    tested = any(not math.isnan(value) for value in first)
    return Parsed(
        rows=[row[:width] for row in rows[1:]] or [[NAN] * width],
        initial=first if tested else None,
    )
