"""How many seeds it would take: the power of the t-tests, and of the tests of equivalence."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np
from scipy.special import stdtrit
from scipy.stats import nct

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.statistics.seeds import TTest

POWER = 0.8  # the chance of a finding that is worth training for
FEWEST = 3  # seeds of a verdict
MOST = 100  # seeds that anybody trains


def power(test: TTest, seeds: int, *, alpha: float = 0.05, margin: float | None = None) -> float:
    """How likely a finding is with another number of seeds, if difference and spread stay.

    Args:
        test: whose difference and spread are taken for the truth.
        seeds: of each method, at least 2.
        alpha: up to which p is a finding, after any adjustment.
        margin: None: of a difference; else of equivalence within this margin.

    Returns:
        A probability; of equivalence a lower bound that is close where the power is high. Of
        Welch's test at few seeds up to a tenth too high: its freedom is estimated, too.

    Raises:
        ConfigError: the number of seeds or alpha is none.

    Source:
        The noncentral t distribution; Cohen 1988, Statistical power analysis, section 2.2, and
        Phillips 1990 for two one-sided tests.

    >>> test = TTest(difference=2.0, error=1 / 5**0.5, freedom=4, n_a=5, n_b=5, paired=True)
    >>> round(power(test, 5), 2)
    0.91
    """
    if seeds < 2 or not 0 < alpha < 1:
        raise ConfigError(
            f"{safe_repr(seeds)} seeds and alpha {safe_repr(alpha)} arrived; expected at least 2 "
            "seeds and an alpha between 0 and 1"
        )
    # As if both sides had as many: the squared error falls with the harmonic mean of the two.
    before = 2 / (1 / test.n_a + 1 / test.n_b)
    error = test.error * math.sqrt(before / seeds)
    freedom = seeds - 1 if test.paired else max(test.freedom * (seeds - 1) / (before - 1), 1.0)
    if margin is None:
        critical, effect = float(stdtrit(freedom, 1 - alpha / 2)), abs(test.difference) / error
        return _above(critical, freedom, effect) + _above(critical, freedom, -effect)
    critical = float(stdtrit(freedom, 1 - alpha))
    sides = [_above(critical, freedom, (margin + s * test.difference) / error) for s in (1, -1)]
    return max(0.0, sum(sides) - 1)


def seeds_needed(test: TTest, *, alpha: float = 0.05, margin: float | None = None) -> int | None:
    """The smallest number of seeds of each method with a power of 80 %.

    Args:
        test: whose difference and spread are taken for the truth.
        alpha: up to which p is a finding, after any adjustment.
        margin: None: for a difference; else for equivalence within this margin.

    Returns:
        At least 3; None where 100 would not be enough.

    >>> test = TTest(difference=1.0, error=1 / 3**0.5, freedom=2, n_a=3, n_b=3, paired=True)
    >>> seeds_needed(test), seeds_needed(test, alpha=0.05 / 15)
    (10, 19)
    """
    number = FEWEST + bisect_left(
        range(FEWEST, MOST + 1),
        POWER,
        key=lambda seeds: power(test, seeds, alpha=alpha, margin=margin),
    )
    return number if number <= MOST else None


def _above(critical: float, freedom: float, effect: float) -> float:
    """P(T > critical) of a noncentral t."""
    if effect > 30 + critical:  # scipy's series gives up there, at what is certain
        return 1.0
    if effect < 0:
        # The far tail: as the lower tail of the mirrored distribution, which does not cancel.
        found: Any = nct.cdf(-critical, freedom, -effect)
    else:
        found = nct.sf(critical, freedom, effect)
    return float(np.clip(np.nan_to_num(found), 0.0, 1.0))
