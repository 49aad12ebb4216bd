"""What several seeds say of a method: mean, spread, and permutation tests whose unit is the seed.

This is the question that a paper asks, whether one *method* is better than another: the seeds vary,
and with them what is trained. Tests over test images ask another one, of two trained models. Tests
that have power at three seeds are in :mod:`clear_mlflow.statistics.t_tests`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from scipy.stats import permutation_test

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level

# Up to so many relabellings, all of them are looked at; above, so many are drawn.
_LARGEST_EXACT = 2**14
# Values that differ by rounding alone are the same.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class SeedSummary:
    """A metric over several seeds of one method."""

    n: int
    mean: float
    std: float | None  # of a sample: divided by n - 1; None: one seed has no spread
    interval: Interval | None  # of the mean, by Student's t; None: no two seeds that differ


@dataclass(frozen=True)
class SeedTest:
    """Whether two methods differ, with the seed as the unit."""

    difference: float  # mean of a minus mean of b
    p_value: float  # two-sided
    smallest_p: float  # what p would be if the seeds differed as clearly as they can
    n_a: int
    n_b: int
    paired: bool
    exact: bool  # whether every relabelling was looked at


def seed_summary(values: Sequence[float], *, level: float = 0.95) -> SeedSummary:
    """Mean, standard deviation and Student's t interval of a metric over seeds.

    Seeds that all gave the same value have a standard deviation of 0 and no interval: one of width
    0 would say that the mean is known exactly.

    Args:
        values: the metric, one per seed.
        level: of confidence, between 0 and 1.

    Raises:
        RecordError: there is no value, or one is no finite number.
        ConfigError: the level is none.

    >>> summary = seed_summary([0.80, 0.82, 0.84])
    >>> summary.n, round(summary.mean, 3), round(summary.std, 3)
    (3, 0.82, 0.02)
    >>> [round(end, 3) for end in summary.interval]
    [0.77, 0.87]
    """
    check_level(level)
    found = finite_values("values", values)
    n, mean = len(found), float(found.mean())
    if n == 1:
        return SeedSummary(n, mean, None, None)
    if np.ptp(found) <= _ROUNDING:
        return SeedSummary(n, mean, 0.0, None)
    std = float(found.std(ddof=1))
    # What t.ppf gives, without its checks: a sixth of the time of a comparison of 50 runs.
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * std / math.sqrt(n)
    return SeedSummary(n, mean, std, Interval(mean - half, mean + half))


def paired_permutation(
    values_a: Sequence[float], values_b: Sequence[float], *, seed: int = 0
) -> SeedTest:
    """Sign-flip test: do two methods differ, where value i of both is of the same seed?

    Under the null each pair could as well be the other way round. The statistic is the mean
    difference; up to 14 pairs, all 2**n ways are used; with more pairs, 16,384 drawn ones. With n
    pairs p cannot fall below 2 / 2**n: fewer than six pairs can never reach 0.05.

    Args:
        values_a: the metric of method A, one per seed.
        values_b: of method B, in the same order of seeds.
        seed: of the drawn ways, where there are too many for all.

    Raises:
        RecordError: the numbers of values differ, or one is no finite number.

    Source:
        Fisher 1935, The design of experiments, section 21; computed by
        ``scipy.stats.permutation_test`` with ``permutation_type="samples"``.

    >>> test = paired_permutation([0.81, 0.84, 0.83], [0.80, 0.81, 0.78])
    >>> round(test.difference, 3), test.p_value, test.smallest_p
    (0.03, 0.25, 0.25)
    """
    change = paired_differences(values_a, values_b)
    n = len(change)
    exact = 2**n <= _LARGEST_EXACT
    p_value = 1.0
    # One pair, or none that differs: every way round is as far from 0.
    if n > 1 and bool(change.any()):
        p_value = _p_value((change,), "samples", exact, seed)
    smallest = 2 / 2**n if exact else 2 / (_LARGEST_EXACT + 1)
    return SeedTest(
        difference=float(change.mean()),
        p_value=p_value,
        smallest_p=min(1.0, smallest),
        n_a=n,
        n_b=n,
        paired=True,
        exact=exact,
    )


def unpaired_permutation(
    values_a: Sequence[float], values_b: Sequence[float], *, seed: int = 0
) -> SeedTest:
    """Label permutation test: do two methods differ, where their seeds are not the same?

    Under the null every value could as well be of the other method. The statistic is the
    difference of the means; all ways to share the values out are looked at where there are 16,384
    or fewer, else so many drawn ones. With n and m seeds p cannot fall below 2 / C(n + m, n).

    Args:
        values_a: the metric of method A, one per seed.
        values_b: of method B; may be of another number.
        seed: of the drawn ways, where there are too many for all.

    Raises:
        RecordError: a side has no value, or one is no finite number.

    Source:
        Fisher 1935; computed by ``scipy.stats.permutation_test`` with
        ``permutation_type="independent"``.

    >>> test = unpaired_permutation([0.81, 0.84, 0.83, 0.85], [0.80, 0.79, 0.78, 0.77])
    >>> round(test.difference, 4), round(test.p_value, 4), test.exact
    (0.0475, 0.0286, True)
    """
    a, b = finite_values("values of A", values_a), finite_values("values of B", values_b)
    n, m = len(a), len(b)
    ways = math.comb(n + m, n)
    exact = ways <= _LARGEST_EXACT
    if min(n, m) == 1:  # scipy wants two of each
        p_value = _one_against(a, b) if n == 1 else _one_against(b, a)
    else:
        p_value = _p_value((a, b), "independent", exact, seed)
    return SeedTest(
        difference=float(a.mean() - b.mean()),
        p_value=p_value,
        smallest_p=min(1.0, 2 / (ways if exact else _LARGEST_EXACT + 1)),
        n_a=n,
        n_b=m,
        paired=False,
        exact=exact,
    )


def _p_value(samples: tuple[NDArray[np.float64], ...], kind: str, exact: bool, seed: int) -> float:
    # On one scale, and rounded: 0.1 + 0.2 and 0.3 are a tie, and have to count as one.
    scale = max(float(np.abs(sample).max()) for sample in samples) or 1.0

    def statistic(*parts: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        means = [part.mean(axis=axis) for part in parts]
        found: NDArray[np.float64] = means[0] if len(means) == 1 else means[0] - means[1]
        return np.asarray(np.round(found, 12))

    result = permutation_test(
        tuple(sample / scale for sample in samples),
        statistic,
        permutation_type=kind,
        vectorized=True,
        n_resamples=np.inf if exact else _LARGEST_EXACT,
        batch=4096,
        alternative="two-sided",
        random_state=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def _one_against(one: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The label test where one side has a single value: each value in turn could be that one."""
    pooled = np.concatenate([one, others])
    seen = pooled - (pooled.sum() - pooled) / len(others)
    margin = 1e-12 * float(np.abs(pooled).max())
    below, above = (seen <= seen[0] + margin).mean(), (seen >= seen[0] - margin).mean()
    return min(1.0, 2 * float(min(below, above)))


def paired_differences(values_a: Sequence[float], values_b: Sequence[float]) -> NDArray[np.float64]:
    """(n,): a - b of a metric of two methods, one per seed.

    Raises:
        RecordError: the numbers of values differ, or one is no finite number.
    """
    a, b = finite_values("values of A", values_a), finite_values("values of B", values_b)
    if len(a) != len(b):
        raise RecordError(
            f"{len(a)} and {len(b)} values arrived to be paired; expected one of each per seed: "
            "leave out the seeds that only one side has, or compare unpaired"
        )
    return a - b


def finite_values(what: str, values: Sequence[float]) -> NDArray[np.float64]:
    """(n,): the values of a metric, one per seed, at least one.

    Raises:
        RecordError: there is none, or one is no finite number.
    """
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{what} are {shown(values)}; expected a number per seed") from error
    if found.ndim != 1 or len(found) == 0 or not bool(np.isfinite(found).all()):
        raise RecordError(
            f"{what} are {shown(values)}; expected a finite number per seed, at least one: leave "
            "out runs in which the metric is not defined"
        )
    return found
