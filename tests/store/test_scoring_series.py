"""Series of a run: each row adds its points, and long streams have a limited number."""

import numpy as np
import pytest
from courses import series
from hypothesis import given
from hypothesis import strategies as st

from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.report.page.matrix_map import MAX_SHOWN, sample_evenly
from clear_mlflow.scoring.run_log import (
    build_bucket_series_names,
    collect_series,
    evaluate_step,
)

CELLS = st.one_of(st.floats(0, 1), st.just(float("nan")))


@st.composite
def matrices(draw):
    """With either protocol, with gaps, with or without the initialisation, complete or not."""
    width = draw(st.integers(1, 5))
    row = st.lists(CELLS, min_size=width, max_size=width)
    values = draw(st.lists(row, min_size=1, max_size=width))
    initial = draw(st.one_of(st.none(), row))
    matrix = AccuracyMatrix(values, initial, [100] * width)
    return matrix.mask(draw(st.sampled_from(["iid", "streaming"])))


@pytest.mark.slow
@given(masked_matrix=matrices())
def test_metrics_logged_row_by_row_equal_those_at_once(masked_matrix):
    """A training's points equal those of scoring."""
    sent: dict[str, dict[int, float]] = {}
    for step in range(masked_matrix.num_rows + 1):
        for name, value in evaluate_step(masked_matrix, step).items():
            sent.setdefault(name, {})[step] = value
    assert sent == collect_series(masked_matrix, series(masked_matrix))


def test_a_row_computes_each_metric_once():
    """Earlier rows are not scored again."""
    matrix = AccuracyMatrix(np.full((300, 300), 0.5))
    calls = []

    def own(matrix_seen):
        calls.append(matrix_seen.num_rows)
        return 0.5

    evaluate_step(matrix, 300, (*METRICS, Metric(name="lab/own", function=own)))
    assert calls == [300]


@pytest.mark.parametrize("num_buckets", [1, 2, 99, MAX_SHOWN, MAX_SHOWN + 1, 300, 1000])
def test_a_long_stream_charts_a_bounded_number_of_buckets(num_buckets):
    """Evenly spaced, with the first and the last."""
    chosen = sample_evenly(num_buckets)
    assert len(chosen) == min(num_buckets, MAX_SHOWN)
    assert (chosen[0], chosen[-1]) == (0, num_buckets - 1)
    gaps = np.diff(chosen)
    assert num_buckets == 1 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)
    matrix = AccuracyMatrix(np.full((2, num_buckets), 0.5) if num_buckets > 1 else [[0.5]])
    names = build_bucket_series_names(matrix.buckets)
    assert set(collect_series(matrix, {})) == {names[j] for j in chosen}


def test_bucket_names_that_mlflow_rejects_have_a_series_each():
    """Also if several become equal after replacement of characters."""
    for keys in (("a b", "a/b", "a?b"), ("a_b.2", "a b", "a/b"), ("a_b.1", "a b", "a?b")):
        assert len(set(build_bucket_series_names(keys))) == 3
