"""README's sample output: its format, and its metrics computed from its matrix."""

import io
import re

import numpy as np
import pytest
from courses import make_results
from rich.console import Console

from clear_mlflow import AccuracyMatrix
from clear_mlflow.metrics import summarize
from clear_mlflow.report.terminal_tables import build_matrix_table, build_metrics_table


@pytest.fixture
def shown(project):
    text = (project / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(% tested on.*?)^```$", text, re.S | re.M)
    cells = [line.split()[-10:] for line in block.splitlines() if re.match("initial|after", line)]
    values = np.array(cells, dtype=float) / 100
    matrix = AccuracyMatrix(values[1:], initial=values[0], num_instances=[50] * 10)
    lines = re.findall(r"^(\w+/\w+) +(-?[\d.]+(?:e\+\d+)?)", block, re.M)
    metrics = {name: float(value) for name, value in lines}
    return block, matrix, metrics


def test_step_metrics_equal_those_of_the_matrix(shown):
    """Cells have one decimal of a percent, so that means are exact within 0.0005."""
    _, matrix, metrics = shown
    computed = summarize(matrix)
    assert computed.keys() <= metrics.keys()
    for name, value in computed.items():
        assert metrics[name] == pytest.approx(value, abs=0.001), name


def test_the_readmes_output_has_the_format_of_the_program(shown):
    block, matrix, metrics = shown
    out = io.StringIO()
    console = Console(file=out, width=80)
    console.print(build_matrix_table(matrix))
    console.print()
    console.print(build_metrics_table(make_results(metrics).values()))
    printed = [line.rstrip() for line in out.getvalue().splitlines()]
    assert printed == [line.rstrip() for line in block.splitlines()]
