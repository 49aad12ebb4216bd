"""Student's and Welch's t over seeds: tests that have power at three seeds, and their intervals.

They take the values of a metric, or their differences where seeds are shared, as normally
distributed. :mod:`clear_mlflow.statistics.seeds` has permutation tests, which do not, and which
need more seeds for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level
from clear_mlflow.statistics.seeds import finite_values, paired_differences

# Seeds that differ by rounding alone have no spread to test against.
_ROUNDING = 1e-12


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
        """Of the difference: holds 0 just where the p-value is above ``1 - level``.

        Raises:
            ConfigError: the level is none.
        """
        check_level(level)
        half = float(stdtrit(self.freedom, 0.5 + level / 2)) * self.error
        return Interval(self.difference - half, self.difference + half)

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
            raise ConfigError(f"margin is {shown(margin)}; expected a number above 0")
        above = stdtr(self.freedom, -(self.difference + margin) / self.error)
        below = stdtr(self.freedom, (self.difference - margin) / self.error)
        return float(max(above, below))


def paired_t(values_a: Sequence[float], values_b: Sequence[float]) -> TTest | None:
    """Student's t of the differences, where value i of both is of the same seed.

    Assumes that the differences are independent and normally distributed.

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
    change = paired_differences(values_a, values_b)
    n = len(change)
    if n == 1 or np.ptp(change) <= _ROUNDING:
        return None
    error = float(change.std(ddof=1)) / math.sqrt(n)
    return TTest(float(change.mean()), error, n - 1, n, n, paired=True)


def welch_t(values_a: Sequence[float], values_b: Sequence[float]) -> TTest | None:
    """Welch's t of two means, where the seeds are not the same; the spreads need not be equal.

    Assumes that the values of each side are independent and normally distributed. A side without
    any spread counts as known exactly.

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
    a, b = finite_values("values of A", values_a), finite_values("values of B", values_b)
    n, m = len(a), len(b)
    if min(n, m) == 1 or max(np.ptp(a), np.ptp(b)) <= _ROUNDING:
        return None
    of_a, of_b = float(a.var(ddof=1)) / n, float(b.var(ddof=1)) / m
    spread = of_a + of_b
    # As shares, because the square of a tiny variance is 0.
    freedom = 1 / ((of_a / spread) ** 2 / (n - 1) + (of_b / spread) ** 2 / (m - 1))
    difference = float(a.mean() - b.mean())
    return TTest(difference, math.sqrt(spread), freedom, n, m, paired=False)
