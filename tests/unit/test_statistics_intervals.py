"""Intervals from counts alone: as scipy has them, around weighted sums found by probing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from clear_mlflow import AccuracyMatrix, summarize
from clear_mlflow.core.errors import ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.metrics import ALL_METRICS, METRICS, Metric
from clear_mlflow.statistics import (
    difference_intervals,
    explain_intervals,
    linear_forms,
    metric_intervals,
    wilson_interval,
)
from clear_mlflow.statistics.linear_forms import KnownForms, all_cells

NAMES = {metric.name for metric in METRICS}
IN_DOMAIN = "clear/in_domain_accuracy"
BACKWARD = "clear/backward_transfer"
CHANGE = "renate/backward_transfer"
FORGETTING = "renate/forgetting"


def random_matrix(seed: int, k: int = 4, width: int = 5) -> AccuracyMatrix:
    draws = np.random.default_rng(seed)
    counts = draws.integers(20, 60, width)
    return AccuracyMatrix(
        draws.integers(0, counts + 1, (k, width)) / counts,
        draws.integers(0, counts + 1) / counts,
        counts,
    )


@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(("correct", "total"), [(0, 1), (1, 1), (0, 30), (30, 30), (17, 50)])
def test_wilson_is_scipys(correct: int, total: int, level: float) -> None:
    """To rounding, and exactly 0 or 1 where no or every image is right."""
    low, high = wilson_interval(correct, total, level=level)
    stated = binomtest(correct, total).proportion_ci(level, "wilson")
    assert (float(low), float(high)) == pytest.approx((stated.low, stated.high), abs=1e-12)
    assert (low == 0) == (correct == 0)
    assert (high == 1) == (correct == total)


def test_wilson_takes_arrays_and_gaps() -> None:
    """One call for a matrix; what was not measured has no interval."""
    low, high = wilson_interval([[1, np.nan], [3, 4]], [10, 20])
    assert low.shape == high.shape == (2, 2)
    assert np.isnan([low[0, 1], high[0, 1]]).all()
    assert float(low[1, 1]) == float(wilson_interval(4, 20)[0])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), k=st.integers(1, 5), protocol=st.sampled_from(["iid", "streaming"])
)
def test_a_form_is_its_metric(seed: int, k: int, protocol: str) -> None:
    """On matrices other than the one it was found with, for every metric that has a form."""
    forms = linear_forms(random_matrix(seed, k), protocol=protocol)
    other = random_matrix(seed, k)
    drawn = np.random.default_rng(seed + 1).random(other.values.shape)
    other = AccuracyMatrix(drawn, other.initial, other.num_instances)
    values = summarize(other, protocol)
    # A maximum over one row is that row: with two rows forgetting is a weighted sum, too.
    assert forms.keys() == values.keys() - ({FORGETTING} if k > 2 else set())
    for name, form in forms.items():
        cells = np.nan_to_num(all_cells(other))
        assert float(form(cells)) == pytest.approx(values[name], abs=1e-12)
        assert form.weights.shape == (k + 1, 5)


def test_weights_are_those_of_the_definition() -> None:
    """Of Renate's backward transfer: plus at the end, minus on the diagonal, nothing elsewhere."""
    weights = linear_forms(random_matrix(0, 3, 3))[CHANGE].weights
    by_hand = np.array([[0, 0, 0], [-1, 0, 0], [0, -1, 0], [1, 1, 0]]) / 2
    assert weights == pytest.approx(by_hand)
    micro = linear_forms(AccuracyMatrix([[0.5, 0.5], [0.5, 0.5]], num_instances=[30, 10]))
    assert micro["renate/micro_average_accuracy"].weights[2] == pytest.approx([0.75, 0.25])


def test_a_users_own_metric_is_recognised() -> None:
    """An affine one has a form with a constant; a square, a minimum, a failing one have none."""

    def failing(matrix: AccuracyMatrix) -> float:
        if matrix.values.min() < 0.4:
            raise UndefinedMetricError("not here")
        return 0.5

    def unlucky(matrix: AccuracyMatrix) -> float:
        return float("nan")

    own = [
        Metric(name="own/error", function=lambda m: 1 - m.values[0, 0]),
        Metric(name="own/square", function=lambda m: m.values[0, 0] ** 2),
        Metric(name="own/worst", function=lambda m: m.values.min()),
        Metric(name="own/failing", function=failing),
        Metric(name="own/nan", function=unlucky),
    ]
    matrix = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]], num_instances=[50, 50])
    forms = linear_forms(matrix, metrics=own)
    assert forms.keys() == {"own/error"}
    assert forms["own/error"].constant == pytest.approx(1)
    low, high = metric_intervals(matrix, metrics=own)["own/error"]
    of_cell = wilson_interval(40, 50)
    assert (1 - high, 1 - low) == pytest.approx((float(of_cell[0]), float(of_cell[1])))


@pytest.mark.parametrize("protocol", ["iid", "streaming"])
def test_forms_of_many_matrices_are_those_of_each(protocol: str) -> None:
    """Other gaps, counts or keys are probed again; a metric is there where it is defined."""

    def sometimes(matrix: AccuracyMatrix) -> float:
        if matrix.values[1, 0] == 0:
            raise UndefinedMetricError("not here")
        return float(matrix.values[1, 0])

    def of_keys(matrix: AccuracyMatrix) -> float:
        return float(matrix.values[1, 0]) * len(set(matrix.buckets) & {"1", "a", "b"})

    own = [
        *ALL_METRICS,
        Metric(name="own/sometimes", function=sometimes),
        Metric(name="own/of_keys", function=of_keys),
    ]
    rows = np.random.default_rng(3).random((3, 3))
    gap = np.where([[0, 0, 1], [0, 0, 0], [0, 0, 0]], np.nan, rows)
    matrices = [
        AccuracyMatrix(rows),
        AccuracyMatrix(np.where([[0] * 3, [1, 0, 0], [0] * 3], 0.0, rows)),
        AccuracyMatrix(rows, initial=rows[0]),
        AccuracyMatrix(rows[:2]),
        AccuracyMatrix(gap),
        AccuracyMatrix(rows, num_instances=[10, 20, 30]),
        AccuracyMatrix(rows, num_instances=[30, 20, 10]),
        AccuracyMatrix(rows, buckets=["a", "b", "c"]),
    ]
    known = KnownForms(own, protocol=protocol)
    in_both = ["own/sometimes" in known.of(matrix) for matrix in matrices[:2]]
    assert in_both == [protocol == "iid", False]
    for matrix in matrices:
        found = known.of(matrix)
        alone = linear_forms(matrix, protocol=protocol, metrics=own)
        assert found.keys() == alone.keys()
        for name, form in found.items():
            assert form.constant == alone[name].constant
            assert np.array_equal(form.weights, alone[name].weights)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 5))
def test_intervals_hold_their_metric_and_stay_in_range(seed: int, k: int) -> None:
    """A mean of accuracies has an interval within 0 to 1, and a higher level a wider one."""
    matrix = random_matrix(seed, k)
    values, intervals = summarize(matrix), metric_intervals(matrix)
    wider = metric_intervals(matrix, level=0.99)
    assert intervals.keys() == linear_forms(matrix).keys()
    for name, (low, high) in intervals.items():
        assert low < values[name] < high or values[name] in (low, high)
        # At 0 and at 1 no interval can reach further.
        assert wider[name].low <= low < high <= wider[name].high
        assert wider[name].high - wider[name].low > high - low
        if name.startswith("clear/"):
            assert low >= -1e-12
            assert high <= 1 + 1e-12


def test_every_metric_has_an_interval_or_a_reason() -> None:
    """Whatever is known; and forgetting is told to need predictions."""
    for matrix in (random_matrix(1), random_matrix(1, 1), AccuracyMatrix([[0.5, 0.6]])):
        told = explain_intervals(matrix)
        assert metric_intervals(matrix).keys() | told.keys() == NAMES
        assert not metric_intervals(matrix).keys() & told.keys()
    assert "stored predictions do" in explain_intervals(random_matrix(1))[FORGETTING]
    without_counts = AccuracyMatrix([[0.5, 0.6]])
    assert explain_intervals(without_counts)[IN_DOMAIN] == "needs test counts per bucket"
    assert explain_intervals(random_matrix(1), protocol="streaming")[IN_DOMAIN].startswith("under")


def answers(kind: str, draws: np.random.Generator, truth: np.ndarray, n: int) -> np.ndarray:
    """(rows, T), accuracies on n images each whose rows share images in one of several ways."""
    rows, width = truth.shape
    shared = draws.random((1, width, n))
    luck = {
        "independent": draws.random((rows, width, n)),
        "together": np.broadcast_to(shared, (rows, width, n)),
        "apart": np.concatenate([shared if i % 2 else 1 - shared for i in range(rows)]),
    }[kind]
    found: np.ndarray = (luck < truth[:, :, np.newaxis]).mean(axis=2)
    return found


@pytest.mark.parametrize("kind", ["independent", "together", "apart"])
@pytest.mark.parametrize("level", [0.9])
def test_intervals_cover_however_rows_depend_on_each_other(kind: str, level: float) -> None:
    """Simulated: each linear metric's truth lies inside at least as often as the level says.

    Where rows are right on the same images the bound is met: means over rows of a column then
    cover as often as the level says, and not much more.
    """
    draws, n, times = np.random.default_rng(5), 40, 500
    truth = np.vstack([[0.2, 0.3, 0.2], [0.95, 0.7, 0.6], [0.9, 0.9, 0.8], [0.8, 0.9, 0.97]])
    exact = AccuracyMatrix(truth[1:], truth[0], [n] * 3)
    forms, values = linear_forms(exact), summarize(exact)
    covered = dict.fromkeys(forms, 0)
    for _ in range(times):
        cells = answers(kind, draws, truth, n)
        matrix = AccuracyMatrix(cells[1:], cells[0], [n] * 3)
        for name, (low, high) in metric_intervals(matrix, level=level, forms=forms).items():
            covered[name] += low <= values[name] <= high
    # One simulation in 10,000 would fall below by chance; Wilson itself is out by 1 % here.
    least = binom.ppf(1e-4, times, level - 0.01)
    assert min(covered.values()) >= least, covered
    if kind == "together":
        assert covered[BACKWARD] <= binom.ppf(1 - 1e-4, times, level + 0.03), covered
    if kind == "apart":
        # Rows that disagree are what a difference of rows has to fear, and it alone.
        assert covered[CHANGE] < covered["clear/accuracy"]


@pytest.mark.parametrize(("n", "least", "at"), [(50, 0.8375, 0.99646), (550, 0.8381, 0.99968)])
def test_coverage_near_one_is_what_the_docs_say(n: int, least: float, at: float) -> None:
    """Summed over all counts: 92.7 % or more where 5 are right and 5 wrong, 83.8 % near 1.

    Just beside the ends of intervals, where coverage jumps; more images do not mend it.
    """
    counts = np.arange(n + 1)
    low, high = wilson_interval(counts, n)
    shares = np.unique(np.concatenate([low + 1e-12, high - 1e-12, low - 1e-12, high + 1e-12]))
    shares = shares[(shares > 0) & (shares < 1)]
    inside = (low <= shares[:, np.newaxis]) & (shares[:, np.newaxis] <= high)
    covered = (binom.pmf(counts, n, shares[:, np.newaxis]) * inside).sum(axis=1)
    assert covered[(shares * n >= 5) & ((1 - shares) * n >= 5)].min() > 0.927 - 5e-4
    assert covered.min() == pytest.approx(least, abs=1e-4)
    worst = shares[covered.argmin()]
    assert max(worst, 1 - worst) == pytest.approx(at, abs=1e-5)


def test_differences_are_wider_where_less_is_known() -> None:
    """On other images the errors add up; on the same ones the worst case may be worse."""
    a, b = random_matrix(2), random_matrix(3)
    b = AccuracyMatrix(b.values, b.initial, a.num_instances)
    apart = difference_intervals(a, b, same_images=False)
    same = difference_intervals(a, b, same_images=True)
    values_a, values_b = summarize(a), summarize(b)
    assert apart.keys() == same.keys() == NAMES - {FORGETTING}
    one = metric_intervals(a)
    for name, (low, high) in apart.items():
        assert low < values_a[name] - values_b[name] < high
        assert same[name].low <= low
        assert same[name].high >= high
        assert high - low > one[name].high - one[name].low


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), same=st.booleans())
def test_differences_turn_around(seed: int, same: bool) -> None:
    """B - A is A - B with its ends swapped."""
    a, b = random_matrix(seed), random_matrix(seed + 1, 3)
    b = AccuracyMatrix(b.values, b.initial, a.num_instances)
    there = difference_intervals(a, b, same_images=same)
    back = difference_intervals(b, a, same_images=same)
    for name, (low, high) in there.items():
        assert back[name] == pytest.approx((-high, -low))


def test_input_that_cannot_be_is_one_line() -> None:
    """A level of 95, an unknown protocol, and the same images in other numbers."""
    matrix = random_matrix(0)
    for call in (metric_intervals, wilson_of):
        with pytest.raises(ConfigError, match="level is 95; expected a fraction"):
            call(matrix, level=95)
    for given_matrix in (matrix, AccuracyMatrix([[0.5]])):
        with pytest.raises(ConfigError, match="'stream'"):
            metric_intervals(given_matrix, protocol="stream")
    with pytest.raises(RecordError, match="compare them as different images"):
        difference_intervals(matrix, random_matrix(9), same_images=True)


def wilson_of(matrix: AccuracyMatrix, *, level: float) -> object:
    return wilson_interval(1, 2, level=level)
