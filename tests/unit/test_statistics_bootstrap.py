"""Bootstrap tests over images: compared with scipy, plain loops, and simulations."""

import itertools
import math
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from one_line_errors import check_error
from scipy.stats import binom
from stored_values import build_images, build_row_predictions

from clear_mlflow import AccuracyMatrix, metrics
from clear_mlflow.core.errors import ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.metrics import ALL_METRICS, METRICS, Metric, Predictions, summarize
from clear_mlflow.statistics import ImageBootstrap, TTest, bootstrap

FORGETTING = "renate/forgetting"
BACKWARD = "clear/backward_transfer"


def paired_bootstrap(a: Predictions, b: Predictions, **options: Any) -> dict[str, TTest]:
    return ImageBootstrap(**options).test(a, b)


def hits(right: np.ndarray, counts: tuple[int, ...], protocol: str = "iid") -> Predictions:
    images = build_images(counts, np.ones(sum(counts)), ("wrong", "right"))
    answers = build_row_predictions(images, dict(enumerate(right)))
    return Predictions(images, answers, protocol)


def random_hits(seed: int, share: float = 0.6, protocol: str = "iid") -> Predictions:
    draws = np.random.default_rng(seed)
    return hits(draws.random((4, 18)) < share, (7, 5, 6), protocol=protocol)


def build_matrix(run: Predictions) -> AccuracyMatrix:
    cells = np.array([answer.count_correct(run.images) for answer in run.rows.values()]) / (7, 5, 6)
    return AccuracyMatrix(cells[1:], cells[0], (7, 5, 6))


def compute_by_loops(
    a: Predictions, b: Predictions | None, metric: Metric, resamples: int, seed: int
) -> list[float]:
    """Compute a metric, or its differences, image by image, with the same resamples.

    Without the resamples on which the metric is undefined.
    """
    draws, drawn = np.random.default_rng(seed), {}
    for j in range(3):
        places = np.flatnonzero(a.images.bucket == j)
        for r in range(resamples):
            drawn[r, j] = places[draws.integers(0, len(places), size=len(places))]
    results = []
    for r in range(resamples):
        values = []
        for run in filter(None, (a, b)):
            cells = [
                [sum(int(row.labels[m]) for m in drawn[r, j]) / len(drawn[r, j]) for j in range(3)]
                for row in run.rows.values()
            ]
            with suppress(UndefinedMetricError):
                values.append(metric.function(AccuracyMatrix(cells[1:], cells[0], (7, 5, 6))))
        if len(values) == (1 if b is None else 2):
            results.append(values[0] - sum(values[1:]))
    return results


@pytest.mark.slow
def test_the_bootstrap_equals_a_slow_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random_hits(3), random_hits(4, share=0.7)
    values_a = summarize(build_matrix(a), metrics=ALL_METRICS)
    values_b = summarize(build_matrix(b), metrics=ALL_METRICS)
    options = {"metrics": ALL_METRICS, "resamples": 60, "seed": 9, "level": 0.8}
    intervals = ImageBootstrap(**options).intervals(a)
    results = paired_bootstrap(a, b, **options)
    for max_images, max_cells in ((8, 1 << 23), (1 << 16, 7 * 12), (50, 1)):
        monkeypatch.setattr(bootstrap, "_MAX_DRAWN_IMAGES", max_images)
        monkeypatch.setattr(bootstrap, "_MAX_CELLS", max_cells)
        assert paired_bootstrap(a, b, **options) == results
    assert results.keys() <= values_a.keys() == intervals.keys()
    assert {*map(results.get, values_a)} >= {*results.values()}
    for metric in (metric for metric in ALL_METRICS if metric.name in results):
        changes = np.array(compute_by_loops(a, b, metric, 60, 9))
        test = results[metric.name]
        assert test.error == pytest.approx(changes.std())
        assert test.difference == pytest.approx(values_a[metric.name] - values_b[metric.name])
        assert (test.freedom, test.n_a, test.n_b) == (math.inf, 18, 18)
        alone = compute_by_loops(a, None, metric, 60, 9)
        assert intervals[metric.name] == pytest.approx(tuple(np.quantile(alone, [0.1, 0.9])))


@pytest.mark.slow
def test_shared_resamples_equal_those_of_each_pair() -> None:
    a, b, c = (random_hits(seed, share=0.6 + seed / 50) for seed in range(3))
    runs = [a, b, c.after(2)]
    requested = {"metrics": ALL_METRICS, "resamples": 40, "seed": 9, "level": 0.8}
    together = ImageBootstrap(**requested)
    for run in runs:
        assert together.intervals(run) == ImageBootstrap(**requested).intervals(run)
    for one, other in itertools.permutations(runs, 2):
        assert together.test(one, other) == paired_bootstrap(one, other, **requested)


def test_metrics_undefined_on_a_resample_use_the_others() -> None:
    def failing(matrix: AccuracyMatrix) -> float:
        if matrix.values[:, -1].min() < 0.5:
            raise UndefinedMetricError("not here")
        return float(matrix.values[0, 0])

    same = Metric(name="own/same", function=lambda m: 0.5)
    own = [Metric(name="own/failing", function=failing), same]
    a, b = random_hits(1, share=0.8), random_hits(2, share=0.8)
    results = paired_bootstrap(a, b, metrics=own, resamples=60)
    assert results.keys() == {"own/failing"}
    assert 0 < results["own/failing"].error < 1


def two_models(
    draws: np.random.Generator, ahead: float, n: int = 80
) -> tuple[Predictions, Predictions]:
    counts = (n, n, n)
    hard = draws.random(3 * n)
    sides = []
    for gain in (ahead, 0.0):
        luck = 0.6 * hard + 0.4 * draws.random((4, 3 * n))
        sides.append(hits(luck < 0.55 + gain, counts))
    return sides[0], sides[1]


@pytest.mark.slow
def test_false_positives_stay_within_the_level_and_intervals_cover() -> None:
    """Simulated under the null: for a mean, a difference of rows, and forgetting."""
    draws, times, level = np.random.default_rng(1), 120, 0.9
    chosen = [m for m in METRICS if m.name in (BACKWARD, "renate/backward_transfer", FORGETTING)]
    wrong, outside = dict.fromkeys((m.name for m in chosen), 0), 0
    for _ in range(times):
        a, b = two_models(draws, 0.0)
        tests = paired_bootstrap(a, b, metrics=chosen, level=level, resamples=80)
        for name, test in tests.items():
            wrong[name] += test.p_value <= 1 - level
        low, high = tests[BACKWARD].interval(level)
        outside += not low <= 0 <= high
    # One simulation in 10,000 would show more by chance.
    most = binom.ppf(1 - 1e-4, times, 1 - level)
    assert max(wrong.values()) <= most, wrong
    assert min(wrong[BACKWARD], outside) >= binom.ppf(1e-4, times, 1 - level)
    assert outside <= most


def test_runs_of_different_lengths_and_protocols() -> None:
    a, b = random_hits(6), random_hits(7).after(2)
    results = paired_bootstrap(a, b, resamples=20)
    expected = [metrics.renate.average_accuracy(build_matrix(run)) for run in (a.after(2), b)]
    test = results["renate/average_accuracy"]
    assert test.difference == pytest.approx(expected[0] - expected[1])
    a, b = (random_hits(seed, protocol="streaming") for seed in (6, 7))
    streaming = paired_bootstrap(a, b, resamples=20)
    assert streaming.keys() == summarize(build_matrix(a), "streaming").keys()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_resamples() -> None:
    """All matrices of 120 buckets at once would take 350 MB."""
    run = hits(np.random.default_rng(0).random((121, 240)) < 0.7, (2,) * 120)
    mean = Metric(name="own/mean", function=lambda m: float(m.values.mean()))
    tracemalloc.start()
    ImageBootstrap(metrics=[mean], resamples=3000).intervals(run)
    assert tracemalloc.get_traced_memory()[1] < 150e6
    tracemalloc.stop()


def test_invalid_input_is_a_one_line_error() -> None:
    a, other = random_hits(1), hits(np.ones((4, 18), bool), (7, 6, 5))
    check_error(RecordError, "cannot be paired", paired_bootstrap, a, other)
    check_error(ConfigError, "level is 0; expected", paired_bootstrap, a, a, level=0)
    check_error(ConfigError, "resamples is 0", ImageBootstrap, resamples=0)


def test_an_interval_uses_resamples_where_the_metric_is_defined() -> None:
    """A share of correct images is undefined without any."""

    def share_kept(matrix: AccuracyMatrix) -> float:
        if matrix.values[0, 0] == 0:
            raise UndefinedMetricError("needs an image that was right")
        return float(matrix.values[1, 0] / matrix.values[0, 0])

    right = np.zeros((3, 6), bool)
    right[1, [0, 3]] = right[2, 0] = True  # of the first bucket, one of three, and again
    run = hits(right, (3, 3))
    resampled = ImageBootstrap(metrics=[Metric(name="lab/kept", function=share_kept)])
    assert resampled.intervals(run)["lab/kept"] == (1.0, 1.0)
