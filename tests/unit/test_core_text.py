"""Warnings during training are one line, and never end it."""

import numpy as np
import pytest
from closed_streams import run_without_stderr
from one_line_errors import check_error

from clear_mlflow import AccuracyMatrix, Score
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr, warn


def test_the_repr_of_an_array_is_one_line():
    assert safe_repr(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert safe_repr("two  spaces\n") == r"'two  spaces\n'"
    assert len(safe_repr(np.eye(9), 40)) == 40


@pytest.mark.parametrize(
    "call", [lambda: AccuracyMatrix(np.eye(3), num_instances=np.eye(3)), lambda: Score(np.eye(3))]
)
def test_an_error_that_prints_an_array_is_one_line(call):
    check_error(RecordError, "array([[1., 0., 0.], [0., 1., 0.]", call)


def test_a_warning_is_one_line_on_standard_error(capsys):
    warn("the store\nis \x1b[31maway\x1b[0m\r\n" + "x" * 10_000)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert err == line + "\n"
    assert line.startswith("warning: the store is \N{REPLACEMENT CHARACTER}[31maway")
    assert "\x1b" not in err
    assert len(line) <= len("warning: ") + 2000


def test_a_warning_to_a_closed_stream_is_ignored():
    code = """
import os, sys
from clear_mlflow.core.text import warn
sys.stdin.read()
warn("the store is away")
os.write(1, b"training goes on")
os._exit(0)
"""
    assert run_without_stderr(code) == (b"training goes on", 0)
