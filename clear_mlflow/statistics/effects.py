"""How large a difference over seeds is: in standard deviations, and as a chance to be better."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, stdtrit
from scipy.stats import rankdata

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level
from clear_mlflow.statistics.seeds import finite_values


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
    a, b = finite_values("values of A", values_a), finite_values("values of B", values_b)
    freedom = len(a) + len(b) - 2
    if freedom < 2 or max(np.ptp(a), np.ptp(b)) <= 1e-12:
        return None
    squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
    correction = math.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2))
    correction /= math.sqrt(freedom / 2)
    return correction * float(a.mean() - b.mean()) / math.sqrt(squares / freedom)


def probability_of_improvement(
    values_a: Sequence[float],
    values_b: Sequence[float],
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
) -> tuple[float, Interval]:
    """How often a run of A is better than a run of B; a tie counts half.

    The estimate is Mann and Whitney's, as rliable has it. A bootstrap of three seeds that all agree
    would give an interval from 1 to 1; this one, Newcombe's, does not. His normal quantile covers
    0.90 at three seeds; Student's, with the freedom of the pooled spread, covers at least 0.95.

    Args:
        values_a: the metric of method A, one per seed; an infinite value, as of a run that
            diverged, is better or worse than every finite one.
        values_b: of method B.
        higher_is_better: whether more of the metric is better.
        level: of confidence, between 0 and 1.

    Returns:
        The probability and its interval, within 0 to 1; seeds count as not shared.

    Raises:
        RecordError: a side has no value, or one is NaN.
        ConfigError: the level is none.

    Source:
        Mann & Whitney 1947; Agarwal et al. 2021, Deep RL at the edge of the statistical precipice;
        Newcombe 2006, Confidence intervals for an effect size measure based on the Mann-Whitney
        statistic, part 2, Statistics in Medicine 25, method 5.

    >>> chance, (low, high) = probability_of_improvement([3, 4, 5], [1, 2, 3])
    >>> round(chance, 3), round(low, 3), round(high, 3)
    (0.944, 0.302, 0.998)
    """
    check_level(level)
    a, b = np.array(values_a, dtype=np.float64), np.array(values_b, dtype=np.float64)
    for name, values in (("values of A", a), ("values of B", b)):
        if values.ndim != 1 or len(values) == 0 or bool(np.isnan(values).any()):
            raise RecordError(f"{name} are {shown(values.tolist())}; expected a number per seed")
    if not higher_is_better:
        a, b = -a, -b
    n, m = len(a), len(b)
    ranks = rankdata(np.concatenate([a, b]))
    chance = float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))
    z, more = float(stdtrit(max(n + m - 2, 1), 0.5 + level / 2)), (n + m) / 2 - 1

    def beyond(truth: float) -> float:
        """Below 0 where the estimate is within z standard errors of this truth."""
        spread = 1 + more * ((1 - truth) / (2 - truth) + truth / (1 + truth))
        return (chance - truth) ** 2 - z**2 * truth * (1 - truth) * spread / (n * m)

    # An estimate of 0 or 1 is itself a root, and not the one that is looked for.
    inside = min(max(chance, 1e-9), 1 - 1e-9)
    low = 0.0 if chance == 0 else float(brentq(beyond, 0.0, inside))
    high = 1.0 if chance == 1 else float(brentq(beyond, inside, 1.0))
    return chance, Interval(low, high)
