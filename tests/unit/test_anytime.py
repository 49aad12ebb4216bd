"""Tests within a bucket: their files, and the metrics that need them."""

import itertools
import json
import tracemalloc

import msgspec
import numpy as np
import pytest
from anytime_courses import inside_bucket
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error

from clear_mlflow.core.anytime import (
    AnytimeMatrix,
    AnytimeRow,
    format_anytime_file_name,
    parse_anytime_file_name,
)
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import RowRecord, parse_row_index
from clear_mlflow.learning.parameters.values import parse_test_every
from clear_mlflow.metrics import WITHIN_BUCKET_METRICS as METRICS
from clear_mlflow.metrics import compute_values, evaluate_metrics
from clear_mlflow.metrics.continual_evaluation import windowed_forgetting, windowed_plasticity
from clear_mlflow.report.page.within_bucket import build_within_bucket_charts

N = 40
WHEN = "2026-01-31T12:00:00.123+00:00"
# Right images of 40: the bucket in training, and a test each; the last of a bucket is its row.
COURSE = [
    *[(0, c) for c in ([14, 9, 12], [16, 11, 7], [21, 6, 5], [33, 11, 7], [40, 12, 5])],
    *[(1, c) for c in ([19, 10, 7], [32, 20, 6], [32, 23, 5], [28, 35, 6])],
    *[(2, c) for c in ([18, 16, 10], [29, 29, 18], [28, 30, 26], [29, 34, 31], [28, 29, 40])],
]


def summarize(matrix):
    return compute_values(matrix, METRICS)[0]


def compute_series(matrix):
    results = evaluate_metrics(METRICS, matrix.matrix, tests=matrix)
    return {name: result.series for name, result in results.items() if result.series}


def explain(matrix):
    return {name: str(error) for name, error in compute_values(matrix, METRICS)[1].items()}


def build_matrix(counted_tests, width=3, *, trained=None, protocol="iid"):
    buckets = sorted({bucket for bucket, _ in counted_tests})
    rows, tests = [], []
    for bucket in buckets:
        counts = [count for b, count in counted_tests if b == bucket]
        tests += inside_bucket(bucket + 1, counts[:-1], (N,) * width)
        rows.append(np.array(counts[-1]) / N)
    rows = rows[:trained]
    matrix = AccuracyMatrix(np.array(rows).reshape(len(rows), width), num_instances=[N] * width)
    return AnytimeMatrix.from_tests(tests, matrix, protocol)


def compute_by_loops(counted_tests, k):
    tests = [(bucket, [c / N for c in counts]) for bucket, counts in counted_tests if bucket < k]
    by_name = {}
    minima = [min(values[j] for bucket, values in tests if bucket > j) for j in range(k - 1)]
    if minima:
        by_name["minimum_accuracy"] = sum(minima) / len(minima)
    by_name["worst_case_accuracy"] = tests[-1][1][k - 1] / k
    if minima:
        by_name["worst_case_accuracy"] += (1 - 1 / k) * by_name["minimum_accuracy"]
    averages = [sum(values[: bucket + 1]) / (bucket + 1) for bucket, values in tests]
    by_name["average_anytime_accuracy"] = sum(averages) / len(averages)
    for window in (10, 100):
        drops, rises = [], []
        for j in range(k):
            of_bucket = [values[j] for bucket, values in tests if bucket >= j]
            drop = rise = 0.0
            for end in range(1, len(of_bucket) + 1):
                window_values = of_bucket[max(0, end - window) : end]
                for first in range(len(window_values)):
                    for later in range(first + 1, len(window_values)):
                        drop = max(drop, window_values[first] - window_values[later])
                        rise = max(rise, window_values[later] - window_values[first])
            drops.append(drop)
            rises.append(rise)
        by_name[f"windowed_forgetting_{window}"] = sum(drops) / k
        by_name[f"windowed_plasticity_{window}"] = sum(rises) / k
    return {f"continual_evaluation/{name}": value for name, value in by_name.items()}


def test_the_authors_program_computes_these_numbers():
    """WF, WP, min-ACC and WC-ACC of Mattdl/ContinualEvaluation, bae2a58."""
    matrix = build_matrix(COURSE)
    metrics = summarize(matrix)
    assert metrics["continual_evaluation/minimum_accuracy"] == pytest.approx(0.425, abs=1e-12)
    assert metrics["continual_evaluation/worst_case_accuracy"] == pytest.approx(37 / 60, abs=1e-12)
    names = (f"continual_evaluation/windowed_{name}_10" for name in ("forgetting", "plasticity"))
    ten = [metrics[name] for name in names]
    assert ten == pytest.approx([0.3416666666666666, 0.675], abs=1e-12)
    assert windowed_forgetting(matrix, 3) == pytest.approx(1 / 3, abs=1e-12)
    assert windowed_plasticity(matrix, 3) == pytest.approx(0.4166666666666667, abs=1e-12)


@st.composite
def courses(draw):
    width = draw(st.integers(1, 4))
    trained = draw(st.integers(1, width))
    counts = st.lists(st.integers(0, N), min_size=width, max_size=width)
    tests = [st.lists(counts, min_size=2, max_size=14) for _ in range(trained)]
    courses = [[(bucket, test) for test in draw(tests[bucket])] for bucket in range(trained)]
    return width, trained, list(itertools.chain(*courses))


@settings(max_examples=60)
@given(courses())
def test_every_metric_equals_literal_loops(drawn):
    width, trained, tests = drawn
    matrix = build_matrix(tests, width)
    steps = compute_series(matrix)
    for k in range(1, trained + 1):
        expected = compute_by_loops(tests, k)
        at_k = {name: values[k] for name, values in steps.items() if k in values}
        assert at_k == pytest.approx(expected, abs=1e-12)
        assert summarize(matrix.after(k)) == pytest.approx(expected, abs=1e-12)
    assert expected.keys() | explain(matrix).keys() == {metric.name for metric in METRICS}


def test_without_tests_within_buckets_nothing_is_defined():
    rows = AccuracyMatrix([[0.9, 0.1], [0.5, 0.9]])
    matrix = AnytimeMatrix.from_tests([], rows)
    assert summarize(matrix) == {}
    message = "needs tests inside of each bucket (test_every); bucket '1' has none"
    assert set(explain(matrix).values()) == {message}
    assert len(explain(matrix)) == len(METRICS)


def test_a_missing_test_leaves_later_steps_undefined():
    complete = build_matrix(COURSE)
    tests = [test for of in complete.tests.values() for test in of]
    lacking = [test for test in tests if (test.bucket, test.test) != (2, 3)]
    matrix = AnytimeMatrix.from_tests(lacking, complete.matrix)
    assert not matrix.is_complete
    assert set(explain(matrix).values()) == {"test 3 of 3 inside bucket '2' is not stored"}
    steps = compute_series(matrix)["continual_evaluation/worst_case_accuracy"]
    assert steps == {1: summarize(complete.after(1))["continual_evaluation/worst_case_accuracy"]}


@pytest.mark.parametrize("num_tests", [10**9, 10**14])
def test_a_number_of_tests_takes_no_memory(num_tests):
    """It is what a file states, not what is stored."""
    tests = inside_bucket(1, [[1], [2]], (9,), num_tests=num_tests)
    matrix = AnytimeMatrix.from_tests(tests, AccuracyMatrix([[0.5]], num_instances=[9]))
    tracemalloc.start()
    assert not matrix.is_complete
    message = f"test 3 of {num_tests} inside bucket '1' is not stored"
    assert set(explain(matrix).values()) == {message}
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("order", [[0, 0], [0, 1, 1], [1, 0]])
def test_tests_in_another_order_or_twice_are_rejected(order):
    matrix = build_matrix(COURSE)
    tests = tuple(matrix.tests[0][number] for number in order)
    with pytest.raises(RecordError, match="is out of its order"):
        AnytimeMatrix(matrix.matrix, {0: tests})


def test_a_bucket_in_training_counts_once_its_row_exists():
    stopped = build_matrix(COURSE, trained=2)
    assert 2 in stopped.tests
    assert summarize(stopped) == summarize(build_matrix(COURSE).after(2))
    assert stopped.is_complete


def test_tests_on_training_images_are_masked():
    (reason,) = set(explain(build_matrix(COURSE, protocol="streaming")).values())
    assert reason.startswith("under the streaming protocol")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buckets": ("a", "b", "c")}, "has buckets"),
        ({"num_instances": (N, N, N + 1)}, "images per bucket, but the rows have"),
        ({"num_tests": 9}, "is one of 9 tests in .*, and test 2 of its bucket one of 3"),
        ({"step": 1}, "follows 1 step, and test 2 of its bucket"),
    ],
)
def test_tests_of_another_run_are_rejected(change, message):
    complete = build_matrix(COURSE)
    *rest, last = complete.tests[1]
    with pytest.raises(RecordError, match=message):
        AnytimeMatrix.from_tests([*rest, msgspec.structs.replace(last, **change)], complete.matrix)


def test_a_file_reads_back_to_the_same_test():
    (test,) = inside_bucket(2, [[1, 2, 3]], (9, 9, 9))
    text = test.to_json(WHEN)
    name = format_anytime_file_name(2, 1)
    assert AnytimeRow.from_json(text, source=name) == test
    assert json.loads(text)["training_on"] == "2"
    newer = {**json.loads(text), "loss": 1.5}
    newer["schema"]["version"] = "1.7"
    assert AnytimeRow.from_json(json.dumps(newer), source=name) == test
    assert parse_anytime_file_name(name) == (2, 1)


def test_rows_and_tests_are_not_confused():
    (test,) = inside_bucket(2, [[1, 2, 3]], (9, 9, 9))
    assert parse_row_index(format_anytime_file_name(2, 1)) is None
    with pytest.raises(RecordError, match=r"schema\.name is 'clear_mlflow/anytime_row'"):
        RowRecord.from_json(test.to_json(WHEN), source="row_002.json")
    assert parse_anytime_file_name("row_002.json") is None
    row = {"schema": {"name": "clear_mlflow/accuracy_row", "version": "1.0"}}
    with pytest.raises(RecordError, match="expected 'clear_mlflow/anytime_row'"):
        AnytimeRow.from_json(json.dumps(row), source=format_anytime_file_name(2, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": 0}, "test is 0"),
        ({"test": 4}, "test is 4, of 3"),
        ({"test": 1}, "renamed or copied"),
        ({"step": 40}, "at the end of a bucket is a row"),
        ({"correct": [1, 2, 10]}, "correct of bucket '3' is 10; expected 0 to its num_inst"),
        ({"training_on": "3"}, "training_on is '3'; bucket 2"),
        ({"schema": {"name": "clear_mlflow/anytime_row", "version": "2.0"}}, "upgrade it"),
    ],
)
def test_an_invalid_test_file_is_a_one_line_error(change, message):
    tests = inside_bucket(2, [[1, 2, 3], [2, 3, 4], [3, 4, 5]], (9, 9, 9))
    content = {**json.loads(tests[1].to_json(WHEN)), **change}
    read, source = AnytimeRow.from_json, format_anytime_file_name(2, 2)
    line = check_error(RecordError, message, read, json.dumps(content), source=source)
    assert line.startswith("bucket_002_test_0002.json: ")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "often", "", "steps", "3 steps 4"])
def test_an_interval_is_epochs_or_steps(text):
    with pytest.raises(ValueError, match="such as 200steps"):
        parse_test_every(text)


def heights(chart):
    numbers = [float(text) for text in chart["curves"][0]["line"].removeprefix("M").split()]
    return numbers[1::2]


def test_a_chart_of_many_tests_shows_every_drop():
    counts = [[30]] * 1233 + [[0]] + [[30]] * 2766
    matrix = build_matrix([(0, height_list) for height_list in [*counts, [30]]], width=1)
    (chart,) = build_within_bucket_charts(matrix)["buckets"]
    height_list = heights(chart)
    assert len(height_list) < 1300
    assert max(height_list) == chart["y_ticks"][0][0]
    assert sum(height == max(height_list) for height in height_list) == 1


def test_the_charts_show_rows_as_dots_and_ends_of_buckets_as_lines():
    charts = build_within_bucket_charts(build_matrix(COURSE, trained=2))
    assert "tested 11 times" in charts["note"]
    titles = [chart["title"] for chart in charts["buckets"]]
    assert titles == [f"Accuracy on bucket {key}" for key in "123"]
    for chart in (charts["mean"], *charts["buckets"]):
        assert len(chart["lines_at"]) == 2
        assert [label for _, label in chart["x_ticks"]] == ["1", "2"]
    first = charts["buckets"][0]["curves"][0]
    assert len(first["dots"]) == 2
    assert len(heights(charts["buckets"][0])) == 13
    assert len(charts["legend"]) == 2


def test_the_curve_of_a_bucket_begins_at_the_end_of_the_bucket_before():
    """So that the drop at its first step is visible."""
    chart = build_within_bucket_charts(build_matrix(COURSE, trained=2))["mean"]
    begins = [float(curve["line"].removeprefix("M").split()[0]) for curve in chart["curves"]]
    first_end, second_end = chart["lines_at"]
    # Two curves of the buckets before; then those of the bucket in training, the first from row 0.
    assert begins[:2] == [first_end, second_end]
    assert begins[2] < first_end
    assert begins[3:] == [first_end, second_end]


def test_masked_tests_are_not_drawn():
    assert build_within_bucket_charts(build_matrix(COURSE, protocol="streaming")) is None
    assert build_within_bucket_charts(AnytimeMatrix.from_tests([], AccuracyMatrix([[0.5]]))) is None
