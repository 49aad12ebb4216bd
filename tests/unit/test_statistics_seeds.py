"""Summaries and t-tests over seeds, power, Holm, sentences: against scipy, papers, simulation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clear_mlflow.comparison.sentences import Equivalence, Sentences
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.statistics import (
    Interval,
    TTest,
    hedges_g,
    holm,
    holm_factors,
    paired_t,
    power,
    seed_summary,
    seeds_needed,
    welch_t,
)

values = st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=2, max_size=7)


@settings(max_examples=60, deadline=None)
@given(a=values, b=values, level=st.sampled_from([0.9, 0.95]))
def test_t_tests_are_scipys(a: list[float], b: list[float], level: float) -> None:
    """p, degrees of freedom and interval of both; the interval holds 0 just where p is high."""
    test = welch_t(a, b)
    if test is None:
        assert max(np.ptp(a), np.ptp(b)) == 0
    else:
        expected = stats.ttest_ind(a, b, equal_var=False)
        assert test.p_value == pytest.approx(expected.pvalue)
        assert test.freedom == pytest.approx(expected.df)
        assert test.interval(level) == pytest.approx(tuple(expected.confidence_interval(level)))
        low, high = test.interval(level)
        assert (low <= 0 <= high) == (test.p_value >= 1 - level - 1e-9)
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
    test = welch_t([0.5] * 3, [0.4, 0.42, 0.47])
    assert test is not None
    assert test.p_value == pytest.approx(stats.ttest_1samp([0.4, 0.42, 0.47], 0.5).pvalue)
    for values, std in (([0.5, 0.5, 0.5], 0.0), ([0.5], None)):
        summary = seed_summary(values)
        assert (summary.n, summary.std, summary.interval) == (len(values), std, None)


@settings(max_examples=40, deadline=None)
@given(a=values, margin=st.floats(0.01, 0.5))
def test_equivalence_is_two_one_sided_tests(a: list[float], margin: float) -> None:
    """Scipy's one-sided tests against each end of the margin; found just where 90 % lie inside."""
    b = np.random.default_rng(len(a)).normal(0.5, 0.05, len(a))
    test = welch_t(a, b)
    assert test is not None
    sides = [
        stats.ttest_ind(np.array(a) + margin, b, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(np.array(a) - margin, b, equal_var=False, alternative="less").pvalue,
    ]
    assert test.equivalence_p(margin) == pytest.approx(max(sides), abs=1e-12)
    low, high = test.interval(0.9)
    assert (-margin < low and high < margin) == (test.equivalence_p(margin) < 0.05)


def test_hedges_g_is_unbiased() -> None:
    """Over many draws of three seeds its mean is the true effect, which Cohen's d overstates."""
    draws = np.random.default_rng(1)
    a, b = draws.normal(2.0, 1, (20_000, 3)), draws.normal(0.0, 1, (20_000, 3))
    effect_sizes = np.array([hedges_g(x, y) for x, y in zip(a, b, strict=True)])
    assert effect_sizes.mean() == pytest.approx(2.0, abs=0.05)
    assert hedges_g([1, 1], [2, 2]) is None
    assert hedges_g([1], [2, 3]) is None


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


def test_power_of_unequal_groups_is_that_of_equal_groups_with_the_same_error() -> None:
    """4 and 12 seeds weigh as much as 6 and 6: the harmonic mean, also for degrees of freedom."""
    unequal = TTest(1.0, math.sqrt(1 / 4 + 1 / 12), 10.0, 4, 12, paired=False)
    # With 9 seeds of each method: error sqrt(2 / 9), and 10 * 8 / 5 = 16 degrees of freedom.
    effect, critical = 1 / math.sqrt(2 / 9), stats.t.ppf(0.975, 16)
    expected = stats.nct.sf(critical, 16, effect) + stats.nct.cdf(-critical, 16, effect)
    assert power(unequal, 9) == pytest.approx(expected)
    equal = TTest(1.0, math.sqrt(2 / 6), 10.0, 6, 6, paired=False)
    assert power(unequal, 9) == pytest.approx(power(equal, 9))
    assert seeds_needed(unequal) == seeds_needed(equal)


def test_power_uses_at_least_one_degree_of_freedom() -> None:
    """Welch's estimate is 1 for 2 and 100 seeds; with two of each method it would be below."""
    test = TTest(5.0, math.sqrt(1 / 2 + 1 / 100), 1.0, 2, 100, paired=False)
    critical = stats.t.ppf(0.975, 1)
    expected = stats.nct.sf(critical, 1, 5.0) + stats.nct.cdf(-critical, 1, 5.0)
    assert power(test, 2) == pytest.approx(expected)


def test_seeds_needed_has_an_end() -> None:
    """No difference is never found; a clear one, at three; equivalence in its own number."""
    none = TTest(0.0, 0.1, 4, 5, 5, paired=True)
    assert seeds_needed(none) is None
    assert seeds_needed(TTest(5.0, 0.01, 4, 5, 5, paired=True)) == 3
    needed = seeds_needed(none, margin=0.2)
    assert needed is not None
    draws = np.random.default_rng(0)
    tests = [paired_t(draws.normal(0, 0.1 * 5**0.5, needed), np.zeros(needed)) for _ in range(2000)]
    share = np.mean([test is not None and test.equivalence_p(0.2) <= 0.05 for test in tests])
    assert share == pytest.approx(power(none, needed, margin=0.2), abs=0.03)
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
    # Of a p of 0 no factor follows from the adjusted p: it is that of the whole family.
    assert holm_factors([0.0, 0.5, 0.0], family=3 + more) == [3 + more, 1 + more, 3 + more]


p_values = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(sample=values, level=st.sampled_from([0.8, 0.95]))
def test_a_summary_is_scipys_t_interval(sample: list[float], level: float) -> None:
    """Mean, the sample's standard deviation, and the interval of the mean."""
    summary = seed_summary(sample, level=level)
    assert (summary.n, summary.mean) == (len(sample), pytest.approx(np.mean(sample)))
    assert summary.std == pytest.approx(np.std(sample, ddof=1))
    assert (summary.interval is None) == (len(set(sample)) == 1)
    if summary.std:
        expected = stats.t.interval(level, len(sample) - 1, np.mean(sample), stats.sem(sample))
        assert summary.interval == pytest.approx(expected)


def by_closed_testing(p_values: list[float]) -> list[float]:
    """Holm's from first principles: Bonferroni in every subset that holds the hypothesis."""
    adjusted = []
    for i in range(len(p_values)):
        worst = 0.0
        for size in range(1, len(p_values) + 1):
            for subset in itertools.combinations(range(len(p_values)), size):
                if i in subset:
                    worst = max(worst, min(1.0, size * min(p_values[j] for j in subset)))
        adjusted.append(worst)
    return adjusted


@settings(max_examples=60, deadline=None)
@given(p_values)
def test_holm_is_closed_testing_with_bonferroni(found: list[float]) -> None:
    """By brute force over all subsets."""
    assert holm(found) == pytest.approx(by_closed_testing(found))


_SEEN = Interval(0.012, 0.05)


def said(
    *,
    difference: float = 0.031,
    interval: Interval = _SEEN,
    p_value: float = 0.01,
    equivalence: Equivalence | None = None,
    of_models: bool = False,
    **of_all: Any,
) -> str:
    _, sentence = Sentences("clear/accuracy", **of_all).conclude(
        *("A", "B", difference, interval, p_value, "8 seeds each"),
        equivalence=equivalence,
        of_models=of_models,
    )
    return sentence


def test_verdicts_are_plain_sentences() -> None:
    """Who, at what, by how much, how sure, on how much evidence; told from the better side."""
    sentences = (
        "A is better than B at clear/accuracy (higher is better) by 3.1 percentage points "
        "(95 % interval 1.2 to 5.0, p = 0.01; 8 seeds each)."
    )
    assert said() == sentences
    turned = said(difference=-0.031, interval=Interval(-0.05, -0.012))
    assert turned == sentences.replace("A is better than B", "B is better than A")
    assert said(higher_is_better=False).startswith(
        "B is better than A at clear/accuracy (lower is better) by 3.1"
    )
    assert "p = 0.01, adjusted for 6 comparisons" in said(comparisons=6)
    assert "by 0.031 (95 % interval 0.012 to 0.05" in said(in_percent=False)
    assert said(p_value=0.2, interval=Interval(-0.01, 0.05)) == (
        "No difference between A and B at clear/accuracy (higher is better) could be shown: A is "
        "ahead by 3.1 percentage points (95 % interval -1.0 to 5.0, p = 0.2; 8 seeds each)."
    )
    assert "both are the same (95 %" in said(difference=0.0, p_value=1.0)
    # Small differences keep a digit, tiny p-values none.
    assert "by 0.03 percentage points (95 % interval 0.01 to 0.05, p < 0.0001;" in said(
        difference=0.0003, interval=Interval(0.0001, 0.0005), p_value=1e-12
    )


def test_what_a_margin_adds_to_a_sentence() -> None:
    """Where neither is shown, with the 90 % interval; where both are, the difference goes first."""
    wide: dict[str, Any] = {
        "difference": 0.001,
        "interval": Interval(-0.006, 0.008),
        "p_value": 0.6,
        "equivalence": Equivalence(0.005, 0.2, Interval(-0.004, 0.006)),
    }
    assert said(**wide) == (
        "Neither a difference between A and B at clear/accuracy (higher is better) nor equivalence "
        "within 0.5 percentage points could be shown: A is ahead by 0.1 percentage points (90 % "
        "interval -0.4 "
        "to 0.6, two one-sided tests: p = 0.2; 8 seeds each; test of a difference: p = 0.6)."
    )
    small = Equivalence(0.01, 0.02, Interval(-0.004, 0.006))
    real = {**wide, "p_value": 0.01, "interval": Interval(0.0005, 0.0015), "equivalence": small}
    assert said(**real).endswith("8 seeds each). That is within the margin of 1 percentage point.")


def test_of_two_single_runs_the_sentence_is_about_two_models() -> None:
    """Not about the methods, of which it has one training each."""
    sentence = said(difference=-0.031, interval=Interval(-0.05, -0.012), of_models=True)
    assert sentence == (
        "The model of B is better than the model of A at clear/accuracy (higher is better) by 3.1 "
        "percentage points (95 % interval 1.2 to 5.0, p = 0.01; 8 seeds each)."
    )
    assert said(p_value=0.2, of_models=True).startswith(
        "No difference between the model of A and the model of B at clear/accuracy (higher is "
        "better) could be shown: the model of A is ahead by 3.1"
    )


def test_input_that_cannot_be_is_one_line() -> None:
    """What arrived, what was expected; NaN would silently make every test meaningless."""
    test = TTest(0.1, 0.1, 4, 5, 5, paired=True)
    for call, error, message in (
        (lambda: test.equivalence_p(0), ConfigError, "margin is 0; expected a number above 0"),
        (lambda: power(test, 1), ConfigError, "1 seeds and alpha"),
        (lambda: paired_t([0.5, 0.6], [0.5]), RecordError, "2 and 1 values arrived to be paired"),
        (lambda: welch_t([0.5], [math.nan]), RecordError, "values of B are .*finite number per"),
        (lambda: seed_summary([0.5], level=1.5), ConfigError, "level is 1.5"),
        (lambda: seed_summary([]), RecordError, "expected a finite number"),
        (lambda: seed_summary(["x"]), RecordError, "expected a finite number"),  # type: ignore
        (lambda: seed_summary([[0.5]]), RecordError, "expected a finite number"),  # type: ignore
        (lambda: holm([0.5, math.nan]), RecordError, "expected numbers from 0 to 1"),
        (lambda: holm([0.1, 0.2], family=1), RecordError, "2 p-values of a family of 1"),
    ):
        with pytest.raises(error, match=message):
            call()
