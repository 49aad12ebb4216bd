"""Many comparisons at once: the more are made, the more look real by luck alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the chance of any false finding stays below the level.

    Valid however the tests depend on each other.

    Args:
        p_values: of all comparisons that were made, also of those that are not shown.

    Returns:
        Adjusted p-values in the same order: below 0.05 is a finding at the level of 5 %.

    Raises:
        RecordError: one of them is no number from 0 to 1.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    found = np.array(p_values, dtype=np.float64)
    if found.ndim != 1 or not bool(((found >= 0) & (found <= 1)).all()):
        raise RecordError(f"p-values are {shown(p_values)}; expected numbers from 0 to 1")
    order = np.argsort(found, kind="stable")
    factors = np.arange(len(found), 0, -1)
    adjusted = np.empty(len(found))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * found[order]))
    return [float(p) for p in adjusted]
