"""Compare methods over seeds: intervals, t-tests, effect size, and how many seeds a test needs.

The tests ask whether one *method* is better than another. They assume that the values of a metric,
or their differences if seeds are shared, are independent and normally distributed. Tests over test
images ask about two trained models: :mod:`clear_mlflow.statistics.bootstrap`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, nctdtr, stdtr, stdtrit

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import safe_repr

# Values that differ only by rounding are equal, and without variation nothing can be tested.
_ROUNDING = 1e-12

POWER = 0.8  # probability of a significant result that is worth a training
MIN_SEEDS = 3  # for a test
MAX_SEEDS = 100  # that anybody trains


class Interval(NamedTuple):
    """Both ends of an interval, which belong to it."""

    low: float
    high: float


def check_level(level: float) -> None:
    """Raise ConfigError unless a confidence level is between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(
            f"level is {safe_repr(level)}; expected a fraction between 0 and 1, for example 0.95"
        )


@dataclass(frozen=True)
class SeedSummary:
    """A metric over several seeds of one method."""

    n: int
    mean: float
    std: float | None  # standard deviation with n - 1, or None for one seed
    interval: Interval | None  # of the mean, by Student's t, or None if no two seeds differ


@dataclass(frozen=True)
class TTest:
    """A difference of two means over seeds, with its standard error."""

    difference: float  # mean of a minus mean of b
    error: float  # standard error of the difference, above 0
    freedom: float  # degrees of freedom
    n_a: int  # number of seeds; the same for a and b if they are paired
    n_b: int
    paired: bool

    @property
    def p_value(self) -> float:
        """Two-sided p-value of no difference."""
        return float(2 * stdtr(self.freedom, -abs(self.difference) / self.error))

    def interval(self, level: float = 0.95) -> Interval:
        """Return an interval of the difference at a confidence level.

        It contains 0 if and only if the p-value is above ``1 - level``.

        Raises:
            ConfigError: the level is not between 0 and 1.
        """
        return _build_interval(self.difference, self.error, self.freedom, level)

    def equivalence_p(self, margin: float) -> float:
        """Return the p-value of two one-sided tests within a margin.

        Args:
            margin: largest difference that does not matter, above 0, in the metric's unit.

        Raises:
            ConfigError: the margin is not a number above 0.

        Source:
            Schuirmann 1987; Lakens 2017, Equivalence tests, Social Psychological and Personality
            Science 8.

        >>> test = paired_t([0.81, 0.84, 0.83, 0.82], [0.80, 0.84, 0.84, 0.82])
        >>> round(test.equivalence_p(0.03), 4)
        0.0026
        """
        if not margin > 0 or not math.isfinite(margin):
            raise ConfigError(f"margin is {safe_repr(margin)}; expected a number above 0")
        p_too_low = stdtr(self.freedom, -(self.difference + margin) / self.error)
        p_too_high = stdtr(self.freedom, (self.difference - margin) / self.error)
        return float(max(p_too_low, p_too_high))


def seed_summary(values: Sequence[float], *, level: float = 0.95) -> SeedSummary:
    """Return mean, standard deviation and t interval of values over seeds.

    If all seeds have the same value, the standard deviation is 0 and the interval is None: one of
    width 0 would claim that the mean is known exactly.

    Args:
        values: value of the metric for each seed.
        level: confidence level, between 0 and 1.

    Raises:
        RecordError: no value was passed, or a value is not a finite number.
        ConfigError: the level is not between 0 and 1.

    >>> summary = seed_summary([0.80, 0.82, 0.84])
    >>> summary.n, round(summary.mean, 3), round(summary.std, 3)
    (3, 0.82, 0.02)
    >>> [round(end, 3) for end in summary.interval]
    [0.77, 0.87]
    """
    check_level(level)
    array = _convert_values("values", values)
    n, mean = len(array), float(array.mean())
    if n == 1:
        return SeedSummary(n, mean, None, None)
    if np.ptp(array) <= _ROUNDING:
        return SeedSummary(n, mean, 0.0, None)
    std = float(array.std(ddof=1))
    return SeedSummary(n, mean, std, _build_interval(mean, std / math.sqrt(n), n - 1, level))


def paired_t(values_a: Sequence[float], values_b: Sequence[float]) -> TTest | None:
    """Run Student's t-test of the differences between values of the same seeds.

    Args:
        values_a: value of the metric for each seed of method A.
        values_b: value of the metric for each seed of method B, in the same order of seeds.

    Returns:
        The test, or None without variation: one pair, or the same difference in all pairs.

    Raises:
        RecordError: the numbers of values differ, or a value is not a finite number.

    Source:
        Student 1908; as ``scipy.stats.ttest_rel``.

    >>> test = paired_t([0.81, 0.84, 0.83], [0.80, 0.81, 0.78])
    >>> round(test.difference, 3), round(test.p_value, 3), test.freedom
    (0.03, 0.122, 2)
    """
    a, b = _convert_values("values of A", values_a), _convert_values("values of B", values_b)
    if len(a) != len(b):
        raise RecordError(
            f"got {len(a)} and {len(b)} values to be paired; expected one of each per seed: "
            "leave out the seeds of only one method, or compare unpaired"
        )
    change, n = a - b, len(a)
    if n == 1 or np.ptp(change) <= _ROUNDING:
        return None
    error = float(change.std(ddof=1)) / math.sqrt(n)
    return TTest(float(change.mean()), error, n - 1, n, n, paired=True)


def welch_t(values_a: Sequence[float], values_b: Sequence[float]) -> TTest | None:
    """Run Welch's t-test of two means with different seeds and unequal variances.

    The mean of a method without variation counts as known exactly.

    Args:
        values_a: value of the metric for each seed of method A.
        values_b: value of the metric for each seed of method B; another number of seeds is valid.

    Returns:
        The test, or None if a method has one value, or neither has variation.

    Raises:
        RecordError: a method is without values, or a value is not a finite number.

    Source:
        Welch 1947; as ``scipy.stats.ttest_ind`` with ``equal_var=False``.

    >>> test = welch_t([0.81, 0.84, 0.83, 0.85], [0.80, 0.79, 0.78])
    >>> round(test.difference, 4), round(test.p_value, 4), round(test.freedom, 2)
    (0.0425, 0.0098, 4.85)
    """
    a, b = _convert_values("values of A", values_a), _convert_values("values of B", values_b)
    n, m = len(a), len(b)
    if min(n, m) == 1 or max(np.ptp(a), np.ptp(b)) <= _ROUNDING:
        return None
    variance_a, variance_b = float(a.var(ddof=1)) / n, float(b.var(ddof=1)) / m
    variance = variance_a + variance_b
    # As shares, because the square of a tiny variance is 0.
    freedom = 1 / ((variance_a / variance) ** 2 / (n - 1) + (variance_b / variance) ** 2 / (m - 1))
    return TTest(float(a.mean() - b.mean()), math.sqrt(variance), freedom, n, m, paired=False)


def hedges_g(values_a: Sequence[float], values_b: Sequence[float]) -> float | None:
    """Return the difference in pooled standard deviations, corrected for few seeds.

    Args:
        values_a: value of the metric for each seed of method A.
        values_b: value of the metric for each seed of method B.

    Returns:
        A number above 0 if A has the higher mean, or None without variation or with one seed each.

    Raises:
        RecordError: a method is without values, or a value is not a finite number.

    Source:
        Hedges 1981, Distribution theory for Glass's estimator of effect size, with its exact
        correction ``gamma(m / 2) / (sqrt(m / 2) gamma((m - 1) / 2))``, m = n_a + n_b - 2.

    >>> round(hedges_g([0.81, 0.84, 0.83], [0.80, 0.81, 0.78]), 3)
    1.567
    """
    a, b = _convert_values("values of A", values_a), _convert_values("values of B", values_b)
    freedom = len(a) + len(b) - 2
    if freedom < 2 or max(np.ptp(a), np.ptp(b)) <= _ROUNDING:
        return None
    squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
    correction = math.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2))
    correction /= math.sqrt(freedom / 2)
    return correction * float(a.mean() - b.mean()) / math.sqrt(squares / freedom)


def _build_interval(center: float, error: float, freedom: float, level: float) -> Interval:
    """Return Student's t interval of a value with a standard error."""
    check_level(level)
    half_width = float(stdtrit(freedom, 0.5 + level / 2)) * error
    return Interval(center - half_width, center + half_width)


def _convert_values(description: str, values: Sequence[float]) -> NDArray[np.float64]:
    """Convert a metric's values, one per seed, to an (n,) array."""
    try:
        array = np.ma.filled(np.ma.array(values, dtype=np.float64), np.nan)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or len(array) == 0 or not bool(np.isfinite(array).all()):
        raise RecordError(
            f"{description} are {safe_repr(values)}; expected a finite number per seed, at least "
            "one: leave out runs in which the metric is not defined"
        )
    return array


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
    values = np.ma.filled(np.ma.array(p_values, dtype=np.float64), np.nan)
    if values.ndim != 1 or not bool(((values >= 0) & (values <= 1)).all()):
        raise RecordError(f"p-values are {safe_repr(p_values)}; expected numbers from 0 to 1")
    size = len(values) if family is None else family
    if size < len(values):
        raise RecordError(
            f"got {len(values)} p-values for a family of {size}; expected at most {size}"
        )
    order = np.argsort(values, kind="stable")
    ordered, factors = values[order], np.full(len(values), float(size))
    adjusted = np.maximum.accumulate(np.arange(size, size - len(values), -1) * ordered)
    positive = ordered > 0
    factors[order[positive]] = adjusted[positive] / ordered[positive]
    return [float(factor) for factor in factors]


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
            f"seeds is {safe_repr(seeds)} and alpha {safe_repr(alpha)}; expected at least 2 seeds "
            "and an alpha between 0 and 1"
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
