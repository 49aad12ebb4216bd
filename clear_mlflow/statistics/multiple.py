"""Adjust p-values for the number of comparisons: the more are made, the more differ by chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr


def holm(p_values: Sequence[float], *, family: int | None = None) -> list[float]:
    """Adjust p-values by Holm's step-down method.

    It bounds the chance of any false positive, however the tests depend on each other.

    Args:
        p_values: p-value of each comparison.
        family: number of all comparisons, if some are left out because their p-values are larger:
            each of those counts as a p of 1. By default, the number of p-values.

    Returns:
        Adjusted p-values in the same order; below 0.05 is significant at the level of 5 %.

    Raises:
        RecordError: a p-value is not from 0 to 1, or the family has fewer members.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    factors = holm_factors(p_values, family=family)
    return [min(1.0, factor * p) for factor, p in zip(factors, p_values, strict=True)]


def holm_factors(p_values: Sequence[float], *, family: int | None = None) -> list[float]:
    """Return the factor, at least 1, by which :func:`holm` multiplies each p-value.

    An interval at a level of ``1 - alpha / factor`` agrees with the adjusted test: it excludes 0 if
    and only if the adjusted p-value is at most alpha. The factor of a p of 0 is the family's size.

    >>> [round(factor, 2) for factor in holm_factors([0.01, 0.04, 0.03])]
    [3.0, 1.5, 2.0]
    """
    values = np.array(p_values, dtype=np.float64)
    if values.ndim != 1 or not bool(((values >= 0) & (values <= 1)).all()):
        raise RecordError(f"p-values are {safe_repr(p_values)}; expected numbers from 0 to 1")
    size = len(values) if family is None else family
    if size < len(values):
        raise RecordError(
            f"{len(values)} p-values arrived for a family of {size}; expected at most {size}"
        )
    order = np.argsort(values, kind="stable")
    ordered, factors = values[order], np.full(len(values), float(size))
    adjusted = np.maximum.accumulate(np.arange(size, size - len(values), -1) * ordered)
    positive = ordered > 0
    factors[order[positive]] = adjusted[positive] / ordered[positive]
    return [float(factor) for factor in factors]
