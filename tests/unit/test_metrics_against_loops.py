"""Every metric against its literal twin, against hand-made numbers, and against published ones."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import SECOND_PLACE

from clear_mlflow import AccuracyMatrix, metrics
from clear_mlflow.metrics import ALL_METRICS, clear, renate

THREE_BUCKETS = AccuracyMatrix(
    [[0.8, 0.6, 0.4], [0.7, 0.9, 0.3], [0.5, 0.6, 0.95]],
    initial=[0.10, 0.20, 0.05],
    num_instances=[100, 200, 700],
)


# Of every family that there is, those that a user adds included.
explain, series, summarize = (
    partial(function, metrics=ALL_METRICS)
    for function in (metrics.explain, metrics.series, metrics.summarize)
)
TWINS = ("clear", "renate")  # families that by_loops computes


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def by_loops(values, initial, counts) -> dict[str, float]:
    """DOMAIN's definitions as double loops over plain lists; every cell is measured."""
    k, width = len(values), len(values[0]) if values else 0
    cells = [(i, j) for i in range(k) for j in range(width)]
    last = k - 1
    found = {
        "clear/in_domain_accuracy": mean(values[i][j] for i, j in cells if i == j),
        "clear/next_domain_accuracy": mean(values[i][j] for i, j in cells if j == i + 1),
        "clear/backward_transfer": mean(values[i][j] for i, j in cells if j < i),
        "clear/forward_transfer": mean(values[i][j] for i, j in cells if j > i),
        "clear/accuracy": mean(values[i][j] for i, j in cells if j <= i),
    }
    first_four = list(found.values())[:4]
    found["clear/challenge_score"] = None if None in first_four else mean(first_four)
    if k >= 1:
        found["renate/average_accuracy"] = mean(values[last][j] for j in range(k))
        if counts is not None:
            hits = sum(counts[j] * values[last][j] for j in range(k))
            found["renate/micro_average_accuracy"] = hits / sum(counts[j] for j in range(k))
    if k >= 2:
        drops, changes = [], []
        for j in range(last):
            best = -1.0
            for i in range(last):
                best = max(best, values[i][j])
            drops.append(best - values[last][j])
            changes.append(values[last][j] - values[j][j])
        found["renate/forgetting"] = mean(drops)
        found["renate/backward_transfer"] = mean(changes)
        if initial is not None:
            gains = [values[j - 1][j] - initial[j] for j in range(1, k)]
            found["renate/forward_transfer"] = mean(gains)
    return {name: value for name, value in found.items() if value is not None}


fractions = st.integers(0, 1000).map(lambda n: n / 1000)


@st.composite
def measured_matrices(draw):
    width = draw(st.integers(1, 7))
    k = draw(st.integers(0, width))
    row = st.lists(fractions, min_size=width, max_size=width)
    values = draw(st.lists(row, min_size=k, max_size=k))
    initial = draw(st.none() | row)
    counts = draw(st.none() | st.lists(st.integers(1, 2**40), min_size=width, max_size=width))
    return values, initial, counts, width


def of_twins(found):
    """What the loops above define: a family that is added brings a twin of its own."""
    return {name: value for name, value in found.items() if name.split("/")[0] in TWINS}


def build(values, initial, counts, width) -> AccuracyMatrix:
    return AccuracyMatrix(np.array(values, dtype=float).reshape(-1, width), initial, counts)


@settings(deadline=None)
@given(measured_matrices())
def test_summary_is_what_double_loops_compute(case):
    """The same names are defined, with the same values; every other name has a reason."""
    values, initial, counts, _ = case
    matrix = build(*case)
    summary, reasons = summarize(matrix), explain(matrix)
    assert of_twins(summary) == pytest.approx(by_loops(values, initial, counts), abs=1e-12)
    assert all(type(value) is float for value in summary.values())
    assert summary.keys().isdisjoint(reasons)
    assert summary.keys() | reasons.keys() == {metric.name for metric in ALL_METRICS}
    assert all(reason and "\n" not in reason for reason in reasons.values())


@settings(deadline=None)
@given(measured_matrices())
def test_a_series_is_the_summary_of_every_cut_off_run(case):
    """Step k is the metric of the run after k buckets; the last step is the summary, exactly."""
    values, initial, counts, width = case
    found = series(build(*case))
    for k in range(1, len(values) + 1):
        at_k = {name: steps[k] for name, steps in found.items() if k in steps}
        assert of_twins(at_k) == pytest.approx(by_loops(values[:k], initial, counts), abs=1e-12)
        assert at_k == summarize(build(values[:k], initial, counts, width))
    last = {name: steps[max(steps)] for name, steps in found.items() if len(values) in steps}
    assert last == summarize(build(*case))


@settings(deadline=None)
@given(measured_matrices())
def test_streaming_keeps_what_needs_no_training_image(case):
    """Next-domain, CLEAR's forward and Renate's forward remain, as under iid; the rest is told."""
    matrix = build(*case)
    remaining = {
        "clear/next_domain_accuracy",
        "clear/forward_transfer",
        "renate/forward_transfer",
    }
    everything, kept = summarize(matrix), summarize(matrix, "streaming")
    assert kept.items() <= everything.items()
    assert of_twins(kept) == {n: value for n, value in everything.items() if n in remaining}
    assert series(matrix, "streaming") == {
        name: steps for name, steps in series(matrix).items() if name in kept
    }
    reasons = explain(matrix, "streaming")
    for name in everything.keys() - kept.keys():
        assert (
            reasons[name] == "under the streaming protocol cells with j <= i score training images"
        )


@settings(max_examples=200, deadline=None)
@given(measured_matrices(), st.data())
def test_one_unmeasured_cell_undefines_just_the_metrics_that_use_it(case, data):
    """A metric is defined without a cell only where changing that cell does not change it."""
    values, initial, counts, width = case
    if not values:
        return
    i = data.draw(st.integers(0, len(values) - 1))
    j = data.draw(st.integers(0, width - 1))
    low, high, gap = (np.array(values, dtype=float) for _ in range(3))
    low[i, j], high[i, j], gap[i, j] = 0.0, 1.0, math.nan
    if np.isnan(gap[-1]).all():  # the last row would be dropped: another run, not a gap
        return
    with_low = summarize(AccuracyMatrix(low, initial, counts))
    with_high = summarize(AccuracyMatrix(high, initial, counts))
    with_gap = summarize(AccuracyMatrix(gap, initial, counts))
    for name, value in with_low.items():
        if with_high[name] != value:
            assert name not in with_gap
            assert explain(AccuracyMatrix(gap, initial, counts))[name] == (
                f"R[{i}, {j}] was not measured"
            )
    for name, value in with_gap.items():
        assert value == with_low[name] == with_high[name]


@settings(deadline=None)
@given(measured_matrices())
def test_forgetting_is_at_least_the_loss_since_training(case):
    """The best accuracy ever is no lower than the one just after training the bucket."""
    summary = summarize(build(*case))
    if "renate/forgetting" in summary:
        assert summary["renate/forgetting"] >= -summary["renate/backward_transfer"] - 1e-12


@settings(deadline=None)
@given(measured_matrices())
def test_values_stay_in_their_ranges(case):
    """Accuracies lie in [0, 1], differences in [-1, 1]."""
    signed = {"renate/forgetting", "renate/backward_transfer", "renate/forward_transfer"}
    for name, value in of_twins(summarize(build(*case))).items():
        assert (-1 if name in signed else 0) - 1e-12 <= value <= 1 + 1e-12


@pytest.mark.parametrize(
    ("metric", "by_hand"),
    [
        (clear.in_domain_accuracy, (0.8 + 0.9 + 0.95) / 3),
        (clear.next_domain_accuracy, (0.6 + 0.3) / 2),
        (clear.backward_transfer, (0.7 + 0.5 + 0.6) / 3),
        (clear.forward_transfer, (0.6 + 0.4 + 0.3) / 3),
        (clear.accuracy, (0.8 + 0.7 + 0.9 + 0.5 + 0.6 + 0.95) / 6),
        (clear.challenge_score, (2.65 / 3 + 0.45 + 0.6 + 1.3 / 3) / 4),
        (renate.average_accuracy, (0.5 + 0.6 + 0.95) / 3),
        (renate.micro_average_accuracy, (50 + 120 + 665) / 1000),
        (renate.forgetting, ((0.8 - 0.5) + (0.9 - 0.6)) / 2),
        (renate.backward_transfer, ((0.5 - 0.8) + (0.6 - 0.9)) / 2),
        (renate.forward_transfer, ((0.6 - 0.2) + (0.3 - 0.05)) / 2),
    ],
)
def test_three_buckets_by_hand(metric, by_hand):
    """Small enough to check on paper; the same word has two values."""
    assert metric(THREE_BUCKETS) == pytest.approx(by_hand)


def test_change_on_past_buckets_needs_no_cell_of_the_last_one():
    """Renate's backward transfer says nothing of the bucket just trained."""
    matrix = AccuracyMatrix([[0.5, 0.9], [0.4, float("nan")]])
    assert renate.backward_transfer(matrix) == pytest.approx(-0.1)


def test_forgetting_counts_rows_before_the_bucket_was_trained():
    """Bucket 2 was best before it was trained on: Renate's code counts that, its text does not."""
    matrix = AccuracyMatrix([[0.5, 0.9, 0.1], [0.5, 0.4, 0.1], [0.5, 0.3, 0.1]])
    assert renate.forgetting(matrix) == pytest.approx((0.0 + 0.6) / 2)


def test_published_matrix_gives_the_published_numbers():
    """The matrix of the challenge's second place, and what its organisers made of it."""
    matrix = AccuracyMatrix(np.array(SECOND_PLACE))
    expected = {
        "clear/in_domain_accuracy": 0.9228127,
        "clear/next_domain_accuracy": 0.9168179,
        "clear/backward_transfer": 0.9387415,
        "clear/forward_transfer": 0.8865838,
        "clear/accuracy": 0.9358454,
        "renate/average_accuracy": 0.9510467,
    }
    summary = summarize(matrix)
    assert {name: summary[name] for name in expected} == pytest.approx(expected, abs=6e-8)
    assert round(summary["clear/challenge_score"], 3) == 0.916
    assert round(summary["renate/backward_transfer"], 2) == 0.03
