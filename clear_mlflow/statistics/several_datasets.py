"""Methods over several datasets: the interquartile mean with its interval, and average ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import friedmanchisquare, rankdata, studentized_range, trim_mean

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.statistics.intervals import Interval, check_level
from clear_mlflow.statistics.seeds import finite_values

# The ends of a 95 % interval move by a few thousandths of its width from one seed to the next.
_RESAMPLES = 2000


@dataclass(frozen=True)
class RankTest:
    """Methods ranked within each dataset, and averaged over datasets."""

    ranks: tuple[float, ...]  # one per method; 1 is best, ties share
    critical_difference: float  # two methods whose ranks are further apart than this differ
    p_value: float | None  # Friedman's, that all are equal; None: two methods have none
    datasets: int


def interquartile_mean(
    values: Sequence[Sequence[float]], *, level: float = 0.95
) -> tuple[float, Interval | None]:
    """The mean of the middle half of all values, of all datasets together.

    Seeds are drawn with replacement within each dataset for its interval, 2,000 times, and the same
    ones again for the same values.

    Args:
        values: for each dataset the metric of one method, one per seed.
        level: of confidence, between 0 and 1.

    Returns:
        The mean and its percentile interval; None where no dataset has seeds that differ.

    Raises:
        RecordError: there is no dataset, or a value is no finite number.
        ConfigError: the level is none.

    Source:
        Agarwal et al. 2021, Deep RL at the edge of the statistical precipice, section 4.3.

    >>> mean, _ = interquartile_mean([[0.90, 0.91, 0.10, 0.92], [0.70, 0.71, 0.72, 0.99]])
    >>> round(mean, 3)
    0.81
    """
    check_level(level)
    if not values:
        raise RecordError("no dataset arrived; expected the values of one at least")
    of_each = [finite_values("values of a dataset", found) for found in values]
    mean = float(trim_mean(np.concatenate(of_each), 0.25))
    if all(np.ptp(found) <= 1e-12 for found in of_each):
        return mean, None
    draws = np.random.default_rng(0)
    drawn = np.concatenate(
        [found[draws.integers(0, len(found), (_RESAMPLES, len(found)))] for found in of_each],
        axis=1,
    )
    means = trim_mean(drawn, 0.25, axis=1)
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return mean, Interval(float(low), float(high))


def average_ranks(
    scores: ArrayLike, *, higher_is_better: bool = True, level: float = 0.95
) -> RankTest:
    """Average ranks of methods over datasets, with Nemenyi's critical difference.

    Args:
        scores: (datasets, methods), one score of each method on each dataset; at least 2 of both.
        higher_is_better: whether more of the metric is better.
        level: of confidence, between 0 and 1.

    Raises:
        RecordError: the scores are of another shape, or one is no finite number.
        ConfigError: the level is none.

    Source:
        Demsar 2006, Statistical comparisons of classifiers over multiple data sets, JMLR 7,
        section 3.2.2.

    >>> found = average_ranks([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.8, 0.9, 0.3]])
    >>> [round(rank, 2) for rank in found.ranks], round(found.critical_difference, 2)
    ([1.33, 1.67, 3.0], 1.91)
    """
    check_level(level)
    found = np.array(scores, dtype=np.float64)
    if found.ndim != 2 or min(found.shape) < 2 or not bool(np.isfinite(found).all()):
        raise RecordError(
            f"scores are {shown(found.tolist(), 200)}; expected a finite number for each of at "
            "least 2 methods on each of at least 2 datasets"
        )
    datasets, methods = found.shape
    ranks = rankdata(-found if higher_is_better else found, axis=1).mean(axis=0)
    quantile = float(studentized_range.ppf(level, methods, np.inf)) / math.sqrt(2)
    p_value = float(friedmanchisquare(*found.T).pvalue) if methods > 2 else None
    return RankTest(
        ranks=tuple(float(rank) for rank in ranks),
        critical_difference=quantile * math.sqrt(methods * (methods + 1) / (6 * datasets)),
        p_value=None if p_value is None or math.isnan(p_value) else p_value,
        datasets=datasets,
    )
