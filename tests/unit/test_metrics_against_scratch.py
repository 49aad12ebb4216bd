"""Metrics against training from scratch follow from loops over cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clear_mlflow.metrics import (
    SCRATCH_METRICS,
    ScratchMatrix,
    compute_values,
    find_horizons,
    format_median_horizon,
)

FRACTIONS = st.floats(0, 1, allow_subnormal=False)


@st.composite
def matrices(draw, cells=FRACTIONS):
    buckets = draw(st.integers(1, 6))
    rows = draw(st.integers(1, buckets))
    values = draw(hnp.arrays(np.float64, (rows, buckets), elements=cells))
    return ScratchMatrix(values, draw(hnp.arrays(np.float64, buckets, elements=cells)))


def compute(matrix):
    """Return the values by the name within the family."""
    values, _ = compute_values(matrix, SCRATCH_METRICS)
    return {name.removeprefix("against_scratch/"): value for name, value in values.items()}


def average(matrix, function, *, past):
    """Return the mean of a function of i and j over cells, with a loop."""
    rows, buckets = matrix.values.shape
    cells = [(i, j) for i in range(rows) for j in range(buckets) if (j < i if past else j > i)]
    return sum(function(i, j) for i, j in cells) / len(cells) if cells else None


@given(matrices())
def test_each_part_is_a_mean_over_cells(matrix):
    r, o = matrix.values, matrix.scratch
    parts = {
        "drop": lambda i, j: r[i, i] - r[i, j],
        "lead": lambda i, _: r[i, i] - o[i],
        "harder": lambda i, j: o[i] - o[j],
        "not_adapted": lambda i, j: o[j] - r[i, j],
    }
    names = {"drop": "drop_past", "lead": "lead_past", "harder": "harder_past"}
    expected = {
        "plasticity": np.mean([r[i, i] - o[i] for i in range(len(r))]),
        **{name: average(matrix, part, past=False) for name, part in parts.items()},
        **{
            names.get(name, "forgetting"): average(matrix, part, past=True)
            for name, part in parts.items()
        },
    }
    values = compute(matrix)
    assert values == pytest.approx({n: v for n, v in expected.items() if v is not None}, abs=1e-12)
    if "drop" in values:
        total = values["lead"] + values["harder"] + values["not_adapted"]
        assert values["drop"] == pytest.approx(total, abs=1e-12)
    if "drop_past" in values:
        total = values["lead_past"] + values["harder_past"] + values["forgetting"]
        assert values["drop_past"] == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("cell", [(0, 1), (1, 1), (1, 0)])
def test_a_cell_that_was_not_measured_is_not_left_out_of_a_mean(cell):
    values = np.full((2, 3), 0.5)
    values[cell] = np.nan
    defined = compute(ScratchMatrix(values, np.full(3, 0.5)))
    past, future = {"drop_past", "forgetting"}, {"drop", "not_adapted"}
    if cell == (0, 1):
        assert past <= defined.keys()
        assert not future & defined.keys()
    elif cell == (1, 0):
        assert future <= defined.keys()
        assert not past & defined.keys()
    else:
        assert not {"plasticity", "drop", "drop_past"} & defined.keys()


def test_only_the_drop_needs_no_training_from_scratch():
    matrix = ScratchMatrix(np.full((2, 2), 0.5), np.full(2, np.nan))
    values, errors = compute_values(matrix, SCRATCH_METRICS)
    assert values == {"against_scratch/drop": 0.0, "against_scratch/drop_past": 0.0}
    assert {str(error) for error in errors.values()} == {
        "a cell, or training from scratch on a bucket, is not measured"
    }


@given(matrices(st.one_of(FRACTIONS, st.just(float("nan")))), st.floats(0, 0.5))
def test_horizons_are_those_of_a_loop(matrix, tolerance):
    expected = []
    rows, buckets = matrix.values.shape
    for i in range(rows):
        horizon, reached_end = None, True
        for j in range(i, buckets):
            gap = matrix.scratch[j] - matrix.values[i, j]
            if np.isnan(gap):
                break
            if gap > tolerance + 1e-12:
                reached_end = False
                break
            horizon = j - i
        expected.append(None if horizon is None else (horizon, reached_end))
    assert find_horizons(matrix, tolerance) == expected


@pytest.mark.parametrize(
    ("horizons", "text"),
    [
        ([(4, False)], "4"),
        ([(4, True)], "at least 4"),
        ([(1, True), (2, False), (3, False)], "at least 2"),
        ([(1, False), (2, False), (3, True)], "2"),
        ([None, (0, False), (5, True)], "0"),
        ([None, None, (5, True)], "none"),
    ],
)
def test_a_lower_bound_is_never_averaged(horizons, text):
    assert format_median_horizon(horizons) == text
