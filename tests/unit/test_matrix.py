"""The accuracy matrix and its rows."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_line_errors import check_error

from clear_mlflow import scores
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import RowCost

NAN = math.nan


def row(number: int, *correct: int, buckets=None, total: int = 10) -> AccuracyRow:
    keys = buckets or tuple(str(j + 1) for j in range(len(correct)))
    return AccuracyRow(number, keys, correct, (total,) * len(correct))


def test_a_row_computes_accuracy_and_the_last_trained_bucket():
    measured = AccuracyRow(2, ("2004", "2005"), (1, 2), (3, 4))
    assert measured.cells == (1 / 3, 0.5)
    assert measured.trained_through == "2005"
    assert row(0, 1, 2).trained_through is None


def test_a_row_may_have_fractions_instead_of_counts():
    first = AccuracyRow.from_values(1, ["a", "b"], [0.25, float("nan")])
    other = AccuracyRow.from_values(1, ["a", "b"], [0.25, float("nan")])
    assert first == other
    assert first.correct is None
    assert first.cells[0] == 0.25
    assert math.isnan(first.cells[1])
    matrix = AccuracyMatrix.from_rows([first])
    assert matrix.num_instances is None
    np.testing.assert_array_equal(matrix.values, [[0.25, NAN]])
    counted = AccuracyMatrix.from_rows([AccuracyRow.from_values(1, ["a"], [1], [7])])
    np.testing.assert_array_equal(counted.num_instances, [7])
    assert str(AccuracyRow.from_values(0, ["a"], [-0.0]).cells[0]) == "0.0"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((-1, ("a",), (1,), (2,)), "row is -1"),
        ((True, ("a",), (1,), (2,)), "row: expected 'int', got 'bool'"),
        ((0, (), (), ()), "buckets has 0 keys"),
        ((0, "ab", (1, 1), (2, 2)), "buckets: expected 'array'"),
        ((0, ("a", "a"), (1, 1), (2, 2)), "occurs twice"),
        ((0, ("",), (1,), (2,)), "bucket key is ''"),
        ((0, ("x" * 101,), (1,), (2,)), "1 to 100"),
        ((0, ("a\x1b[2J",), (1,), (2,)), "printable"),
        ((0, ("\ud800",), (1,), (2,)), "printable"),
        ((0, ("a", "b"), (1,), (2, 2)), "correct has 1 entry for 2"),
        ((0, ("a",), (3,), (2,)), "correct of bucket 'a' is 3"),
        ((0, ("a",), (0,), (0,)), "num_instances of bucket 'a' is 0"),
        ((0, ("a",), (1,), (2**53 + 1,)), "2**53"),
        ((0, ("a",), (1.0,), (2,)), "correct[0]: expected 'int'"),
        ((0, ("a",), None, (2,)), "correct: expected 'array', got 'null'"),
        ((0, ("a",), (10**5000,), (2,)), "too long to write out"),
        ((0, ("a",), (1,), (2,), (0.5,)), "got both correct and values"),
        ((0, ("a",), None, None), "num_instances: expected 'array'"),
        ((0, ("a", "b"), None, None, (0.5,)), "each of the 2 buckets"),
        ((0, ("a",), None, None, (50.0,)), "not percent"),
        ((0, ("a",), None, None, (NAN,)), "was not measured on any bucket"),
        ((0, ("a",), None, (2, 2), (0.5,)), "num_instances has 2 entries for 1"),
    ],
)
def test_impossible_rows_are_rejected_in_one_line(arguments, part):
    assert len(check_error(RecordError, part, AccuracyRow, *arguments)) < 300


def test_trailing_rows_without_a_cell_are_dropped_and_inner_ones_kept():
    full = [[0.1] * 4, [NAN] * 4, [NAN, NAN, 0.3, NAN], [NAN] * 4]
    matrix = AccuracyMatrix(full)
    assert (matrix.num_rows, matrix.num_buckets) == (3, 4)
    assert np.isnan(matrix.values[1]).all()
    assert matrix.equals(AccuracyMatrix(full[:3]))
    assert AccuracyMatrix(np.full((2, 3), NAN)).num_rows == 0


def test_arrays_are_copies_and_read_only():
    values, initial, counts = np.full((2, 2), 0.5), np.full(2, 0.1), np.array([3, 4])
    matrix = AccuracyMatrix(values, initial, counts)
    values[0, 0], initial[0], counts[0] = 0.9, 0.9, 9
    assert matrix.values[0, 0] == 0.5
    assert matrix.initial[0] == 0.1
    assert matrix.num_instances[0] == 3
    for array in (matrix.values, matrix.initial, matrix.num_instances, matrix.after(1).values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    "arguments",
    [
        *({"values": [[1.1]]}, {"values": [[math.inf]]}, {"values": [0.5]}),
        *({"values": np.empty((0, 0))}, {"values": [[0.5], [0.5]]}, {"values": [["high"]]}),
        *({"values": [[0.5, 0.5], [0.5]]}, {"values": [[0.5, 0.5]], "buckets": ["a", "a"]}),
        *({"initial": [0.5, 0.5]}, {"initial": [math.inf]}),
        *({"num_instances": counts} for counts in ([0], [1.5], [1, 2], [2**60])),
        *({"buckets": ["a", "b"]}, {"buckets": []}, {"buckets": (key for key in "a")}),
        *({"score": "rmse"}, {"num_instances": np.ma.array([5], mask=[1])}),
    ],
)
def test_impossible_matrices_are_rejected_in_one_line(arguments):
    check_error(RecordError, "", AccuracyMatrix, **{"values": [[0.5]], **arguments})


def test_a_masked_cell_was_not_measured():
    masked = np.ma.array([[0.8, 0.6], [0.7, 0.9]], mask=[[0, 1], [0, 0]])
    expected = AccuracyMatrix([[0.8, NAN], [0.7, 0.9]], initial=[NAN, 0.1])
    initial = np.ma.array([0.5, 0.1], mask=[1, 0])
    for values in (masked, list(masked), np.ma.array(masked, np.float32).round(6)):
        np.testing.assert_allclose(AccuracyMatrix(values).values, expected.values, rtol=1e-6)
    assert AccuracyMatrix(masked, initial=initial).equals(expected)
    assert "row 1, column 2" in scores(masked)["clear/next_domain_accuracy"].reason


@pytest.mark.parametrize(
    "keys", [np.array(["a", "b"]), pd.Index(["a", "b"]), pd.Series(["a", "b"])]
)
def test_bucket_keys_may_be_an_array(keys):
    assert AccuracyMatrix([[0.5, 0.5]], buckets=keys).buckets == ("a", "b")
    assert AccuracyRow.from_values(1, keys, [0.5, 0.5]).buckets == ("a", "b")


def test_rows_in_any_order_become_the_matrix():
    matrix = AccuracyMatrix.from_rows([row(3, 7, 8, 9), row(0, 1, 2, 3), row(1, 4, 5, 6)])
    expected = [[0.4, 0.5, 0.6], [NAN] * 3, [0.7, 0.8, 0.9]]
    np.testing.assert_array_equal(matrix.values, expected)
    np.testing.assert_array_equal(matrix.initial, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(matrix.num_instances, [10, 10, 10])
    assert not matrix.is_complete
    assert AccuracyMatrix.from_rows([row(0, 1, 2)]).num_rows == 0


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([], "no row"),
        ([row(1, 1, 2), row(1, 1, 2)], "row 1 was passed twice"),
        ([row(1, 1, 2), row(2, 1, 2, buckets=("1", "x"))], "rows 1 and 2 contradict"),
        ([row(1, 1, 2), row(0, 1, 2, total=11)], "rows 0 and 1 contradict"),
    ],
)
def test_rows_of_different_runs_are_rejected(rows, part):
    check_error(RecordError, part, AccuracyMatrix.from_rows, rows)


def test_after_k_has_k_rows_including_unmeasured_ones():
    matrix = AccuracyMatrix.from_rows([row(1, 1, 2, 3), row(3, 1, 2, 3)])
    assert [matrix.after(k).num_rows for k in range(4)] == [0, 1, 2, 3]
    assert matrix.after(2).buckets == matrix.buckets
    for k in (-1, 4):
        check_error(RecordError, "cut a matrix of 3 rows", matrix.after, k)


def test_streaming_leaves_the_strict_upper_triangle_and_all_rows():
    """Other cells score training images. The shape is unchanged."""
    matrix = AccuracyMatrix([[0.1, 0.2], [0.3, 0.4]], initial=[0.5, 0.6])
    masked = matrix.mask("streaming")
    np.testing.assert_array_equal(masked.values, [[NAN, 0.2], [NAN, NAN]])
    np.testing.assert_array_equal(masked.initial, [0.5, 0.6])
    assert matrix.mask("iid") is matrix
    assert matrix.is_complete
    with pytest.raises(ConfigError, match=r"'offline'.*iid, streaming"):
        matrix.mask("offline")


def test_equality_compares_every_part():
    parts = ([[0.1, NAN]], [0.2, NAN], [3, 4], ["a", "b"])
    first = AccuracyMatrix(*parts)
    assert first.equals(AccuracyMatrix(*parts))
    for index, other in enumerate(([[0.2, NAN]], None, [3, 5], ["a", "c"])):
        assert not first.equals(AccuracyMatrix(*parts[:index], other, *parts[index + 1 :]))


@given(st.integers(1, 5), st.data())
def test_any_numbers_make_a_canonical_matrix_or_an_error(width, data):
    row = st.lists(st.floats(allow_nan=True), min_size=width, max_size=width)
    rows = data.draw(st.lists(row, max_size=width))
    try:
        matrix = AccuracyMatrix(np.array(rows, dtype=float).reshape(len(rows), width))
    except ClearError:
        assert any(not math.isnan(v) and not 0 <= v <= 1 for cells in rows for v in cells)
        return
    assert matrix.num_rows <= len(rows)
    assert matrix.num_rows == 0 or not np.isnan(matrix.values[-1]).all()
    assert matrix.equals(AccuracyMatrix(matrix.values))


def test_a_last_row_without_a_measured_cell_keeps_its_cost():
    gap = [math.nan, math.nan]
    costs = [RowCost(seconds=1.0), RowCost(seconds=2.0)]
    matrix = AccuracyMatrix([[0.5, 0.4], gap], costs=costs)
    assert (matrix.num_rows, matrix.costs) == (2, tuple(costs))
    assert scores(matrix, metrics="cost")["cost/seconds"].value == 3.0
    assert AccuracyMatrix([[0.5, 0.4], gap], costs=[costs[0], None]).num_rows == 1
    assert AccuracyMatrix([[0.5, 0.4], gap], costs=costs[:1]).num_rows == 1
