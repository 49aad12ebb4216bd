"""Power and numbers of seeds, compared with tables and definitions."""

import math

import numpy as np
import pytest
from scipy import stats

from clear_mlflow.statistics import TTest, paired_t, power, seeds_needed


@pytest.mark.parametrize(
    ("effect", "paired", "needed"),
    # Cohen 1988's tables at 80 %, two-sided 5 %: t of one sample, and of two.
    [(0.5, True, 34), (0.8, True, 15), (1.0, True, 10), (0.8, False, 26), (0.5, False, 64)],
)
def test_seeds_needed_equal_cohens_table(effect: float, paired: bool, needed: int) -> None:
    n = 5
    error = math.sqrt((1 if paired else 2) / n)
    test = TTest(effect, error, n - 1 if paired else 2 * (n - 1), n, n, paired=paired)
    assert seeds_needed(test) == needed
    assert power(test, needed) >= 0.8 > power(test, needed - 1)


def test_power_of_unequal_groups_is_that_of_equal_groups_with_the_same_error() -> None:
    """4 and 12 seeds equal 6 and 6: the harmonic mean."""
    unequal = TTest(1.0, math.sqrt(1 / 4 + 1 / 12), 10.0, 4, 12, paired=False)
    # With 9 seeds of each method: error sqrt(2 / 9), and 10 * 8 / 5 = 16 degrees of freedom.
    effect, critical = 1 / math.sqrt(2 / 9), stats.t.ppf(0.975, 16)
    expected = stats.nct.sf(critical, 16, effect) + stats.nct.cdf(-critical, 16, effect)
    assert power(unequal, 9) == pytest.approx(expected)
    equal = TTest(1.0, math.sqrt(2 / 6), 10.0, 6, 6, paired=False)
    assert power(unequal, 9) == pytest.approx(power(equal, 9))
    assert seeds_needed(unequal) == seeds_needed(equal)


def test_power_uses_at_least_one_degree_of_freedom() -> None:
    """Welch's estimate is 1 for 2 and 100 seeds."""
    test = TTest(5.0, math.sqrt(1 / 2 + 1 / 100), 1.0, 2, 100, paired=False)
    critical = stats.t.ppf(0.975, 1)
    expected = stats.nct.sf(critical, 1, 5.0) + stats.nct.cdf(-critical, 1, 5.0)
    assert power(test, 2) == pytest.approx(expected)


def test_seeds_needed_has_a_maximum() -> None:
    none = TTest(0.0, 0.1, 4, 5, 5, paired=True)
    assert seeds_needed(none) is None
    assert seeds_needed(TTest(5.0, 0.01, 4, 5, 5, paired=True)) == 3
    needed = seeds_needed(none, margin=0.2)
    assert needed is not None
    draws = np.random.default_rng(0)
    tests = [paired_t(draws.normal(0, 0.1 * 5**0.5, needed), np.zeros(needed)) for _ in range(2000)]
    result = np.mean([test is not None and test.equivalence_p(0.2) <= 0.05 for test in tests])
    assert result == pytest.approx(power(none, needed, margin=0.2), abs=0.03)
    for effect in (3.0, 30.0, 300.0, 3e6):  # scipy's series ends somewhere; the power does not
        assert power(TTest(effect, 0.1, 2, 3, 3, paired=True), 3, alpha=0.001) > 0.5
