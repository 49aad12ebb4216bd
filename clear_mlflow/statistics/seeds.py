"""What several seeds show of a method: mean and spread, Student's and Welch's t, effect size.

The seed is the unit: is one *method* better than another? The t-tests take the values of a metric,
or their differences where seeds are shared, as independent and normally distributed. Tests over
test images ask about two trained models: :mod:`clear_mlflow.statistics.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, stdtr, stdtrit

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.statistics.intervals import Interval, check_level

# Values that differ by rounding alone are the same: there is no spread to test against.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class SeedSummary:
    """A metric over several seeds of one method."""

    n: int
    mean: float
    std: float | None  # of a sample: divided by n - 1; None: one seed has no spread
    interval: Interval | None  # of the mean, by Student's t; None: no two seeds that differ


@dataclass(frozen=True)
class TTest:
    """A difference of two means over seeds, and how well it is known."""

    difference: float  # mean of a minus mean of b
    error: float  # standard error of the difference, above 0
    freedom: float  # degrees of freedom
    n_a: int  # seeds; of both the same where they are paired
    n_b: int
    paired: bool

    @property
    def p_value(self) -> float:
        """Two-sided: of no difference."""
        return float(2 * stdtr(self.freedom, -abs(self.difference) / self.error))

    def interval(self, level: float = 0.95) -> Interval:
        """Of the difference: contains 0 just where the p-value is above ``1 - level``.

        Raises:
            ConfigError: the level is not between 0 and 1.
        """
        return _interval(self.difference, self.error, self.freedom, level)

    def equivalence_p(self, margin: float) -> float:
        """The p-value of two one-sided tests: small where the difference is within the margin.

        Args:
            margin: the largest difference that does not matter, above 0, in the metric's unit.

        Raises:
            ConfigError: the margin is not above 0.

        Source:
            Schuirmann 1987; Lakens 2017, Equivalence tests, Social Psychological and Personality
            Science 8.

        >>> test = paired_t([0.81, 0.84, 0.83, 0.82], [0.80, 0.84, 0.84, 0.82])
        >>> round(test.equivalence_p(0.03), 4)
        0.0026
        """
        if not margin > 0 or not math.isfinite(margin):
            raise ConfigError(f"margin is {safe_repr(margin)}; expected a number above 0")
        above = stdtr(self.freedom, -(self.difference + margin) / self.error)
        below = stdtr(self.freedom, (self.difference - margin) / self.error)
        return float(max(above, below))


def seed_summary(values: Sequence[float], *, level: float = 0.95) -> SeedSummary:
    """Mean, standard deviation and Student's t interval of a metric over seeds.

    Seeds that all gave the same value have a standard deviation of 0 and no interval: one of width
    0 would say that the mean is known exactly.

    Args:
        values: the metric, one per seed.
        level: of confidence, between 0 and 1.

    Raises:
        RecordError: there is no value, or one is no finite number.
        ConfigError: the level is not between 0 and 1.

    >>> summary = seed_summary([0.80, 0.82, 0.84])
    >>> summary.n, round(summary.mean, 3), round(summary.std, 3)
    (3, 0.82, 0.02)
    >>> [round(end, 3) for end in summary.interval]
    [0.77, 0.87]
    """
    check_level(level)
    found = _finite("values", values)
    n, mean = len(found), float(found.mean())
    if n == 1:
        return SeedSummary(n, mean, None, None)
    if np.ptp(found) <= _ROUNDING:
        return SeedSummary(n, mean, 0.0, None)
    std = float(found.std(ddof=1))
    return SeedSummary(n, mean, std, _interval(mean, std / math.sqrt(n), n - 1, level))


def paired_t(values_a: Sequence[float], values_b: Sequence[float]) -> TTest | None:
    """Student's t of the differences, where value i of both is of the same seed.

    Args:
        values_a: the metric of method A, one per seed.
        values_b: of method B, in the same order of seeds.

    Returns:
        None where there is no spread to test against: one pair, or the same difference in all.

    Raises:
        RecordError: the numbers of values differ, or one is no finite number.

    Source:
        Student 1908; as ``scipy.stats.ttest_rel``.

    >>> test = paired_t([0.81, 0.84, 0.83], [0.80, 0.81, 0.78])
    >>> round(test.difference, 3), round(test.p_value, 3), test.freedom
    (0.03, 0.122, 2)
    """
    a, b = _finite("values of A", values_a), _finite("values of B", values_b)
    if len(a) != len(b):
        raise RecordError(
            f"{len(a)} and {len(b)} values arrived to be paired; expected one of each per seed: "
            "leave out the seeds that only one side has, or compare unpaired"
        )
    change, n = a - b, len(a)
    if n == 1 or np.ptp(change) <= _ROUNDING:
        return None
    error = float(change.std(ddof=1)) / math.sqrt(n)
    return TTest(float(change.mean()), error, n - 1, n, n, paired=True)


def welch_t(values_a: Sequence[float], values_b: Sequence[float]) -> TTest | None:
    """Welch's t of two means, where the seeds are not the same; the spreads need not be equal.

    A side without any spread counts as known exactly.

    Args:
        values_a: the metric of method A, one per seed.
        values_b: of method B; may be of another number.

    Returns:
        None where there is no spread to test against: one value on a side, or no spread on both.

    Raises:
        RecordError: a side has no value, or one is no finite number.

    Source:
        Welch 1947; as ``scipy.stats.ttest_ind`` with ``equal_var=False``.

    >>> test = welch_t([0.81, 0.84, 0.83, 0.85], [0.80, 0.79, 0.78])
    >>> round(test.difference, 4), round(test.p_value, 4), round(test.freedom, 2)
    (0.0425, 0.0098, 4.85)
    """
    a, b = _finite("values of A", values_a), _finite("values of B", values_b)
    n, m = len(a), len(b)
    if min(n, m) == 1 or max(np.ptp(a), np.ptp(b)) <= _ROUNDING:
        return None
    of_a, of_b = float(a.var(ddof=1)) / n, float(b.var(ddof=1)) / m
    spread = of_a + of_b
    # As shares, because the square of a tiny variance is 0.
    freedom = 1 / ((of_a / spread) ** 2 / (n - 1) + (of_b / spread) ** 2 / (m - 1))
    return TTest(float(a.mean() - b.mean()), math.sqrt(spread), freedom, n, m, paired=False)


def hedges_g(values_a: Sequence[float], values_b: Sequence[float]) -> float | None:
    """The difference of two means in pooled standard deviations, corrected for few seeds.

    Args:
        values_a: the metric of method A, one per seed.
        values_b: of method B.

    Returns:
        Above 0 where A has more; None where there is no spread to measure by, or no two values.

    Raises:
        RecordError: a side has no value, or one is no finite number.

    Source:
        Hedges 1981, Distribution theory for Glass's estimator of effect size, with its exact
        correction ``gamma(m / 2) / (sqrt(m / 2) gamma((m - 1) / 2))``, m = n_a + n_b - 2.

    >>> round(hedges_g([0.81, 0.84, 0.83], [0.80, 0.81, 0.78]), 3)
    1.567
    """
    a, b = _finite("values of A", values_a), _finite("values of B", values_b)
    freedom = len(a) + len(b) - 2
    if freedom < 2 or max(np.ptp(a), np.ptp(b)) <= _ROUNDING:
        return None
    squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
    correction = math.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2))
    correction /= math.sqrt(freedom / 2)
    return correction * float(a.mean() - b.mean()) / math.sqrt(squares / freedom)


def _interval(middle: float, error: float, freedom: float, level: float) -> Interval:
    check_level(level)
    half = float(stdtrit(freedom, 0.5 + level / 2)) * error
    return Interval(middle - half, middle + half)


def _finite(what: str, values: Sequence[float]) -> NDArray[np.float64]:
    """(n,): the values of a metric, one per seed, at least one."""
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.ndim != 1 or len(found) == 0 or not bool(np.isfinite(found).all()):
        raise RecordError(
            f"{what} are {safe_repr(values)}; expected a finite number per seed, at least one: "
            "leave out runs in which the metric is not defined"
        )
    return found
