"""Tests over seeds, and many at once: against scipy, against enumeration, and under the null."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.statistics import (
    Equivalence,
    Interval,
    holm,
    paired_permutation,
    seed_summary,
    unpaired_permutation,
    verdict,
)

some_values = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=2, max_size=6)
one_or_more = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=6)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(values=some_values, level=st.sampled_from([0.8, 0.95]))
def test_a_summary_is_scipys_t_interval(values: list[float], level: float) -> None:
    """Mean, the sample's standard deviation, and the interval of the mean."""
    found = seed_summary(values, level=level)
    assert (found.n, found.mean) == (len(values), pytest.approx(np.mean(values)))
    assert found.std == pytest.approx(np.std(values, ddof=1))
    assert (found.interval is None) == (len(set(values)) == 1)
    if found.std:
        expected = stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))
        assert found.interval == pytest.approx(expected)


def test_one_seed_has_no_interval() -> None:
    """Undefined is not zero: one seed says nothing of the spread."""
    found = seed_summary([0.5])
    assert (found.n, found.mean, found.std, found.interval) == (1, 0.5, None, None)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7))
@example([(0, 1), (0, 2), (3, 0)])
@example([(9, 8), (3, 1), (4, 7), (2, 2)])
def test_the_paired_test_is_an_enumeration_of_signs(pairs: list[tuple[int, int]]) -> None:
    """Ties of tenths count as ties, though sums of tenths round."""
    a, b = np.array(pairs).T / 10
    found, back = paired_permutation(a, b), paired_permutation(b, a)
    changes = [x - y for x, y in pairs]
    seen = abs(sum(changes))
    as_far = [
        abs(sum(s * c for s, c in zip(signs, changes, strict=True))) >= seen
        for signs in itertools.product((1, -1), repeat=len(pairs))
    ]
    assert found.p_value == pytest.approx(np.mean(as_far))
    assert found.difference == pytest.approx(np.mean(changes) / 10)
    assert found.p_value >= found.smallest_p == min(1, 2 / 2 ** len(pairs))
    assert (found.n_a, found.n_b, found.paired, found.exact) == (len(a), len(a), True, True)
    assert (back.p_value, back.difference) == (found.p_value, -found.difference)


@settings(max_examples=40, deadline=None)
@given(a=one_or_more, b=one_or_more)
def test_the_unpaired_test_is_an_enumeration_of_labels(a: list[float], b: list[float]) -> None:
    """Every way to share the values out; two-sided as twice the smaller side."""
    found, back = unpaired_permutation(a, b), unpaired_permutation(b, a)
    pooled, changes = np.array([*a, *b]), []
    for chosen in itertools.combinations(range(len(pooled)), len(a)):
        rest = [i for i in range(len(pooled)) if i not in chosen]
        changes.append(pooled[list(chosen)].mean() - pooled[rest].mean())
    seen = np.mean(a) - np.mean(b)
    sides = [(np.array(changes) <= seen + 1e-9).mean(), (np.array(changes) >= seen - 1e-9).mean()]
    assert found.p_value == pytest.approx(min(1, 2 * min(sides)))
    assert found.p_value >= found.smallest_p == min(1, 2 / len(changes))
    assert (found.n_a, found.n_b, found.paired, found.exact) == (len(a), len(b), False, True)
    assert (back.p_value, back.difference) == (
        pytest.approx(found.p_value),
        pytest.approx(-found.difference),
    )


def test_many_seeds_are_drawn_and_the_draw_can_be_repeated() -> None:
    """Where all ways are too many; close to Student's test, which many seeds make right."""
    draws = np.random.default_rng(3)
    a, b = draws.normal(0.2, 1, 30), draws.normal(0, 1, 30)
    for test, student in [
        (paired_permutation, stats.ttest_rel(a, b)),
        (unpaired_permutation, stats.ttest_ind(a, b)),
    ]:
        found = test(a, b, seed=1)
        assert not found.exact
        assert found == test(a, b, seed=1)
        assert found.p_value == pytest.approx(student.pvalue, abs=0.02)


def test_false_positives_stay_within_the_level() -> None:
    """Simulated under the null, with six seeds: at most 5 % fall to 0.05, and some do."""
    draws, times = np.random.default_rng(4), 600
    paired = unpaired = 0
    for _ in range(times):
        shared = draws.normal(0, 2, 6)  # what a seed does to both methods
        a, b = shared + draws.normal(0, 1, 6), shared + draws.normal(0, 1, 6)
        paired += paired_permutation(a, b).p_value <= 0.05
        unpaired += unpaired_permutation(a[:4], draws.normal(0, 5**0.5, 4)).p_value <= 0.05
    most = stats.binom.ppf(1 - 1e-4, times, 0.05)
    assert 0 < paired <= most
    assert 0 < unpaired <= most


def test_pairing_sees_through_what_seeds_share() -> None:
    """A gain of 1 under a seed effect of 5: paired it is seen, unpaired it is not."""
    shared = np.arange(8) * 5.0
    a, b = shared + np.array([1, 1.2, 0.9, 1.1, 0.8, 1, 1.3, 0.7]), shared
    assert paired_permutation(a, b).p_value == 2 / 2**8
    assert unpaired_permutation(a, b).p_value > 0.5


def by_closed_testing(found: list[float]) -> list[float]:
    """Holm's from first principles: Bonferroni in every subset that holds the hypothesis."""
    adjusted = []
    for i in range(len(found)):
        worst = 0.0
        for size in range(1, len(found) + 1):
            for subset in itertools.combinations(range(len(found)), size):
                if i in subset:
                    worst = max(worst, min(1.0, size * min(found[j] for j in subset)))
        adjusted.append(worst)
    return adjusted


@settings(max_examples=60, deadline=None)
@given(p_values)
def test_holm_is_closed_testing_with_bonferroni(found: list[float]) -> None:
    """By brute force over all subsets."""
    assert holm(found) == pytest.approx(by_closed_testing(found))


@settings(max_examples=60, deadline=None)
@given(p_values, st.randoms())
def test_holm_keeps_order_and_never_helps(found: list[float], random: object) -> None:
    """No p falls, none overtakes another, and the order in which they arrive does not matter."""
    adjusted = holm(found)
    assert all(raw <= p <= 1 for raw, p in zip(found, adjusted, strict=True))
    ranked = sorted(zip(found, adjusted, strict=True))
    assert [p for _, p in ranked] == sorted(adjusted)
    order = list(range(len(found)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert holm([found[i] for i in order]) == [adjusted[i] for i in order]


def test_holm_bounds_the_chance_of_any_false_finding() -> None:
    """Simulated: twenty true nulls, and some finding in at most 5 % of the families."""
    draws, times = np.random.default_rng(6), 1000
    families = sum(min(holm(draws.random(20).tolist())) <= 0.05 for _ in range(times))
    assert families <= stats.binom.ppf(1 - 1e-4, times, 0.05)
    assert holm([]) == []


def said(**given: object) -> str:
    values: dict[str, object] = {
        "difference": 0.031,
        "interval": Interval(0.012, 0.05),
        "p_value": 0.01,
        "evidence": "8 seeds each",
    }
    return verdict("A", "B", "clear/accuracy", **{**values, **given}).sentence


def test_verdicts_are_plain_sentences() -> None:
    """Who, at what, by how much, how sure, on how much evidence; told from the better side."""
    told = (
        "A is better than B at clear/accuracy by 3.1 percentage points "
        "(95 % interval 1.2 to 5.0, p = 0.01; 8 seeds each)."
    )
    assert said() == told
    turned = said(difference=-0.031, interval=Interval(-0.05, -0.012))
    assert turned == told.replace("A is better than B", "B is better than A")
    assert said(higher_is_better=False).startswith("B is better than A at clear/accuracy by 3.1")
    assert "p = 0.01, adjusted for 6 comparisons" in said(comparisons=6)
    assert "by 0.031 (95 % interval 0.012 to 0.05" in said(in_percent=False)
    assert said(p_value=0.2, interval=Interval(-0.01, 0.05)) == (
        "No difference between A and B at clear/accuracy could be shown: A is ahead by 3.1 "
        "percentage points (95 % interval -1.0 to 5.0, p = 0.2; 8 seeds each)."
    )
    assert "both are the same (95 %" in said(difference=0.0, p_value=1.0)
    # Small differences keep a digit, tiny p-values none.
    assert "by 0.03 percentage points (95 % interval 0.01 to 0.05, p < 0.0001;" in said(
        difference=0.0003, interval=Interval(0.0001, 0.0005), p_value=1e-12
    )


def test_no_difference_can_be_a_result() -> None:
    """Equivalence within a margin, with the 90 % interval that agrees with its test."""
    small: dict[str, object] = {
        "difference": 0.001,
        "interval": Interval(-0.006, 0.008),
        "p_value": 0.6,
        "equivalence": Equivalence(0.01, 0.02, Interval(-0.004, 0.006)),
    }
    assert said(**small) == (
        "A and B are equivalent at clear/accuracy within 1 percentage point: A is ahead by 0.1 "
        "percentage points (90 % interval -0.4 to 0.6, two one-sided tests: p = 0.02; 8 seeds "
        "each)."
    )
    wide = {**small, "equivalence": Equivalence(0.005, 0.2, Interval(-0.004, 0.006))}
    assert said(**wide) == (
        "Neither a difference between A and B at clear/accuracy nor equivalence within 0.5 "
        "percentage points could be shown: A is ahead by 0.1 percentage points (90 % interval -0.4 "
        "to 0.6, two one-sided tests: p = 0.2; 8 seeds each; test of a difference: p = 0.6)."
    )
    real = {**small, "p_value": 0.01, "interval": Interval(0.0005, 0.0015)}
    assert said(**real).endswith("8 seeds each). That is within the margin of 1 percentage point.")


def test_of_two_single_runs_the_sentence_is_about_two_models() -> None:
    """Not about the methods, of which it has one training each; the winner is a name still."""
    found = verdict(
        "A",
        "B",
        "clear/accuracy",
        difference=-0.031,
        interval=Interval(-0.05, -0.012),
        p_value=0.01,
        evidence="over 9 test images",
        of_models=True,
    )
    assert found.winner == "B"
    assert found.sentence == (
        "The model of B is better than the model of A at clear/accuracy by 3.1 percentage points "
        "(95 % interval 1.2 to 5.0, p = 0.01; over 9 test images)."
    )
    assert said(p_value=0.2, of_models=True).startswith(
        "No difference between the model of A and the model of B at clear/accuracy could be shown: "
        "the model of A is ahead by 3.1"
    )


def test_input_that_cannot_be_is_one_line() -> None:
    """NaN would silently make every test meaningless."""
    with pytest.raises(ConfigError, match=r"level is 1\.5"):
        seed_summary([0.5], level=1.5)
    for call in (paired_permutation, unpaired_permutation):
        with pytest.raises(RecordError, match=r"values of B are .*finite number per seed"):
            call([0.5], [float("nan")])
    with pytest.raises(RecordError, match="2 and 1 values arrived to be paired"):
        paired_permutation([0.5, 0.6], [0.5])
    for wrong in ([], ["x"], [[0.5]]):
        with pytest.raises(RecordError, match="expected a"):
            seed_summary(wrong)
    with pytest.raises(RecordError, match=r"p-values are .*expected numbers from 0 to 1"):
        holm([0.5, float("nan")])
    with pytest.raises(ConfigError, match="comparisons is 0"):
        said(comparisons=0)
