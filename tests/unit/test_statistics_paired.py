"""Tests over test images: against scipy, against plain loops, and on simulated models."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from clear_mlflow import AccuracyMatrix, metrics, summarize
from clear_mlflow.core.errors import ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.metrics import ALL_METRICS, METRICS, Metric
from clear_mlflow.statistics import (
    BootstrapTest,
    CorrectMatrix,
    ImageBootstrap,
    mcnemar_cells,
    mcnemar_exact,
    paired,
)

FORGETTING = "renate/forgetting"
BACKWARD = "clear/backward_transfer"


def paired_bootstrap(
    a: CorrectMatrix, b: CorrectMatrix, **options: Any
) -> dict[str, BootstrapTest]:
    return ImageBootstrap(**options).test(a, b)


def hits(
    right: np.ndarray, counts: tuple[int, ...], first_row: int = 0, digest: str = "d"
) -> CorrectMatrix:
    return CorrectMatrix(
        evaluation_set=digest,
        buckets=tuple(str(j + 1) for j in range(len(counts))),
        bucket=np.repeat(np.arange(len(counts)), counts).astype(np.uint16),
        rows=tuple(range(first_row, first_row + len(right))),
        right=right,
    )


def random_hits(
    seed: int, counts: tuple[int, ...] = (7, 5, 6), share: float = 0.6
) -> CorrectMatrix:
    draws = np.random.default_rng(seed)
    return hits(draws.random((len(counts) + 1, sum(counts))) < share, counts)


def test_hits_of_stored_predictions_count_up_to_the_matrix() -> None:
    """From the files' objects, in any order of rows, to accuracies; a missing row stays NaN."""
    images = EvaluationSet(
        buckets=("1", "2"),
        class_names=("a", "b"),
        bucket=np.array([0, 0, 1], np.uint16),
        label=np.array([0, 1, 1], np.uint16),
        content=np.zeros((3, 16), np.uint8),
        names=("x", "y", "z"),
    )
    answers = [
        RowPredictions(row=row, labels=np.array(labels, np.uint8), evaluation_set=images.digest)
        for row, labels in [(2, [0, 1, 1]), (0, [0, 0, 0])]
    ]
    found = CorrectMatrix.of(images, answers)
    assert found.rows == (0, 2)
    assert found.evaluation_set == images.digest
    expected = AccuracyMatrix([[np.nan] * 2, [1, 1]], [0.5, 0], [2, 1])
    assert found.matrix().equals(expected)
    assert found.after(1).rows == (0,)
    for wrong, message in [([], "no predictions"), ([answers[0]] * 2, "arrived twice")]:
        with pytest.raises(RecordError, match=message):
            CorrectMatrix.of(images, wrong)
    foreign = RowPredictions(row=1, labels=np.zeros(3, np.uint8), evaluation_set="other")
    with pytest.raises(RecordError, match="another evaluation set"):
        CorrectMatrix.of(images, [foreign])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_is_the_sign_test(pairs: list[tuple[bool, bool]]) -> None:
    """Of scipy, on images that one model alone got right; the same from the other side."""
    a, b = np.array(pairs).T
    found, back = mcnemar_exact(a, b), mcnemar_exact(b, a)
    only_a = sum(x and not y for x, y in pairs)
    only_b = sum(y and not x for x, y in pairs)
    expected = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert found.p_value == pytest.approx(expected)
    assert (found.only_a, found.only_b, found.n) == (only_a, only_b, len(pairs))
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert (back.p_value, back.difference) == (found.p_value, -found.difference)


def test_mcnemar_in_every_cell_is_mcnemar_of_that_cell() -> None:
    """The matrix form agrees with one call a cell; a row that one run lacks is NaN."""
    a, b = random_hits(1), random_hits(2)
    short = CorrectMatrix(b.evaluation_set, b.buckets, b.bucket, b.rows[1:3], b.right[1:3])
    cells = mcnemar_cells(a, short)
    assert cells.shape == (3, 3)
    assert np.isnan(cells[0]).all()
    for row, j in itertools.product((1, 2), range(3)):
        where = a.bucket == j
        one = mcnemar_exact(a.right[row, where], b.right[row, where])
        assert cells[row, j] == pytest.approx(one.p_value)


def by_loops(
    a: CorrectMatrix, b: CorrectMatrix, metric: Metric, resamples: int, seed: int
) -> list[float]:
    """The bootstrap's differences, image by image; draws in the same order as the quick one."""
    draws, drawn = np.random.default_rng(seed), {}
    for j in range(len(a.buckets)):
        places = np.flatnonzero(a.bucket == j)
        for r in range(resamples):
            drawn[r, j] = places[draws.integers(0, len(places), size=len(places))]
    found = []
    for r in range(resamples):
        values = []
        for run in (a, b):
            cells = [
                [
                    sum(bool(run.right[i, m]) for m in drawn[r, j]) / len(drawn[r, j])
                    for j in range(len(run.buckets))
                ]
                for i in range(len(run.rows))
            ]
            counts = run.matrix().num_instances
            values.append(metric.function(AccuracyMatrix(cells[1:], cells[0], counts)))
        found.append(values[0] - values[1])
    return found


def test_the_bootstrap_is_its_slow_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric, forgetting included, to the bit of its draws; however it is cut in blocks."""
    a, b = random_hits(3), random_hits(4, share=0.7)
    values_a = summarize(a.matrix(), metrics=ALL_METRICS)
    values_b = summarize(b.matrix(), metrics=ALL_METRICS)
    found = paired_bootstrap(a, b, metrics=ALL_METRICS, resamples=60, seed=9, level=0.8)
    monkeypatch.setattr(paired, "_BLOCK", 8)
    again = paired_bootstrap(a, b, metrics=ALL_METRICS, resamples=60, seed=9, level=0.8)
    assert again == found
    assert found.keys() == values_a.keys()
    for metric in (metric for metric in ALL_METRICS if metric.name in found):
        changes = np.array(by_loops(a, b, metric, 60, 9))
        test = found[metric.name]
        assert test.interval == pytest.approx(tuple(np.quantile(changes, [0.1, 0.9])))
        sides = ((changes <= 1e-12).sum() + 1, (changes >= -1e-12).sum() + 1)
        assert test.p_value == pytest.approx(min(1, 2 * min(sides) / 61))
        assert test.a == pytest.approx(values_a[metric.name])
        assert test.difference == pytest.approx(values_a[metric.name] - values_b[metric.name])
        assert (test.resamples, test.n) == (60, 18)


def test_runs_that_are_drawn_once_give_what_each_pair_gives_alone() -> None:
    """To the bit: of runs that stopped early, whatever came before."""
    a, b, c = (random_hits(seed, share=0.6 + seed / 50) for seed in range(3))
    runs = [a, b, c.after(2)]
    asked = {"metrics": ALL_METRICS, "resamples": 40, "seed": 9, "level": 0.8}
    together = ImageBootstrap(**asked)
    for run in runs:
        assert together.intervals(run) == ImageBootstrap(**asked).intervals(run)
    for one, other in itertools.permutations(runs, 2):
        assert together.test(one, other) == paired_bootstrap(one, other, **asked)


@pytest.mark.parametrize("protocol", ["iid", "streaming"])
def test_weighted_sums_are_their_metrics(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """Of a user's own, too: affine ones are found, others are computed on every draw."""

    def failing(matrix: AccuracyMatrix) -> float:
        if matrix.values[:, -1].min() < 0.5:
            raise UndefinedMetricError("not here")
        return 0.5

    own = [
        *ALL_METRICS,
        Metric(name="own/error", function=lambda m: 1 - m.values[0, -1]),
        Metric(name="own/square", function=lambda m: m.values[0, -1] ** 2),
        Metric(name="own/worst", function=lambda m: m.values[:, -1].min()),
        Metric(name="own/failing", function=failing),
        Metric(name="own/nan", function=lambda m: float("nan")),
        Metric(name="own/keys", function=lambda m: m.values[0, -1] * len(m.buckets)),
    ]
    asked = {"metrics": own, "resamples": 30, "protocol": protocol}
    quick = ImageBootstrap(**asked)
    found = quick.test(random_hits(1), random_hits(2))
    (sums,) = quick._sums.values()
    assert {"own/error", "own/keys"} <= sums.keys()
    assert sums.keys().isdisjoint([FORGETTING, "own/square", "own/worst", "own/nan"])
    monkeypatch.setattr(ImageBootstrap, "_weighted_sums", lambda *_: {})
    slow = ImageBootstrap(**asked).test(random_hits(1), random_hits(2))
    assert found.keys() == slow.keys()
    for name, test in found.items():
        assert tuple(test.interval) == pytest.approx(tuple(slow[name].interval), abs=1e-12)


def two_models(
    draws: np.random.Generator, ahead: float, n: int = 80
) -> tuple[CorrectMatrix, CorrectMatrix]:
    """Models that find the same images hard; the first is better by *ahead*."""
    counts = (n, n, n)
    hard = draws.random(3 * n)
    sides = []
    for gain in (ahead, 0.0):
        luck = 0.6 * hard + 0.4 * draws.random((4, 3 * n))
        sides.append(hits(luck < 0.55 + gain, counts))
    return sides[0], sides[1]


def test_false_positives_stay_within_the_level_and_intervals_cover() -> None:
    """Simulated, under the null: for a mean, a difference of rows, and forgetting."""
    draws, times, level = np.random.default_rng(1), 200, 0.9
    chosen = [m for m in METRICS if m.name in (BACKWARD, "renate/backward_transfer", FORGETTING)]
    wrong, outside = dict.fromkeys((m.name for m in chosen), 0), 0
    cells_wrong = 0
    for _ in range(times):
        a, b = two_models(draws, 0.0)
        tests = paired_bootstrap(a, b, metrics=chosen, level=level, resamples=200)
        for name, test in tests.items():
            wrong[name] += test.p_value <= 1 - level
        outside += not tests[BACKWARD].interval.low <= 0 <= tests[BACKWARD].interval.high
        cells_wrong += int(mcnemar_cells(a, b)[3, 0] <= 1 - level)
    # One simulation in 10,000 would show more by chance.
    most = binom.ppf(1 - 1e-4, times, 1 - level)
    assert max(wrong.values()) <= most, wrong
    assert min(wrong[BACKWARD], outside) >= binom.ppf(1e-4, times, 1 - level)
    assert outside <= most
    assert cells_wrong <= most


def test_runs_of_other_lengths_and_protocols() -> None:
    """Both are cut off after the shorter one; under streaming the future alone is compared."""
    a, b = random_hits(6), random_hits(7).after(2)
    found = paired_bootstrap(a, b, resamples=20)
    assert found["renate/average_accuracy"].a == pytest.approx(
        metrics.renate.average_accuracy(a.after(2).matrix())
    )
    streaming = paired_bootstrap(a, b, resamples=20, protocol="streaming")
    assert streaming.keys() == summarize(a.matrix(), "streaming").keys()


def test_input_that_cannot_be_is_one_line() -> None:
    """Other images are never paired, whatever their number."""
    a, other = random_hits(1), hits(random_hits(2).right, (7, 5, 6), digest="e")
    for call in (paired_bootstrap, mcnemar_cells):
        with pytest.raises(RecordError, match=r"different images .* cannot be paired"):
            call(a, other)
    with pytest.raises(ConfigError, match="level is 0; expected"):
        paired_bootstrap(a, a, level=0)
    with pytest.raises(ConfigError, match="resamples is 0"):
        ImageBootstrap(resamples=0)
    for wrong in ([], [True, False, True]):
        with pytest.raises(RecordError, match="hits of shapes"):
            mcnemar_exact(wrong, [True] * len(wrong) if not wrong else [True])
    with pytest.raises(RecordError, match="truth value for each of 1 rows and 2 images"):
        hits(np.ones((1, 3), bool), (1, 1))
    with pytest.raises(RecordError, match="rows, ascending"):
        CorrectMatrix("d", ("1",), np.zeros(1, np.uint16), (2, 1), np.ones((2, 1), bool))
