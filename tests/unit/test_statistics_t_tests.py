"""t-tests over seeds, effect sizes, power, several datasets: against scipy, papers, simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.statistics import (
    TTest,
    average_ranks,
    hedges_g,
    holm,
    holm_factors,
    interquartile_mean,
    paired_t,
    power,
    probability_of_improvement,
    seed_summary,
    seeds_needed,
    welch_t,
)

values = st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=2, max_size=7)


@settings(max_examples=60, deadline=None)
@given(a=values, b=values, level=st.sampled_from([0.9, 0.95]))
def test_t_tests_are_scipys(a: list[float], b: list[float], level: float) -> None:
    """p, degrees of freedom and interval of both; the interval holds 0 just where p is high."""
    found = welch_t(a, b)
    if found is None:
        assert max(np.ptp(a), np.ptp(b)) == 0
    else:
        expected = stats.ttest_ind(a, b, equal_var=False)
        assert found.p_value == pytest.approx(expected.pvalue)
        assert found.freedom == pytest.approx(expected.df)
        assert found.interval(level) == pytest.approx(tuple(expected.confidence_interval(level)))
        low, high = found.interval(level)
        assert (low <= 0 <= high) == (found.p_value >= 1 - level - 1e-9)
    shorter = min(len(a), len(b))
    a, b = a[:shorter], b[:shorter]
    pairs = paired_t(a, b)
    if pairs is not None:
        expected = stats.ttest_rel(a, b)
        assert pairs.p_value == pytest.approx(expected.pvalue)
        assert pairs.freedom == expected.df
        assert pairs.interval(level) == pytest.approx(tuple(expected.confidence_interval(level)))


def test_no_spread_is_no_test() -> None:
    """The same difference in every seed, or one value: nothing to test against, no width of 0."""
    assert paired_t([0.5, 0.7], [0.4, 0.6]) is None
    assert paired_t([0.5], [0.4]) is None
    assert welch_t([0.5, 0.5], [0.4, 0.4, 0.4]) is None
    assert welch_t([0.5], [0.4, 0.6]) is None
    # One constant side is known exactly: a test of the other one's mean.
    found = welch_t([0.5] * 3, [0.4, 0.42, 0.47])
    assert found is not None
    assert found.p_value == pytest.approx(stats.ttest_1samp([0.4, 0.42, 0.47], 0.5).pvalue)
    summary = seed_summary([0.5, 0.5, 0.5])
    assert (summary.n, summary.std, summary.interval) == (3, 0.0, None)


@settings(max_examples=40, deadline=None)
@given(a=values, margin=st.floats(0.01, 0.5))
def test_equivalence_is_two_one_sided_tests(a: list[float], margin: float) -> None:
    """Scipy's one-sided tests against each end of the margin; found just where 90 % lie inside."""
    b = np.random.default_rng(len(a)).normal(0.5, 0.05, len(a))
    found = welch_t(a, b)
    assert found is not None
    sides = [
        stats.ttest_ind(np.array(a) + margin, b, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(np.array(a) - margin, b, equal_var=False, alternative="less").pvalue,
    ]
    assert found.equivalence_p(margin) == pytest.approx(max(sides), abs=1e-12)
    low, high = found.interval(0.9)
    assert (-margin < low and high < margin) == (found.equivalence_p(margin) < 0.05)


def test_lakens_example_of_equivalence() -> None:
    """Lakens 2017, table 1 of the tutorial's raw example: Welch's t, means 4.55 and 4.87."""
    spread_a, spread_b, n_a, n_b = 1.05**2 / 15, 1.11**2 / 15, 15, 15
    error = math.sqrt(spread_a + spread_b)
    freedom = (spread_a + spread_b) ** 2 / (spread_a**2 / 14 + spread_b**2 / 14)
    test = TTest(4.55 - 4.87, error, freedom, n_a, n_b, paired=False)
    lower = stats.t.sf((-0.32 + 1) / error, freedom)
    assert test.equivalence_p(1.0) == pytest.approx(lower)
    assert test.p_value == pytest.approx(
        stats.ttest_ind_from_stats(4.55, 1.05, 15, 4.87, 1.11, 15, equal_var=False).pvalue
    )


def test_hedges_g_is_unbiased() -> None:
    """Over many draws of three seeds its mean is the true effect, which Cohen's d overstates."""
    draws = np.random.default_rng(1)
    a, b = draws.normal(2.0, 1, (20_000, 3)), draws.normal(0.0, 1, (20_000, 3))
    found = np.array([hedges_g(x, y) for x, y in zip(a, b, strict=True)])
    assert found.mean() == pytest.approx(2.0, abs=0.05)
    assert hedges_g([1, 1], [2, 2]) is None
    assert hedges_g([1], [2, 3]) is None


@settings(max_examples=60, deadline=None)
@given(a=values, b=values)
def test_the_chance_to_be_better_counts_pairs(a: list[float], b: list[float]) -> None:
    """Every pair of runs, a tie half; the other way round it is the rest; less can be better."""
    chance, (low, high) = probability_of_improvement(a, b)
    wins = [(x > y) + (x == y) / 2 for x, y in itertools.product(a, b)]
    assert chance == pytest.approx(np.mean(wins))
    assert 0 <= low <= chance <= high <= 1
    assert high - low > 0.1, "few seeds never know it exactly"
    back, (below, above) = probability_of_improvement(b, a)
    assert (back, below, above) == pytest.approx((1 - chance, 1 - high, 1 - low), abs=1e-9)
    assert probability_of_improvement(a, b, higher_is_better=False)[0] == pytest.approx(back)


def test_a_run_that_diverged_is_worse_than_any() -> None:
    """Counted as lost against every run that has a value, a tie with others that diverged."""
    lost = float("-inf")
    assert probability_of_improvement([0.9, 0.8], [0.1, lost])[0] == 1
    assert probability_of_improvement([0.9, lost], [0.95, lost])[0] == pytest.approx(0.375)


@pytest.mark.parametrize(("n", "shift"), [(3, 0.0), (3, 1.0), (5, 0.0), (5, 1.5), (10, 0.5)])
def test_the_interval_of_the_chance_covers(n: int, shift: float) -> None:
    """Simulated, normal: the true chance lies inside about as often as the level says."""
    draws, times = np.random.default_rng(n), 2000
    truth = stats.norm.cdf(shift / math.sqrt(2))
    covered = 0
    for _ in range(times):
        _, (low, high) = probability_of_improvement(
            draws.normal(shift, 1, n), draws.normal(0, 1, n)
        )
        covered += low <= truth <= high
    assert covered / times > 0.94


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("n", "alpha"), [(3, 0.05), (5, 0.05 / 15), (10, 0.05)])
def test_power_is_the_share_of_findings(paired: bool, n: int, alpha: float) -> None:
    """Simulated with the effect that the test takes for the truth."""
    draws, times = np.random.default_rng(n), 4000
    freedom = n - 1 if paired else 2 * (n - 1)
    error = math.sqrt((1 if paired else 2) / n)
    effect = 1.2 * stats.t.ppf(1 - alpha / 2, freedom) * error
    test = TTest(effect, error, freedom, n, n, paired=paired)
    found = 0
    for _ in range(times):
        if paired:
            one = paired_t(draws.normal(effect, 1, n), np.zeros(n))
        else:
            one = welch_t(draws.normal(effect, 1, n), draws.normal(0, 1, n))
        found += one is not None and one.p_value <= alpha
    # Welch's own degrees of freedom are estimated, and fewer: then up to a tenth is promised.
    expected = power(test, n, alpha=alpha)
    assert found / times == pytest.approx(expected, abs=0.03 if paired else 0.12)


@pytest.mark.parametrize(
    ("effect", "paired", "needed"),
    # Cohen 1988's tables at 80 %, two-sided 5 %: t of one sample, and of two.
    [(0.5, True, 34), (0.8, True, 15), (1.0, True, 10), (0.8, False, 26), (0.5, False, 64)],
)
def test_seeds_needed_are_cohens(effect: float, paired: bool, needed: int) -> None:
    """And with as many the power is there, with one fewer it is not."""
    n = 5
    error = math.sqrt((1 if paired else 2) / n)
    test = TTest(effect, error, n - 1 if paired else 2 * (n - 1), n, n, paired=paired)
    assert seeds_needed(test) == needed
    assert power(test, needed) >= 0.8 > power(test, needed - 1)


def test_seeds_needed_has_an_end() -> None:
    """No difference is never found; a clear one, at three; equivalence in its own number."""
    none = TTest(0.0, 0.1, 4, 5, 5, paired=True)
    assert seeds_needed(none) is None
    assert seeds_needed(TTest(5.0, 0.01, 4, 5, 5, paired=True)) == 3
    needed = seeds_needed(none, margin=0.2)
    assert needed is not None
    draws = np.random.default_rng(0)
    tests = [paired_t(draws.normal(0, 0.1 * 5**0.5, needed), np.zeros(needed)) for _ in range(2000)]
    found = np.mean([test is not None and test.equivalence_p(0.2) <= 0.05 for test in tests])
    assert found == pytest.approx(power(none, needed, margin=0.2), abs=0.03)
    for effect in (3.0, 30.0, 300.0, 3e6):  # scipy's series ends somewhere; the power does not
        assert power(TTest(effect, 0.1, 2, 3, 3, paired=True), 3, alpha=0.001) > 0.5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 10))
def test_holms_factor_is_the_level_of_an_interval(found: list[float], more: int) -> None:
    """A larger family is the same with p-values of 1; p times its factor is the adjusted p."""
    family = len(found) + more
    adjusted = holm(found, family=family)
    assert adjusted == pytest.approx(holm([*found, *[1.0] * more])[: len(found)])
    for p, factor, after in zip(found, holm_factors(found, family=family), adjusted, strict=True):
        assert factor >= 1 - 1e-9
        assert min(1.0, p * factor) == pytest.approx(after)


def test_a_family_is_no_smaller_than_its_p_values() -> None:
    """One line."""
    with pytest.raises(RecordError, match="2 p-values of a family of 1"):
        holm([0.1, 0.2], family=1)


def test_interquartile_mean_is_the_middle_half() -> None:
    """As a sort has it; its interval is within the values, and none where nothing varies."""
    runs = [[0.1, 0.5, 0.6, 0.7], [0.55, 0.65, 0.99, 0.2]]
    mean, interval = interquartile_mean(runs)
    assert mean == pytest.approx(np.mean(sorted([*runs[0], *runs[1]])[2:6]))
    assert interval is not None
    assert 0.1 < interval.low < mean < interval.high < 0.99
    assert interquartile_mean(runs) == (mean, interval), "the same draws again"
    assert interquartile_mean([[0.5, 0.5], [0.7]]) == (pytest.approx(1.7 / 3), None)


# Demsar 2006, table 6: AUC of C4.5, C4.5+m, C4.5+cf, C4.5+m+cf on 14 datasets.
DEMSAR = [
    [0.763, 0.768, 0.771, 0.798],
    [0.599, 0.591, 0.590, 0.569],
    [0.954, 0.971, 0.968, 0.967],
    [0.628, 0.661, 0.654, 0.657],
    [0.882, 0.888, 0.886, 0.898],
    [0.936, 0.931, 0.916, 0.931],
    [0.661, 0.668, 0.609, 0.685],
    [0.583, 0.583, 0.563, 0.625],
    [0.775, 0.838, 0.866, 0.875],
    [1.000, 1.000, 1.000, 1.000],
    [0.940, 0.962, 0.965, 0.962],
    [0.619, 0.666, 0.614, 0.669],
    [0.972, 0.981, 0.9751, 0.975],
    [0.957, 0.978, 0.946, 0.970],
]


def test_ranks_are_demsars() -> None:
    """His average ranks, and his critical difference of 1.25."""
    found = average_ranks(DEMSAR)
    assert found.ranks == pytest.approx((3.143, 2.000, 2.893, 1.964), abs=0.001)
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    assert found.datasets == 14
    assert found.p_value is not None
    assert found.p_value < 0.05
    turned = average_ranks(DEMSAR, higher_is_better=False)
    assert [5 - rank for rank in turned.ranks] == pytest.approx(found.ranks)
    assert average_ranks([[1, 2], [1, 2]]).p_value is None


def test_input_that_cannot_be_is_one_line() -> None:
    """What arrived, what was expected."""
    test = TTest(0.1, 0.1, 4, 5, 5, paired=True)
    with pytest.raises(ConfigError, match=r"margin is 0; expected a number above 0"):
        test.equivalence_p(0)
    with pytest.raises(ConfigError, match="1 seeds and alpha"):
        power(test, 1)
    with pytest.raises(RecordError, match=r"values of B are .*expected a number per seed"):
        probability_of_improvement([1.0], [float("nan")])
    with pytest.raises(RecordError, match="2 and 1 values arrived to be paired"):
        paired_t([0.5, 0.6], [0.5])
    with pytest.raises(RecordError, match="at least 2 methods on each of at least 2 datasets"):
        average_ranks([[0.5, 0.6]])
    with pytest.raises(RecordError, match="no dataset arrived"):
        interquartile_mean([])
