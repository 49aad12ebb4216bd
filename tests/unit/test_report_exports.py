"""Matrix files: exact numbers, and no formulas."""

import csv
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clear_mlflow import AccuracyMatrix
from clear_mlflow.report.exports import format_matrix_csv, format_matrix_json

NAN = math.nan

printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=100)


@st.composite
def matrices(draw):
    width = draw(st.integers(1, 5))
    k = draw(st.integers(0, width))
    cell = st.floats(0, 1) | st.just(NAN)
    row = st.lists(cell, min_size=width, max_size=width)
    return AccuracyMatrix(
        np.array(draw(st.lists(row, min_size=k, max_size=k))).reshape(k, width),
        draw(st.none() | row),
        draw(st.none() | st.lists(st.integers(1, 2**53), min_size=width, max_size=width)),
        draw(st.lists(printable, min_size=width, max_size=width, unique=True)),
    )


@given(matrices())
def test_a_matrix_round_trips_through_json(matrix):
    content = json.loads(format_matrix_json(matrix), parse_constant=pytest.fail)
    assert content["schema"] == {"name": "clear_mlflow/accuracy_matrix", "version": "1.0"}
    values = np.array(content["values"], dtype=float).reshape(-1, matrix.num_buckets)
    again = AccuracyMatrix(values, content["initial"], content["num_instances"], content["buckets"])
    parts = (matrix.values, matrix.initial, matrix.num_instances, matrix.buckets)
    assert again.equals(AccuracyMatrix(*parts))


@pytest.mark.slow
@given(matrices())
def test_cells_round_trip_through_csv(matrix):
    header, *lines = csv.reader(io.StringIO(format_matrix_csv(matrix)))
    assert header[0] == "trained_through"
    keys = [[key.removeprefix("'") for key in keys] for keys in (header[1:], matrix.buckets)]
    assert keys[0] == keys[1]
    cells = [[float(cell) if cell else NAN for cell in line[1:]] for line in lines]
    expected = [*([] if matrix.initial is None else [matrix.initial]), *matrix.values]
    np.testing.assert_array_equal(cells, np.array(expected).reshape(np.shape(cells)))


@pytest.mark.parametrize("key", ["=1+1", "+1", "-1", "@SUM(A1)", "＝1", '=HYPERLINK("x","y")'])
def test_csv_contains_no_formulas(key):
    """So that a bucket's name runs in no spreadsheet."""
    text = format_matrix_csv(AccuracyMatrix([[0.5]], buckets=[key]))
    header, line = csv.reader(io.StringIO(text))
    assert header[1] == f"'{key}"
    assert line[0] == f"'{key}"
