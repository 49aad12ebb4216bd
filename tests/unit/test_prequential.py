"""Predictions before training: the file, and metrics next to blind classifiers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from prequential_records import build_record, measure_best_blind

from clear_mlflow.core.batch_record import PREQUENTIAL_FILE, PrequentialRecord
from clear_mlflow.core.errors import ConfigError, RecordError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.predictions import tensors_to_bytes
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.metrics import PREQUENTIAL_METRICS, evaluate_metrics
from clear_mlflow.metrics.prequential import (
    accuracy,
    blind,
    label_correlation,
    most_frequent_class,
    near_future,
)

# Labels 2 | 0 1 | 1 | 1 0 0, in two buckets; a model at distances 0 and 1.
TABLE = build_record(
    [2, 0, 1, 1, 1, 0, 0],
    [1, 2, 1, 3],
    bucket=[0, 0, 1, 1],
    distances=(0, 1),
    correct=[[1, -1], [1, 0], [0, 1], [2, 3]],
)


def test_values_computed_by_hand() -> None:
    """Batch 0 is not counted at distance 1; a blind classifier without labels predicts nothing."""
    assert accuracy(TABLE, 0) == pytest.approx(4 / 7)
    assert near_future(TABLE, 1) == pytest.approx(4 / 6)
    # Before batches 1 to 3, K=1 repeats 2, 1, 1: 0 + 1 + 1 images; K=10 predicts 2, 0, 1.
    assert blind(TABLE, 0) == pytest.approx(2 / 7)
    # One batch earlier: nothing, 2, 1, which is 1 image of the last batch; K=10: nothing, 2, 0.
    assert blind(TABLE, 1) == pytest.approx(2 / 6)
    assert most_frequent_class(TABLE) == pytest.approx(3 / 7)  # class 0, of equals the lowest
    assert label_correlation(TABLE) == 0.0


def test_the_history_of_each_metric_is_that_of_a_shorter_run() -> None:
    matrix = AccuracyMatrix([[0.5, 0.5], [0.5, 0.5]], buckets=("a", "b"))
    results = evaluate_metrics(PREQUENTIAL_METRICS, matrix, prequential=TABLE)
    assert results["prequential/accuracy"].series == pytest.approx({1: 2 / 3, 2: 4 / 7})
    assert results["prequential/near_future_1"].series == pytest.approx({1: 0.0, 2: 4 / 6})
    assert "prequential/near_future_10" not in results  # it was not asked for
    assert "prequential/accuracy" not in evaluate_metrics(PREQUENTIAL_METRICS, matrix)


@pytest.mark.parametrize("length", [3, 4, 7, 50])
@pytest.mark.parametrize("num_runs", [2, 5])
def test_repeating_the_last_label_is_right_except_at_the_start_of_a_run(length, num_runs) -> None:
    """0 0 0 1 1 1 with batches of one image: (run length - 1) / run length."""
    labels = [run % 3 for run in range(num_runs) for _ in range(length)]
    record = build_record(labels, [1] * len(labels))
    assert blind(record, 0) == pytest.approx((length - 1) / length)


def test_labels_in_random_order_are_predicted_by_chance() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 4000)
    record = build_record(labels, [8] * 500, distances=(0, 1, 10))
    for distance in record.distances:
        assert blind(record, distance) == pytest.approx(1 / 4, abs=0.02)
    assert label_correlation(record) < 5


def test_correlation_ends_where_runs_end() -> None:
    """Runs of 20 batches, twice of each of 20 classes: half of it at distance 10, chance at 20."""
    labels = np.repeat(np.tile(np.random.default_rng(1).permutation(20), 2), 20 * 4)
    record = build_record(labels, [4] * 800)
    assert blind(record, 0) == pytest.approx(1 - 1 / 20)
    assert 17 <= label_correlation(record) <= 20


def test_labels_that_help_at_all_distances_are_undefined() -> None:
    """One change in 2500 batches."""
    record = build_record([0] * 1250 + [1] * 1250, [1] * 2500)
    with pytest.raises(UndefinedMetricError, match="at each distance up to 1000 batches"):
        label_correlation(record)
    # The last batch that can be looked for is without labels before it.
    assert label_correlation(build_record([0, 0, 1, 1], [1] * 4)) <= 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=15), st.integers(0, 2**32), st.integers(1, 4)
)
def test_values_are_those_of_slow_loops(sizes, seed, num_classes) -> None:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, num_classes, sum(sizes)).tolist()
    correct = [
        [int(draws.integers(0, n + 1)) if t >= d else -1 for d in (0, 1, 10)]
        for t, n in enumerate(sizes)
    ]
    record = build_record(labels, sizes, distances=(0, 1, 10), correct=correct)
    for column, distance in enumerate((0, 1, 10)):
        if len(sizes) <= distance:
            with pytest.raises(UndefinedMetricError, match=f"more than {distance} batches"):
                near_future(record, distance)
            continue
        hits = sum(row[column] for row in correct[distance:])
        assert near_future(record, distance) == pytest.approx(hits / sum(sizes[distance:]))
        assert blind(record, distance) == measure_best_blind(labels, sizes, distance)
        width = int(draws.integers(1, 20))
        windows = record.compute_windows(distance, width)
        for t in range(distance, len(sizes)):
            first = t  # the fewest batches up to t with so many images
            while first > distance and sum(sizes[first : t + 1]) < width:
                first -= 1
            expected = sum(row[column] for row in correct[first : t + 1])
            assert windows[t - distance] == pytest.approx(expected / sum(sizes[first : t + 1]))


@pytest.mark.parametrize(
    ("record", "function", "reason"),
    [
        (TABLE.after(0), accuracy, "needs the batches of all 0 buckets trained"),
        (TABLE.after(1).after(2), accuracy, "needs the batches of all 2 buckets trained"),
        (build_record([0], [1], distances=(1,)), accuracy, "needs prequential=0"),
        (build_record([0], [1], correct=[[-1]]), blind, "was not predicted at distance 0"),
    ],
)
def test_what_is_missing_is_undefined(record, function, reason) -> None:
    """A value of fewer batches would be another quantity under the same name."""
    with pytest.raises(UndefinedMetricError, match=reason):
        function(record, 0)
    if record.k != 1:
        for constant in (most_frequent_class, label_correlation):
            with pytest.raises(UndefinedMetricError, match=reason):
                constant(record)


def test_a_record_round_trips_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / PREQUENTIAL_FILE).write_bytes(TABLE.to_bytes())
    read = PrequentialRecord.load(tmp_path / PREQUENTIAL_FILE)
    assert read.to_bytes() == TABLE.to_bytes()
    assert (read.distances, read.buckets, read.k) == ((0, 1), ("a", "b"), 2)
    assert read.after(1).to_bytes() == TABLE.after(1).to_bytes() != TABLE.to_bytes()


ARRAYS = ("bucket", "size", "first_time", "last_time", "label", "correct")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"size": [1, 2, 1, 4]}, "do not add up to 7 labels"),
        ({"size": [0, 3, 1, 3]}, "do not add up to 7 labels"),
        ({"size": [2**62, 2**62, 2**62, 2**62]}, "do not add up to 7 labels"),
        ({"size": [7]}, "bucket is uint16"),
        ({"size": [[1, 2, 1, 3]]}, "size is int64"),
        ({"label": [[0] * 7]}, "label is uint16"),
        ({"bucket": [0, 1, 0, 1]}, "out of their order"),
        ({"bucket": [1, 1, 1, 1]}, "out of their order"),
        ({"bucket": [0, 1, 2, 2]}, "out of their order"),
        ({"first_time": [2**40] * 4}, "out of their order"),
        ({"correct": [[2, -1], [1, 0], [0, 1], [2, 3]]}, "predicted right"),
        ({"correct": [[-2, -1], [1, 0], [0, 1], [2, 3]]}, "predicted right"),
        ({"correct": [[1], [1], [0], [2]]}, "correct is int64"),
        ({"distances": "[1, 0]"}, "distances are"),
        ({"distances": "[0, 7]"}, "distances are"),
        ({"distances": "0"}, "distances"),
        ({"buckets": '["a"]'}, "out of their order"),
        ({"buckets": "a"}, "is not JSON"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, changes, reason) -> None:
    arrays = {name: getattr(TABLE, name) for name in ARRAYS}
    metadata = {"distances": "[0, 1]", "buckets": '["a", "b"]'}
    for name, value in changes.items():
        if name in arrays:
            arrays[name] = np.asarray(value).astype(arrays[name].dtype)
        else:
            metadata[name] = value
    (tmp_path / PREQUENTIAL_FILE).write_bytes(tensors_to_bytes(arrays, **metadata))
    message = check_error(RecordError, reason, PrequentialRecord.load, tmp_path / PREQUENTIAL_FILE)
    assert message.startswith(f"{PREQUENTIAL_FILE}: ")


def test_a_file_of_other_buckets_is_rejected() -> None:
    with pytest.raises(RecordError, match="but the rows have"):
        TABLE.check(AccuracyMatrix([[0.5, 0.5]], buckets=("a", "c")))


@pytest.mark.parametrize("text", ["3", "0,0", "", "0,", "0,3", "on", "-1"])
def test_other_distances_are_rejected(text) -> None:
    with pytest.raises(ConfigError, match="expected off, or some of 0, 1, 10, 100, 1000"):
        TrainConfig.resolve({"prequential": text, "time_order": "on"})


def test_distances_are_sorted() -> None:
    assert TrainConfig.resolve({"prequential": "10, 0", "time_order": "on"}).prequential == "0,10"
