"""Tables for the terminal."""

import io

import numpy as np
from courses import explain, make_results
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from clear_mlflow import AccuracyMatrix
from clear_mlflow.metrics import ALL_METRICS, METRICS, summarize
from clear_mlflow.report.terminal_tables import build_matrix_table, build_metrics_table

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
