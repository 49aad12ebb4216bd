"""Summaries, t-tests and Holm over seeds: compared with scipy, papers and simulations."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clear_mlflow.comparison.result import Pair
from clear_mlflow.comparison.wording import describe_verdict
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.statistics import (
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


@settings(max_examples=60)
@given(a=values, b=values, level=st.sampled_from([0.9, 0.95]))
def test_t_tests_equal_scipys(a: list[float], b: list[float], level: float) -> None:
    result = welch_t(a, b)
    if result is None:
        assert max(np.ptp(a), np.ptp(b)) == 0
    else:
        expected = stats.ttest_ind(a, b, equal_var=False)
        assert result.p_value == pytest.approx(expected.pvalue)
        assert result.freedom == pytest.approx(expected.df)
        assert result.interval(level) == pytest.approx(tuple(expected.confidence_interval(level)))
        low, high = result.interval(level)
        assert (low <= 0 <= high) == (result.p_value >= 1 - level - 1e-9)
    shorter = min(len(a), len(b))
    a, b = a[:shorter], b[:shorter]
    pairs = paired_t(a, b)
    if pairs is not None:
        expected = stats.ttest_rel(a, b)
        assert pairs.p_value == pytest.approx(expected.pvalue)
        assert pairs.freedom == expected.df
        assert pairs.interval(level) == pytest.approx(tuple(expected.confidence_interval(level)))


def test_equal_values_have_no_test() -> None:
    assert paired_t([0.5, 0.7], [0.4, 0.6]) is None
    assert paired_t([0.5], [0.4]) is None
    assert welch_t([0.5, 0.5], [0.4, 0.4, 0.4]) is None
    assert welch_t([0.5], [0.4, 0.6]) is None
    # One constant side is known exactly: a test of the other one's mean.
    result = welch_t([0.5] * 3, [0.4, 0.42, 0.47])
    assert result is not None
    assert result.p_value == pytest.approx(stats.ttest_1samp([0.4, 0.42, 0.47], 0.5).pvalue)
    for values, std in (([0.5, 0.5, 0.5], 0.0), ([0.5], None)):
        summary = seed_summary(values)
        assert (summary.n, summary.std, summary.interval) == (len(values), std, None)


@settings(max_examples=40)
@given(a=values, margin=st.floats(0.01, 0.5))
def test_equivalence_is_two_one_sided_tests(a: list[float], margin: float) -> None:
    b = np.random.default_rng(len(a)).normal(0.5, 0.05, len(a))
    result = welch_t(a, b)
    assert result is not None
    sides = [
        stats.ttest_ind(np.array(a) + margin, b, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(np.array(a) - margin, b, equal_var=False, alternative="less").pvalue,
    ]
    assert result.equivalence_p(margin) == pytest.approx(max(sides), abs=1e-12)
    low, high = result.interval(0.9)
    assert (-margin < low and high < margin) == (result.equivalence_p(margin) < 0.05)


def test_hedges_g_is_unbiased() -> None:
    """Its mean over many draws of three seeds is the true effect, unlike Cohen's d."""
    draws = np.random.default_rng(1)
    a, b = draws.normal(2.0, 1, (20_000, 3)), draws.normal(0.0, 1, (20_000, 3))
    result = np.array([hedges_g(x, y) for x, y in zip(a, b, strict=True)])
    assert result.mean() == pytest.approx(2.0, abs=0.05)
    assert hedges_g([1, 1], [2, 2]) is None
    assert hedges_g([1], [2, 3]) is None
    # One method without variation has an effect size, and three values are too few for it.
    assert hedges_g([1, 1], [2, 3]) == hedges_g([0, 0], [1, 2]) == -hedges_g([2, 3], [1, 1])
    effect = hedges_g([0, 0], [1, 2])
    assert effect == pytest.approx(-1.5 / 0.5 * math.gamma(1) / math.gamma(0.5))


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 10))
def test_holms_factor_is_the_level_of_an_interval(numbers: list[float], more: int) -> None:
    family = len(numbers) + more
    adjusted = holm(numbers, family=family)
    assert adjusted == pytest.approx(holm([*numbers, *[1.0] * more])[: len(numbers)])
    for p, factor, after in zip(
        numbers, holm_factors(numbers, family=family), adjusted, strict=True
    ):
        assert factor >= 1 - 1e-9
        assert min(1.0, p * factor) == pytest.approx(after)
    # Of a p of 0 no factor follows from the adjusted p: it is that of the whole family.
    assert holm_factors([0.0, 0.5, 0.0], family=3 + more) == [3 + more, 1 + more, 3 + more]


@pytest.mark.parametrize("numbers", [[-0.1], [1.1, 0.5], [math.nan], [[0.5]]])
def test_invalid_p_values_are_rejected(numbers) -> None:
    with pytest.raises(RecordError, match=r"p-values are .*; expected numbers from 0 to 1"):
        holm_factors(numbers)


p_values = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@settings(max_examples=40)
@given(numbers=values, level=st.sampled_from([0.8, 0.95]))
def test_a_summary_equals_scipys_t_interval(numbers: list[float], level: float) -> None:
    summary = seed_summary(numbers, level=level)
    assert (summary.n, summary.mean) == (len(numbers), pytest.approx(np.mean(numbers)))
    assert summary.std == pytest.approx(np.std(numbers, ddof=1))
    assert (summary.interval is None) == (len(set(numbers)) == 1)
    if summary.std:
        expected = stats.t.interval(level, len(numbers) - 1, np.mean(numbers), stats.sem(numbers))
        assert summary.interval == pytest.approx(expected)


def adjust_by_all_subsets(numbers: list[float]) -> list[float]:
    """Compute Holm's method by Bonferroni in every subset that contains the hypothesis."""
    adjusted = []
    for i in range(len(numbers)):
        worst = 0.0
        for size in range(1, len(numbers) + 1):
            for subset in itertools.combinations(range(len(numbers)), size):
                if i in subset:
                    worst = max(worst, min(1.0, size * min(numbers[j] for j in subset)))
        adjusted.append(worst)
    return adjusted


@settings(max_examples=60)
@given(p_values)
def test_holm_is_closed_testing_with_bonferroni(numbers: list[float]) -> None:
    assert holm(numbers) == pytest.approx(adjust_by_all_subsets(numbers))


def write_sentence(**values: Any) -> str:
    fields = {"method": "paired t-test", "size": "8 shared seeds", "is_in_percent": True}
    fields |= {"min_seeds": 8, "unit": "seeds", "outcome": "different"}
    fields |= {"difference": 0.031, "low": 0.012, "high": 0.05, "p": 0.01}
    fields |= {"metric": "clear/accuracy", "higher_is_better": True, **values}
    groups: Any = "A", "B"
    pair = Pair(a="A", b="B", groups=groups, mean_difference=fields["difference"], **fields)
    return describe_verdict(pair)


def test_verdicts_are_plain_sentences() -> None:
    expected = (
        "A is significantly better than B in clear/accuracy (A +3.1 points, 95 % CI 1.2 to 5.0, "
        "p = 0.01, paired t-test, 8 shared seeds)."
    )
    assert write_sentence() == expected
    turned = write_sentence(difference=-0.031, low=-0.05, high=-0.012)
    assert turned == expected.replace("A", "_").replace("B", "A").replace("_", "B")
    lower = {"metric": "x/error", "higher_is_better": False, "is_in_percent": False}
    assert write_sentence(**lower).startswith(
        "B is significantly better than A in x/error (lower is better: B -0.031, 95 % CI -0.05 to "
        "-0.012, p = 0.01"
    )
    many = write_sentence(num_comparisons=6)
    assert "p = 0.01, Holm-adjusted for 6 comparisons, paired" in many
    assert write_sentence(outcome="not shown", p=0.2, low=-0.01, notes=("seed 3 is odd",)) == (
        "A and B: no significant difference in clear/accuracy (A +3.1 points, 95 % CI -1.0 to 5.0, "
        "p = 0.2, paired t-test, 8 shared seeds; seed 3 is odd)."
    )
    assert "(equal means, 95 % CI" in write_sentence(difference=0.0, p=1.0, outcome="not shown")
    # Small differences keep a digit, tiny p-values none.
    sentence = write_sentence(difference=0.0003, low=0.0001, high=0.0005, p=1e-12)
    assert "A +0.03 points, 95 % CI 0.01 to 0.05, p < 0.0001," in sentence


def test_a_margin_adds_a_test_of_equivalence() -> None:
    wide: dict[str, Any] = {"difference": 0.001, "low": -0.006, "high": 0.008, "p": 0.6}
    wide |= {"outcome": "not shown", "margin": 0.005, "equivalence_p": 0.2}
    wide |= {"equivalence_low": -0.004, "equivalence_high": 0.006}
    assert write_sentence(**wide) == (
        "A and B: neither a significant difference nor equivalence within 0.5 points in "
        "clear/accuracy (A +0.1 points, 90 % CI -0.4 to 0.6, TOST p = 0.2, paired t-test, 8 shared "
        "seeds; test of a difference: p = 0.6)."
    )
    equal = {**wide, "outcome": "equivalent", "margin": 0.01, "equivalence_p": 0.02}
    assert write_sentence(**equal).startswith(
        "A and B: equivalent in clear/accuracy within 1 point (A +0.1 points, 90 % CI -0.4 to 0.6"
    )
    both = {**equal, "outcome": "different", "p": 0.01}
    both |= {"low": 0.0005, "high": 0.0015}
    end = "8 shared seeds). The difference is within the margin of 1 point."
    assert write_sentence(**both).endswith(end)


def test_the_sentence_on_two_single_runs_is_about_two_models() -> None:
    models = {"unit": "images", "method": "paired bootstrap", "size": "300 test images"}
    assert write_sentence(difference=-0.031, low=-0.05, high=-0.012, **models) == (
        "The model of B is significantly better than the model of A in clear/accuracy (B +3.1 "
        "points, 95 % CI 1.2 to 5.0, p = 0.01, paired bootstrap, 300 test images)."
    )
    assert write_sentence(p=0.2, outcome="not shown", **models).startswith(
        "The models of A and B: no significant difference in clear/accuracy (A +3.1 points"
    )


def test_invalid_input_is_a_one_line_error() -> None:
    masked = np.ma.array([0.5, 0.1], mask=[0, 1])
    test = TTest(0.1, 0.1, 4, 5, 5, paired=True)
    for call, error, message in (
        (lambda: test.equivalence_p(0), ConfigError, "margin is 0; expected a number above 0"),
        (lambda: power(test, 1), ConfigError, "seeds is 1 and alpha"),
        (lambda: paired_t([0.5, 0.6], [0.5]), RecordError, "got 2 and 1 values to be paired"),
        (lambda: welch_t([0.5], [math.nan]), RecordError, "values of B are .*finite number per"),
        (lambda: seed_summary([0.5], level=1.5), ConfigError, "level is 1.5"),
        (lambda: seed_summary([]), RecordError, "expected a finite number"),
        (lambda: seed_summary(masked), RecordError, "expected a finite number"),
        (lambda: holm(masked), RecordError, "expected numbers from 0 to 1"),
        (lambda: seed_summary(["x"]), RecordError, "expected a finite number"),  # type: ignore
        (lambda: seed_summary([[0.5]]), RecordError, "expected a finite number"),  # type: ignore
        (lambda: holm([0.5, math.nan]), RecordError, "expected numbers from 0 to 1"),
        (lambda: holm([0.1, 0.2], family=1), RecordError, "got 2 p-values for a family of 1"),
    ):
        with pytest.raises(error, match=message):
            call()


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
