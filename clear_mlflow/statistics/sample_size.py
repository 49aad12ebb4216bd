"""Compute how many seeds are needed: the power of t-tests and of tests of equivalence."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from scipy.special import nctdtr, stdtrit

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.statistics.seeds import TTest

POWER = 0.8  # probability of a significant result that is worth a training
MIN_SEEDS = 3  # for a test
MAX_SEEDS = 100  # that anybody trains


def power(test: TTest, seeds: int, *, alpha: float = 0.05, margin: float | None = None) -> float:
    """Return the probability of a significant result with another number of seeds.

    Args:
        test: test whose difference and standard error are taken for the true ones.
        seeds: number of seeds of each method, at least 2.
        alpha: largest significant p-value, after any adjustment.
        margin: margin of a test of equivalence, or None for a test of a difference.

    Returns:
        A probability; for equivalence a lower bound that is close if the power is high. For
        Welch's test with few seeds it is up to 0.1 too high: its degrees of freedom are estimated.

    Raises:
        ConfigError: seeds is below 2, or alpha is not between 0 and 1.

    Source:
        The noncentral t distribution; Cohen 1988, Statistical power analysis, section 2.2, and
        Phillips 1990 for two one-sided tests.

    >>> test = TTest(difference=2.0, error=1 / 5**0.5, freedom=4, n_a=5, n_b=5, paired=True)
    >>> round(power(test, 5), 2)
    0.91
    """
    if seeds < 2 or not 0 < alpha < 1:
        raise ConfigError(
            f"got {safe_repr(seeds)} seeds and alpha {safe_repr(alpha)}; expected at least 2 "
            "seeds and an alpha between 0 and 1"
        )
    # Of unequal groups: as if both had as many, since the squared error is 1 / n_a + 1 / n_b.
    before = 2 / (1 / test.n_a + 1 / test.n_b)
    error = test.error * math.sqrt(before / seeds)
    freedom = seeds - 1 if test.paired else max(test.freedom * (seeds - 1) / (before - 1), 1.0)
    if margin is None:
        critical, effect = float(stdtrit(freedom, 1 - alpha / 2)), abs(test.difference) / error
        return sum(_compute_tail(critical, freedom, sign * effect) for sign in (1, -1))
    critical = float(stdtrit(freedom, 1 - alpha))
    effects = [(margin + sign * test.difference) / error for sign in (1, -1)]
    return max(0.0, sum(_compute_tail(critical, freedom, effect) for effect in effects) - 1)


def seeds_needed(test: TTest, *, alpha: float = 0.05, margin: float | None = None) -> int | None:
    """Return how many seeds of each method have a power of 80 %.

    Args:
        test: test whose difference and standard error are taken for the true ones.
        alpha: largest significant p-value, after any adjustment.
        margin: margin of a test of equivalence, or None for a test of a difference.

    Returns:
        A number from 3 to 100, or None if 100 seeds are not enough.

    Raises:
        ConfigError: alpha is not between 0 and 1.

    >>> test = TTest(difference=1.0, error=1 / 3**0.5, freedom=2, n_a=3, n_b=3, paired=True)
    >>> seeds_needed(test), seeds_needed(test, alpha=0.05 / 15)
    (10, 19)
    """
    number = MIN_SEEDS + bisect_left(
        range(MIN_SEEDS, MAX_SEEDS + 1),
        POWER,
        key=lambda seeds: power(test, seeds, alpha=alpha, margin=margin),
    )
    return number if number <= MAX_SEEDS else None


def _compute_tail(critical: float, freedom: float, effect: float) -> float:
    """Return P(T > critical) for a noncentral t. effect: its noncentrality."""
    if effect > 30 + critical:  # scipy's series does not converge there
        return 1.0
    if effect < 0:
        # As the lower tail of the mirrored distribution, which does not cancel.
        probability = nctdtr(freedom, -effect, -critical)
    else:
        probability = 1 - nctdtr(freedom, effect, critical)
    return float(np.clip(np.nan_to_num(probability), 0.0, 1.0))
