"""Tables for the terminal."""

import io

import numpy as np
import pytest
from courses import explain, make_results
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from clear_mlflow import AccuracyMatrix, Score
from clear_mlflow.metrics import ALL_METRICS, METRICS, summarize
from clear_mlflow.report.terminal_tables import (
    build_matrix_table,
    build_metrics_table,
    describe_retention,
)

TEN = AccuracyMatrix(np.full((10, 10), 1.0), initial=[0.0912] * 10)


def table(*arguments, **options):
    return build_metrics_table(make_results(*arguments, **options).values())


def print_lines(table, width: int = 80) -> list[str]:
    written = io.StringIO()
    console = Console(width=width, file=written, force_terminal=False, _environ={})
    console.print(table)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_ten_buckets_fit_into_eighty_columns():
    lines = print_lines(build_matrix_table(TEN))
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["%", "tested", "on", "→", *(str(j) for j in range(1, 11))]
    assert lines[2].split() == ["initial", *["9.1"] * 10]
    assert lines[12].split() == ["after", "10", *["100.0"] * 10]
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("matrix", "lines"),
    [
        (
            AccuracyMatrix([[0.91, 0.2, 0.1], [0.7, 0.5, 0.2], [0.637, 0.6, 0.8]]),
            [
                "bucket 1: learned 91.0 %, now 63.7 %, retained 70 %",
                "bucket 2: learned 50.0 %, now 60.0 %, retained 120 %",
            ],
        ),
        (AccuracyMatrix([[0.9, 0.8]]), []),
        (AccuracyMatrix([[0.0, 0.8], [0.2, 0.9]]), ["bucket 1: learned 0.0 %, now 20.0 %"]),
        (
            AccuracyMatrix([[np.nan, 0.8, 0.9], [0.5, 0.8, 0.9], [0.4, 0.4, 0.9]]),
            ["bucket 2: learned 80.0 %, now 40.0 %, retained 50 %"],
        ),
        (AccuracyMatrix([[0.9, 0.8], [np.nan, 0.9]]), []),
        (AccuracyMatrix([[0.9, 0.8], [0.7, 0.9]]).mask("streaming"), []),
        (
            AccuracyMatrix([[2.1, 3.8], [2.6, 2.2]], score=Score("rmse", higher_is_better=False)),
            ["bucket 1: learned 2.10, now 2.60"],
        ),
    ],
)
def test_a_line_for_each_earlier_bucket_has_the_share_that_was_retained(matrix, lines):
    assert list(describe_retention(matrix)) == lines


def test_a_line_with_a_long_key_fits_into_eighty_columns():
    matrix = AccuracyMatrix([[1.0, 0.8], [1.0, 0.9]], buckets=["camera " + "x" * 90 + "17", "2"])
    (line,) = describe_retention(matrix)
    assert len(line) <= 80
    assert "x17: learned 100.0 %" in line


def test_unmeasured_cells_are_dashes():
    matrix = AccuracyMatrix([[0.5, np.nan], [0.0, 1.0]], buckets=["2004", "2005"])
    lines = print_lines(build_matrix_table(matrix))
    assert lines[2].split() == ["after", "2004", "50.0", "–"]
    assert lines[3].split() == ["after", "2005", "0.0", "100.0"]
    assert not any("initial" in line for line in lines)


keys_of_buckets = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)


@settings(max_examples=25)
@given(st.lists(keys_of_buckets, min_size=1, max_size=14, unique=True))
def test_any_keys_fit_into_eighty_columns(keys):
    width = len(keys)
    matrix = AccuracyMatrix(np.full((width, width), 1.0), buckets=keys)
    lines = print_lines(build_matrix_table(matrix))
    assert max(map(cell_len, lines)) <= 80
    assert len(lines) == width + 2
    assert all(line.count(" 100.0") == (width if width <= 11 else 10) for line in lines[2:])


def test_metrics_are_shown_with_value_or_reason():
    matrix = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]])
    summary = {"mylab/spread": 0.5, **summarize(matrix)}
    printed_lines = print_lines(table(summary, explain(matrix), lower_is_better={"mylab/spread"}))
    lines = {line.split()[0]: line.split()[1:] for line in printed_lines[2:]}
    assert list(lines) == [*(metric.name for metric in METRICS), "mylab/spread"]
    assert lines["clear/in_domain_accuracy"] == ["0.8500"]
    assert lines["renate/forgetting"] == ["0.1000", "lower", "is", "better"]
    assert lines["mylab/spread"] == ["0.5000", "lower", "is", "better"]
    assert lines["renate/forward_transfer"] == ["–", *["needs", "the", "initialisation", "row"]]
    # A reason is text: R[3, 1] would vanish as a style tag.
    odd = print_lines(table({}, {"renate/forgetting": "R[3, 1] was [b]not[/b] measured"}))
    assert "R[3, 1] was [b]not[/b] measured" in odd[2]
    everything = dict.fromkeys((metric.name for metric in reversed(ALL_METRICS)), 0.5)
    printed_lines = [line.split()[0] for line in print_lines(table(everything, {}))[2:]]
    assert printed_lines == [metric.name for metric in ALL_METRICS]
