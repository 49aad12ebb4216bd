"""Many comparisons at once: the more are made, the more look real by luck alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr


def holm(p_values: Sequence[float], *, family: int | None = None) -> list[float]:
    """Holm's step-down adjustment: the chance of any false finding stays below the level.

    Valid however the tests depend on each other.

    Args:
        p_values: of the comparisons.
        family: how many comparisons there are in all, where some are left out because they would
            show less: each of those counts as a p of 1. None: as many as there are p-values.

    Returns:
        Adjusted p-values in the same order: below 0.05 is a finding at the level of 5 %.

    Raises:
        RecordError: one of them is no number from 0 to 1, or the family is smaller than they are.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    factors = holm_factors(p_values, family=family)
    return [min(1.0, factor * p) for factor, p in zip(factors, p_values, strict=True)]


def holm_factors(p_values: Sequence[float], *, family: int | None = None) -> list[float]:
    """By how much Holm's adjustment multiplies each p-value, at least 1; arguments as of holm.

    An interval at a level of ``1 - alpha / factor`` agrees with the adjusted test: it leaves out 0
    just where the adjusted p-value is at most alpha. Of a p of 0 the factor is the family's size.

    >>> [round(factor, 2) for factor in holm_factors([0.01, 0.04, 0.03])]
    [3.0, 1.5, 2.0]
    """
    found = np.array(p_values, dtype=np.float64)
    if found.ndim != 1 or not bool(((found >= 0) & (found <= 1)).all()):
        raise RecordError(f"p-values are {safe_repr(p_values)}; expected numbers from 0 to 1")
    size = len(found) if family is None else family
    if size < len(found):
        raise RecordError(f"{len(found)} p-values of a family of {size} arrived; expected no more")
    order = np.argsort(found, kind="stable")
    ordered, factors = found[order], np.full(len(found), float(size))
    adjusted = np.maximum.accumulate(np.arange(size, size - len(found), -1) * ordered)
    above = ordered > 0
    factors[order[above]] = adjusted[above] / ordered[above]
    return [float(factor) for factor in factors]
